//! The log as the pool and the trees see it.
//!
//! A page that is torn by a crash is mended from its image in the log. So the first change of each page after the redo
//! point of a checkpoint carries the page's image. `images_from` identifies those pages by their LSN. A checkpoint
//! first raises `images_from` beyond all LSNs, then takes the end of the log as its redo point, and then lowers
//! `images_from` to that. A change whose record lies after the redo point finds one of the two later values when it
//! reads `images_from` again after its reservation. It then makes a new reservation, with the images that were missing.
//!
//! # Groups
//! A redo point never divides a group of records, so recovery always sees all of the group.
//!
//! # Contents
//! What is written past the log is logged as contents if the log is archived, before the record that refers to it. A
//! redo point may come between them. The contents are pinned until the record is there, so that the undo point of that
//! checkpoint lies before them: a backup that begins there has the log from its undo point on.

use crate::{
    LogSettings,
    bell::Bell,
    plant::{Bug, planted},
    records::{ROLLED_BACK, TIME_BYTES, contents_record, end_record, now, time_record},
};
use std::{
    cell::Cell,
    io,
    sync::{Arc, OnceLock},
};
use vellum_base::primitive::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use vellum_base::{Lsn, PageId};
use vellum_pool::{ChangeLog, is_undoing};
use vellum_wal::{Durability, Log, LogError, LogFlusher};

