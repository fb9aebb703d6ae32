//! Copying the file of a pool in use, for a backup: what the copy needs of the pool meanwhile.
//!
//! A copy is fuzzy: pages are copied from storage, each as it is at some moment after a checkpoint. The log from the
//! redo point of that checkpoint on brings them to one moment, as after a crash. So a page that is torn in the copy, or
//! was never copied, does no harm if the log has it from its beginning.

use crate::{
    error::PoolError,
    file::{copy_basis::CopyBasis, held::Held, storage::Storage},
    pool::Pool,
};
use std::{ops::Range, time::Duration};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId};

impl Pool {
    /// The basis of a copy of the file: its last checkpoint or close. The caller makes sure that no checkpoint is taken
    /// meanwhile.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn copy_basis(&self) -> Result<CopyBasis, PoolError> {
        CopyBasis::read(self.allocator().storage())
    }

    /// Whether the superblocks say that the file is closed, and nothing has been changed since.
    pub fn is_closed(&self) -> bool {
        self.allocator().storage().is_closed()
    }

    /// Marks the file as in use, so that a checkpoint is taken even if nothing has changed since it was closed.
    ///
    /// # Errors
    /// If the superblocks cannot be written.
    pub fn mark_in_use(&self) -> Result<(), PoolError> {
        self.allocator().storage().mark_in_use()
    }

    /// Notes that a backup is made of the present state: increments can be based on it for longer. The next checkpoint
    /// makes it durable.
    pub fn note_backup(&self) {
        self.allocator().storage().lock_superblock().lives.note_backup();
    }

    /// Reads pages from storage past the pool, whatever they hold. The buffer begins and ends at a multiple of a page.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn read_stored(&self, first: PageId, buffer: &mut [u8]) -> Result<(), PoolError> {
        let extent = Extent { head: first, pages: (buffer.len() / PAGE_SIZE) as u32 };
        let read = self.allocator().storage().file.read_to(first.offset(), buffer);
        read.map_err(|source| PoolError::Read { extent, source })
    }

    /// Keeps space that is freed from now on from being reused until the result is dropped: see [`HeldSpace`]. One at a
    /// time.
    ///
    /// If the file is full, a change waits for space to be copied, at most as long as `patience` says. It may have
    /// latched what it changes, so the copying thread must not need latches until it calls
    /// [`end_patience`](HeldSpace::end_patience).
    pub fn hold_space(&self, patience: Option<Duration>) -> HeldSpace<'_> {
        let storage = self.allocator().storage();
        if let Some(logged) = storage.logged() {
            logged.hold(patience);
        }
        HeldSpace(storage)
    }
}

/// Freed space that is not reused, because a copy of it is being made.
///
/// If the file is full, a change that needs room takes it all the same, at once or after it has waited for the copy.
#[must_use = "the space is used again at once"]
pub struct HeldSpace<'p>(&'p Storage);

impl HeldSpace<'_> {
    /// Says which pages are copied: no others are held from now on.
    pub fn narrow(&self, pages: Vec<Range<u64>>) {
        self.change(|held| held.narrow(pages));
    }

    /// Notes that the pages before this one have been copied: they are not held any more.
    pub fn note_copied(&self, before: PageId) {
        self.change(|held| held.note_copied(before));
    }

    /// From now on no change waits.
    pub fn end_patience(&self) {
        self.change(|held| {
            held.end_patience();
            Vec::new()
        });
    }

    /// Whether none of the pages that are copied has been reused before it was.
    pub fn is_intact(&self) -> bool {
        self.0.logged().is_none_or(|logged| logged.is_held())
    }

    fn change(&self, change: impl FnOnce(&mut Held) -> Vec<(Lsn, Extent)>) {
        if let Some(logged) = self.0.logged() {
            logged.change_held(&self.0.space, change);
        }
    }
}

impl Drop for HeldSpace<'_> {
    fn drop(&mut self) {
        if let Some(logged) = self.0.logged() {
            logged.release_held(&self.0.space);
        }
    }
}
