//! Copying the file of a pool in use, for a backup: what the copy needs of the pool meanwhile.
//!
//! A copy is fuzzy: pages are copied from storage, each as it is at some moment after a checkpoint. The log from the
//! redo point of that checkpoint on brings them to one moment, as after a crash. So a page that is torn in the copy, or
//! was never copied, does no harm if the log has it from its beginning.

use crate::{
    error::PoolError,
    file::{copy_basis::CopyBasis, storage::Storage},
    pool::Pool,
};
use vellum_base::{Extent, PAGE_SIZE, PageId};

impl Pool {
    /// The basis of a copy of the file: its last checkpoint or close. The caller makes sure that no checkpoint is taken
    /// meanwhile.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn copy_basis(&self) -> Result<CopyBasis, PoolError> {
        CopyBasis::read(self.allocator().storage())
    }

    /// Whether the superblocks say that the file is in use: something may have been changed.
    pub fn is_in_use(&self) -> bool {
        self.allocator().storage().is_in_use()
    }

    /// Marks the file as in use, so that a checkpoint is taken even if nothing has changed since it was closed.
    ///
    /// # Errors
    /// If the superblocks cannot be written.
    pub fn mark_in_use(&self) -> Result<(), PoolError> {
        self.allocator().storage().mark_in_use()
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

    /// Keeps space that is freed from now on from being reused until the result is dropped, or the file is full. One at
    /// a time.
    pub fn hold_space(&self) -> HeldSpace<'_> {
        let held = HeldSpace(self.allocator().storage());
        held.again();
        held
    }
}

/// Freed space that is not reused, because a copy of it is being made.
#[must_use = "the space is used again at once"]
pub struct HeldSpace<'p>(&'p Storage);

impl HeldSpace<'_> {
    /// Whether none of it has been reused. The space is reused if the file is full.
    pub fn is_intact(&self) -> bool {
        self.0.logged().is_none_or(|logged| logged.is_held())
    }

    /// Begins to hold space again.
    pub fn again(&self) {
        if let Some(logged) = self.0.logged() {
            logged.hold();
        }
    }
}

impl Drop for HeldSpace<'_> {
    fn drop(&mut self) {
        if let Some(logged) = self.0.logged() {
            logged.release_held();
        }
    }
}
