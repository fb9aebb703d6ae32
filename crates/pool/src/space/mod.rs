//! Space on storage: which pages are allocated, as which extents.
//!
//! There are two bits for each page, held in memory as a whole (64 bytes for each MiB of data) and written to the file
//! as one extent when it is closed. They tell which pages form an extent and how long it is: the pool reads nothing
//! into memory that they do not confirm, whatever a damaged page refers to.
//!
//! # How readers and the allocator agree
//! A reader that follows a stale reference may want to fault in a page that was freed and has become part of another
//! extent. It takes the latch of the page first and then checks the bits. Three rules keep it from that extent:
//! - a page becomes or ceases to be a head only while its latch is held exclusively, so the bits that a reader sees
//!   under the latch are certain;
//! - an extent is first *claimed*, which no reader takes for allocated, and published only when the allocator has
//!   latched its head and has dropped each of its pages that was still in memory;
//! - a page that is not a head is not brought into memory, so in between no page of the extent enters memory.
//!
//! The extents of the pool itself (the superblocks, the map on storage) are never brought into memory, so
//! they are allocated and freed without latches.
//!
//! # Placement
//! Next fit: the search begins where the last one ended, and the file grows only if the search finds nothing. Free
//! neighbours need no coalescing, so space is reused at any size.

mod image;
mod recorded;
mod table;
mod watch;

pub(crate) use recorded::{RecordedMap, SpaceEvent};

use crate::primitive::{Mutex, MutexGuard, lock};
use std::ops::Range;
use table::{Use, UseTable};
use vellum_base::{Extent, PageId};
use vellum_vm::VmError;

/// The allocator of storage. Only the lock of the file is taken inside its lock.
pub(crate) struct SpaceMap {
    uses: UseTable,
    capacity_pages: u64,
    cursor: Mutex<Cursor>,
    unfinished: Mutex<watch::Unfinished>,
}

/// The state of the allocator beside the bitmaps.
#[derive(Default)]
pub(crate) struct Cursor {
    /// No page from here on was ever allocated.
    end: u64,
    /// How many pages before `end` are free.
    free: u64,
    /// Where the search for a single page continues.
    next_page: u64,
    /// Where the search for longer extents continues.
    next_run: u64,
    /// No free run of this length or longer exists before `end`, unless something was freed since.
    longest_run_limit: u64,
    /// No page before this one is free.
    first_free: u64,
    /// Whether something has been allocated or freed since the map was last read or written.
    changed: bool,
    /// What those want to know who look for pages that belong to nothing.
    watched: Option<watch::Watched>,
}

/// Space that is about to be claimed.
pub(crate) struct Claimed {
    /// How many pages.
    pub pages: u64,
    /// The number of pages before the first one that was never allocated, with them.
    pub end: u64,
    /// How many pages before `end` will still be free.
    pub free: u64,
    /// Whether some of the pages have never been allocated, so that the file must hold `end` pages.
    pub has_grown: bool,
}

impl Claimed {
    /// Reports the new end of the file, if it grows.
    pub fn note_grown(&self, grown: impl FnOnce(u64)) {
        if self.has_grown {
            grown(self.end);
        }
    }
}

impl Cursor {
    /// Notes for those who watch that these pages change hands. Before the map shows that, so that a thread that sees it
    /// finds the note.
    fn note(&mut self, pages: Range<u64>) {
        if let Some(watched) = &mut self.watched {
            watched.add(pages);
        }
    }
}

impl SpaceMap {
    /// A map in which the first `reserved` pages are taken, each as an extent of its own.
    pub(crate) fn new(capacity_pages: u64, reserved: u64) -> Result<Self, VmError> {
        let (next_page, next_run) = (reserved, reserved);
        let cursor =
            Cursor { end: reserved, next_page, next_run, longest_run_limit: u64::MAX, ..Cursor::default() };
        let uses = UseTable::reserve(capacity_pages, "the map of allocated pages")?;
        let map = Self { uses, capacity_pages, cursor: Mutex::new(cursor), unfinished: Mutex::default() };
        for page in 0..reserved {
            map.uses.claim(page, 1);
            map.uses.publish(page, 1);
        }
        Ok(map)
    }

    /// Whether exactly this extent is allocated. Takes no lock; certain while the head's latch is held.
    pub(crate) fn is_extent(&self, extent: Extent) -> bool {
        extent.pages > 0 && extent.end().0 <= self.capacity_pages && self.uses.is_extent(extent)
    }