vellum_base::primitive::thread_local! {
    /// The last record that this thread has reserved, and its log.
    static LAST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The log and the place of a time record that is still to be filled, and the time.
    static PENDING_TIME: Cell<Option<(u64, Lsn, u64)>> = const { Cell::new(None) };
    /// The log in which this thread writes groups, and how many are open.
    static GROUPS: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// How many logs there have been in this process. Tells them apart; an address could not once a log is gone.
static LOGS: AtomicU64 = AtomicU64::new(0);

/// A log of changes.
// Keeps its reference counts off the cache line that all changes read.
#[repr(align(64))]
pub(crate) struct Changes {
    /// Which log of this process it is, from 1 on.
    number: u64,
    pub log: Arc<Log>,
    pub flusher: LogFlusher,
    images_from: AtomicU64,
    group: AtomicU64,
    groups: Mutex<Groups>,
    groups_changed: Condvar,
    /// From this record on a checkpoint is due, and the bell is rung.
    checkpoint_at: AtomicU64,
    pub checkpoint_bytes: u64,
    pub bell: Bell,
    /// Whether the log also gets what is written past it, and the time, because it is archived.
    is_archived: bool,
    /// Whether the log gets whole values, and what is written past it, for feeds of changes.
    has_values: bool,
    /// From where on the log has contents written past it to which no record refers yet.
    pinned_contents: Mutex<Vec<Lsn>>,
    /// The last time for which a record is reserved, in nanoseconds since 1970.
    last_time: AtomicU64,
    /// Makes room in the log: see [`make_room_by`](Changes::make_room_by).
    room_maker: OnceLock<RoomMaker>,
}

/// Makes room in the log.
type RoomMaker = Box<dyn Fn() -> Result<(), LogError> + Send + Sync>;

#[derive(Default)]
struct Groups {
    /// How many are being written.
    open: usize,
    /// How many threads, each for a checkpoint or a backup, wait for their end.
    closing: usize,
}

impl Changes {
    /// Changes of a log that was just opened; no record has been appended yet. The bell is rung after
    /// `checkpoint_bytes` of records. If it `is_archived`, the log gets all that a restore needs.
    pub fn new(log: Arc<Log>, settings: &LogSettings, is_archived: bool) -> io::Result<Self> {
        let checkpoint_bytes = settings.checkpoint_bytes;
        let begin = log.end().0;
        Ok(Self {
            // Relaxed: only uniqueness matters.
            number: LOGS.fetch_add(1, Ordering::Relaxed) + 1,
            flusher: LogFlusher::start(log.clone())?,
            images_from: AtomicU64::new(begin),
            // Groups, and transactions, of earlier timelines have lower numbers: each took more than one byte of log, unless
            // it logged nothing. If many have logged nothing, a number may come again: who had it before has ended, and
            // the log says so.
            group: AtomicU64::new(begin),
            groups: Mutex::default(),
            groups_changed: Condvar::new(),
            checkpoint_at: AtomicU64::new(begin.saturating_add(checkpoint_bytes)),
            checkpoint_bytes,
            bell: Bell::default(),
            is_archived,
            has_values: settings.whole_values,
            pinned_contents: Mutex::default(),
            last_time: AtomicU64::new(0),
            room_maker: OnceLock::new(),
            log,
        })
    }

    /// From now on a change that finds no room in the log calls `maker`, which returns what
    /// [`admit_now`](Self::admit_now) does.
    pub fn make_room_by(&self, maker: RoomMaker) {
        // It is set once.
        let _ = self.room_maker.set(maker);
    }

    /// Whether the log has room for this thread's next change, without making any.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if it has none.
    pub fn admit_now(&self) -> Result<(), LogError> {
        if is_undoing() {
            return self.log.admit_undo();
        }
        match self.log.admit() {
            // No room is made for a group that has begun, as a checkpoint would wait for its end.
            Err(LogError::NoRoom { .. }) if self.is_in_group() => self.log.admit_rest(),
            admitted => admitted,
        }
    }

    /// Chooses the redo point of a checkpoint: see the module. `choose` is given a function that returns the log's end.
    pub fn begin_checkpoint(&self, choose: impl FnOnce(&dyn Fn() -> Lsn) -> Lsn) -> Lsn {
        let _closed = self.close_groups();
        // SeqCst, here and where it is read: the argument in the module is about the order of this and of reservations.
        self.images_from.store(u64::MAX, Ordering::SeqCst);
        let redo = choose(&|| self.log.end());
        self.images_from.store(redo.0, Ordering::SeqCst);
        redo
    }

    /// Returns the end of the log and the place from which the log is needed, both as of one moment: see
    /// `Transactions::needed_at`, which is what `needed` calls. Contents that a later record refers to are needed, too.
    pub fn needed_by(&self, needed: impl FnOnce() -> (Lsn, Lsn)) -> (Lsn, Lsn) {
        // Held until the end is known: what is pinned later comes after it, and what was unpinned earlier has its record
        // before it.
        let pinned = self.lock_pinned();
        let (end, needed) = needed();
        (end, pinned.iter().copied().min().map_or(needed, |first| first.min(needed)))
    }

    /// Whether contents are being logged to which no record refers yet.
    pub fn has_pinned_contents(&self) -> bool {
        !self.lock_pinned().is_empty()
    }

    fn lock_pinned(&self) -> MutexGuard<'_, Vec<Lsn>> {
        self.pinned_contents.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until no group is being written. None begins before the returned value is dropped.
    pub fn close_groups(&self) -> ClosedGroups<'_> {
        let mut groups = self.lock();
        groups.closing += 1;
        while groups.open > 0 {
            groups = self.wait(groups);
        }
        ClosedGroups(self)
    }

    /// Notes that a checkpoint with this redo point has been taken: the next one is due later.
    pub fn end_checkpoint(&self, redo: Lsn) {
        self.checkpoint_at.store(redo.0.saturating_add(self.checkpoint_bytes), Ordering::Relaxed);
    }

    /// Reserves a time record before the record that follows, if the last one is too old. It is filled together with
    /// that record, because pages are latched now.
    fn reserve_time(&self) {
        /// How exactly the log tells the time of changes outside transactions, in nanoseconds.
        const RESOLUTION: u64 = 1_000_000;
        // Acquire: a thread that finds a time here reserves its record after that of the time.
        let (now, last) = (now(), self.last_time.load(Ordering::Acquire));
        // If the clock went back, so does the time in the log.
        if now.abs_diff(last) >= RESOLUTION
            && PENDING_TIME.get().is_none()
            && let Ok(reservation) = self.log.reserve(TIME_BYTES)
        {
            // Release, and not earlier: others would log their changes before the time. Threads that come meanwhile log the
            // time, too, and a record too many does no harm.
            self.last_time.store(now, Ordering::Release);
            PENDING_TIME.set(Some((self.number, reservation.into_lsn(), now)));
        }
    }

    /// Logs that a transaction has been undone.
    pub fn log_rollback(&self, number: u64) {
        let record = end_record(ROLLED_BACK, number, 0, Lsn(0));
        let lsn = self.reserve(record.len());
        self.fill(lsn, &record);
    }

    fn fill_time(&self) {
        if let Some((number, at, time)) = PENDING_TIME.take()
            && number == self.number
        {
            // As in `fill`.
            let _ = self.log.fill_at(at, &time_record(time));
        }
    }

    #[cold]
    fn ask_for_checkpoint(&self) {
        if self.checkpoint_at.swap(u64::MAX, Ordering::Relaxed) < u64::MAX {
            self.bell.ring();
        }
    }

    /// The last record that this thread has reserved since the last call.
    pub fn take_last_change(&self) -> Option<Lsn> {
        let (log, lsn) = LAST.get();
        if log != self.number {
            return None;
        }
        LAST.set((0, 0));
        Some(Lsn(lsn))
    }

    /// Does something that this thread need not wait for: the last record stays what it was.
    pub fn keep_last_change<T>(&self, work: impl FnOnce() -> T) -> T {
        let last = self.take_last_change();
        let done = work();
        LAST.set(last.map_or((0, 0), |lsn| (self.number, lsn.0)));
        done
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'g>(&self, groups: MutexGuard<'g, Groups>) -> MutexGuard<'g, Groups> {
        self.groups_changed.wait(groups).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// As long as it exists, no group is being written.
#[must_use = "groups may begin at once"]
pub(crate) struct ClosedGroups<'c>(&'c Changes);

impl Drop for ClosedGroups<'_> {
    fn drop(&mut self) {
        self.0.lock().closing -= 1;
        self.0.groups_changed.notify_all();
    }
}

impl ChangeLog for Changes {
    fn is_short(&self) -> bool {
        self.log.is_short()
    }

