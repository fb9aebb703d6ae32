//! The population of the tables: clause 4.3.3 of the specification.

use super::keys::{self, District};
use super::random::{Constants, Random};
use super::rows::{customer, district, history, item, order, order_line, stock, warehouse};
use super::{CUSTOMERS, DELIVERED, DISTRICTS, ITEMS, now};
use crate::Result;
use crate::engines::store::{Access, Session, Store, Transaction};
use crate::keys::Generator;
use std::ops::RangeInclusive;

/// The thread to which the payments belong that are loaded.
pub const LOADER: u32 = 0;

/// In cents.
const DOLLAR: i64 = 100;

/// How many customers of a district, from the first on, have the last names of the numbers 0 to 999 in order.
const NAMED_IN_ORDER: u32 = 1000;

/// Fills the tables, a transaction for the items, one for each warehouse and its stock, and one for each district.
///
/// # Errors
/// What the engine says.
pub fn load<S: Store>(
    store: &S,
    warehouses: RangeInclusive<u32>,
    constants: &Constants,
    seed: u64,
) -> Result<()> {
    let mut session = store.session()?;
    let random = |part: u32| Random::new(Generator::new(seed, u64::from(part), u64::MAX));
    let mut transaction = session.begin(Access::Write)?;
    items(&mut transaction, &mut random(0))?;
    transaction.commit()?;
    for number in warehouses {
        let (mut random, date) = (random(number), now());
        for part in 0..=DISTRICTS {
            let transaction = session.begin(Access::Write)?;
            let mut loader = Loader { transaction, random: &mut random, constants, date };
            if part == 0 {
                loader.warehouse(number)?;
                loader.stock(number)?;
            } else {
                let place = District { warehouse: number, number: part };
                loader.district(place)?;
                loader.customers(place)?;
                loader.orders(place)?;
            }
            loader.transaction.commit()?;
        }
    }
    Ok(())
}

fn items<T: Transaction>(transaction: &mut T, random: &mut Random) -> Result<()> {
    for number in 1..=ITEMS {
        let mut row = [0; item::BYTES];
        item::IMAGE.set(&mut row, random.within(1, 10_000));
        random.text(item::NAME.get_mut(&mut row), 14, 24);
        item::PRICE.set(&mut row, random.within(100, 10_000));
        random.data(item::DATA.get_mut(&mut row));
        transaction.insert(keys::ITEM, &keys::item(number), &row)?;
    }
    Ok(())
}

struct Loader<'c, T> {
    transaction: T,
    random: &'c mut Random,
    constants: &'c Constants,
    date: i64,
}

