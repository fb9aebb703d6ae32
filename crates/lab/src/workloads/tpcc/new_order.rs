//! The new-order transaction: clause 2.4.

use super::keys::{self, District};
use super::outcome::{Outcome, must, must_all};
use super::random::{Constants, Random};
use super::rows::{customer, district, item, order, order_line, stock, warehouse};
use super::{DISTRICTS, ITEMS, is_original};
use crate::Result;
use crate::engines::store::Transaction;
use std::hint::black_box;

/// The most lines that an order has.
const LINES_MAX: usize = 15;

/// What is ordered.
#[derive(Clone, Copy, Default, Debug)]
struct Line {
    item: u32,
    supplier: u32,
    quantity: u8,
}

/// What is entered.
#[derive(Debug)]
pub struct Input {
    place: District,
    customer: u32,
    lines: [Line; LINES_MAX],
    count: usize,
    date: i64,
}

/// What is known of an item.
#[derive(Clone, Copy, Default)]
struct Item {
    price: i64,
    name: [u8; 24],
    original: bool,
}

/// What a stock says when something was taken from it.
#[derive(Clone, Copy, Default)]
struct Taken {
    info: [u8; 24],
    left: u16,
    brand: bool,
}

impl Input {
    /// Draws what is entered at a terminal of `home`; `other` draws another warehouse, if there is one.
    pub fn draw(
        random: &mut Random,
        constants: &Constants,
        home: u32,
        other: impl Fn(&mut Random) -> u32,
        date: i64,
    ) -> Self {
        let place = District { warehouse: home, number: random.within(1, u32::from(DISTRICTS)) as u8 };
        let customer = random.customer(constants);
        let count = random.within(5, LINES_MAX as u32) as usize;
        let rolled_back = random.percent(1);
        let mut lines = [Line::default(); LINES_MAX];
        for line in &mut lines[..count] {
            line.item = random.item(constants);
            line.supplier = if random.percent(1) { other(random) } else { home };
            line.quantity = random.within(1, 10) as u8;
        }
        if rolled_back {
            lines[count - 1].item = ITEMS + 1;
        }
        Self { place, customer, lines, count, date }
    }

    fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }
}

/// Runs the transaction. If it is to be rolled back, nothing has been changed.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn run<T: Transaction>(transaction: &mut T, input: &Input) -> Result<Outcome> {
    let place = input.place;
    let key = keys::warehouse(place.warehouse);
    let warehouse_tax = transaction.get(keys::WAREHOUSE, &key, |row| warehouse::TAX.get(row))?;
    let warehouse_tax = must(warehouse_tax, "warehouse", &key)?;
    let key = keys::customer(place, input.customer);
    let customer = transaction.get(keys::CUSTOMER, &key, |row| {
        (customer::DISCOUNT.get(row), *customer::LAST.get(row), *customer::CREDIT.get(row))
    })?;
    let (discount, last, credit) = must(customer, "customer", &key)?;
    let Some(items) = find_items(transaction, input)? else { return Ok(Outcome::RolledBack) };
    // From here on it changes something, and goes through.
    let key = keys::district(place);
    let next = transaction.modify(keys::DISTRICT, &key, |row| {
        let order = district::NEXT_ORDER.get(row);
        district::NEXT_ORDER.set(row, order + 1);
        (order, district::TAX.get(row))
    })?;
    let (order, district_tax) = must(next, "district", &key)?;
    if order > keys::ORDER_MAX {
        return Err(format!("there is no room for more than {} orders of a district", keys::ORDER_MAX).into());
    }
    let taken = take_from_stock(transaction, input, &items)?;
    let mut total = 0;
    for (number, ((line, item), taken)) in (1..).zip(input.lines().iter().zip(&items).zip(&taken)) {
        total += order_line(transaction, place, order, number, line, item, taken)?;
    }
    insert_order(transaction, input, order)?;
    let rest = i128::from(10_000 - i64::from(discount));
    let taxed = i128::from(10_000 + i64::from(warehouse_tax) + i64::from(district_tax));
    black_box((i128::from(total) * rest * taxed / 100_000_000, last, credit, order));
    Ok(Outcome::Done)
}

