//! Bytes and text.
//!
//! Where nothing follows, they are stored as they are. Elsewhere a zero byte becomes 0, 1, and 0, 0 marks the end: a
//! string sorts before all strings that continue it.

use super::{AsKey, AsPrefix, KeyBuffer, KeyType, Place};
use std::borrow::Cow;

/// Appends bytes.
fn encode(bytes: &[u8], buffer: &mut KeyBuffer, place: Place) {
    if place == Place::Last {
        return buffer.extend_from_slice(bytes);
    }
    let mut parts = bytes.split(|byte| *byte == 0);
    buffer.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        buffer.extend_from_slice(&[0, 1]);
        buffer.extend_from_slice(part);
    }
    buffer.extend_from_slice(&[0, 0]);
}

/// Takes bytes off the beginning of others.
fn decode(bytes: &mut &[u8], place: Place) -> Option<Vec<u8>> {
    if place == Place::Last {
        return Some(std::mem::take(bytes).to_vec());
    }
    let mut decoded = Vec::new();
    loop {
        let zero = bytes.iter().position(|byte| *byte == 0)?;
        let (part, rest) = bytes.split_at_checked(zero)?;
        decoded.extend_from_slice(part);
        let ([_, mark], rest) = rest.split_first_chunk()?;
        *bytes = rest;
        match mark {
            0 => return Some(decoded),
            1 => decoded.push(0),
            _ => return None,
        }
    }
}

/// Any bytes are valid.
fn any(bytes: Vec<u8>) -> Option<Vec<u8>> {
    Some(bytes)
}

/// Types whose keys may be given as anything that has bytes or characters.
macro_rules! strings {
    ($($string:ty, $owned:ty, $given:ty, $name:literal, $bytes:expr, $from:expr;)*) => {
        $(
            impl KeyType for $string {
                type Owned = $owned;

                fn type_name() -> String {
                    $name.to_owned()
                }

                fn decode(bytes: &mut &[u8], place: Place) -> Option<$owned> {
                    ($from)(decode(bytes, place)?)
                }

                #[inline]
                fn from_bytes(bytes: Cow<'_, [u8]>) -> Option<$owned> {
                    ($from)(bytes.into_owned())
                }
            }

            impl<T: AsRef<$given> + ?Sized> AsKey<$string> for T {
                type Encoded<'k> = &'k [u8] where T: 'k;

                #[inline]
                fn encoded(&self) -> &[u8] {
                    ($bytes)(self.as_ref())
                }

                fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
                    encode(($bytes)(self.as_ref()), buffer, place);
                }
            }

            impl<T: AsRef<$given> + ?Sized> AsPrefix<$string> for T {
                fn encode_prefix(&self, buffer: &mut KeyBuffer) {
                    buffer.extend_from_slice(($bytes)(self.as_ref()));
                }
            }
        )*
    };
}

strings! {
    [u8], Vec<u8>, [u8], "bytes", |bytes| bytes, any;
    Vec<u8>, Vec<u8>, [u8], "bytes", |bytes| bytes, any;
    str, String, str, "str", str::as_bytes, |bytes| String::from_utf8(bytes).ok();
    String, String, str, "str", str::as_bytes, |bytes| String::from_utf8(bytes).ok();
}

impl<const N: usize> KeyType for [u8; N] {
    type Owned = Self;

    fn type_name() -> String {
        format!("bytes[{N}]")
    }

    fn decode(bytes: &mut &[u8], _: Place) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*key)
    }
}

impl<const N: usize> AsKey<[u8; N]> for [u8; N] {
    type Encoded<'k> = &'k [u8];

    #[inline]
    fn encoded(&self) -> &[u8] {
        self
    }

    fn encode(&self, buffer: &mut KeyBuffer, _: Place) {
        buffer.extend_from_slice(self);
    }
}

impl<const N: usize> AsKey<[u8; N]> for &[u8; N] {
    type Encoded<'k>
        = &'k [u8]
    where
        Self: 'k;

    #[inline]
    fn encoded(&self) -> &[u8] {
        *self
    }

    fn encode(&self, buffer: &mut KeyBuffer, _: Place) {
        buffer.extend_from_slice(*self);
    }
}

impl<const N: usize, T: AsRef<[u8]> + ?Sized> AsPrefix<[u8; N]> for T {
    fn encode_prefix(&self, buffer: &mut KeyBuffer) {
        buffer.extend_from_slice(self.as_ref());
    }
}