    /// The head of the extent to which a page belongs, if any. Certain while that head's latch is held.
    pub(crate) fn head_of(&self, page: PageId) -> Option<PageId> {
        let mut at = page.0;
        while at > 0 && self.uses.get(at) == Use::Inner {
            at -= 1;
        }
        (self.uses.get(at) == Use::Head).then_some(PageId(at))
    }

    /// Whether a page has been claimed and not yet published.
    pub(crate) fn is_claimed(&self, page: PageId) -> bool {
        self.uses.get(page.0) == Use::Claimed
    }

    /// Claims room for `pages` pages, if that is admitted; [`publish`](Self::publish) makes it an extent.
    ///
    /// # Errors
    /// The error of `admit`; nothing is then allocated.
    pub(crate) fn allocate<E>(
        &self,
        pages: u32,
        admit: impl FnOnce(&Claimed) -> Result<(), E>,
    ) -> Result<Extent, E> {
        let mut cursor = self.lock();
        let length = pages as u64;
        let found = if pages == 1 { self.find_page(&mut cursor) } else { self.find_run(&mut cursor, length) };
        let head = found.unwrap_or_else(|| self.place_at_end(&cursor, length));
        self.take(&mut cursor, head, length, admit)?;
        Ok(Extent { head: PageId(head), pages })
    }

    /// Claims room for `pages` pages before page `limit`, as near to the beginning of the file as possible. The file
    /// does not grow. `claimed` is called with the map locked if there is room.
    pub(crate) fn claim_before(&self, limit: u64, pages: u32, claimed: impl FnOnce()) -> Option<Extent> {
        let mut cursor = self.lock();
        let (length, limit) = (u64::from(pages), limit.min(cursor.end));
        cursor.first_free = self.uses.find_free(cursor.first_free.min(limit), limit);
        let head = self.find_run_in(cursor.first_free, limit, length)?;
        cursor.free -= length;
        cursor.changed = true;
        cursor.note(head..head + length);
        self.uses.claim(head, length);
        claimed();
        Some(Extent { head: PageId(head), pages })
    }

    /// Claims up to `most` consecutive pages, which the caller publishes one by one, or gives back with
    /// [`unclaim`](Self::unclaim). The file grows only if there are no sixteen free pages in a row; if it cannot grow,
    /// a single free page will do.
    ///
    /// # Errors
    /// The error of `admit`, if not even a page is admitted; nothing is then claimed.
    pub(crate) fn claim_run<E>(
        &self,
        most: u32,
        mut admit: impl FnMut(&Claimed) -> Result<(), E>,
    ) -> Result<Range<u64>, E> {
        /// Shorter runs of free pages are left to callers that need no more.
        const LEAST: u64 = 16;
        let mut cursor = self.lock();
        let lengths = [most as u64, most as u64 / 4, LEAST].map(|length| length.clamp(1, most.max(1) as u64));
        let found = lengths
            .into_iter()
            .filter(|length| *length >= LEAST.min(most as u64))
            .find_map(|length| Some((self.find_run(&mut cursor, length)?, length)));
        let (head, length) = found.unwrap_or_else(|| (self.place_at_end(&cursor, most.into()), most.into()));
        let Err(refused) = self.take(&mut cursor, head, length, &mut admit) else {
            return Ok(head..head + length);
        };
        let page = self.place_at_end(&cursor, 1);
        if self.take(&mut cursor, page, 1, &mut admit).is_ok() {
            return Ok(page..page + 1);
        }
        let page = self.find_page(&mut cursor).ok_or(refused)?;
        self.take(&mut cursor, page, 1, admit)?;
        Ok(page..page + 1)
    }

    /// Gives back pages that were claimed and not published.
    pub(crate) fn unclaim(&self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let mut cursor = self.lock();
        let length = pages.end - pages.start;
        cursor.note(pages.clone());
        self.uses.clear(pages.start, length);
        cursor.free += length;
        cursor.longest_run_limit = u64::MAX;
        cursor.first_free = cursor.first_free.min(pages.start);
    }

    /// Where `length` pages at the end of the file begin, so that it grows by no more than necessary: a free tail is
    /// part of them.
    fn place_at_end(&self, cursor: &Cursor, length: u64) -> u64 {
        cursor.end - self.uses.free_tail(cursor.end, cursor.free).min(length)
    }

