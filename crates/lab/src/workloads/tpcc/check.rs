//! The consistency conditions of clause 3.3.2, and that indexes and stock agree with what they are about.
//!
//! No terminal may be at work meanwhile. The tables are read in the order of their keys, one district after the
//! other, so that little memory is needed; only the payments, which are in the order of their making, are added
//! up for a block of warehouses at a time.

use super::keys::{self, District};
use super::random::LastName;
use super::rows::{customer, district, history, order, order_line, stock, warehouse};
use super::{CUSTOMERS, DELIVERED, DISTRICTS, ITEMS};
use crate::Result;
use crate::engines::store::{Access, Session, Store, Transaction};
use crate::workloads::record_workload::Findings;
use std::ops::{ControlFlow, RangeInclusive};

/// How many warehouses' payments are added up at a time.
const BLOCK: u32 = 100;

/// Checks everything; `fresh` if no transaction was run since the tables were loaded.
///
/// # Errors
/// What the engine says.
pub fn check<S: Store>(store: &S, warehouses: u32, fresh: bool) -> Result<Findings> {
    let mut session = store.session()?;
    let mut check = Check {
        transaction: session.begin(Access::Read)?,
        fresh,
        findings: Findings::default(),
        ordered: Ordered::default(),
    };
    let mut totals = Totals::default();
    for first in (1..=warehouses).step_by(BLOCK as usize) {
        let block = first..=warehouses.min(first + BLOCK - 1);
        let payments = check.payments(&block, warehouses)?;
        for warehouse in block {
            check.warehouse(warehouse, &payments, &mut totals)?;
        }
    }
    check.stock(warehouses)?;
    let conditions = if fresh { "1 to 12" } else { "1 to 10 and 12" };
    check.findings.checked = format!(
        "conditions {conditions} of clause 3.3.2, both indexes and the stock, over {} orders and {} lines",
        totals.orders, totals.lines
    );
    check.transaction.commit()?;
    Ok(check.findings)
}

/// How much was looked at.
#[derive(Default)]
struct Totals {
    orders: u64,
    lines: u64,
}

/// What was ordered since loading, of all items together.
#[derive(Default, PartialEq, Eq, Debug)]
struct Ordered {
    quantity: u64,
    lines: u64,
    remote_lines: u64,
}

/// What was paid by customers of a block of warehouses, and in its districts.
struct Payments {
    first: u32,
    by_customer: Vec<i64>,
    in_district: Vec<i64>,
}

impl Payments {
    fn district_index(&self, place: District) -> usize {
        (place.warehouse.wrapping_sub(self.first) as usize) * usize::from(DISTRICTS)
            + usize::from(place.number.wrapping_sub(1))
    }

    fn customer_index(&self, place: District, customer: u32) -> usize {
        self.district_index(place) * CUSTOMERS as usize + customer.wrapping_sub(1) as usize
    }
}

/// What is known of a customer.
struct Customer {
    last: LastName,
    first: [u8; 16],
    balance: i64,
    paid: i64,
    /// The amounts of the lines that were delivered to it.
    delivered: i64,
}

/// What is known of an order.
struct Order {
    number: u32,
    customer: u32,
    carrier: u8,
    lines: u8,
    lines_found: u32,
    is_new: bool,
}

struct Check<T> {
    transaction: T,
    fresh: bool,
    findings: Findings,
    ordered: Ordered,
}

impl<T: Transaction> Check<T> {
    /// Shows all records whose keys begin with `prefix`.
    fn each(&mut self, table: usize, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.transaction.scan(table, prefix, |key, row| {
            if !key.starts_with(prefix) {
                return ControlFlow::Break(());
            }
            visit(key, row);
            ControlFlow::Continue(())
        })
    }

