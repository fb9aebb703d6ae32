//! State that a file has beside its space map if there is a log: the map for the next checkpoint, the space that may
//! not be reused yet, and the pages that are on their way to storage.
//!
//! # Invariants
//! - The space events of the records before a place of the log are noted before those records are filled.
//! - An extent that a record frees is *claimed* until that record is durable: data written past the log never
//!   overwrites what a crash may bring back.
//! - While a copy of a page is on its way to storage, nothing else writes the page there, the page stays in memory, and
//!   its space is not reused. A thread that checks for a copy holds the page's latch exclusively; the copy is announced
//!   before the page is read. So either the thread sees the announcement, or the copier sees the latch, or its effects.
//!
//! # Lock order
//! The recorded map's lock; then the lock of the writer of copies; then the journal's; then the locks of `storage`.

use crate::{
    change_log::ChangeLog,
    error::PoolError,
    file::held::Held,
    plant::Plant,
    primitive::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock},
    space::{RecordedMap, SpaceEvent, SpaceMap},
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    sync::Arc,
    time::Duration,
};
use vellum_base::primitive::Instant;
use vellum_base::{Extent, Lsn, PageId};
use vellum_vm::VmError;

/// When this many pages wait for the log to become durable, the log is asked to become so.
const WAITING_PAGES_MAX: u64 = 1024;

/// When so many space events wait for the next checkpoint, it is asked for: they take 32 MiB.
const EVENTS_MAX: usize = 1 << 20;

/// The space events that are not yet in the map of a checkpoint, and the space that may not be reused yet.
#[derive(Default)]
struct Journal {
    events: Vec<SpaceEvent>,
    /// Freed extents that are still claimed, and the records that free them.
    quarantine: BinaryHeap<Reverse<(Lsn, Extent)>>,
    quarantined_pages: u64,
    /// How many of these pages were added since the log was last asked.
    unasked_pages: u64,
    /// The last record that frees space.
    last_free: Lsn,
    /// Pages of which a copy is on its way to storage.
    in_flight: HashSet<PageId>,
    /// Freed space that a backup copies. It stays claimed.
    held: Option<Held>,
}

impl Journal {
    /// Frees an extent that a durable record has freed, unless a copy of it is on its way to storage.
    fn unclaim(&mut self, space: &SpaceMap, (lsn, extent): (Lsn, Extent), ignores_copies: bool) {
        if self.in_flight.contains(&extent.head) && !ignores_copies {
            self.quarantine.push(Reverse((lsn, extent)));
        } else {
            self.quarantined_pages -= u64::from(extent.pages);
            space.unclaim(extent.head.0..extent.end().0);
        }
    }
}

/// State that a file has if there is a log.
pub(crate) struct Logged {
    log: Arc<dyn ChangeLog>,
    journal: Mutex<Journal>,
    /// Less space is held. Waited for with the journal locked.
    held_changed: Condvar,
    /// The first record that must be durable before an extent can leave the quarantine, plus one; the largest number if
    /// the quarantine is empty.
    next_release: AtomicU64,
    /// Locked by the thread that writes a checkpoint.
    pub(crate) recorded: Mutex<RecordedMap>,
    /// Locked by the thread that writes copies of pages.
    pub(crate) writing: Mutex<()>,
    #[cfg(test)]
    pub(crate) planted: Mutex<Option<Plant>>,
    /// Claimed places of maps that a superblock on storage may still name, because writing the superblocks failed.
    pub(crate) superseded: Mutex<Vec<Extent>>,
}

impl Logged {
    /// Begins with the present map.
    pub(crate) fn new(
        log: Arc<dyn ChangeLog>,
        map: &SpaceMap,
        own: Option<Extent>,
        upto: Lsn,
    ) -> Result<Self, VmError> {
        let mut recorded = RecordedMap::new(map.capacity_pages())?;
        recorded.copy(map, own, upto);
        Ok(Self {
            log,
            journal: Mutex::default(),
            held_changed: Condvar::new(),
            next_release: AtomicU64::new(u64::MAX),
            recorded: Mutex::new(recorded),
            writing: Mutex::new(()),
            #[cfg(test)]
            planted: Mutex::new(None),
            superseded: Mutex::default(),
        })
    }

