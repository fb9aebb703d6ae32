//! Changes that are too many for one record, and yet happen together.

use super::allocation::allocate;
use super::atomic::{Fresh, PageSet, commit_recorded};
use super::encoding::RecordKind;
use super::objects::contents_of;
use super::page_change::{NodeImage, PageChange};
use super::record::Record;
use super::unlinked::UnlinkedExtents;
use crate::node::{NODE_BYTES, NodeError};
use std::marker::PhantomData;
use vellum_base::{Extent, Lsn, PageId, PageKind};
use vellum_pool::{AllocatedPage, Pager, PoolError};

/// Trees that are created or freed together with a record of another tree, which says where they are. All of it happens
/// when that record is inserted or removed, by [`Tree::insert_last`](crate::Tree::insert_last) or
/// [`Tree::remove_last`](crate::Tree::remove_last); otherwise nothing happens. A group that is dropped earlier frees
/// the pages that it made, and nothing else.
///
/// In the log this is one record, or, if that became too long, several that count only if the last of them is there:
/// see [`ChangeLog::begin_group`](vellum_pool::ChangeLog::begin_group).
///
/// ```
/// # use vellum_access::{RecordGroup, Tree};
/// # use vellum_base::PageId;
/// # use vellum_pool::{Pool, PoolOptions};
/// # let directory = tempfile::tempdir()?;
/// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let catalog = Tree::create(&pool)?;
/// let mut group = RecordGroup::begin(&pool);
/// let table = Tree::create_in(&mut group)?;
/// assert!(catalog.insert_last(group, b"table", &table.root().0.to_le_bytes())?);
///
/// let mut group = RecordGroup::begin(&pool);
/// table.destroy_in(&mut group)?;
/// assert!(catalog.remove_last(group, b"table")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing of it happens"]
pub struct RecordGroup<'p, P: Pager> {
    pager: &'p P,
    /// The number of the group, once one of its records is in the log.
    number: Option<u64>,
    /// The number of the transaction for which the group fills a tree.
    transaction: Option<u64>,
    /// The changes that are in no record of the log yet.
    record: Option<Box<Record>>,
    /// The pages that the group made.
    made: Vec<PageId>,
    /// The extents that are to be freed, with the levels of nodes.
    freed: Vec<(Extent, u8)>,
    /// If there are any of both.
    unlinked: Option<UnlinkedExtents<'p, P>>,
    /// A group in the log begins and ends on one thread.
    thread: PhantomData<*const ()>,
}

impl<'p, P: Pager> RecordGroup<'p, P> {
    /// Begins a group in which nothing happens yet.
    pub fn begin(pager: &'p P) -> Self {
        Self {
            pager,
            number: None,
            transaction: None,
            record: None,
            made: Vec::new(),
            freed: Vec::new(),
            unlinked: None,
            thread: PhantomData,
        }
    }

    /// Makes the group part of this transaction.
    pub(crate) fn of_transaction(&mut self, number: u64) {
        self.transaction = Some(number);
        self.number();
    }

    /// Begins the group in the log. From now on no redo point divides what is done before it ends.
    pub(super) fn enter_log(&mut self) {
        self.number();
    }

    fn number(&mut self) -> u64 {
        *self.number.get_or_insert_with(|| self.pager.begin_group())
    }