/// What is ordered; `None` if one of the items does not exist.
fn find_items<T: Transaction>(transaction: &mut T, input: &Input) -> Result<Option<[Item; LINES_MAX]>> {
    let mut items = [Item::default(); LINES_MAX];
    let mut all_exist = true;
    let keys = input.lines.map(|line| keys::item(line.item));
    transaction.get_heads(keys::ITEM, &keys[..input.count], item::BYTES, |number, row| match row {
        Some(row) => {
            items[number] = Item {
                price: i64::from(item::PRICE.get(row)),
                name: *item::NAME.get(row),
                original: is_original(item::DATA.get(row)),
            };
        }
        None => all_exist = false,
    })?;
    Ok(all_exist.then_some(items))
}

/// Takes what is ordered from the stocks.
fn take_from_stock<T: Transaction>(
    transaction: &mut T,
    input: &Input,
    items: &[Item; LINES_MAX],
) -> Result<[Taken; LINES_MAX]> {
    let place = input.place;
    let mut taken = [Taken::default(); LINES_MAX];
    let keys = input.lines.map(|line| keys::stock(line.supplier, line.item));
    let keys = &keys[..input.count];
    let all = transaction.modify_all(keys::STOCK, keys, |number, row| {
        let line = &input.lines[number];
        let quantity = u16::from(line.quantity);
        let before = stock::QUANTITY.get(row);
        let after = if before >= quantity + 10 { before - quantity } else { before + 91 - quantity };
        stock::QUANTITY.set(row, after);
        stock::YEAR_TO_DATE.add(row, u32::from(line.quantity));
        stock::ORDERS.add(row, 1);
        stock::REMOTE_ORDERS.add(row, u32::from(line.supplier != place.warehouse));
        let at = usize::from(place.number - 1) * 24;
        taken[number] = Taken {
            info: stock::DISTRICTS.get(row)[at..].first_chunk().copied().unwrap_or([0; 24]),
            left: after,
            brand: items[number].original && is_original(stock::DATA.get(row)),
        };
    })?;
    must_all(all, "stocks", keys)?;
    Ok(taken)
}

/// Writes a line; gives its amount.
fn order_line<T: Transaction>(
    transaction: &mut T,
    place: District,
    order: u32,
    number: u8,
    line: &Line,
    item: &Item,
    taken: &Taken,
) -> Result<i64> {
    let amount = i64::from(line.quantity) * item.price;
    let mut row = [0; order_line::BYTES];
    order_line::ITEM.set(&mut row, line.item);
    order_line::SUPPLIER.set(&mut row, line.supplier);
    order_line::QUANTITY.set(&mut row, line.quantity);
    order_line::AMOUNT.set(&mut row, amount);
    *order_line::DISTRICT_INFO.get_mut(&mut row) = taken.info;
    transaction.insert(keys::ORDER_LINE, &keys::order_line(place, order, number), &row)?;
    black_box((item.name, taken.left, taken.brand));
    Ok(amount)
}

/// Writes the order, whose lines are there, and lets it be found.
fn insert_order<T: Transaction>(transaction: &mut T, input: &Input, order: u32) -> Result<()> {
    let place = input.place;
    let all_local = input.lines().iter().all(|line| line.supplier == place.warehouse);
    let mut row = [0; order::BYTES];
    order::CUSTOMER.set(&mut row, input.customer);
    order::ENTRY_DATE.set(&mut row, input.date);
    order::LINES.set(&mut row, input.count as u8);
    order::ALL_LOCAL.set(&mut row, u8::from(all_local));
    let key = keys::order(place, order);
    transaction.insert(keys::ORDER, &key, &row)?;
    let by_customer = keys::order_by_customer(place, input.customer, order);
    transaction.insert(keys::ORDER_BY_CUSTOMER, &by_customer, &[])?;
    transaction.insert(keys::NEW_ORDER, &key, &[])
}
