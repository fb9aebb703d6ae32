//! The payment transaction: clause 2.5; and the choice of a customer, which order-status has too.

use super::DISTRICTS;
use super::keys::{self, District};
use super::outcome::{Outcome, must};
use super::random::{Constants, LastName, Random};
use super::rows::{customer, district, history, warehouse};
use crate::Result;
use crate::engines::store::Transaction;
use std::hint::black_box;
use std::io::Write;
use std::ops::ControlFlow;

/// How a customer is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// By C_ID.
    Number(u32),
    /// By C_LAST: the one in the middle, by first names.
    Name(LastName),
}

impl Who {
    /// 60 times in a hundred by name.
    pub fn draw(random: &mut Random, constants: &Constants) -> Self {
        if random.percent(60) {
            Self::Name(random.last_name(constants))
        } else {
            Self::Number(random.customer(constants))
        }
    }

    /// The number of the customer; `None` if there is no such name.
    ///
    /// # Errors
    /// What the engine says.
    pub fn find<T: Transaction>(self, transaction: &mut T, place: District) -> Result<Option<u32>> {
        let name = match self {
            Self::Number(number) => return Ok(Some(number)),
            Self::Name(name) => name,
        };
        let prefix = keys::customers_by_name(place, &name);
        let mut all = Vec::with_capacity(16);
        transaction.scan(keys::CUSTOMER_BY_NAME, &prefix, |key, _| {
            if !key.starts_with(&prefix) {
                return ControlFlow::Break(());
            }
            all.push(keys::customer_of_name(key));
            ControlFlow::Continue(())
        })?;
        // The n/2-th, rounded up, counted from one.
        Ok(all.get(all.len().saturating_sub(1) / 2).copied())
    }
}

/// What is entered.
#[derive(Debug)]
pub struct Input {
    place: District,
    customer_place: District,
    who: Who,
    amount: i64,
    date: i64,
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
        let district = |random: &mut Random| random.within(1, u32::from(DISTRICTS)) as u8;
        let place = District { warehouse: home, number: district(random) };
        let customer_place = if random.percent(85) {
            place
        } else {
            District { warehouse: other(random), number: district(random) }
        };
        let who = Who::draw(random, constants);
        Self { place, customer_place, who, amount: i64::from(random.within(100, 500_000)), date }
    }
}

/// Runs the transaction.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn run<T: Transaction>(transaction: &mut T, input: &Input, payment: &[u8; 12]) -> Result<Outcome> {
    let place = input.place;
    let found = input.who.find(transaction, input.customer_place)?;
    let customer = must(found, "customer of that name", &keys::district(input.customer_place))?;
    let key = keys::warehouse(place.warehouse);
    let found = transaction.modify(keys::WAREHOUSE, &key, |row| {
        warehouse::YEAR_TO_DATE.add(row, input.amount);
        (*warehouse::NAME.get(row), *warehouse::ADDRESS.get(row))
    })?;
    let (warehouse_name, warehouse_address) = must(found, "warehouse", &key)?;
    let key = keys::district(place);
    let found = transaction.modify(keys::DISTRICT, &key, |row| {
        district::YEAR_TO_DATE.add(row, input.amount);
        (*district::NAME.get(row), *district::ADDRESS.get(row))
    })?;
    let (district_name, district_address) = must(found, "district", &key)?;
    let key = keys::customer(input.customer_place, customer);
    let found = transaction.modify(keys::CUSTOMER, &key, |row| {
        customer::BALANCE.add(row, -input.amount);
        customer::PAID.add(row, input.amount);
        customer::PAYMENTS.add(row, 1);
        if customer::CREDIT.get(row) == b"BC" {
            let mut note = [0; NOTE_BYTES];
            let bytes = describe(&mut note, customer, input);
            let all = customer::DATA.get_mut(row);
            let kept = all.len() - bytes;
            all.copy_within(..kept, bytes);
            all[..bytes].copy_from_slice(&note[..bytes]);
        }
        (*customer::FIRST.get(row), *customer::ADDRESS.get(row), customer::BALANCE.get(row))
    })?;
    let seen = must(found, "customer", &key)?;
    let mut row = [0; history::BYTES];
    history::CUSTOMER.set(&mut row, customer);
    history::CUSTOMER_DISTRICT.set(&mut row, input.customer_place.number);
    history::CUSTOMER_WAREHOUSE.set(&mut row, input.customer_place.warehouse);
    history::DISTRICT.set(&mut row, place.number);
    history::WAREHOUSE.set(&mut row, place.warehouse);
    history::DATE.set(&mut row, input.date);
    history::AMOUNT.set(&mut row, input.amount);
    let text = history::DATA.get_mut(&mut row);
    text[..10].copy_from_slice(&warehouse_name);
    text[10..14].copy_from_slice(b"    ");
    text[14..].copy_from_slice(&district_name);
    transaction.insert(keys::HISTORY, payment, &row)?;
    black_box((warehouse_address, district_address, seen));
    Ok(Outcome::Done)
}

/// The most bytes that are noted about a payment.
const NOTE_BYTES: usize = 64;

/// Notes what there is about a payment of a customer with bad credit; gives its length in bytes.
fn describe(note: &mut [u8; NOTE_BYTES], customer: u32, input: &Input) -> usize {
    let mut rest = &mut note[..];
    let (at, place) = (input.customer_place, input.place);
    let written = write!(
        rest,
        "{customer} {} {} {} {} {}.{:02}|",
        at.number,
        at.warehouse,
        place.number,
        place.warehouse,
        input.amount / 100,
        input.amount % 100
    );
    // The longest numbers there can be take 10 digits each, the amount 4 and 2.
    debug_assert!(written.is_ok(), "there is room for it");
    let left = rest.len();
    NOTE_BYTES - left
}
