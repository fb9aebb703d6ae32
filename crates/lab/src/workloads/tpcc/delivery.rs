//! The delivery transaction, carried out at once: clause 2.7.

use super::DISTRICTS;
use super::keys::{self, District};
use super::outcome::{Outcome, must_all};
use super::random::Random;
use super::rows::{customer, order, order_line};
use crate::Result;
use crate::engines::store::Transaction;
use std::ops::ControlFlow;

/// What is entered.
#[derive(Debug)]
pub struct Input {
    warehouse: u32,
    carrier: u8,
    date: i64,
    /// Whether several threads work for the warehouse, and there are no transactions to keep them apart.
    shared: bool,
}

impl Input {
    /// Draws what is entered at a terminal of `home`.
    pub fn draw(random: &mut Random, home: u32, shared: bool, date: i64) -> Self {
        Self { warehouse: home, carrier: random.within(1, 10) as u8, date, shared }
    }
}

/// An order that is being delivered.
struct Delivered {
    place: District,
    order: u32,
    customer: u32,
    lines: u8,
    total: i64,
}

/// Runs the transaction: delivers the oldest order of each district.
///
/// # Errors
/// What the engine says, or that a row is missing.
pub fn run<T: Transaction>(transaction: &mut T, input: &Input) -> Result<Outcome> {
    let mut orders = Vec::with_capacity(usize::from(DISTRICTS));
    for number in 1..=DISTRICTS {
        let place = District { warehouse: input.warehouse, number };
        if let Some(order) = claim(transaction, place, input.shared)? {
            orders.push(Delivered { place, order, customer: 0, lines: 0, total: 0 });
        }
    }
    let skipped = u32::from(DISTRICTS) - orders.len() as u32;
    deliver(transaction, &mut orders, input)?;
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

/// Delivers orders, one step for all of them after the other.
fn deliver<T: Transaction>(transaction: &mut T, orders: &mut [Delivered], input: &Input) -> Result<()> {
    let keys: Vec<_> = orders.iter().map(|order| keys::order(order.place, order.order)).collect();
    transaction.get_heads(keys::ORDER, &keys, order::BYTES, |number, row| {
        if let Some(row) = row {
            (orders[number].customer, orders[number].lines) =
                (order::CUSTOMER.get(row), order::LINES.get(row));
        }
    })?;
    let lines: Vec<_> = orders
        .iter()
        .enumerate()
        .flat_map(|(owner, Delivered { place, order, lines, .. })| {
            (1..=*lines).map(move |number| (owner, keys::order_line(*place, *order, number)))
        })
        .collect();
    let (owners, line_keys): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
    let all_lines = transaction.modify_all(keys::ORDER_LINE, &line_keys, |number, row| {
        order_line::DELIVERY_DATE.set(row, input.date);
        orders[owners[number]].total += order_line::AMOUNT.get(row);
    })?;
    let customers: Vec<_> = orders.iter().map(|order| keys::customer(order.place, order.customer)).collect();
    let all_customers = transaction.modify_all(keys::CUSTOMER, &customers, |number, row| {
        customer::BALANCE.add(row, orders[number].total);
        customer::DELIVERIES.add(row, 1);
    })?;
    // Last, so that the next order of a district is delivered only after this one.
    let all_orders =
        transaction.modify_all(keys::ORDER, &keys, |_, row| order::CARRIER.set(row, input.carrier))?;
    must_all(all_orders, "orders", &keys)?;
    must_all(all_lines, "lines of orders", &line_keys)?;
    must_all(all_customers, "customers", &customers)
}