    #[inline]
    pub(crate) fn log(&self) -> &dyn ChangeLog {
        &*self.log
    }

    #[cfg(test)]
    pub(crate) fn is_planted(&self, bug: Plant) -> bool {
        *lock(&self.planted) == Some(bug)
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn is_planted(&self, bug: Plant) -> bool {
        vellum_base::plant::is_planted("pool", bug)
    }

    /// Notes that the record at `lsn` says that an extent is allocated, or free; does nothing if there is no record
    /// (zero).
    pub(crate) fn note(&self, extent: Extent, lsn: Lsn, allocated: bool) {
        if lsn == Lsn(0) {
            return;
        }
        let mut journal = lock(&self.journal);
        journal.events.push(SpaceEvent { lsn, extent, allocated });
        if !allocated {
            journal.last_free = journal.last_free.max(lsn);
        }
        if journal.events.len() == EVENTS_MAX {
            drop(journal);
            self.log.request_checkpoint();
        }
    }

    /// Frees an extent that the caller has latched exclusively, or claims it until the record at `lsn` is durable.
    /// Returns false, and does nothing, if no such extent is allocated.
    pub(crate) fn free(&self, space: &SpaceMap, extent: Extent, lsn: Lsn) -> bool {
        let mut journal = lock(&self.journal);
        let at_once = lsn == Lsn(0) && !journal.in_flight.contains(&extent.head);
        if at_once || self.is_planted(Plant::NoQuarantine) {
            return space.free(extent);
        }
        if !space.retire(extent) {
            return false;
        }
        journal.quarantine.push(Reverse((lsn, extent)));
        journal.quarantined_pages += u64::from(extent.pages);
        journal.unasked_pages += u64::from(extent.pages);
        self.set_next_release(&journal);
        if journal.unasked_pages >= WAITING_PAGES_MAX {
            journal.unasked_pages = 0;
            drop(journal);
            // A thread that only frees makes room in the quarantine, too.
            self.release_durable(space);
            self.log.request_durable();
        }
        true
    }

    /// The number of pages that are freed but may not be reused yet.
    pub(crate) fn quarantined_pages(&self) -> u64 {
        lock(&self.journal).quarantined_pages
    }

    /// Frees the space whose records are durable.
    #[inline]
    pub(crate) fn release_durable(&self, space: &SpaceMap) {
        // Relaxed: it only decides which thread finds the space, and when.
        let next = self.next_release.load(Ordering::Relaxed);
        if next != u64::MAX && self.log.durable().0 >= next {
            self.release(space);
        }
    }

    #[cold]
    fn release(&self, space: &SpaceMap) {
        let durable = self.log.durable();
        let mut journal = lock(&self.journal);
        let mut released = Vec::new();
        while let Some(Reverse((lsn, extent))) = journal.quarantine.peek().copied()
            && (lsn < durable || lsn == Lsn(0))
        {
            journal.quarantine.pop();
            if !journal.held.as_mut().is_some_and(|held| held.keep(lsn, extent)) {
                released.push((lsn, extent));
            }
        }
        self.free_all(&mut journal, space, released);
    }

    /// Frees extents that durable records have freed.
    fn free_all(&self, journal: &mut Journal, space: &SpaceMap, extents: Vec<(Lsn, Extent)>) {
        let ignores_copies = self.is_planted(Plant::ReusedUnderCopy);
        extents.into_iter().for_each(|extent| journal.unclaim(space, extent, ignores_copies));
        self.set_next_release(journal);
    }

    fn set_next_release(&self, journal: &Journal) {
        let next = journal.quarantine.peek().map(|Reverse((lsn, _))| lsn.0.saturating_add(1));
        self.next_release.store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Space that records free from now on is not reused while a backup [needs](Held) it. A change that finds no room
    /// waits for the backup as long as `patience` says, and takes what is held then.
    pub(crate) fn hold(&self, patience: Option<Duration>) {
        lock(&self.journal).held = Some(Held::new(self.log.end(), patience));
    }

    /// Changes what is held; `change` returns what becomes free.
    pub(crate) fn change_held(&self, space: &SpaceMap, change: impl FnOnce(&mut Held) -> Vec<(Lsn, Extent)>) {
        let mut journal = lock(&self.journal);
        let released = journal.held.as_mut().map(change).unwrap_or_default();
        self.free_all(&mut journal, space, released);
        drop(journal);
        self.held_changed.notify_all();
    }

    /// Whether a backup has lost nothing since [`hold`](Self::hold).
    pub(crate) fn is_held(&self) -> bool {
        lock(&self.journal).held.as_ref().is_none_or(Held::is_intact)
    }

    /// Ends the effect of [`hold`](Self::hold).
    pub(crate) fn release_held(&self, space: &SpaceMap) {
        let mut journal = lock(&self.journal);
        let released = journal.held.take().map(Held::end).unwrap_or_default();
        self.free_all(&mut journal, space, released);
        drop(journal);
        self.held_changed.notify_all();
    }

    /// Waits for space that a backup holds, or takes it if the backup does not let changes wait, or not for longer.
    /// `until` is none at first, and then the time at which the wait ends. Returns false if nothing is held.
    pub(crate) fn reclaim_held(&self, space: &SpaceMap, until: &mut Option<Instant>) -> bool {
        let mut journal = lock(&self.journal);
        let Some(held) = journal.held.as_mut().filter(|held| held.is_any_kept()) else { return false };
        if let Some(patience) = held.patience() {
            let now = Instant::now();
            let until = *until.get_or_insert(now + patience);
            if let Some(left) = until.checked_duration_since(now).filter(|left| !left.is_zero()) {
                drop(self.held_changed.wait_timeout(journal, left));
                return true;
            }
        }
        let taken = held.take();
        self.free_all(&mut journal, space, taken);
        true
    }

    /// Waits for the log, and frees all space that is not [held](Self::hold).
    ///
    /// # Errors
    /// If the log cannot be made durable.
    pub(crate) fn release_all(&self, space: &SpaceMap) -> Result<(), PoolError> {
        let last = lock(&self.journal).quarantine.iter().map(|Reverse((lsn, _))| *lsn).max();
        let Some(last) = last else { return Ok(()) };
        self.wait_for(last)?;
        self.release(space);
        Ok(())
    }

    /// Waits until all records that free space are durable. Pages that have been freed are no longer written, so their
    /// earlier changes are nowhere but in the log.
    ///
    /// # Errors
    /// If the log cannot be made durable.
    pub(crate) fn make_frees_durable(&self) -> Result<(), PoolError> {
        let last = lock(&self.journal).last_free;
        if self.is_planted(Plant::FreesNotDurable) { Ok(()) } else { self.wait_for(last) }
    }

    /// Waits until the record at `lsn` is durable, if that is not zero.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub(crate) fn wait_for(&self, lsn: Lsn) -> Result<(), PoolError> {
        if lsn == Lsn(0) || self.log.durable() > lsn {
            return Ok(());
        }
        self.log.make_durable(lsn).map_err(PoolError::Log)
    }

    /// Takes out the space events of the records before `upto`, in order.
    pub(crate) fn take_events(&self, upto: Lsn) -> Vec<SpaceEvent> {
        let upto = if self.is_planted(Plant::EventsBeyondRedo) { Lsn(u64::MAX) } else { upto };
        let mut journal = lock(&self.journal);
        let (mut before, rest) = journal.events.iter().partition::<Vec<_>, _>(|event| event.lsn < upto);
        journal.events = rest;
        drop(journal);
        before.sort_by_key(|event| event.lsn);
        before
    }

    /// Announces that copies of pages are on their way to storage, until the result is dropped. The caller has locked
    /// [`writing`](Self::writing).
    pub(crate) fn announce(
        &self,
        pages: impl Iterator<Item = PageId>,
        _: &MutexGuard<'_, ()>,
    ) -> InFlight<'_> {
        lock(&self.journal).in_flight.extend(pages);
        InFlight(self)
    }

    /// Whether a copy of a page is on its way to storage. The caller has latched the page exclusively.
    pub(crate) fn is_in_flight(&self, page: PageId) -> bool {
        lock(&self.journal).in_flight.contains(&page) && !self.is_planted(Plant::CopyForgotten)
    }
}

/// Copies of pages on their way to storage.
pub(crate) struct InFlight<'l>(&'l Logged);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        lock(&self.0.journal).in_flight.clear();
    }
}