    fn demand(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.findings.add(problem());
        }
    }

    fn payments(&mut self, block: &RangeInclusive<u32>, warehouses: u32) -> Result<Payments> {
        let mut strays = 0;
        let exists = |place: District| {
            (1..=warehouses).contains(&place.warehouse) && (1..=DISTRICTS).contains(&place.number)
        };
        let districts = block.clone().count() * usize::from(DISTRICTS);
        let mut payments = Payments {
            first: *block.start(),
            by_customer: vec![0; districts * CUSTOMERS as usize],
            in_district: vec![0; districts],
        };
        self.each(keys::HISTORY, &[], |_, row| {
            let amount = history::AMOUNT.get(row);
            let place =
                District { warehouse: history::WAREHOUSE.get(row), number: history::DISTRICT.get(row) };
            strays += u64::from(!exists(place));
            if block.contains(&place.warehouse) {
                let index = payments.district_index(place);
                payments.in_district.get_mut(index).into_iter().for_each(|sum| *sum += amount);
            }
            let place = District {
                warehouse: history::CUSTOMER_WAREHOUSE.get(row),
                number: history::CUSTOMER_DISTRICT.get(row),
            };
            strays += u64::from(!exists(place));
            if block.contains(&place.warehouse) {
                let index = payments.customer_index(place, history::CUSTOMER.get(row));
                payments.by_customer.get_mut(index).into_iter().for_each(|sum| *sum += amount);
            }
        })?;
        self.demand(strays == 0, || {
            format!("{strays} payments were made in or for districts that do not exist")
        });
        Ok(payments)
    }

    fn warehouse(&mut self, number: u32, payments: &Payments, totals: &mut Totals) -> Result<()> {
        let found = self
            .transaction
            .get(keys::WAREHOUSE, &keys::warehouse(number), |row| warehouse::YEAR_TO_DATE.get(row))?;
        let Some(warehouse_sum) = found else {
            self.findings.add(format!("warehouse {number} is missing"));
            return Ok(());
        };
        let (mut district_sum, mut paid_sum) = (0, 0);
        for district in 1..=DISTRICTS {
            let place = District { warehouse: number, number: district };
            let key = keys::district(place);
            let found = self.transaction.get(keys::DISTRICT, &key, |row| {
                (district::YEAR_TO_DATE.get(row), district::NEXT_ORDER.get(row))
            })?;
            let Some((sum, next_order)) = found else {
                self.findings.add(format!("{} is missing", name(place)));
                continue;
            };
            let paid = payments.in_district.get(payments.district_index(place)).copied().unwrap_or(0);
            district_sum += sum;
            paid_sum += paid;
            self.demand(sum == paid, || {
                format!("condition 9: {}: D_YTD is {sum} cents, its payments add up to {paid}", name(place))
            });
            self.district(place, next_order, payments, totals)?;
        }
        self.demand(warehouse_sum == district_sum, || {
            format!(
                "condition 1: warehouse {number}: W_YTD is {warehouse_sum} cents, D_YTD of its districts add up to \
                 {district_sum}"
            )
        });
        self.demand(warehouse_sum == paid_sum, || {
            format!(
                "condition 8: warehouse {number}: W_YTD is {warehouse_sum} cents, its payments add up to {paid_sum}"
            )
        });
        Ok(())
    }

    fn district(
        &mut self,
        place: District,
        next_order: u32,
        payments: &Payments,
        totals: &mut Totals,
    ) -> Result<()> {
        let mut customers = self.customers(place)?;
        let mut orders = self.orders(place)?;
        self.new_orders(place, next_order, &mut orders)?;
        let lines = self.lines(place, &mut orders, &mut customers)?;
        totals.orders += orders.len() as u64;
        totals.lines += lines;
        self.judge_orders(place, next_order, &orders, lines);
        self.judge_customers(place, &customers, payments);
        self.customer_index(place, &customers)?;
        self.order_index(place, &orders)
    }

    fn customers(&mut self, place: District) -> Result<Vec<Customer>> {
        let mut customers = Vec::with_capacity(CUSTOMERS as usize);
        let mut in_order = true;
        self.each(keys::CUSTOMER, &keys::district(place), |key, row| {
            in_order &= keys::customer_of(key) as usize == customers.len() + 1;
            customers.push(Customer {
                last: *customer::LAST.get(row),
                first: *customer::FIRST.get(row),
                balance: customer::BALANCE.get(row),
                paid: customer::PAID.get(row),
                delivered: 0,
            });
        })?;
        self.demand(in_order && customers.len() == CUSTOMERS as usize, || {
            format!("{}: customers are missing: it has {}", name(place), customers.len())
        });
        Ok(customers)
    }

    fn orders(&mut self, place: District) -> Result<Vec<Order>> {
        let mut orders = Vec::new();
        self.each(keys::ORDER, &keys::district(place), |key, row| {
            orders.push(Order {
                number: keys::order_of(key),
                customer: order::CUSTOMER.get(row),
                carrier: order::CARRIER.get(row),
                lines: order::LINES.get(row),
                lines_found: 0,
                is_new: false,
            });
        })?;
        Ok(orders)
    }

    /// Conditions 2 (its second half), 3 and 11; marks the orders that are new.
    fn new_orders(&mut self, place: District, next_order: u32, orders: &mut [Order]) -> Result<()> {
        let mut numbers = Vec::new();
        self.each(keys::NEW_ORDER, &keys::district(place), |key, _| numbers.push(keys::order_of(key)))?;
        let count = numbers.len();
        if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
            self.demand(*last == next_order.wrapping_sub(1), || {
                format!(
                    "condition 2: {}: D_NEXT_O_ID is {next_order}, the last new order is {last}",
                    name(place)
                )
            });
            self.demand((last - first) as usize + 1 == count, || {
                format!(
                    "condition 3: {}: new orders are numbered {first} to {last}, but there are {count}",
                    name(place)
                )
            });
        }
        for number in &numbers {
            match orders.binary_search_by_key(number, |order| order.number) {
                Ok(at) => orders[at].is_new = true,
                Err(_) => self
                    .findings
                    .add(format!("condition 5: {}: new order {number} is not among the orders", name(place))),
            }
        }
        let (fresh, total) = (self.fresh, orders.len());
        self.demand(!fresh || total - count.min(total) == DELIVERED as usize, || {
            format!("condition 11: {}: of {total} orders {count} are new after loading", name(place))
        });
        Ok(())
    }

    /// Condition 7; counts the lines of each order and adds up what was delivered to each customer.
    fn lines(&mut self, place: District, orders: &mut [Order], customers: &mut [Customer]) -> Result<u64> {
        let (mut count, mut at) = (0, 0);
        let mut problems = Vec::new();
        let mut ordered = std::mem::take(&mut self.ordered);
        self.each(keys::ORDER_LINE, &keys::district(place), |key, row| {
            count += 1;
            let number = keys::order_of(key);
            while orders.get(at).is_some_and(|order| order.number < number) {
                at += 1;
            }
            let Some(order) = orders.get_mut(at).filter(|order| order.number == number) else {
                problems.push(format!("condition 6: {}: a line belongs to no order: {number}", name(place)));
                return;
            };
            order.lines_found += 1;
            let delivered = order_line::DELIVERY_DATE.get(row) != 0;
            if delivered != (order.carrier != 0) {
                problems.push(format!(
                    "condition 7: {}: order {number} has {} carrier, and a line with {} date of delivery",
                    name(place),
                    if delivered { "no" } else { "a" },
                    if delivered { "a" } else { "no" }
                ));
            }
            if delivered && let Some(customer) = customers.get_mut(order.customer.wrapping_sub(1) as usize) {
                customer.delivered += order_line::AMOUNT.get(row);
            }
            if number > CUSTOMERS {
                ordered.quantity += u64::from(order_line::QUANTITY.get(row));
                ordered.lines += 1;
                ordered.remote_lines += u64::from(order_line::SUPPLIER.get(row) != place.warehouse);
            }
        })?;
        self.ordered = ordered;
        self.findings.problems.extend(problems);
        Ok(count)
    }

    /// Conditions 2 (its first half), 4, 5 and 6.
    fn judge_orders(&mut self, place: District, next_order: u32, orders: &[Order], lines: u64) {
        let last = orders.last().map_or(0, |order| order.number);
        self.demand(last == next_order.wrapping_sub(1), || {
            format!("condition 2: {}: D_NEXT_O_ID is {next_order}, the last order is {last}", name(place))
        });
        let in_order = (1..).zip(orders).all(|(number, order)| number == order.number);
        self.demand(in_order, || format!("{}: a number of an order was left out", name(place)));
        let sum: u64 = orders.iter().map(|order| u64::from(order.lines)).sum();
        self.demand(sum == lines, || {
            format!("condition 4: {}: O_OL_CNT add up to {sum}, but there are {lines} lines", name(place))
        });
        for order in orders {
            let number = order.number;
            self.demand(order.is_new == (order.carrier == 0), || {
                format!(
                    "condition 5: {}: order {number} has carrier {}, and {} among the new ones",
                    name(place),
                    order.carrier,
                    if order.is_new { "is" } else { "is not" }
                )
            });
            self.demand(u32::from(order.lines) == order.lines_found, || {
                format!(
                    "condition 6: {}: order {number} should have {} lines and has {}",
                    name(place),
                    order.lines,
                    order.lines_found
                )
            });
        }
    }

    /// Conditions 10 and 12.
    fn judge_customers(&mut self, place: District, customers: &[Customer], payments: &Payments) {
        for (number, customer) in (1..).zip(customers) {
            let paid = payments.by_customer.get(payments.customer_index(place, number)).copied().unwrap_or(0);
            let (balance, delivered) = (customer.balance, customer.delivered);
            self.demand(balance == delivered - paid, || {
                format!(
                    "condition 10: {}: C_BALANCE of customer {number} is {balance} cents, with {delivered} \
                     delivered and {paid} paid",
                    name(place)
                )
            });
            self.demand(balance + customer.paid == delivered, || {
                format!(
                    "condition 12: {}: C_BALANCE and C_YTD_PAYMENT of customer {number} are {balance} and {} cents, \
                     with {delivered} delivered",
                    name(place),
                    customer.paid
                )
            });
        }
    }

    fn customer_index(&mut self, place: District, customers: &[Customer]) -> Result<()> {
        let (mut right, mut wrong) = (0, 0);
        self.each(keys::CUSTOMER_BY_NAME, &keys::district(place), |key, _| {
            let number = keys::customer_of_name(key);
            let expected = customers
                .get(number.wrapping_sub(1) as usize)
                .map(|customer| keys::customer_by_name(place, &customer.last, &customer.first, number));
            if expected.is_some_and(|expected| expected[..] == *key) { right += 1 } else { wrong += 1 }
        })?;
        self.demand(right == customers.len() && wrong == 0, || {
            format!(
                "{}: of {} customers {right} are in the index of names, with {wrong} wrong entries",
                name(place),
                customers.len()
            )
        });
        Ok(())
    }

    fn order_index(&mut self, place: District, orders: &[Order]) -> Result<()> {
        let (mut right, mut wrong) = (0, 0);
        self.each(keys::ORDER_BY_CUSTOMER, &keys::district(place), |key, _| {
            let (customer, number) = (keys::customer_of(key), keys::order_of_customer(key));
            let found = orders.binary_search_by_key(&number, |order| order.number);
            if found.is_ok_and(|at| orders[at].customer == customer) { right += 1 } else { wrong += 1 }
        })?;
        self.demand(right == orders.len() && wrong == 0, || {
            format!(
                "{}: of {} orders {right} are in the index of customers, with {wrong} wrong entries",
                name(place),
                orders.len()
            )
        });
        Ok(())
    }

    /// That all stock is there, and what was taken from it is what was ordered.
    fn stock(&mut self, warehouses: u32) -> Result<()> {
        let (mut count, mut taken) = (0, Ordered::default());
        self.each(keys::STOCK, &[], |_, row| {
            count += 1;
            taken.quantity += u64::from(stock::YEAR_TO_DATE.get(row));
            taken.lines += u64::from(stock::ORDERS.get(row));
            taken.remote_lines += u64::from(stock::REMOTE_ORDERS.get(row));
        })?;
        let expected = u64::from(warehouses) * u64::from(ITEMS);
        self.demand(count == expected, || format!("there are {count} rows of stock, not {expected}"));
        let ordered = std::mem::take(&mut self.ordered);
        self.demand(taken == ordered, || {
            format!("the stock says of what was taken: {taken:?}, the lines of the orders: {ordered:?}")
        });
        Ok(())
    }
}

fn name(place: District) -> String {
    format!("warehouse {}, district {}", place.warehouse, place.number)
}
