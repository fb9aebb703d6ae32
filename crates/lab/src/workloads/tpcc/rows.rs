//! The rows of the nine tables as bytes: fixed layouts, little-endian numbers, texts padded with zeroes.
//!
//! A row is read and changed where it lies, field by field; nothing is decoded as a whole. Money is in cents,
//! rates are in hundredths of a percent, dates are in microseconds since 1970, and zero where the specification
//! says null. The columns that are in the key are not in the row; those that transactions use most come first, so that
//! they share cache lines.
//!
//! A field panics if the row is shorter than its layout, which is an error of the lab or of the engine.

use std::marker::PhantomData;

/// A number in a row.
pub struct Number<T> {
    at: usize,
    what: PhantomData<T>,
}

/// A text in a row.
pub struct Text<const BYTES: usize> {
    at: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    const fn at(at: usize) -> Self {
        Self { at }
    }

    /// The byte of the row after it.
    pub const fn end(&self) -> usize {
        self.at + BYTES
    }

    /// Its bytes, padding included.
    #[inline]
    pub fn get<'r>(&self, row: &'r [u8]) -> &'r [u8; BYTES] {
        row[self.at..].first_chunk().expect("a row is as long as its layout")
    }

    /// Its bytes, to be filled.
    #[inline]
    pub fn get_mut<'r>(&self, row: &'r mut [u8]) -> &'r mut [u8; BYTES] {
        row[self.at..].first_chunk_mut().expect("a row is as long as its layout")
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number<$type> {
            const fn at(at: usize) -> Self {
                Self { at, what: PhantomData }
            }

            /// The byte of the row after it.
            pub const fn end(&self) -> usize {
                self.at + size_of::<$type>()
            }

            /// The number.
            #[inline]
            pub fn get(&self, row: &[u8]) -> $type {
                let bytes = row[self.at..].first_chunk().expect("a row is as long as its layout");
                <$type>::from_le_bytes(*bytes)
            }

            /// Replaces the number.
            #[inline]
            pub fn set(&self, row: &mut [u8], number: $type) {
                row[self.at..self.at + size_of::<$type>()].copy_from_slice(&number.to_le_bytes());
            }
        }
    )*};
}

numbers!(u8, u16, u32, i64);

macro_rules! sums {
    ($($type:ty),*) => {$(
        impl Number<$type> {
            /// Adds to the number.
            #[inline]
            pub fn add(&self, row: &mut [u8], number: $type) {
                self.set(row, self.get(row) + number);
            }
        }
    )*};
}

sums!(u32, i64);

