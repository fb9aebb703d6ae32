//! Large values that belong to pages of objects and not to records of a tree.

use crate::blob::BlobReference;
use crate::error::{AccessError, damaged};
use crate::gateway::{PinnedContents, UnlinkedExtents, abandon, persist};
use crate::tree::write_blob;
use vellum_base::HEADER_BYTES;
use vellum_pool::{Interrupt, Pager, PoolError, SharedPage};

/// New large values, to which nothing refers yet. They are freed again unless they are [kept](Self::keep).
pub struct NewLarge<'p, P: Pager> {
    pager: &'p P,
    values: Vec<BlobReference>,
    /// If there are any.
    unlinked: Option<UnlinkedExtents<'p, P>>,
}

impl<'p, P: Pager> NewLarge<'p, P> {
    /// An empty set.
    pub fn new(pager: &'p P) -> Self {
        Self { pager, values: Vec::new(), unlinked: None }
    }

    /// Writes a value.
    ///
    /// # Errors
    /// If the value is too long, or the file cannot grow.
    pub fn write(&mut self, value: &[u8]) -> Result<BlobReference, AccessError> {
        self.unlinked.get_or_insert_with(|| UnlinkedExtents::begin(self.pager));
        let reference = write_blob(self.pager, value.len() as u64, &mut &*value)?;
        self.values.push(reference);
        Ok(reference)
    }

    /// Shows one of these values; `None` if `reference` is not one of them.
    ///
    /// # Errors
    /// If the value cannot be read, or is larger than the pool.
    pub fn read<T>(
        &self,
        reference: BlobReference,
        show: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        if !self.values.contains(&reference) {
            return Ok(None);
        }
        let guard = self.pager.shared_certain(reference.extent())?;
        let value = value_in(guard.page(), reference).ok_or_else(|| {
            PoolError::contents(reference.head, "it is not the large value that was written there")
        })?;
        Ok(Some(show(value)))
    }

    /// Frees a value that is not needed after all; false if `reference` is not one of these values.
    pub fn abandon(&mut self, reference: BlobReference) -> bool {
        let index = self.values.iter().position(|value| *value == reference);
        if let Some(index) = index {
            self.values.swap_remove(index);
            abandon(self.pager, reference);
        }
        index.is_some()
    }

    /// Makes the values durable if changes are recorded, and then calls `change` to refer to them. They are kept if
    /// `change` returns true.
    ///
    /// # Errors
    /// If the values cannot be written, and the errors of `change`.
    pub fn keep<E: From<AccessError>>(
        &mut self,
        change: impl FnOnce(&[BlobReference]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let _pinned = (!self.values.is_empty()).then(|| PinnedContents::begin(self.pager));
        for reference in &self.values {
            persist(self.pager, *reference).map_err(AccessError::from)?;
        }
        let is_kept = change(&self.values)?;
        if is_kept {
            self.values.clear();
            self.unlinked = None;
        }
        Ok(is_kept)
    }
}

impl<P: Pager> Drop for NewLarge<'_, P> {
    fn drop(&mut self) {
        self.values.drain(..).for_each(|reference| abandon(self.pager, reference));
    }
}

/// Shows the large value to which `parent`, which was just read, refers. The whole value is in memory meanwhile.
///
/// # Errors
/// The interrupts of the restart protocol, and an error if the value is damaged or larger than the pool.
pub fn read_large<'p, P: Pager, T>(
    pager: &'p P,
    parent: &P::Optimistic<'p>,
    reference: BlobReference,
    show: impl FnOnce(&[u8]) -> T,
) -> Result<T, Interrupt> {
    let guard = pager.shared(parent, reference.extent())?;
    match value_in(guard.page(), reference) {
        Some(value) => Ok(show(value)),
        None => Err(damaged(reference.head, "it is not the large value to which an object refers")),
    }
}

/// The value in an extent, if that is the extent for which the reference was made.
fn value_in(page: &[u8], reference: BlobReference) -> Option<&[u8]> {
    let value = page.get(HEADER_BYTES..).and_then(|rest| rest.get(..reference.length as usize));
    value.filter(|_| reference.leads_to(page))
}
