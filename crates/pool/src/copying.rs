//! Copying the file of a pool that is in use, for a backup: what a copy needs of the pool meanwhile.
//!
//! A copy is fuzzy: pages are copied from storage, each as it is at some moment after a checkpoint. What the log has since
//! the redo point of that checkpoint makes them those of one moment, as after a crash. So a page that is torn in the copy, or
//! was never copied, does no harm if the log tells of it from its beginning.

use crate::{
    error::PoolError,
    file::{copy_basis::CopyBasis, storage::Storage},
    pool::Pool,
};
use vellum_base::{Extent, PAGE_SIZE, PageId};

impl Pool {
    /// What a copy of the file begins with: its last checkpoint or close. The caller sees to it that no checkpoint is taken
    /// meanwhile.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn copy_basis(&self) -> Result<CopyBasis, PoolError> {
        CopyBasis::read(self.allocator().storage())
    }

    /// Whether the superblocks say that the file is in use: something was changed, or perhaps not.
    pub fn is_in_use(&self) -> bool {
        self.allocator().storage().is_in_use()
    }

    /// Makes the file say that it is in use, so that a checkpoint is taken even if nothing was changed since it was closed.
    ///
    /// # Errors
    /// If its superblocks cannot be written.
    pub fn mark_in_use(&self) -> Result<(), PoolError> {
        self.allocator().storage().mark_in_use()
    }

    /// Reads pages from storage past the pool, whatever is there. The buffer begins and ends at a multiple of a page.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read_stored(&self, first: PageId, buffer: &mut [u8]) -> Result<(), PoolError> {
        let extent = Extent { head: first, pages: (buffer.len() / PAGE_SIZE) as u32 };
        let read = self.allocator().storage().file.read_to(first.offset(), buffer);
        read.map_err(|source| PoolError::Read { extent, source })
    }

    /// What is freed from now on is not used again until the answer is dropped, or the file is full. One at a time.
    pub fn hold_space(&self) -> HeldSpace<'_> {
        let held = HeldSpace(self.allocator().storage());
        held.again();
        held
    }
}

/// Space that is freed and not used again, because a copy of it is being made.
#[must_use = "the space is used again at once"]
pub struct HeldSpace<'p>(&'p Storage);

impl HeldSpace<'_> {
    /// Whether nothing of it has been used again, because the file was full.
    pub fn is_intact(&self) -> bool {
        self.0.logged().is_none_or(|logged| logged.is_held())
    }

    /// Begins again.
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