/// Lays out the fields of a row one after the other.
macro_rules! row {
    ($(#[$about:meta])* $name:ident { $($fields:tt)* }) => {
        $(#[$about])*
        pub mod $name {
            #[allow(unused_imports, reason = "not every row has both")]
            use super::{Number, Text};

            row!(@field 0; $($fields)*);
        }
    };
    (@field $at:expr; $(#[$about:meta])* $field:ident: $kind:ty, $($rest:tt)*) => {
        $(#[$about])*
        pub const $field: $kind = <$kind>::at($at);
        row!(@field $field.end(); $($rest)*);
    };
    (@field $at:expr;) => {
        /// The length of the row.
        pub const BYTES: usize = $at;
    };
}

row! {
    /// A warehouse.
    warehouse {
        /// W_NAME
        NAME: Text<10>,
        /// W_STREET_1, W_STREET_2, W_CITY, each 20 bytes, W_STATE, 2, and W_ZIP, 9
        ADDRESS: Text<71>,
        /// W_TAX
        TAX: Number<u16>,
        /// W_YTD
        YEAR_TO_DATE: Number<i64>,
    }
}

row! {
    /// A district.
    district {
        /// D_NAME
        NAME: Text<10>,
        /// D_STREET_1 to D_ZIP, as of a warehouse
        ADDRESS: Text<71>,
        /// D_TAX
        TAX: Number<u16>,
        /// D_YTD
        YEAR_TO_DATE: Number<i64>,
        /// D_NEXT_O_ID
        NEXT_ORDER: Number<u32>,
    }
}

row! {
    /// A customer.
    customer {
        /// C_BALANCE
        BALANCE: Number<i64>,
        /// C_YTD_PAYMENT
        PAID: Number<i64>,
        /// C_PAYMENT_CNT
        PAYMENTS: Number<u32>,
        /// C_DELIVERY_CNT
        DELIVERIES: Number<u32>,
        /// C_DISCOUNT
        DISCOUNT: Number<u16>,
        /// C_CREDIT
        CREDIT: Text<2>,
        /// C_LAST
        LAST: Text<16>,
        /// C_FIRST
        FIRST: Text<16>,
        /// C_MIDDLE
        MIDDLE: Text<2>,
        /// C_STREET_1 to C_ZIP, as of a warehouse
        ADDRESS: Text<71>,
        /// C_PHONE
        PHONE: Text<16>,
        /// C_SINCE
        SINCE: Number<i64>,
        /// C_CREDIT_LIM
        CREDIT_LIMIT: Number<i64>,
        /// C_DATA
        DATA: Text<500>,
    }
}

row! {
    /// A payment.
    history {
        /// H_C_ID
        CUSTOMER: Number<u32>,
        /// H_C_D_ID
        CUSTOMER_DISTRICT: Number<u8>,
        /// H_C_W_ID
        CUSTOMER_WAREHOUSE: Number<u32>,
        /// H_D_ID
        DISTRICT: Number<u8>,
        /// H_W_ID
        WAREHOUSE: Number<u32>,
        /// H_DATE
        DATE: Number<i64>,
        /// H_AMOUNT
        AMOUNT: Number<i64>,
        /// H_DATA
        DATA: Text<24>,
    }
}

row! {
    /// An order.
    order {
        /// O_C_ID
        CUSTOMER: Number<u32>,
        /// O_ENTRY_D
        ENTRY_DATE: Number<i64>,
        /// O_CARRIER_ID; zero until it is delivered
        CARRIER: Number<u8>,
        /// O_OL_CNT
        LINES: Number<u8>,
        /// O_ALL_LOCAL
        ALL_LOCAL: Number<u8>,
    }
}

row! {
    /// A line of an order.
    order_line {
        /// OL_I_ID
        ITEM: Number<u32>,
        /// OL_SUPPLY_W_ID
        SUPPLIER: Number<u32>,
        /// OL_DELIVERY_D; zero until it is delivered
        DELIVERY_DATE: Number<i64>,
        /// OL_QUANTITY
        QUANTITY: Number<u8>,
        /// OL_AMOUNT
        AMOUNT: Number<i64>,
        /// OL_DIST_INFO
        DISTRICT_INFO: Text<24>,
    }
}

row! {
    /// An item.
    item {
        /// I_IM_ID
        IMAGE: Number<u32>,
        /// I_NAME
        NAME: Text<24>,
        /// I_PRICE
        PRICE: Number<u32>,
        /// I_DATA
        DATA: Text<50>,
    }
}

row! {
    /// What a warehouse has of an item.
    stock {
        /// S_QUANTITY
        QUANTITY: Number<u16>,
        /// S_YTD
        YEAR_TO_DATE: Number<u32>,
        /// S_ORDER_CNT
        ORDERS: Number<u32>,
        /// S_REMOTE_CNT
        REMOTE_ORDERS: Number<u32>,
        /// S_DIST_01 to S_DIST_10, each 24 bytes
        DISTRICTS: Text<240>,
        /// S_DATA
        DATA: Text<50>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_one_behind_the_other() {
        assert_eq!(warehouse::BYTES, 10 + 71 + 2 + 8);
        assert_eq!(district::BYTES, warehouse::BYTES + 4);
        assert_eq!(customer::BYTES, 16 + 2 + 16 + 71 + 16 + 8 + 2 + 8 + 2 + 8 + 8 + 4 + 4 + 500);
        assert_eq!(history::BYTES, 4 + 1 + 4 + 1 + 4 + 8 + 8 + 24);
        assert_eq!(order::BYTES, 4 + 8 + 1 + 1 + 1);
        assert_eq!(order_line::BYTES, 4 + 4 + 8 + 1 + 8 + 24);
        assert_eq!(item::BYTES, 4 + 24 + 4 + 50);
        assert_eq!(stock::BYTES, 2 + 240 + 4 + 4 + 4 + 50);
    }

    #[test]
    fn fields_keep_what_is_put_into_them_and_touch_nothing_else() {
        let mut row = [0; customer::BYTES];
        customer::BALANCE.set(&mut row, -1000);
        customer::BALANCE.add(&mut row, -23);
        customer::DISCOUNT.set(&mut row, 0x1234);
        customer::LAST.get_mut(&mut row).copy_from_slice(b"BARBARBAR\0\0\0\0\0\0\0");
        assert_eq!((customer::BALANCE.get(&row), customer::DISCOUNT.get(&row)), (-1023, 0x1234));
        assert_eq!(customer::LAST.get(&row), b"BARBARBAR\0\0\0\0\0\0\0");
        assert_eq!((customer::CREDIT_LIMIT.get(&row), customer::PAID.get(&row)), (0, 0));
        assert_eq!(row.iter().filter(|byte| **byte != 0).count(), 8 + 2 + 9);
    }
}
