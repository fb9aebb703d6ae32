//! Large values that belong to pages of objects and not to records of a tree.

use crate::blob::{BlobCheck, BlobReference};
use crate::error::{AccessError, damaged};
use crate::gateway::{PinnedContents, UnlinkedExtents, abandon, persist};
use crate::tree::write_blob;
use vellum_base::{HEADER_BYTES, PAGE_SIZE, PageId};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError, SharedPage};
use vellum_vm::AlignedBuffer;

/// How much of a value that is larger than the pool is read at a time.
const PIECE_PAGES: u32 = 256;

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

    /// Shows one of these values; `None` if `reference` is not one of them. `page` is any page that stays allocated.
    ///
    /// # Errors
    /// If the value cannot be read.
    pub fn read<T>(
        &self,
        reference: BlobReference,
        page: PageId,
        show: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, AccessError> {
        if !self.values.contains(&reference) {
            return Ok(None);
        }
        if is_larger_than_pool(self.pager, reference) {
            // Nothing else knows the extent, so whatever page is read before it will do.
            let value = self.pager.run(|| copy_past(self.pager, &self.pager.root(page)?, reference))?;
            return Ok(Some(show(&value)));
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

/// Shows the large value to which `parent`, which was just read, refers. The whole value is in memory meanwhile: in the pool, or
/// as a copy if it is larger than that.
///
/// # Errors
/// The interrupts of the restart protocol, and an error if the value is damaged.
pub fn read_large<'p, P: Pager, T>(
    pager: &'p P,
    parent: &P::Optimistic<'p>,
    reference: BlobReference,
    show: impl FnOnce(&[u8]) -> T,
) -> Result<T, Interrupt> {
    if is_larger_than_pool(pager, reference) {
        return copy_past(pager, parent, reference).map(|value| show(&value));
    }
    let guard = pager.shared(parent, reference.extent())?;
    match value_in(guard.page(), reference) {
        Some(value) => Ok(show(value)),
        None => Err(damaged(reference.head, "it is not the large value to which an object refers")),
    }
}

fn is_larger_than_pool<P: Pager>(pager: &P, reference: BlobReference) -> bool {
    reference.extent().pages as usize > pager.limit_pages()
}

/// A copy of the value to which `parent` refers, read past the pool.
#[cold]
fn copy_past<'p, P: Pager>(
    pager: &'p P,
    parent: &P::Optimistic<'p>,
    reference: BlobReference,
) -> Result<Vec<u8>, Interrupt> {
    let (extent, length) = (reference.extent(), reference.length as usize);
    let (mut value, mut check) = (Vec::new(), BlobCheck::new(reference));
    let mut page = 0;
    while page < extent.pages {
        let pages = PIECE_PAGES.min(extent.pages - page);
        let mut piece = AlignedBuffer::new(pages as usize * PAGE_SIZE);
        pager.read_part(parent, extent, page, &mut piece)?;
        check.update(&piece);
        let part = piece.get(if page == 0 { HEADER_BYTES } else { 0 }..).unwrap_or_default();
        value.extend_from_slice(part.get(..part.len().min(length - value.len())).unwrap_or_default());
        page += pages;
    }
    // If the reference is stale, these may be bytes of something else.
    parent.validate()?;
    check.finish(true)?;
    Ok(value)
}

/// The value in an extent, if that is the extent for which the reference was made.
fn value_in(page: &[u8], reference: BlobReference) -> Option<&[u8]> {
    let value = page.get(HEADER_BYTES..).and_then(|rest| rest.get(..reference.length as usize));
    value.filter(|_| reference.leads_to(page))
}