    pub(crate) fn pager(&self) -> &'p P {
        self.pager
    }

    /// Adds a new node, which `fill` fills.
    pub(crate) fn make(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), NodeError>,
    ) -> Result<PageId, PoolError> {
        self.pager.admit_changes()?;
        self.unlinked.get_or_insert_with(|| UnlinkedExtents::begin(self.pager));
        let mut page = Fresh::<P>(allocate(self.pager, 1, PageKind::TREE_NODE)?);
        let id = page.id();
        fill(page.0.page_mut()).map_err(|error| PoolError::contents(id, error.to_string()))?;
        let mut node = [0; NODE_BYTES];
        node.copy_from_slice(page.0.page_mut());
        // Nothing refers to the page, so its latch need not be held until it is recorded. Its LSN stays zero: it may
        // reach storage before its record.
        drop(page.0.keep(Lsn(0)));
        self.made.push(id);
        self.push(id, id, &PageChange::Format { image: NodeImage::of(&node) })?;
        Ok(id)
    }

    /// Adds a new page of objects, filled by `fill`, to the heap with this root. Nothing changes the page before the
    /// group has ended.
    ///
    /// # Errors
    /// If the file cannot grow or the pool has no room.
    pub fn make_objects(&mut self, owner: PageId, fill: impl FnOnce(&mut [u8])) -> Result<PageId, PoolError> {
        self.pager.admit_changes()?;
        let mut page = allocate(self.pager, 1, PageKind::OBJECTS)?;
        let id = page.id();
        fill(page.page_mut());
        let mut copy = [0; NODE_BYTES];
        copy.copy_from_slice(page.page_mut());
        // As for a node.
        drop(page.keep(Lsn(0)));
        self.made.push(id);
        self.push(owner, id, &PageChange::FormatObjects { contents: contents_of(&copy) })?;
        Ok(id)
    }

    /// Adds a page of objects, or the extent of a large one, to what is to be freed.
    ///
    /// # Errors
    /// If the log has no room. The group can then only be dropped: nothing has happened.
    pub fn free_objects(&mut self, owner: PageId, extent: Extent) -> Result<(), PoolError> {
        self.free(owner, vec![(extent, 0)])
    }

    /// Adds extents of the tree `tree` to what is to be freed. Each comes after the extents that refer to it.
    ///
    /// # Errors
    /// As for [`free_objects`](Self::free_objects).
    pub(crate) fn free(&mut self, tree: PageId, extents: Vec<(Extent, u8)>) -> Result<(), PoolError> {
        for (extent, _) in &extents {
            self.push(tree, extent.head, &PageChange::Free { pages: extent.pages })?;
        }
        self.unlinked.get_or_insert_with(|| UnlinkedExtents::begin(self.pager));
        if self.freed.is_empty() {
            self.freed = extents
        } else {
            self.freed.extend(extents)
        }
        Ok(())
    }

    /// Adds a change that allocates or frees. No latch is held.
    ///
    /// # Errors
    /// As for [`free_objects`](Self::free_objects).
    pub(super) fn push(
        &mut self,
        tree: PageId,
        page: PageId,
        change: &PageChange<'_>,
    ) -> Result<(), PoolError> {
        if !self.pager.records() {
            return Ok(());
        }
        // Only now, so that something is always left for the last record, without which nothing counts.
        let most = self.pager.record_bytes_max();
        if self.record.as_ref().is_some_and(|record| record.bytes().len() > most) {
            // Each record needs room of its own: on a full disk, many of them would exhaust the log.
            self.pager.admit_changes()?;
        }
        if let Some(mut record) = self.record.take_if(|record| record.bytes().len() > most) {
            let number = self.number();
            record.set_kind(RecordKind::Member(number));
            let lsn = self.pager.reserve_record(record.bytes().len());
            self.pager.fill_record(lsn, record.bytes());
        }
        let record = self.record.get_or_insert_with(|| Record::new(tree));
        record.push(page, change);
        Ok(())
    }

    /// Ends the group without a record of another tree.
    pub(crate) fn end(mut self) {
        let pager = self.pager;
        let Some(record) = self.record.take() else { return self.release(pager, Lsn(0)) };
        commit_recorded(pager, &mut self, record, (None, None), None);
    }
}

/// The last record holds the changes that no earlier record has.
impl<'p, P: Pager> PageSet<'p, P> for &mut RecordGroup<'p, P> {
    type Seen = ();

    fn kind(&self) -> RecordKind {
        match (self.number, self.transaction) {
            (Some(group), Some(transaction)) => RecordKind::Loaded { transaction, group },
            (Some(group), None) => RecordKind::Last(group),
            (None, _) => RecordKind::Single,
        }
    }

    fn describe(&self, record: &mut Record) {
        self.record.iter().for_each(|own| record.append(own));
    }

    fn release(self, pager: &'p P, lsn: Lsn) {
        for page in self.made.drain(..) {
            pager.note_allocated(Extent::page(page), lsn);
        }
        for (extent, level) in self.freed.drain(..) {
            // The extent was found to be allocated when it was added. A thread may still be on an inner node, and must
            // find that the node has changed before the pages to which it refers can be reused.
            let _ = if level > 0 { pager.discard_now(extent, lsn) } else { pager.discard(extent, lsn) };
        }
        self.unlinked = None;
    }
}

impl<P: Pager> Drop for RecordGroup<'_, P> {
    fn drop(&mut self) {
        for page in self.made.drain(..) {
            let _ = self.pager.discard(Extent::page(page), Lsn(0));
        }
        if self.number.is_some() {
            self.pager.end_group();
        }
    }
}
