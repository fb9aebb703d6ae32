//! Changing a record only if it is unchanged: the basis of compare-and-swap and of changes of a value's length.

use crate::blob::BlobReference;
use crate::error::AccessError;
use crate::isolation::Claim;
use crate::tree::change::{expected::Expected, write::Mode};
use crate::tree::read::blob_reader::BlobReader;
use crate::tree::read::record::{Part, Record, Wanted, read, read_value};
use crate::tree::{Tree, Written, check_key};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// The contents of a tree under a key: see [`Tree::held`].
#[derive(Debug)]
pub struct Held(Option<(Vec<u8>, Option<BlobReference>)>);

impl Held {
    /// The value, if there is one.
    pub fn value(&self) -> Option<&[u8]> {
        self.0.as_ref().map(|(value, _)| &value[..])
    }

    /// The value, if there is one.
    pub fn into_value(self) -> Option<Vec<u8>> {
        self.0.map(|(value, _)| value)
    }

    pub(in crate::tree) fn is_large(&self) -> bool {
        matches!(self.0, Some((_, Some(_))))
    }

    fn expected(&self) -> Option<Expected<'_>> {
        self.0.as_ref().map(|(value, large)| large.map_or(Expected::Inline(value), Expected::Large))
    }
}

impl<'p, P: Pager> Tree<'p, P> {
    /// What the tree holds under `key`, for [`exchange`](Self::exchange). A large value is copied; if the pool has no
    /// room for it, it is read past the pool.
    ///
    /// # Errors
    /// As for [`get`](Self::get); [`AccessError::Conflict`] if the tree's view sees something else.
    pub fn held(&self, key: &[u8]) -> Result<Held, AccessError> {
        check_key(key)?;
        // The value in the leaf is what will be changed, provided that the writer sees it.
        let newest = Self { view: None, ..*self };
        let held = match self.pager.run(|| self.try_held(&newest, key, true)) {
            Err(PoolError::LargerThanPool { .. } | PoolError::PoolExhausted { .. }) => {
                self.held_in_parts(&newest, key)?
            }
            held => held?,
        };
        held.map_err(|claim| self.denied(claim, key))
    }

    /// What is held under a key; `is_copied` says whether a large value is copied.
    fn try_held(&self, newest: &Self, key: &[u8], is_copied: bool) -> Result<Result<Held, Claim>, Interrupt> {
        let (leaf, mut value) = (self.leaf(key)?, Vec::new());
        if let Err(claim) = self.check(&leaf, key) {
            leaf.validate()?;
            return Ok(Err(claim));
        }
        let wanted = Wanted::find(&leaf, key, Part::ALL);
        Ok(Ok(Held(match read(newest, &leaf, wanted, &mut value)? {
            Record::Absent => None,
            Record::Inline => Some((value, None)),
            Record::Large(large) => {
                value.clear();
                if is_copied {
                    read_value(newest, &leaf, wanted, &mut value)?;
                }
                Some((value, Some(large.reference)))
            }
        })))
    }

    /// [`try_held`](Self::try_held) without holding a large value in the pool.
    #[cold]
    fn held_in_parts(&self, newest: &Self, key: &[u8]) -> Result<Result<Held, Claim>, AccessError> {
        loop {
            let mut held = match self.pager.run(|| self.try_held(newest, key, false))? {
                Ok(held) => held,
                Err(claim) => return Ok(Err(claim)),
            };
            let Held(Some((value, Some(reference)))) = &mut held else { return Ok(Ok(held)) };
            value.resize(reference.length as usize, 0);
            match BlobReader::new(*newest, key, *reference).read_at(0, value) {
                // The value was replaced meanwhile.
                Err(AccessError::ValueChanged) => {}
                done => return done.map(|_| Ok(held)),
            }
        }
    }

    /// Stores `new` under `key`, or removes the key if `new` is `None`, provided that the tree still holds `held`;
    /// returns whether it did. Atomic: the comparison and the change belong to one moment.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert). The record is then unchanged.
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// let held = tree.held(b"names")?;
    /// assert!(tree.exchange(b"names", &held, Some(b"Ada"))?);
    /// assert!(!tree.exchange(b"names", &held, Some(b"Alan"))?, "there was nothing when it was asked");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exchange(&self, key: &[u8], held: &Held, new: Option<&[u8]>) -> Result<bool, AccessError> {
        match (held.expected(), new) {
            // Nothing is written. What this tree's view does not show is no reason to retry.
            (None, None) => Ok(self.value_length(key)?.is_none()),
            (None, Some(new)) => self.insert(key, new),
            (Some(expected), Some(new)) => {
                Ok(self.write_as(key, new, Mode::Exchange(&expected))? == Written::Replaced)
            }
            (expected, None) => self.remove_if(key, expected),
        }
    }
}
