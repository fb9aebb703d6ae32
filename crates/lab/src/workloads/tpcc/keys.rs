//! The tables and their keys: big-endian, so that they are ordered as the numbers and texts of which they consist,
//! and of as many bytes as the numbers need.

use super::random::LastName;

/// W_ID
pub const WAREHOUSE: usize = 0;
/// D_W_ID, D_ID
pub const DISTRICT: usize = 1;
/// C_W_ID, C_D_ID, C_ID
pub const CUSTOMER: usize = 2;
/// C_W_ID, C_D_ID, C_LAST, C_FIRST, C_ID; no value
pub const CUSTOMER_BY_NAME: usize = 3;
/// The thread that made the payment, and its number there
pub const HISTORY: usize = 4;
/// NO_W_ID, NO_D_ID, NO_O_ID; no value
pub const NEW_ORDER: usize = 5;
/// O_W_ID, O_D_ID, O_ID
pub const ORDER: usize = 6;
/// O_W_ID, O_D_ID, O_C_ID, O_ID descending; no value
pub const ORDER_BY_CUSTOMER: usize = 7;
/// OL_W_ID, OL_D_ID, OL_O_ID, OL_NUMBER
pub const ORDER_LINE: usize = 8;
/// I_ID
pub const ITEM: usize = 9;
/// S_W_ID, S_I_ID
pub const STOCK: usize = 10;

/// The names of the tables.
pub const TABLES: &[&str] = &[
    "warehouse",
    "district",
    "customer",
    "customer_by_name",
    "history",
    "new_order",
    "order",
    "order_by_customer",
    "order_line",
    "item",
    "stock",
];

/// The largest number of an order that a key can hold; the specification wants ten million.
pub const ORDER_MAX: u32 = (1 << 24) - 1;

/// A district of a warehouse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct District {
    /// W_ID, from 1.
    pub warehouse: u32,
    /// D_ID, from 1 to 10.
    pub number: u8,
}

/// Puts parts one after the other.
macro_rules! join {
    ($bytes:expr; $($part:expr),*) => {{
        let mut key = [0; $bytes];
        let mut at = 0;
        $(
            let part = $part;
            key[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        )*
        debug_assert_eq!(at, $bytes);
        key
    }};
}

/// A warehouse, in 2 bytes.
#[inline]
pub fn warehouse(number: u32) -> [u8; 2] {
    (number as u16).to_be_bytes()
}

/// An item or an order, in 3 bytes.
#[inline]
fn three(number: u32) -> [u8; 3] {
    let [_, high, middle, low] = number.to_be_bytes();
    [high, middle, low]
}

/// An item.
#[inline]
pub fn item(number: u32) -> [u8; 3] {
    three(number)
}

/// A district; every key of something in it begins with this.
#[inline]
pub fn district(district: District) -> [u8; 3] {
    join!(3; warehouse(district.warehouse), [district.number])
}

/// A customer of a district.
#[inline]
pub fn customer(place: District, number: u32) -> [u8; 5] {
    join!(5; district(place), (number as u16).to_be_bytes())
}

/// An order of a district, also a new one.
#[inline]
pub fn order(place: District, number: u32) -> [u8; 6] {
    join!(6; district(place), three(number))
}

/// A customer of a district by name.
#[inline]
pub fn customer_by_name(place: District, last: &LastName, first: &[u8; 16], customer: u32) -> [u8; 37] {
    join!(37; district(place), *last, *first, (customer as u16).to_be_bytes())
}

/// What the keys of all customers of one last name begin with.
#[inline]
pub fn customers_by_name(place: District, last: &LastName) -> [u8; 19] {
    join!(19; district(place), *last)
}

/// An order of a customer; the last one comes first.
#[inline]
pub fn order_by_customer(place: District, number: u32, order: u32) -> [u8; 8] {
    join!(8; customer(place, number), three(!order))
}

/// What the keys of all orders of a customer begin with.
#[inline]
pub fn orders_by_customer(place: District, number: u32) -> [u8; 5] {
    customer(place, number)
}

/// A line of an order.
#[inline]
pub fn order_line(place: District, number: u32, line: u8) -> [u8; 7] {
    join!(7; order(place, number), [line])
}

/// The stock of an item in a warehouse.
#[inline]
pub fn stock(number: u32, item: u32) -> [u8; 5] {
    join!(5; warehouse(number), three(item))
}

/// A payment.
#[inline]
pub fn history(thread: u32, number: u64) -> [u8; 12] {
    join!(12; thread.to_be_bytes(), number.to_be_bytes())
}

/// The number of up to 4 bytes that stands in a key.
#[inline]
fn number(key: &[u8], place: std::ops::Range<usize>) -> u32 {
    key.get(place).unwrap_or_default().iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The customer in a key of the tables of customers and of orders by customer.
#[inline]
pub fn customer_of(key: &[u8]) -> u32 {
    number(key, 3..5)
}

/// The order in a key of the tables of orders, new orders and lines.
#[inline]
pub fn order_of(key: &[u8]) -> u32 {
    number(key, 3..6)
}

/// The customer at the end of a key of the index of names.
#[inline]
pub fn customer_of_name(key: &[u8]) -> u32 {
    number(key, 35..37)
}

/// The order at the end of a key of the index of customers.
#[inline]
pub fn order_of_customer(key: &[u8]) -> u32 {
    !number(key, 5..8) & ORDER_MAX
}

/// The district with which a key begins.
#[cfg(test)]
pub fn district_of(key: &[u8]) -> District {
    District { warehouse: number(key, 0..2), number: key.get(2).copied().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tpcc::random::last_name;

    #[test]
    fn keys_are_ordered_as_their_parts() {
        let place = |warehouse, number| District { warehouse, number };
        let parts = [(1, 1, 1), (1, 1, 256), (1, 2, 1), (1, 10, 3000), (2, 1, 1), (256, 1, 1)];
        let orders: Vec<_> = parts.iter().map(|(w, d, n)| order(place(*w, *d), *n)).collect();
        let customers: Vec<_> = parts.iter().map(|(w, d, n)| customer(place(*w, *d), *n)).collect();
        assert!(orders.is_sorted() && customers.is_sorted());
        for (at, (w, d, n)) in parts.into_iter().enumerate() {
            assert_eq!((district_of(&orders[at]), order_of(&orders[at])), (place(w, d), n));
            assert_eq!((district_of(&customers[at]), customer_of(&customers[at])), (place(w, d), n));
        }
        assert_eq!(order_of(&order(place(1, 1), ORDER_MAX)), ORDER_MAX);
        // The last order of a customer comes first.
        assert!(order_by_customer(place(1, 1), 7, 9) < order_by_customer(place(1, 1), 7, 8));
        assert!(order_by_customer(place(1, 1), 7, 1) < order_by_customer(place(1, 1), 8, 900));
        assert!(order_by_customer(place(1, 1), 7, 9).starts_with(&orders_by_customer(place(1, 1), 7)));
        assert_eq!(order_of_customer(&order_by_customer(place(1, 1), 7, 70_000)), 70_000);
        let (first, other) = (*b"Ann\0\0\0\0\0\0\0\0\0\0\0\0\0", *b"Anna\0\0\0\0\0\0\0\0\0\0\0\0");
        let name = last_name(5);
        let key = customer_by_name(place(1, 1), &name, &first, 9);
        assert!(key < customer_by_name(place(1, 1), &name, &other, 1));
        assert!(key.starts_with(&customers_by_name(place(1, 1), &name)));
        assert_eq!(customer_of_name(&key), 9);
        assert_eq!(TABLES.len(), STOCK + 1);
    }
}
