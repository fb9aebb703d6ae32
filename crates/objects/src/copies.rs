//! Copies of pages, on which a change is made before any page is latched.
//!
//! A change works on copies of the pages that it reads and changes. When it ends, the pages that it has changed are
//! latched, and then everything that it has read is checked to be unchanged: it has the same version, or, if the page
//! was evicted meanwhile, the same bytes. Then the changes are made, as one record of the log; otherwise nothing has
//! happened, and the change is repeated. (Kung and Robinson, *On optimistic methods for concurrency control*, 1981; the
//! order of latching and validating is that of Silo, SOSP 2013.)

use crate::error::ObjectError;
use crate::page::{PageBytes, PageMut, PageView};
use crate::plant::{Plant, planted};
use std::collections::{BTreeMap, btree_map::Entry};
use vellum_access::{BlobReference, LatchedObjects, PageEdits};
use vellum_base::{Bytes, Extent, HEADER_BYTES, PAGE_SIZE, PageId};
use vellum_pool::{Fault, Interrupt, OptimisticPage, Pager, PoolError};

/// The most pages that one change writes: they are latched together.
const WRITTEN_MAX: usize = 128;
/// How many it may write even in the smallest pool: an object that moves involves three.
const WRITTEN_MIN: usize = 4;
/// The most pages that one change reads, of which it has copies.
const READ_MAX: usize = 8192;

/// A page of objects as it was at one moment.
struct Copy {
    /// The original contents.
    before: Box<PageBytes>,
    /// The version of the page then.
    token: u64,
    /// The new contents, if changed.
    after: Option<Box<PageBytes>>,
}

/// Copies of pages of one heap.
pub(crate) struct Copies<'p, P: Pager> {
    pager: &'p P,
    /// The root of the heap's directory.
    owner: PageId,
    pages: BTreeMap<PageId, Copy>,
    written: usize,
    /// Whether the change is made inside another one of the same heap, and so may only read.
    is_nested: bool,
}

impl<'p, P: Pager> Copies<'p, P> {
    pub fn new(pager: &'p P, owner: PageId, is_nested: bool) -> Self {
        Self { pager, owner, pages: BTreeMap::new(), written: 0, is_nested }
    }