    /// Claims free pages, or pages at the end, if that is admitted.
    fn take<E>(
        &self,
        cursor: &mut Cursor,
        head: u64,
        length: u64,
        admit: impl FnOnce(&Claimed) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = cursor.end.max(head + length);
        let free = cursor.free + (end - cursor.end) - length;
        admit(&Claimed { pages: length, end, free, has_grown: end > cursor.end })?;
        (cursor.end, cursor.free, cursor.changed) = (end, free, true);
        cursor.note(head..head + length);
        self.uses.claim(head, length);
        Ok(())
    }

    /// Turns claimed pages into an extent. The caller holds the head's latch, and none of the pages except the head is
    /// in memory.
    pub(crate) fn publish(&self, extent: Extent) {
        self.uses.publish(extent.head.0, extent.pages as u64);
    }

    /// Frees an allocated extent whose head's latch the caller holds. Returns false, and does nothing, if no such
    /// extent is allocated.
    pub(crate) fn free(&self, extent: Extent) -> bool {
        let mut cursor = self.lock();
        if !self.is_extent(extent) {
            return false;
        }
        cursor.note(extent.head.0..extent.end().0);
        self.uses.clear(extent.head.0, extent.pages as u64);
        cursor.free += extent.pages as u64;
        cursor.longest_run_limit = u64::MAX;
        cursor.first_free = cursor.first_free.min(extent.head.0);
        cursor.changed = true;
        true
    }

    /// Turns an allocated extent, whose head's latch the caller holds, into a claimed one: its pages cannot be reused
    /// until [`unclaim`](Self::unclaim) gives them back. Returns false, and does nothing, if no such extent is
    /// allocated.
    pub(crate) fn retire(&self, extent: Extent) -> bool {
        let mut cursor = self.lock();
        let is_there = self.is_extent(extent);
        if is_there {
            cursor.note(extent.head.0..extent.end().0);
            self.uses.retire(extent.head.0, extent.pages.into());
            cursor.changed = true;
        }
        is_there
    }

    /// Notes that a log says that an extent is allocated, whatever the map says of its pages. Returns false, and does
    /// nothing, if the extent lies beyond the address space. No other thread uses the map yet.
    pub(crate) fn note_allocated(&self, extent: Extent) -> bool {
        let (head, end) = (extent.head.0, extent.end().0);
        if end > self.capacity_pages {
            return false;
        }
        let mut cursor = self.lock();
        if end > cursor.end {
            cursor.free += end - cursor.end;
            cursor.end = end;
        }
        // Overwriting other extents may leave some of their pages free.
        cursor.first_free = 0;
        cursor.free = cursor.free.wrapping_add_signed(-self.uses.overwrite(head, extent.pages.into()));
        cursor.longest_run_limit = u64::MAX;
        cursor.changed = true;
        true
    }

    /// The largest possible number of pages.
    pub(crate) fn capacity_pages(&self) -> u64 {
        self.capacity_pages
    }

    /// Notes that the map on storage is the present one.
    pub(crate) fn note_written(&self) {
        self.lock().changed = false;
    }

    /// Whether something has been allocated or freed since the map was read from storage or written to it.
    pub(crate) fn is_changed(&self) -> bool {
        self.lock().changed
    }

    /// The number of pages before the first one that was never allocated.
    pub(crate) fn end(&self) -> u64 {
        self.lock().end
    }

    /// How many pages are allocated.
    pub(crate) fn allocated_pages(&self) -> u64 {
        let cursor = self.lock();
        cursor.end - cursor.free
    }

    /// Shows every allocated extent, in ascending order. Extents that other threads allocate meanwhile may be missed.
    pub(crate) fn for_each(&self, visit: impl FnMut(Extent)) {
        self.for_each_in(0..self.end(), visit);
    }

    /// The first extent that begins at page `from` or later.
    pub(crate) fn next_extent(&self, from: u64) -> Option<Extent> {
        let end = self.end();
        let head = self.uses.find_head(from, end);
        let stop = self.uses.find_not_inner(head + 1, end.max(head + 1));
        (head < end).then(|| Extent { head: PageId(head), pages: (stop - head) as u32 })
    }

    /// Shows the extents that begin and end in a range of pages.
    pub(crate) fn for_each_in(&self, pages: Range<u64>, mut visit: impl FnMut(Extent)) {
        let end = pages.end;
        let mut at = self.uses.find_head(pages.start, end);
        while at < end {
            let stop = self.uses.find_not_inner(at + 1, end);
            visit(Extent { head: PageId(at), pages: (stop - at) as u32 });
            at = self.uses.find_head(stop, end);
        }
    }

