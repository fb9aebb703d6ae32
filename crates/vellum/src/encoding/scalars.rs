//! Numbers, Booleans and characters: all of fixed length.

use super::{AsKey, KeyBuffer, KeyType, Place};

/// Types of fixed length, each with its name, its size in bytes, and the conversions to and from bytes.
macro_rules! scalars {
    ($($scalar:ty, $name:expr, [$bytes:expr], $to:expr, $from:expr;)*) => {
        $(
            impl KeyType for $scalar {
                type Owned = Self;

                fn type_name() -> String {
                    $name.to_owned()
                }

                fn decode(bytes: &mut &[u8], _: Place) -> Option<Self> {
                    let (key, rest) = bytes.split_first_chunk::<{ $bytes }>()?;
                    *bytes = rest;
                    ($from)(*key)
                }
            }

            impl AsKey<$scalar> for $scalar {
                type Encoded<'k> = [u8; $bytes];

                #[inline]
                fn encoded(&self) -> [u8; $bytes] {
                    ($to)(*self)
                }

                fn encode(&self, buffer: &mut KeyBuffer, _: Place) {
                    buffer.extend_from_slice(&($to)(*self));
                }
            }

            impl AsKey<$scalar> for &$scalar {
                type Encoded<'k> = [u8; $bytes] where Self: 'k;

                #[inline]
                fn encoded(&self) -> [u8; $bytes] {
                    (**self).encoded()
                }

                fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
                    (**self).encode(buffer, place);
                }
            }
        )*
    };
}

macro_rules! unsigned {
    ($($number:ty)*) => {
        scalars! {
            $($number, stringify!($number), [size_of::<$number>()], <$number>::to_be_bytes, |key| {
                Some(<$number>::from_be_bytes(key))
            };)*
        }
    };
}

macro_rules! signed {
    ($($number:ty)*) => {
        scalars! {
            $($number, stringify!($number), [size_of::<$number>()], |key: $number| (key ^ <$number>::MIN).to_be_bytes(), |key| {
                Some(<$number>::from_be_bytes(key) ^ <$number>::MIN)
            };)*
        }
    };
}

/// A negative number has all its bits flipped, any other only the sign.
macro_rules! floats {
    ($($number:ty, $bits:ty;)*) => {
        scalars! {
            $($number, stringify!($number), [size_of::<$number>()], |key: $number| {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = key.to_bits();
                (if bits & SIGN == 0 { bits | SIGN } else { !bits }).to_be_bytes()
            }, |key| {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = <$bits>::from_be_bytes(key);
                Some(<$number>::from_bits(if bits & SIGN == 0 { !bits } else { bits & !SIGN }))
            };)*
        }
    };
}

unsigned! { u8 u16 u32 u64 u128 }
signed! { i8 i16 i32 i64 i128 }
floats! { f32, u32; f64, u64; }

scalars! {
    usize, "u64", [8], |key: usize| (key as u64).to_be_bytes(), |key| usize::try_from(u64::from_be_bytes(key)).ok();
    isize, "i64", [8], |key: isize| (key as i64).encoded(), |key| {
        isize::try_from(i64::from_be_bytes(key) ^ i64::MIN).ok()
    };
    bool, "bool", [1], |key: bool| [u8::from(key)], |[key]: [u8; 1]| (key <= 1).then_some(key == 1);
    char, "char", [4], |key: char| u32::from(key).to_be_bytes(), |key| char::from_u32(u32::from_be_bytes(key));
}