    /// A page as the change sees it; none if it is not a page of the heap.
    pub fn view(&mut self, page: PageId) -> Result<Option<PageView<'_>>, ObjectError> {
        let copy = load((self.pager, self.owner), &mut self.pages, page)?;
        Ok(copy.map(|copy| PageView(copy.after.as_deref().unwrap_or(&copy.before))))
    }

    /// How many granules of a page are free: without this change, and as the change sees it.
    pub fn free(&mut self, page: PageId) -> Result<(usize, usize), ObjectError> {
        let copy = load((self.pager, self.owner), &mut self.pages, page)?;
        let free = |copy: &mut Copy| {
            let after = copy.after.as_deref().unwrap_or(&copy.before);
            (PageView(&copy.before).free(), PageView(after).free())
        };
        Ok(copy.map_or((0, 0), free))
    }

    /// A page for changing; none if it is not a page of the heap.
    pub fn page_mut(&mut self, page: PageId) -> Result<Option<PageMut<'_>>, ObjectError> {
        if self.is_nested {
            return Err(ObjectError::ChangeUnderWay);
        }
        let limit = WRITTEN_MAX.min(self.pager.limit_pages() / 8).max(WRITTEN_MIN);
        let Some(copy) = load((self.pager, self.owner), &mut self.pages, page)? else { return Ok(None) };
        if copy.after.is_none() {
            if self.written == limit {
                return Err(ObjectError::ChangeTooLarge { limit });
            }
            self.written += 1;
        }
        Ok(Some(PageMut(copy.after.get_or_insert_with(|| copy.before.clone()))))
    }

    /// The changed pages: each as it was and as it will be.
    pub fn changed(&self) -> impl Iterator<Item = (PageId, PageView<'_>, PageView<'_>)> {
        self.pages.iter().filter_map(|(page, copy)| {
            copy.after.as_deref().map(|after| (*page, PageView(&copy.before), PageView(after)))
        })
    }

    /// Makes the changes if everything that was read is unchanged; returns whether it was.
    pub fn commit(&self, made: &[BlobReference], freed: &[BlobReference]) -> Result<bool, ObjectError> {
        let edits = self
            .changed()
            .map(|(page, before, after)| (page, PageEdits::between(before.0, after.0, HEADER_BYTES)));
        let (pages, edits): (Vec<_>, Vec<_>) = edits.filter(|(_, edits)| !edits.is_empty()).unzip();
        if pages.is_empty() {
            return self.is_current();
        }
        self.pager.admit_changes()?;
        Ok(self.pager.run(|| {
            let mut latched = LatchedObjects::new(self.pager, self.owner);
            if planted(Plant::ReadsComparedTooEarly)
                && !self.is_read_current(|page| pages.binary_search(&page).is_ok())?
            {
                return Ok(false);
            }
            for (page, copy) in pages.iter().filter_map(|page| Some((page, self.pages.get(page)?))) {
                let guard = self.pager.root(*page)?;
                let is_same = guard.token() == copy.token;
                let now = latched.latch(guard)?;
                let is_same = is_same || planted(Plant::LostUpdate);
                if !is_same && now.get(HEADER_BYTES..) != copy.before.get(HEADER_BYTES..) {
                    return Ok(false);
                }
            }
            // The latched pages are unchanged.
            let is_compared = planted(Plant::ReadsNotCompared) || planted(Plant::ReadsComparedTooEarly);
            if !is_compared && !self.is_read_current(|page| pages.binary_search(&page).is_ok())? {
                return Ok(false);
            }
            latched.commit(&edits, made, freed);
            Ok(true)
        })?)
    }

    /// Whether everything that was read is unchanged.
    pub fn is_current(&self) -> Result<bool, ObjectError> {
        Ok(self.pager.run(|| self.is_read_current(|_| false))?)
    }

    /// Whether everything that was read is unchanged, apart from pages for which that `is_known`. If so, all of it was
    /// unchanged at the moment when this check began: pages are checked one after the other, and need not be in memory
    /// together.
    fn is_read_current(&self, is_known: impl Fn(PageId) -> bool) -> Result<bool, Interrupt> {
        for (page, copy) in self.pages.iter().filter(|(page, _)| !is_known(**page)) {
            if !self.is_as_it_was(*page, copy)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a page is unchanged. A page that is not in memory is read in, which waits for no latch, so this thread
    /// may hold latches.
    fn is_as_it_was(&self, page: PageId, copy: &Copy) -> Result<bool, Interrupt> {
        /// If a page is evicted this often, the pool has no room for it.
        const MISSES_MAX: u32 = 1000;
        for _ in 0..MISSES_MAX {
            let guard = match self.pager.root(page) {
                Err(miss @ Interrupt::Miss(_)) => {
                    self.pager.resolve(miss)?;
                    continue;
                }
                guard => guard?,
            };
            if guard.token() == copy.token {
                return Ok(true);
            }
            let mut now = [0; PAGE_SIZE];
            guard.bytes().copy_to(0, &mut now);
            guard.validate()?;
            return Ok(now.get(HEADER_BYTES..) == copy.before.get(HEADER_BYTES..));
        }
        Err(self.pager.no_room().into())
    }
}

/// The copy of a page, which is made if there is none yet; none if it is not a page of the heap.
fn load<'c, P: Pager>(
    (pager, owner): (&P, PageId),
    pages: &'c mut BTreeMap<PageId, Copy>,
    page: PageId,
) -> Result<Option<&'c mut Copy>, ObjectError> {
    let is_full = pages.len() >= READ_MAX;
    match pages.entry(page) {
        Entry::Occupied(copy) => Ok(Some(copy.into_mut())),
        Entry::Vacant(_) if is_full => Err(ObjectError::ChangeTooLarge { limit: READ_MAX }),
        Entry::Vacant(place) => {
            let copy = copy_of(pager, owner, page)?;
            Ok(copy.map(|(before, token)| place.insert(Copy { before, token, after: None })))
        }
    }
}

/// A copy of a page of objects, and the version that the page had; none if it is not a page of the heap with this
/// directory.
pub(crate) fn copy_of<P: Pager>(
    pager: &P,
    owner: PageId,
    page: PageId,
) -> Result<Option<(Box<PageBytes>, u64)>, ObjectError> {
    Ok(copy_of_any(pager, page)?.filter(|(bytes, _)| PageView(bytes).is_of(owner)))
}

/// Whether a page is one that a heap which is being cleared has wiped, and not freed yet.
pub(crate) fn is_wiped<P: Pager>(pager: &P, page: PageId) -> Result<bool, ObjectError> {
    Ok(copy_of_any(pager, page)?.is_some_and(|(bytes, _)| PageView(&bytes).is_wiped()))
}

/// A copy of a page, and the version that it had; none if there is no such page.
fn copy_of_any<P: Pager>(pager: &P, page: PageId) -> Result<Option<(Box<PageBytes>, u64)>, ObjectError> {
    let mut bytes = Box::new([0; PAGE_SIZE]);
    let token = pager.run(|| {
        let guard = pager.root(page)?;
        guard.bytes().copy_to(0, &mut bytes[..]);
        guard.validate()?;
        Ok(guard.token())
    });
    match token {
        Ok(token) => Ok(Some((bytes, token))),
        Err(error) if is_nowhere(&error, page) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the error says that there is no such page.
pub(crate) fn is_nowhere(error: &PoolError, page: PageId) -> bool {
    match error {
        PoolError::Corruption { fault: Fault::NotAllocated, extent } => *extent == Extent::page(page),
        PoolError::Corruption { fault: Fault::Reference(to), .. } => *to == page.0,
        _ => false,
    }
}
