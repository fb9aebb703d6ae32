//! The two transactions that only read: order-status, clause 2.6, and stock-level, clause 2.8.

use super::DISTRICTS;
use super::keys::{self, District};
use super::outcome::{Outcome, must};
use super::payment::Who;
use super::random::{Constants, Random};
use super::rows::{customer, district, order, order_line, stock};
use crate::Result;
use crate::engines::store::Transaction;
use std::hint::black_box;
use std::ops::ControlFlow;

/// How many of the last orders stock-level looks at.
const RECENT_ORDERS: u32 = 20;

/// What is entered for order-status.
#[derive(Debug)]
pub struct StatusInput {
    place: District,
    who: Who,
}

impl StatusInput {
    /// Draws what is entered at a terminal of `home`.
    pub fn draw(random: &mut Random, constants: &Constants, home: u32) -> Self {
        let place = District { warehouse: home, number: random.within(1, u32::from(DISTRICTS)) as u8 };
        Self { place, who: Who::draw(random, constants) }
    }
}

/// Runs order-status.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn order_status<T: Transaction>(transaction: &mut T, input: &StatusInput) -> Result<Outcome> {
    let place = input.place;
    let found = input.who.find(transaction, place)?;
    let customer = must(found, "customer of that name", &keys::district(place))?;
    let key = keys::customer(place, customer);
    let found = transaction.get(keys::CUSTOMER, &key, |row| {
        (
            *customer::FIRST.get(row),
            *customer::MIDDLE.get(row),
            *customer::LAST.get(row),
            customer::BALANCE.get(row),
        )
    })?;
    black_box(must(found, "customer", &key)?);
    let prefix = keys::orders_by_customer(place, customer);
    let mut last = None;
    transaction.scan(keys::ORDER_BY_CUSTOMER, &prefix, |key, _| {
        last = key.starts_with(&prefix).then(|| keys::order_of_customer(key));
        ControlFlow::Break(())
    })?;
    // Each customer has had one order since the tables were loaded.
    let last = must(last, "order of customer", &prefix)?;
    let key = keys::order(place, last);
    let found =
        transaction.get(keys::ORDER, &key, |row| (order::ENTRY_DATE.get(row), order::CARRIER.get(row)))?;
    black_box(must(found, "order", &key)?);
    transaction.scan(keys::ORDER_LINE, &key, |line, row| {
        if !line.starts_with(&key) {
            return ControlFlow::Break(());
        }
        black_box((
            order_line::ITEM.get(row),
            order_line::SUPPLIER.get(row),
            order_line::QUANTITY.get(row),
            order_line::AMOUNT.get(row),
            order_line::DELIVERY_DATE.get(row),
        ));
        ControlFlow::Continue(())
    })?;
    Ok(Outcome::Done)
}

/// What is entered for stock-level.
#[derive(Debug)]
pub struct LevelInput {
    place: District,
    threshold: u16,
}

impl LevelInput {
    /// Draws what is entered at a terminal of `home`, of any of its districts.
    pub fn draw(random: &mut Random, home: u32) -> Self {
        let place = District { warehouse: home, number: random.within(1, u32::from(DISTRICTS)) as u8 };
        Self { place, threshold: random.within(10, 20) as u16 }
    }
}

/// Runs stock-level; `items` is room for the items, to be used again.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn stock_level<T: Transaction>(
    transaction: &mut T,
    input: &LevelInput,
    items: &mut Vec<u32>,
) -> Result<Outcome> {
    let place = input.place;
    let key = keys::district(place);
    let found = transaction.get(keys::DISTRICT, &key, |row| district::NEXT_ORDER.get(row))?;
    let next = must(found, "district", &key)?;
    items.clear();
    let first = keys::order_line(place, next.saturating_sub(RECENT_ORDERS), 0);
    let end = keys::order(place, next);
    transaction.scan(keys::ORDER_LINE, &first, |key, row| {
        if key >= &end[..] {
            return ControlFlow::Break(());
        }
        items.push(order_line::ITEM.get(row));
        ControlFlow::Continue(())
    })?;
    items.sort_unstable();
    items.dedup();
    let keys: Vec<_> = items.iter().map(|item| keys::stock(place.warehouse, *item)).collect();
    let (mut low, mut missing) = (0, None);
    transaction.get_heads(keys::STOCK, &keys, stock::QUANTITY.end(), |number, row| match row {
        Some(row) => low += u32::from(stock::QUANTITY.get(row) < input.threshold),
        None => missing = keys.get(number),
    })?;
    if let Some(key) = missing {
        must(None, "stock", key)?;
    }
    black_box(low);
    Ok(Outcome::Done)
}