    /// Whether a page belongs to no extent, and no thread is about to make it part of one.
    pub(crate) fn is_free(&self, page: PageId) -> bool {
        self.uses.get(page.0) == Use::Free
    }

    /// Forgets the free pages after the last allocated one, so that the file can be cut there. Returns these pages.
    pub(crate) fn trim(&self) -> Range<u64> {
        let mut cursor = self.lock();
        let tail = self.uses.free_tail(cursor.end, cursor.free);
        cursor.end -= tail;
        cursor.free -= tail;
        // The next allocations fill the file from its beginning.
        (cursor.next_page, cursor.next_run) = (0, 0);
        cursor.end..cursor.end + tail
    }

    /// Calls `work` with the number of pages before the first one that was never allocated, and with how many of these
    /// are free. Meanwhile nothing is allocated or freed.
    pub(crate) fn with_free<T>(&self, work: impl FnOnce(u64, u64) -> T) -> T {
        let cursor = self.lock();
        work(cursor.end, cursor.free)
    }

    /// Begins to note pages that change hands, until [`end_watch`](Self::end_watch). Those that are just being allocated or
    /// freed are noted, too.
    pub(crate) fn begin_watch(&self) {
        let mut cursor = self.lock();
        let end = cursor.end;
        let watched = cursor.watched.get_or_insert_default();
        watched.begin();
        let mut at = self.uses.find_claimed(0, end);
        while at < end {
            watched.add(at..at + 1);
            at = self.uses.find_claimed(at + 1, end);
        }
    }

    pub(crate) fn end_watch(&self) {
        self.lock().watched.take_if(|watched| !watched.end());
    }

    /// Notes that something refers to an extent again to which nothing referred for a while.
    pub(crate) fn note_referred_to_again(&self, extent: Extent) {
        self.lock().note(extent.head.0..extent.end().0);
    }

    /// Whether any of these pages has changed hands since the watch began.
    pub(crate) fn has_changed_hands(&self, extent: Extent) -> bool {
        let cursor = self.lock();
        let mut pages = extent.head.0..extent.end().0;
        cursor.watched.as_ref().is_some_and(|watched| pages.any(|page| watched.contains(page)))
    }

    /// An operation is about to have extents to which nothing refers yet, or not any more. Returns a number for
    /// [`end_unfinished`](Self::end_unfinished).
    pub(crate) fn begin_unfinished(&self) -> u64 {
        lock(&self.unfinished).begin()
    }

    /// Something refers to the extents of the operation, or they are free.
    pub(crate) fn end_unfinished(&self, number: u64) {
        lock(&self.unfinished).end(number);
    }

    /// A number that all such operations that have begun by now are below: see [`are_finished`](Self::are_finished).
    pub(crate) fn number_unfinished(&self) -> u64 {
        lock(&self.unfinished).above_all()
    }

    /// Whether no such operation below this number is left.
    pub(crate) fn are_finished(&self, below: u64) -> bool {
        lock(&self.unfinished).are_over(below)
    }

    fn lock(&self) -> MutexGuard<'_, Cursor> {
        lock(&self.cursor)
    }

    fn find_page(&self, cursor: &mut Cursor) -> Option<u64> {
        if cursor.free == 0 {
            return None;
        }
        let mut page = self.uses.find_free(cursor.next_page, cursor.end);
        if page == cursor.end {
            page = self.uses.find_free(0, cursor.end);
        }
        (page < cursor.end).then(|| {
            cursor.next_page = page + 1;
            page
        })
    }

    fn find_run(&self, cursor: &mut Cursor, length: u64) -> Option<u64> {
        if cursor.free < length || length >= cursor.longest_run_limit {
            return None;
        }
        let start = cursor.next_run.min(cursor.end);
        // The second search overlaps the first by a run's length, so that no run across the seam is missed.
        let found = self
            .find_run_in(start, cursor.end, length)
            .or_else(|| self.find_run_in(0, (start + length).min(cursor.end), length));
        match found {
            Some(head) => cursor.next_run = head + length,
            None => cursor.longest_run_limit = length,
        }
        found
    }

    fn find_run_in(&self, from: u64, to: u64, length: u64) -> Option<u64> {
        let mut at = from;
        while at + length <= to {
            let start = self.uses.find_free(at, to);
            let stop = self.uses.find_taken(start, (start + length).min(to));
            if stop - start == length {
                return Some(start);
            }
            at = stop.max(start + 1);
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
