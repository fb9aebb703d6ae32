//! The tables and their keys: big-endian, so that they are ordered as the numbers and texts of which they consist.

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

/// A district of a warehouse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct District {
    /// W_ID, from 1.
    pub warehouse: u32,
    /// D_ID, from 1 to 10.
    pub number: u8,
}

/// Puts parts one behind the other.
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

/// A warehouse or an item.
#[inline]
pub fn number(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A district; every key of something in it begins with this.
#[inline]
pub fn district(district: District) -> [u8; 5] {
    join!(5; district.warehouse.to_be_bytes(), [district.number])
}

/// A customer of a district, or an order of it: also of the table of new orders.
#[inline]
pub fn in_district(place: District, number: u32) -> [u8; 9] {
    join!(9; district(place), number.to_be_bytes())
}

/// A customer of a district by name.
#[inline]
pub fn customer_by_name(place: District, last: &LastName, first: &[u8; 16], customer: u32) -> [u8; 41] {
    join!(41; district(place), *last, *first, customer.to_be_bytes())
}

/// What the keys of all customers of one last name begin with.
#[inline]
pub fn customers_by_name(place: District, last: &LastName) -> [u8; 21] {
    join!(21; district(place), *last)
}

/// An order of a customer; the last one comes first.
#[inline]
pub fn order_by_customer(place: District, customer: u32, order: u32) -> [u8; 13] {
    join!(13; district(place), customer.to_be_bytes(), (!order).to_be_bytes())
}

/// What the keys of all orders of a customer begin with.
#[inline]
pub fn orders_by_customer(place: District, customer: u32) -> [u8; 9] {
    in_district(place, customer)
}

/// A line of an order.
#[inline]
pub fn order_line(place: District, order: u32, number: u8) -> [u8; 10] {
    join!(10; in_district(place, order), [number])
}

/// The stock of an item in a warehouse.
#[inline]
pub fn stock(warehouse: u32, item: u32) -> [u8; 8] {
    join!(8; warehouse.to_be_bytes(), item.to_be_bytes())
}

/// A payment.
#[inline]
pub fn history(thread: u32, number: u64) -> [u8; 12] {
    join!(12; thread.to_be_bytes(), number.to_be_bytes())
}

/// The number that begins at byte `at` of a key.
#[inline]
pub fn number_at(key: &[u8], at: usize) -> u32 {
    key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// The district with which a key begins.
#[cfg(test)]
pub fn district_of(key: &[u8]) -> District {
    District { warehouse: number_at(key, 0), number: key.get(4).copied().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tpcc::random::last_name;

    #[test]
    fn keys_are_ordered_as_their_parts() {
        let place = |warehouse, number| District { warehouse, number };
        let parts = [(1, 1, 1), (1, 1, 256), (1, 2, 1), (1, 10, 3000), (2, 1, 1), (256, 1, 1)];
        let keys: Vec<_> = parts.iter().map(|(w, d, n)| in_district(place(*w, *d), *n)).collect();
        assert!(keys.is_sorted());
        for (key, (w, d, n)) in keys.iter().zip(parts) {
            assert_eq!((district_of(key), number_at(key, 5)), (place(w, d), n));
        }
        // The last order of a customer comes first.
        assert!(order_by_customer(place(1, 1), 7, 9) < order_by_customer(place(1, 1), 7, 8));
        assert!(order_by_customer(place(1, 1), 7, 1) < order_by_customer(place(1, 1), 8, 900));
        assert!(order_by_customer(place(1, 1), 7, 9).starts_with(&orders_by_customer(place(1, 1), 7)));
        let (first, other) = (*b"Ann\0\0\0\0\0\0\0\0\0\0\0\0\0", *b"Anna\0\0\0\0\0\0\0\0\0\0\0\0");
        let name = last_name(5);
        let key = customer_by_name(place(1, 1), &name, &first, 9);
        assert!(key < customer_by_name(place(1, 1), &name, &other, 1));
        assert!(key.starts_with(&customers_by_name(place(1, 1), &name)));
        assert_eq!(TABLES.len(), STOCK + 1);
    }
}
