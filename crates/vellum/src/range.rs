//! Ranges of keys.

use crate::{AsKey, AsPrefix, KeyBuffer, KeyType};
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys of type `K`: any of Rust's ranges over what can be given as such a key (`"a".."b"`, `5..`, `..`), or
/// a pair of bounds.
pub trait KeyRange<K: KeyType + ?Sized = [u8]> {
    /// The encoded bounds of the range.
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>);
}

impl<K: KeyType + ?Sized> KeyRange<K> for RangeFull {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for Range<Q> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Included(KeyBuffer::of(&self.start)), Bound::Excluded(KeyBuffer::of(&self.end)))
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for RangeInclusive<Q> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Included(KeyBuffer::of(self.start())), Bound::Included(KeyBuffer::of(self.end())))
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for RangeFrom<Q> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Included(KeyBuffer::of(&self.start)), Bound::Unbounded)
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for RangeTo<Q> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Unbounded, Bound::Excluded(KeyBuffer::of(&self.end)))
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for RangeToInclusive<Q> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (Bound::Unbounded, Bound::Included(KeyBuffer::of(&self.end)))
    }
}

impl<K: KeyType + ?Sized, Q: AsKey<K>> KeyRange<K> for (Bound<Q>, Bound<Q>) {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        (encoded(&self.0), encoded(&self.1))
    }
}

/// The range of all keys with a prefix: some bytes or characters, or the first elements of a tuple.
///
/// ```
/// use vellum::Prefix;
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// # let table = database.create_table("t")?;
/// table.multi_put(&[("a/1", "x"), ("a/2", "y"), ("b/1", "z")]).into_iter().try_for_each(|put| put.map(drop))?;
/// assert_eq!(table.count(Prefix("a/"))?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix<P>(pub P);

impl<K: KeyType + ?Sized, P: AsPrefix<K>> KeyRange<K> for Prefix<P> {
    fn bounds(&self) -> (Bound<KeyBuffer>, Bound<KeyBuffer>) {
        let mut lower = KeyBuffer::default();
        self.0.encode_prefix(&mut lower);
        let upper = end_of_prefix(&lower).map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(lower), upper)
    }
}

fn encoded<K: KeyType + ?Sized>(bound: &Bound<impl AsKey<K>>) -> Bound<KeyBuffer> {
    bound.as_ref().map(|key| KeyBuffer::of(key))
}

pub(crate) fn as_slice(bound: &Bound<KeyBuffer>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

/// The first key after all that begin with `prefix`; none if there is no such key.
fn end_of_prefix(prefix: &[u8]) -> Option<KeyBuffer> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let (mut end, (before, at)) = (KeyBuffer::default(), prefix.split_at_checked(last)?);
    end.extend_from_slice(before);
    end.push(at.first()? + 1);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_its_successor() {
        assert_eq!(end_of_prefix(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(end_of_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(end_of_prefix(b"\xff"), None);
        assert_eq!(end_of_prefix(b""), None);
    }
}
