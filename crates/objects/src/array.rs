//! Arrays of any length within an object.

use crate::{Persistent, Shape, codec::Reader, codec::Writer, persistent::mix, persistent::print_of};
use std::{ops::Deref, ops::DerefMut};
use vellum_base::Bytes;

/// Any number of values, stored within their object: the counterpart of `Vec`, and used like one.
///
/// An object whose arrays and texts do not fit into its page has its own extent, which is read and written as a whole.
/// So an object of a hundred megabytes of which a little changes now and then is better divided into several objects.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Array<T>(pub Vec<T>);

impl<T> Default for Array<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for Array<T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(elements)
    }
}

impl<T> FromIterator<T> for Array<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(elements.into_iter().collect())
    }
}

impl<T> IntoIterator for Array<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Array<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Persistent> Array<T> {
    /// Elements of zero bytes would need no memory, however many there are.
    const STRIDE: usize = {
        assert!(T::BYTES > 0, "the elements of an array have at least one byte each");
        T::BYTES
    };

    /// The compiler names this constant where elements contain their own array by way of other types: its value would depend on itself.
    const A_TYPE_CANNOT_CONTAIN_ITSELF_USE_AN_ARRAY_OF_REFS: u32 = T::FINGERPRINT;
}

impl<T: Persistent> Persistent for Array<T> {
    const ALIGN: usize = 4;
    const BYTES: usize = 8;
    const FINGERPRINT: u32 = mix(print_of("Array"), Self::A_TYPE_CANNOT_CONTAIN_ITSELF_USE_AN_ARRAY_OF_REFS);

    fn shape() -> Shape {
        Shape::Array(Box::new(T::shape()))
    }

    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        let (begin, count) = from.run(at, Self::STRIDE);
        Self(T::load_many(from, begin, count))
    }

    fn store(&self, to: &mut Writer, at: usize) {
        let begin = to.append(at, self.0.len(), Self::STRIDE);
        for (index, element) in self.0.iter().enumerate() {
            element.store(to, begin + index * Self::STRIDE);
        }
    }
}
