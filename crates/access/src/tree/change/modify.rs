//! Changing a value in place.

use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Latched};
use crate::isolation::{Claim, Intent};
use crate::node::ValueKind;
use crate::tree::read::record::RecordLocation;
use crate::tree::{Tree, check_key};
use vellum_base::PageId;
use vellum_pool::{Interrupt, OptimisticPage, Pager};

/// The result of an attempt to change a value.
enum Modified<T, L> {
    /// The key has no value.
    Nothing,
    /// The value was changed: the result of `change`, and the leaf after the change.
    Changed(T, L),
    /// The value is a large one, and is unchanged.
    Large,
    /// The value must not be changed.
    Denied(Claim),
}

/// A leaf in which values were changed one after the other, and nothing else.
#[derive(Clone, Copy)]
pub(in crate::tree) struct ChangedLeaf {
    pub(in crate::tree) page: PageId,
    /// The token of the leaf when the values were found in it.
    found: u64,
    /// The token of the leaf after the last change.
    pub(in crate::tree) left: u64,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Lets `change` change the bytes of the value of `key`, whose length stays the same, and returns its result;
    /// returns `None`, without calling it, if there is no value. No other thread reads or writes the value in between,
    /// so several threads can use one value as a counter.
    ///
    /// A value in a leaf is changed in place, under the leaf's latch: `change` should be short, and must not use the
    /// tree. A large value is copied, changed and stored anew, and again if another thread was faster: `change` may
    /// then be called several times, each time with the present value, and its last result counts. If `change` panics,
    /// the pool considers the page half changed and can no longer be closed cleanly.
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`update`](Self::update). The value is then unchanged.
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// tree.insert(b"visits", &[7, 0])?;
    /// let before = tree.modify(b"visits", |value| {
    ///     value[0] += 1;
    ///     value[0] - 1
    /// })?;
    /// assert_eq!((before, tree.get(b"visits")?), (Some(7), Some(vec![8, 0])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn modify<T>(
        &self,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        check_key(key)?;
        loop {
            match self.pager.run(|| self.try_modify(key, &mut change))? {
                Modified::Nothing => return Ok(None),
                Modified::Changed(result, _) => return Ok(Some(result)),
                Modified::Denied(claim) => return Err(self.denied(claim, key)),
                Modified::Large => {
                    if let Some(result) = self.exchange_blob(key, &mut change)? {
                        return Ok(Some(result));
                    }
                }
            }
        }
    }

    /// Reserves the record of `key`, whether it exists or not, for the transaction of the tree's view: no other
    /// transaction can change it before this one ends. Nothing is changed, and nothing logged.
    ///
    /// # Errors
    /// As for a change of the record.
    pub fn reserve(&self, key: &[u8]) -> Result<(), AccessError> {
        check_key(key)?;
        let claimed = self.pager.run(|| {
            let at = RecordLocation::of(self.leaf(key)?, key);
            let leaf = Latched::latch(at.leaf)?;
            let claimed = self.claim(&leaf, (key, at.found.then_some(at.index)), Intent::Reserve)?;
            if let (Ok(()), Some(view)) = (&claimed, &self.view) {
                view.isolation.unchanged();
            }
            Ok(claimed)
        })?;
        claimed.map_err(|claim| self.denied(claim, key))
    }

    /// Changes a small value in its leaf, if the leaf has not changed since the value was found there, except by the
    /// `last` changes, which move nothing. Returns whether it did.
    pub(in crate::tree) fn modify_at(
        &self,
        (at, key): (RecordLocation<P::Optimistic<'p>>, &[u8]),
        last: &mut Option<ChangedLeaf>,
        change: &mut impl FnMut(&mut [u8]),
    ) -> bool {
        let (page, token) = (at.leaf.id(), at.leaf.token());
        let same = last.filter(|last| last.page == page && [last.found, last.left].contains(&token));
        let found = same.map_or(token, |last| last.found);
        let leaf = same.map_or(Some(at.leaf), |last| self.pager.reacquire(page, last.left));
        let Some(Ok(leaf)) = leaf.map(Latched::latch) else { return false };
        let Ok(Modified::Changed((), leaf)) = self.change_at(leaf, (key, at.index), change) else {
            return false;
        };
        *last = Some(ChangedLeaf { page, found, left: leaf.token() });
        true
    }

    fn try_modify<T>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Modified<T, P::Optimistic<'p>>, Interrupt> {
        let at = RecordLocation::of(self.leaf(key)?, key);
        if !at.found {
            let checked = self.check(&at.leaf, key);
            at.leaf.validate()?;
            self.check_vain()?;
            return Ok(checked.err().map_or(Modified::Nothing, Modified::Denied));
        }
        self.change_at(Latched::latch(at.leaf)?, (key, at.index), change)
    }

    /// Lets `change` change a small value in a leaf.
    #[inline(always)]
    fn change_at<T>(
        &self,
        leaf: Latched<'p, P>,
        (key, index): (&[u8], usize),
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Modified<T, P::Optimistic<'p>>, Interrupt> {
        if self.pager.needs_lsn() {
            self.change_with_lsn(leaf, (key, index), change)
        } else {
            self.change_latched::<T, false>(leaf, (key, index), change)
        }
    }

    /// [`change_latched`](Self::change_latched), kept out of the code for a change that needs no LSN.
    #[inline(never)]
    fn change_with_lsn<T>(
        &self,
        leaf: Latched<'p, P>,
        at: (&[u8], usize),
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Modified<T, P::Optimistic<'p>>, Interrupt> {
        self.change_latched::<T, true>(leaf, at, change)
    }

    #[inline(always)]
    fn change_latched<T, const NEEDS_LSN: bool>(
        &self,
        leaf: Latched<'p, P>,
        (key, index): (&[u8], usize),
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Modified<T, P::Optimistic<'p>>, Interrupt> {
        if leaf.view().value_location(index).kind == ValueKind::Blob {
            return Ok(Modified::Large);
        }
        self.check_root()?;
        if self.claims(NEEDS_LSN)
            && let Err(claim) = self.claim(&leaf, (key, Some(index)), Intent::SameLength)?
        {
            return Ok(Modified::Denied(claim));
        }
        let AtomicChange { pages: mut leaf, mut recording, needs } = self.begin_change(leaf, NEEDS_LSN);
        let changed = recording.patch(&mut leaf, index, key, |value| self.change_claimed(value, change));
        let result = changed.map_err(|error| {
            self.give_up_claim();
            damaged(leaf.id(), error)
        })?;
        let leaf = AtomicChange { pages: leaf, recording, needs }.commit_by(self.recorder(), None);
        Ok(Modified::Changed(result, leaf))
    }

    /// Stores a changed copy of a large value, unless the key has another value or none by then.
    fn exchange_blob<T>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        let held = self.held(key)?;
        let Some(mut value) = held.value().filter(|_| held.is_large()).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        let result = change(&mut value);
        Ok(self.exchange(key, &held, Some(&value))?.then_some(result))
    }
}
