//! The record of a tree that completes a group of changes.

use crate::error::{AccessError, damaged};
use crate::gateway::{
    AtomicChange, Latched, PageChange, PinnedContents, RecordGroup, UnlinkedExtents, ValueImage, abandon,
    persist,
};
use crate::isolation::{Unshared, View, Writer};
use crate::node::{NodeError, ValueKind};
use crate::tree::change::blob::write_blob;
use crate::tree::change::write::{ATTEMPTS_MAX, is_inline};
use crate::tree::read::record::RecordLocation;
use crate::tree::{Tree, check_key};
use vellum_base::primitive::AtomicU64;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

impl<'p, P: Pager> Tree<'p, P> {
    /// Stores `value` under `key` if the key is new, and makes the changes of the group with it; returns whether the
    /// key was new. If it was not, nothing of the group happens.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert). Nothing of the group happens then.
    pub fn insert_last(
        &self,
        group: RecordGroup<'p, P>,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, AccessError> {
        check_key(key)?;
        if is_inline(key, value.len() as u64) {
            return self.place_last(group, key, ValueImage { kind: ValueKind::Inline, bytes: value });
        }
        let _unlinked = UnlinkedExtents::begin(self.pager);
        let reference = write_blob(self.pager, value.len() as u64, &mut &*value)?;
        let bytes = &reference.encode();
        let _pinned = PinnedContents::begin(self.pager);
        let persisted = persist(self.pager, reference).map_err(AccessError::from);
        let image = ValueImage { kind: ValueKind::Blob, bytes };
        let placed = persisted.and_then(|()| self.place_last(group, key, image));
        if !matches!(placed, Ok(true)) {
            abandon(self.pager, reference);
        }
        placed
    }

    /// Removes `key` and its value, and makes the changes of the group with it; returns whether the key existed. If it
    /// did not, nothing of the group happens.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove). Nothing of the group happens then.
    pub fn remove_last(&self, mut group: RecordGroup<'p, P>, key: &[u8]) -> Result<bool, AccessError> {
        check_key(key)?;
        let newest = self.newest();
        let removed = self.pager.run(|| newest.try_remove(key, None, &mut group))?;
        drop(group);
        let removed = removed.map_err(|claim| self.denied(claim, key))?;
        if removed == Some(true) {
            // See `remove`.
            let _ = newest.merge(key, 0);
        }
        Ok(removed.is_some())
    }

    fn place_last(
        &self,
        mut group: RecordGroup<'p, P>,
        key: &[u8],
        value: ValueImage<'_>,
    ) -> Result<bool, AccessError> {
        let newest = self.newest();
        for _ in 0..ATTEMPTS_MAX {
            match self.pager.run(|| newest.try_place_last(&mut group, key, value))? {
                Some(placed) => return Ok(placed),
                None => newest.split(key, 0, key, value.bytes.len())?,
            }
        }
        Err(PoolError::contents(self.root(), "splitting its leaves makes no room in them").into())
    }

    /// The tree as the thread that ends the group changes it: outside transactions, without claims. It has a view,
    /// since a tree without a view would not keep the pages that old snapshots need.
    fn newest(&self) -> Self {
        static SETTLED: AtomicU64 = AtomicU64::new(u64::MAX);
        let view = View { settled: &SETTLED, isolation: &Unshared, writer: Writer::None, open: None };
        Self { view: Some(view), ..*self }
    }

    /// `None` if the leaf is full.
    fn try_place_last(
        &self,
        group: &mut RecordGroup<'p, P>,
        key: &[u8],
        value: ValueImage<'_>,
    ) -> Result<Option<bool>, Interrupt> {
        let find = RecordLocation::of(self.leaf(key)?, key);
        if find.found {
            find.leaf.validate()?;
            return Ok(Some(false));
        }
        let mut change = self.change((Latched::latch(find.leaf)?, group))?;
        let AtomicChange { pages: (leaf, _), recording, .. } = &mut change;
        match recording.apply(leaf, Some(find.index), &PageChange::Insert { key, value }) {
            Ok(()) => {
                change.commit();
                Ok(Some(true))
            }
            Err(NodeError::Full) => Ok(None),
            Err(error) => Err(damaged(leaf.id(), error)),
        }
    }
}
