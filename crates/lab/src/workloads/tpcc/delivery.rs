//! The delivery transaction, carried out at once: clause 2.7.

use super::DISTRICTS;
use super::keys::{self, District};
use super::random::Random;
use super::rows::{customer, order, order_line};
use super::terminal::{Outcome, must};
use crate::Result;
use crate::engines::store::Transaction;
use std::ops::ControlFlow;

/// What is entered.
#[derive(Debug)]
pub struct Input {
    warehouse: u32,
    carrier: u8,
    date: i64,
    /// Whether several threads work for the warehouse.
    shared: bool,
}

impl Input {
    /// Draws what is entered at a terminal of `home`.
    pub fn draw(random: &mut Random, home: u32, shared: bool, date: i64) -> Self {
        Self { warehouse: home, carrier: random.within(1, 10) as u8, date, shared }
    }
}

/// Runs the transaction: delivers the oldest order of each district.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn run<T: Transaction>(transaction: &mut T, input: &Input) -> Result<Outcome> {
    let mut skipped = 0;
    for number in 1..=DISTRICTS {
        let place = District { warehouse: input.warehouse, number };
        match claim(transaction, place, input.shared)? {
            Some(order) => deliver(transaction, place, order, input)?,
            None => skipped += 1,
        }
    }
    Ok(if skipped == 0 { Outcome::Done } else { Outcome::Skipped(skipped) })
}

/// Removes the oldest order of a district from the new ones; `None` if there is none that may be delivered.
fn claim<T: Transaction>(transaction: &mut T, place: District, shared: bool) -> Result<Option<u32>> {
    let prefix = keys::district(place);
    loop {
        let mut oldest = None;
        transaction.scan(keys::NEW_ORDER, &prefix, |key, _| {
            oldest = key.starts_with(&prefix).then(|| keys::order_of(key));
            ControlFlow::Break(())
        })?;
        let Some(order) = oldest else { return Ok(None) };
        if shared && !is_delivered(transaction, place, order - 1)? {
            return Ok(None);
        }
        if transaction.remove(keys::NEW_ORDER, &keys::order(place, order))? {
            return Ok(Some(order));
        }
        // Another thread was faster.
    }
}

/// Whether an order has been delivered; an older one than the first has.
fn is_delivered<T: Transaction>(transaction: &mut T, place: District, order: u32) -> Result<bool> {
    let key = keys::order(place, order);
    let carrier = transaction.get(keys::ORDER, &key, |row| order::CARRIER.get(row))?;
    Ok(order == 0 || carrier.is_some_and(|carrier| carrier != 0))
}

fn deliver<T: Transaction>(transaction: &mut T, place: District, order: u32, input: &Input) -> Result<()> {
    let mut total = 0;
    let key = keys::order(place, order);
    let found =
        transaction.get(keys::ORDER, &key, |row| (order::CUSTOMER.get(row), order::LINES.get(row)))?;
    let (customer, lines) = must(found, "order", &key)?;
    for number in 1..=lines {
        let key = keys::order_line(place, order, number);
        let amount = transaction.modify(keys::ORDER_LINE, &key, |row| {
            order_line::DELIVERY_DATE.set(row, input.date);
            order_line::AMOUNT.get(row)
        })?;
        total += must(amount, "order line", &key)?;
    }
    let key = keys::customer(place, customer);
    let found = transaction.modify(keys::CUSTOMER, &key, |row| {
        customer::BALANCE.add(row, total);
        customer::DELIVERIES.add(row, 1);
    })?;
    must(found, "customer", &key)?;
    // Last, so that the next order is delivered only after this one.
    let key = keys::order(place, order);
    let found = transaction.modify(keys::ORDER, &key, |row| order::CARRIER.set(row, input.carrier))?;
    must(found, "order", &key)
}