    fn admit(&self) -> io::Result<()> {
        match self.log.check() {
            // What is taken back in memory needs no log that has ended, as long as that has room in memory.
            Err(_) if is_undoing() => Ok(()),
            checked => checked.and_then(|()| self.admit_now()).map_err(as_io_error),
        }
    }

    fn make_room(&self, refused: io::Error) -> io::Result<()> {
        let is_full = refused.get_ref().and_then(|error| error.downcast_ref::<LogError>());
        let is_full = is_full.is_some_and(|error| matches!(error, LogError::NoRoom { .. }));
        match self.room_maker.get() {
            // A checkpoint would wait for the end of the group.
            _ if !is_full || self.is_in_group() => Err(refused),
            Some(maker) => maker().map_err(as_io_error),
            None => Err(refused),
        }
    }

    fn is_in_group(&self) -> bool {
        let (log, groups) = GROUPS.get();
        log == self.number && groups > 0
    }

    fn note_life(&self, begin: Lsn, number: u64) {
        self.log.lives.note(begin, number);
    }

    fn give_up_spare(&self) -> bool {
        let is_given_up = self.log.give_up_idle();
        if !is_given_up && self.log.gives_up(self.log.end()) {
            // A checkpoint makes some of the log idle. It cannot be waited for: the caller has latched what it changes.
            self.bell.ring();
        }
        is_given_up
    }

    fn request_checkpoint(&self) {
        self.ask_for_checkpoint();
    }

    fn reserve(&self, bytes: usize) -> Lsn {
        if self.is_archived {
            self.reserve_time();
        }
        let lsn = match self.log.reserve(bytes) {
            Ok(reservation) => reservation.into_lsn(),
            // The pages have been changed all the same. None of them leaves memory, and nothing more is acknowledged.
            Err(error) => {
                self.log.fail(io::Error::other(error));
                Lsn(u64::MAX)
            }
        };
        // Relaxed: a checkpoint too many, or a little late, does no harm.
        if lsn.0 >= self.checkpoint_at.load(Ordering::Relaxed) {
            self.ask_for_checkpoint();
        }
        LAST.set((self.number, lsn.0));
        lsn
    }

    fn cancel(&self, at: Lsn, bytes: usize) {
        self.fill_time();
        // As in `fill`.
        let _ = self.log.cancel_at(at, bytes);
    }

    fn fill(&self, at: Lsn, record: &[u8]) {
        self.fill_time();
        // A log that has failed tells the threads that wait for it.
        let _ = self.log.fill_at(at, record);
    }

    fn begin_group(&self) -> u64 {
        let (log, own) = GROUPS.get();
        let own = if log == self.number { own } else { 0 };
        if own == 0 && self.log.is_short() {
            // No room is made for a group that has begun. If there is none, its first change is refused.
            let _ = self.admit().or_else(|refused| self.make_room(refused));
        }
        GROUPS.set((self.number, own + 1));
        let mut groups = self.lock();
        // A thread that waits for groups to end also waits for those of this thread.
        while groups.closing > 0 && own == 0 {
            groups = self.wait(groups);
        }
        groups.open += 1;
        // Relaxed: only uniqueness matters.
        self.group.fetch_add(1, Ordering::Relaxed)
    }

    fn end_group(&self) {
        let (_, own) = GROUPS.get();
        GROUPS.set((self.number, own.saturating_sub(1)));
        self.lock().open -= 1;
        self.groups_changed.notify_all();
    }

    fn wants_contents(&self) -> bool {
        self.is_archived || self.has_values
    }

    fn wants_values(&self) -> bool {
        self.has_values
    }

    fn pin_contents(&self) -> Lsn {
        let mut pinned = self.lock_pinned();
        let from = self.log.end();
        pinned.push(from);
        from
    }

    fn unpin_contents(&self, from: Lsn) {
        let mut pinned = self.lock_pinned();
        if let Some(index) = pinned.iter().position(|pinned| *pinned == from) {
            pinned.swap_remove(index);
        }
    }

    fn append_contents(&self, first: PageId, pages: &[u8]) -> io::Result<()> {
        self.log.append(&contents_record(first, pages)).map(drop).map_err(as_io_error)
    }

    fn images_from(&self) -> Lsn {
        if planted(Bug::NoImages) { Lsn(0) } else { Lsn(self.images_from.load(Ordering::SeqCst)) }
    }

    fn end(&self) -> Lsn {
        self.log.end()
    }

    fn durable(&self) -> Lsn {
        self.log.horizon(Durability::Synced)
    }

    fn request_durable(&self) {
        self.log.request_flush(Durability::Synced);
    }

    fn make_durable(&self, lsn: Lsn) -> io::Result<()> {
        self.log.wait(lsn, Durability::Synced).map_err(as_io_error)
    }

    fn check(&self) -> io::Result<()> {
        self.log.check().map_err(as_io_error)
    }
}

fn as_io_error(error: LogError) -> io::Error {
    let kind = match &error {
        LogError::OutcomeUnknown { source } => source.kind(),
        LogError::NoRoom { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
#[cfg(test)]
mod times_tests;
