//! Lookups of one key.

use super::blob_reader::BlobReader;
use super::record::{Large, Part, Record, Wanted, read, read_length, read_value, share_large};
use crate::error::AccessError;
use crate::tree::{Tree, check_key};
use crate::value::{Held, Value};
use std::ops::Range;
use vellum_pool::{Interrupt, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, AccessError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the contents of `target` by the value of `key`; returns whether there is a value. Allocates nothing if
    /// `target` has room.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool, AccessError> {
        check_key(key)?;
        match self.try_get_into(key, target) {
            Ok(found) => Ok(found),
            Err(interrupt) => Ok(get_into_again(*self, key, target, interrupt)?),
        }
    }

    /// One attempt of [`get_into`](Self::get_into).
    #[inline(always)]
    fn try_get_into(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool, Interrupt> {
        target.clear();
        let leaf = self.leaf(key)?;
        read_value(self, &leaf, Wanted::find(&leaf, key, Part::ALL), target)
    }

    /// Replaces the contents of `target` by the bytes of the value of `key` that lie within `part`. Returns whether
    /// there is a value. No other bytes of a value in a leaf are read, so a few bytes of a long record cost few cache
    /// misses. Of a large value only the chunks that contain these bytes are read.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// tree.insert(b"key", b"a long value")?;
    /// let mut part = Vec::new();
    /// assert!(tree.get_part_into(b"key", 2..6, &mut part)?);
    /// assert_eq!(part, b"long");
    /// assert!(tree.get_part_into(b"key", 7..100, &mut part)?);
    /// assert_eq!(part, b"value");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_part_into(
        &self,
        key: &[u8],
        part: Range<usize>,
        target: &mut Vec<u8>,
    ) -> Result<bool, AccessError> {
        check_key(key)?;
        let wanted = Part { offset: part.start, length: part.len() };
        loop {
            let record = self.pager.run(|| {
                target.clear();
                let leaf = self.leaf(key)?;
                read(self, &leaf, Wanted::find(&leaf, key, wanted), target)
            })?;
            let reference = match record {
                Record::Absent => return Ok(false),
                Record::Inline => return Ok(true),
                Record::Large(large) => large.reference,
            };
            let length = reference.length.saturating_sub(part.start as u64).min(part.len() as u64);
            target.resize(length as usize, 0);
            match BlobReader::new(*self, key, reference).read_at(part.start as u64, target) {
                Ok(_) => return Ok(true),
                // The value was replaced or removed meanwhile: try again.
                Err(AccessError::ValueChanged) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The value of `key`: a large value is not copied, but read in place, and stays latched as long as the result
    /// lives.
    ///
    /// # Errors
    /// As for [`get`](Self::get); a value larger than the pool must be read in parts: see
    /// [`reader`](Self::reader).
    pub fn value(&self, key: &[u8]) -> Result<Option<Value<'p, P>>, AccessError> {
        check_key(key)?;
        let mut copy = Vec::new();
        let blob = self.run_reading(|| {
            copy.clear();
            let leaf = self.leaf(key)?;
            Ok(match read(self, &leaf, Wanted::find(&leaf, key, Part::ALL), &mut copy)? {
                Record::Absent => None,
                Record::Inline => Some(None),
                Record::Large(large) => {
                    Some(Some((share_large(self, &leaf, (key, large))?, large.reference)))
                }
            })
        })?;
        Ok(blob.map(|blob| match blob {
            None => Value(Held::Copy(copy)),
            Some((guard, reference)) => Value(Held::Blob { guard, length: reference.length as usize }),
        }))
    }

    /// The length of the value of `key`, without reading it.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value_length(&self, key: &[u8]) -> Result<Option<u64>, AccessError> {
        check_key(key)?;
        Ok(self.pager.run(|| read_length(self, &self.leaf(key)?, key))?)
    }

    /// A reader of the value of `key` in parts, if it is a large one; `None` if there is no value, or a small one, for
    /// which [`get`](Self::get) is meant.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader(&self, key: &[u8]) -> Result<Option<BlobReader<'p, P>>, AccessError> {
        let large = self.with_large(key, |_, found| Ok(found))?;
        Ok(large.map(|large| BlobReader::new(*self, key, large.reference)))
    }

    /// Runs `work` on the leaf of `key` and the large value that is seen under it, if any.
    pub(in crate::tree) fn with_large<T>(
        &self,
        key: &[u8],
        mut work: impl FnMut(&P::Optimistic<'p>, Option<Large>) -> Result<T, Interrupt>,
    ) -> Result<T, AccessError> {
        check_key(key)?;
        Ok(self.pager.run(|| {
            let leaf = self.leaf(key)?;
            let found = match read(self, &leaf, Wanted::find(&leaf, key, Part::NONE), &mut Vec::new())? {
                Record::Large(large) => Some(large),
                Record::Absent | Record::Inline => None,
            };
            work(&leaf, found)
        })?)
    }
}

/// [`Tree::get_into`] after the first attempt.
// The tree is taken by value, so that its parts need not lie in memory while the first attempt succeeds.
#[cold]
#[inline(never)]
fn get_into_again<P: Pager>(
    tree: Tree<'_, P>,
    key: &[u8],
    target: &mut Vec<u8>,
    interrupt: Interrupt,
) -> Result<bool, PoolError> {
    tree.run_reading_again(interrupt, || tree.try_get_into(key, target))
}