impl<T: Transaction> Loader<'_, T> {
    /// Two streets, a city, a state and a zip code.
    fn address(&mut self, target: &mut [u8; 71]) {
        let (streets, rest) = target.split_at_mut(60);
        for street in streets.chunks_exact_mut(20) {
            self.random.text(street, 10, 20);
        }
        let (state, zip) = rest.split_at_mut(2);
        self.random.capitals(state);
        self.random.digits(&mut zip[..4]);
        zip[4..].fill(b'1');
    }

    fn warehouse(&mut self, number: u32) -> Result<()> {
        let mut row = [0; warehouse::BYTES];
        self.random.text(warehouse::NAME.get_mut(&mut row), 6, 10);
        self.address(warehouse::ADDRESS.get_mut(&mut row));
        warehouse::TAX.set(&mut row, self.random.within(0, 2000) as u16);
        warehouse::YEAR_TO_DATE.set(&mut row, 300_000 * DOLLAR);
        self.transaction.insert(keys::WAREHOUSE, &keys::warehouse(number), &row)
    }

    fn stock(&mut self, warehouse: u32) -> Result<()> {
        for item in 1..=ITEMS {
            let mut row = [0; stock::BYTES];
            stock::QUANTITY.set(&mut row, self.random.within(10, 100) as u16);
            self.random.text(stock::DISTRICTS.get_mut(&mut row), 240, 240);
            self.random.data(stock::DATA.get_mut(&mut row));
            self.transaction.insert(keys::STOCK, &keys::stock(warehouse, item), &row)?;
        }
        Ok(())
    }

    fn district(&mut self, place: District) -> Result<()> {
        let mut row = [0; district::BYTES];
        self.random.text(district::NAME.get_mut(&mut row), 6, 10);
        self.address(district::ADDRESS.get_mut(&mut row));
        district::TAX.set(&mut row, self.random.within(0, 2000) as u16);
        district::YEAR_TO_DATE.set(&mut row, 30_000 * DOLLAR);
        district::NEXT_ORDER.set(&mut row, CUSTOMERS + 1);
        self.transaction.insert(keys::DISTRICT, &keys::district(place), &row)
    }

    fn customers(&mut self, place: District) -> Result<()> {
        for number in 1..=CUSTOMERS {
            let mut row = [0; customer::BYTES];
            self.random.text(customer::FIRST.get_mut(&mut row), 8, 16);
            customer::MIDDLE.get_mut(&mut row).copy_from_slice(b"OE");
            let last = if number <= NAMED_IN_ORDER {
                super::random::last_name(number - 1)
            } else {
                self.random.last_name_loaded(self.constants)
            };
            *customer::LAST.get_mut(&mut row) = last;
            self.address(customer::ADDRESS.get_mut(&mut row));
            self.random.digits(customer::PHONE.get_mut(&mut row));
            customer::SINCE.set(&mut row, self.date);
            let credit = if self.random.percent(10) { b"BC" } else { b"GC" };
            customer::CREDIT.get_mut(&mut row).copy_from_slice(credit);
            customer::CREDIT_LIMIT.set(&mut row, 50_000 * DOLLAR);
            customer::DISCOUNT.set(&mut row, self.random.within(0, 5000) as u16);
            customer::BALANCE.set(&mut row, -10 * DOLLAR);
            customer::PAID.set(&mut row, 10 * DOLLAR);
            customer::PAYMENTS.set(&mut row, 1);
            self.random.text(customer::DATA.get_mut(&mut row), 300, 500);
            self.transaction.insert(keys::CUSTOMER, &keys::customer(place, number), &row)?;
            let by_name = keys::customer_by_name(place, &last, customer::FIRST.get(&row), number);
            self.transaction.insert(keys::CUSTOMER_BY_NAME, &by_name, &[])?;
            self.payment(place, number)?;
        }
        Ok(())
    }

    /// The payment that each customer has made.
    fn payment(&mut self, place: District, customer: u32) -> Result<()> {
        let mut row = [0; history::BYTES];
        history::CUSTOMER.set(&mut row, customer);
        history::CUSTOMER_DISTRICT.set(&mut row, place.number);
        history::CUSTOMER_WAREHOUSE.set(&mut row, place.warehouse);
        history::DISTRICT.set(&mut row, place.number);
        history::WAREHOUSE.set(&mut row, place.warehouse);
        history::DATE.set(&mut row, self.date);
        history::AMOUNT.set(&mut row, 10 * DOLLAR);
        self.random.text(history::DATA.get_mut(&mut row), 12, 24);
        let districts_before =
            u64::from(place.warehouse - 1) * u64::from(DISTRICTS) + u64::from(place.number - 1);
        let number = districts_before * u64::from(CUSTOMERS) + u64::from(customer);
        self.transaction.insert(keys::HISTORY, &keys::history(LOADER, number), &row)
    }

    fn orders(&mut self, place: District) -> Result<()> {
        let mut customers: Vec<u32> = (1..=CUSTOMERS).collect();
        self.random.shuffle(&mut customers);
        for (number, customer) in (1..).zip(customers) {
            let delivered = number <= DELIVERED;
            let lines = self.random.within(5, 15) as u8;
            let mut row = [0; order::BYTES];
            order::CUSTOMER.set(&mut row, customer);
            order::ENTRY_DATE.set(&mut row, self.date);
            order::CARRIER.set(&mut row, if delivered { self.random.within(1, 10) as u8 } else { 0 });
            order::LINES.set(&mut row, lines);
            order::ALL_LOCAL.set(&mut row, 1);
            self.transaction.insert(keys::ORDER, &keys::order(place, number), &row)?;
            let by_customer = keys::order_by_customer(place, customer, number);
            self.transaction.insert(keys::ORDER_BY_CUSTOMER, &by_customer, &[])?;
            for line in 1..=lines {
                self.order_line(place, number, line, delivered)?;
            }
            if !delivered {
                self.transaction.insert(keys::NEW_ORDER, &keys::order(place, number), &[])?;
            }
        }
        Ok(())
    }

    fn order_line(&mut self, place: District, order: u32, number: u8, delivered: bool) -> Result<()> {
        let mut row = [0; order_line::BYTES];
        order_line::ITEM.set(&mut row, self.random.within(1, ITEMS));
        order_line::SUPPLIER.set(&mut row, place.warehouse);
        order_line::DELIVERY_DATE.set(&mut row, if delivered { self.date } else { 0 });
        order_line::QUANTITY.set(&mut row, 5);
        let amount = if delivered { 0 } else { i64::from(self.random.within(1, 999_999)) };
        order_line::AMOUNT.set(&mut row, amount);
        self.random.text(order_line::DISTRICT_INFO.get_mut(&mut row), 24, 24);
        self.transaction.insert(keys::ORDER_LINE, &keys::order_line(place, order, number), &row)
    }
}
