//! Text of any length within an object.

use crate::{Persistent, Shape, codec::Reader, codec::Writer, persistent::print_of};
use std::{fmt, ops::Deref, ops::DerefMut};
use vellum_base::Bytes;

/// Text of any length, stored within its object: the counterpart of `String`, and used like one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Text(pub String);

impl Deref for Text {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl DerefMut for Text {
    fn deref_mut(&mut self) -> &mut String {
        &mut self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == **other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Persistent for Text {
    const ALIGN: usize = 4;
    const BYTES: usize = 8;
    const FINGERPRINT: u32 = print_of("Text");

    fn shape() -> Shape {
        Shape::Text
    }

    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        let (begin, length) = from.run(at, 1);
        Self(String::from_utf8(from.copy(begin, length)).unwrap_or_else(|_| {
            from.refuse();
            String::new()
        }))
    }

    fn store(&self, to: &mut Writer, at: usize) {
        let begin = to.append(at, self.0.len(), 1);
        to.put(begin, self.0.as_bytes());
    }
}
