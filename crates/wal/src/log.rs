//! The log: records are appended by many threads, written by one at a time, and durable together.
//!
//! **Group commit without a timer**: a thread that needs the log durable up to some place flushes it if no other thread
//! does; all that has been appended until then goes in one write and one sync. The threads that come meanwhile wait, and one of
//! them flushes next, for all.
//!
//! # Lock order
//! What is being copied; the maker of segments; then the device. The turn is not held while one of them is locked. Files are made and removed while the
//! device is not locked, so that no flush waits for it.

use crate::{
    Durability, LogError, LogOptions, LogReader, Record,
    archive_bell::ArchiveBell,
    device::{Device, WriteError},
    files::{LogFiles, SegmentMaker, names_of, remove, remove_all},
    frame::{FrameHeader, Kind, frame_bytes},
    kept::Kept,
    plant::Bug,
    primitive::{AtomicU64, Ordering},
    reader::PreviousEnd,
    ring::Ring,
    turn::{Failure, Turn},
    waiting::{Request, Waiting},
};
use std::{io, sync::Arc, time::Duration};
use vellum_base::Lsn;
use vellum_base::primitive::{Condvar, Mutex, MutexGuard, thread};
use vellum_vm::Directory;

/// A write-ahead log that is open for appending. Shared by threads.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use vellum_base::Lsn;
/// use vellum_vm::SimulatedDisk;
/// use vellum_wal::{Durability, Log, LogOptions};
///
/// let disk = SimulatedDisk::new(1);
/// let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new(*b"sixteen bytes id") };
/// let log = Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, vellum_wal::LogError>(()))?;
/// let lsn = log.append(b"something happened")?;
/// log.wait(lsn, Durability::Synced)?;
/// drop(log);
///
/// let mut records = Vec::new();
/// Log::open(Arc::new(disk.crash()), &options, Lsn(0), |record| {
///     records.push((record.lsn, record.payload.to_vec()));
///     Ok::<_, vellum_wal::LogError>(())
/// })?;
/// assert_eq!(records, [(lsn, b"something happened".to_vec())]);
/// # Ok::<(), vellum_wal::LogError>(())
/// ```
pub struct Log {
    ring: Ring,
    salt: u64,
    options: LogOptions,
    /// Before these places the operating system, and the device, have all records.
    buffered: AtomicU64,
    durable: AtomicU64,
    /// How often the device was asked to make something durable.
    syncs: AtomicU64,
    /// Up to where there are segments.
    prepared: AtomicU64,
    /// Where it began when it was opened.
    begin: u64,
    turn: Mutex<Turn>,
    /// A flush has ended.
    ended: Condvar,
    device: Mutex<Device>,
    maker: Mutex<SegmentMaker>,
    directory: Arc<dyn Directory>,
    waiting: Waiting,
    kept: Mutex<Kept>,
    archive_bell: ArchiveBell,
    /// The segment that is written, as far as the archiver knows.
    told: AtomicU64,
}

impl Log {
    /// Opens the log in a directory, or creates it; shows all its records from `from` on to `replay`. What is appended from now
    /// on has greater LSNs than anything before, even if that is lost.
    ///
    /// `from` is where a record begins or the log ended once; zero reads a log of which nothing was discarded from its
    /// beginning. If `replay` fails, or the process ends, the log is as it was.
    ///
    /// # Errors
    /// [`LogError::Hole`] and [`LogError::Missing`] if records are not there that should be, those of `replay`, and what the
    /// system reports.
    pub fn open<E: From<LogError>>(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        from: Lsn,
        mut replay: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let files = LogFiles::open(&*directory, options)?;
        let mut reader = LogReader::new(&files, from)?;
        reader.ends_at_holes = options.planted(Bug::PastHole);
        while let Some(record) = reader.next()? {
            replay(record)?;
        }
        let previous = reader.previous_end();
        drop(reader);
        Ok(Self::begin_timeline(directory, files, previous)?)
    }

    /// Begins a log at or after [`LogOptions::least`]. What the directory holds of an earlier one, of which nothing is needed any
    /// more, is given up unread.
    ///
    /// # Errors
    /// [`LogError::Foreign`] and [`LogError::Version`] if the files are not those of an earlier log, and what the system reports.
    pub fn begin(directory: Arc<dyn Directory>, options: &LogOptions) -> Result<Self, LogError> {
        let mut files = LogFiles::open(&*directory, options)?;
        let given_up = std::mem::take(&mut files.segments);
        files.idle.extend(given_up.into_iter().map(|(number, segment)| (number, segment.file)));
        let is_first = files.idle.is_empty();
        let log = Self::begin_timeline(directory.clone(), files, None).inspect_err(|_| {
            if is_first {
                // What was begun is nobody's.
                let _ = remove_all(&*directory, options);
            }
        })?;
        // What cannot be removed is not in the way.
        let _ = log.discard(log.end());
        Ok(log)
    }

    /// Whether a directory holds files of a log.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn is_there(directory: &dyn Directory) -> Result<bool, LogError> {
        Ok(!names_of(directory)?.is_empty())
    }

    fn begin_timeline(
        directory: Arc<dyn Directory>,
        files: LogFiles,
        previous: Option<PreviousEnd>,
    ) -> Result<Self, LogError> {
        let options = files.options.clone();
        let mut maker = SegmentMaker::new(directory.clone(), &files);
        let device = Device::begin(files, &mut maker, previous)?;
        let (lsn, salt) = (device.written(), device.salt());
        Ok(Self {
            ring: Ring::new(options.buffer_bytes, lsn)?,
            salt,
            options,
            buffered: AtomicU64::new(lsn),
            durable: AtomicU64::new(lsn),
            syncs: AtomicU64::new(0),
            prepared: AtomicU64::new(lsn),
            begin: lsn,
            turn: Mutex::default(),
            ended: Condvar::new(),
            device: Mutex::new(device),
            maker: Mutex::new(maker),
            directory,
            waiting: Waiting::default(),
            kept: Mutex::default(),
            archive_bell: ArchiveBell::default(),
            told: AtomicU64::new(0),
        })
    }

    /// Reads again, from `from` on, what [`open`](Self::open) has shown. Several readers may read at once. What is discarded
    /// meanwhile they read all the same.
    ///
    /// # Errors
    /// [`LogError::Missing`] if that has been discarded.
    pub fn reread(&self, from: Lsn) -> Result<LogReader, LogError> {
        lock(&self.device).reread(from)
    }

    /// Removes the log, durably: the database is closed, and needs nothing of it. The log takes nothing any more. The next one
    /// [begins](Self::begin) at the [end](Self::end) of this one.
    ///
    /// # Errors
    /// If the system cannot remove a file. What is left the next log gives up.
    pub fn remove(&self) -> Result<(), LogError> {
        self.end_with(Failure::Removed);
        // What is being made or written is done then.
        let (_maker, _device) = (lock(&self.maker), lock(&self.device));
        remove_all(&*self.directory, &self.options)
    }

    /// Appends a record; says where it is. It is neither written nor durable yet: see [`wait`](Self::wait).
    ///
    /// # Errors
    /// As for [`admit`](Self::admit), [`reserve`](Self::reserve) and [`Reservation::fill`].
    pub fn append(&self, payload: &[u8]) -> Result<Lsn, LogError> {
        self.admit()?;
        self.reserve(payload.len())?.fill(payload)
    }

    /// Makes sure that there are segments for what comes next: called before anything is latched, or done, that will be logged.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if there is no room for them. Nothing has happened then, and it may be tried again.
    #[inline]
    pub fn admit(&self) -> Result<(), LogError> {
        if self.is_short() { self.prepare_to(self.end().0 + self.options.buffer_bytes, true) } else { Ok(()) }
    }

    /// As [`admit`](Self::admit), for what undoes a transaction: is content with a quarter of what others leave, so that a full
    /// disk keeps no transaction from being rolled back.
    ///
    /// # Errors
    /// As for `admit`.
    pub fn admit_undo(&self) -> Result<(), LogError> {
        self.prepare_to(self.end().0 + self.options.buffer_bytes / 4, true)
    }

    /// Whether [`admit`](Self::admit) would have to make segments.
    #[inline]
    pub fn is_short(&self) -> bool {
        // Relaxed: a hint. What is reserved between this and the caller's reservation is far less than a buffer.
        self.end().0 + self.options.buffer_bytes > self.prepared.load(Ordering::Relaxed)
    }

    /// Why the log takes nothing any more, if it has failed.
    ///
    /// # Errors
    /// [`LogError::OutcomeUnknown`] if it has, [`LogError::Closed`] if it was [removed](Self::remove).
    pub fn check(&self) -> Result<(), LogError> {
        let failure = lock(&self.turn).failure.clone();
        failure.map_or(Ok(()), |failure| Err(failure.error()))
    }

    /// Whether it was [removed](Self::remove).
    pub fn is_removed(&self) -> bool {
        matches!(lock(&self.turn).failure, Some(Failure::Removed))
    }

    /// Reserves the place of a record of so many bytes. That waits for nothing, so it may be done under latches: records are
    /// in the order of their reservations.
    ///
    /// # Errors
    /// [`LogError::RecordTooLong`].
    #[inline]
    pub fn reserve(&self, payload_bytes: usize) -> Result<Reservation<'_>, LogError> {
        let bytes_max = self.options.record_bytes_max();
        if payload_bytes > bytes_max {
            return Err(LogError::RecordTooLong { bytes: payload_bytes, bytes_max });
        }
        let lsn = self.ring.reserve(frame_bytes(payload_bytes));
        Ok(Reservation { log: self, lsn, payload_bytes, is_open: true })
    }

    /// Fills the place of a [reservation](Reservation::into_lsn): as [`Reservation::fill`].
    ///
    /// # Errors
    /// As for [`wait`](Self::wait): the record is not in the log.
    #[inline]
    pub fn fill_at(&self, lsn: Lsn, payload: &[u8]) -> Result<(), LogError> {
        self.put(lsn.0, Kind::Record, payload)
    }

    /// Leaves the place of a [reservation](Reservation::into_lsn) of so many bytes empty.
    ///
    /// # Errors
    /// As for [`fill_at`](Self::fill_at).
    pub fn cancel_at(&self, lsn: Lsn, payload_bytes: usize) -> Result<(), LogError> {
        self.put(lsn.0, Kind::Void, &vec![0; payload_bytes])
    }

    /// Returns once the record at `lsn`, and all before it, has come so far. All that was appended until then comes along.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if there is no room for it now; [`LogError::OutcomeUnknown`] if it could not be written: this log
    /// takes nothing any more.
    pub fn wait(&self, lsn: Lsn, durability: Durability) -> Result<(), LogError> {
        self.flush(durability, || self.horizon(durability) > lsn)
    }

    /// Brings all records that have been reserved until now so far.
    pub(crate) fn flush_all(&self, durability: Durability) -> Result<(), LogError> {
        let end = self.end();
        self.flush(durability, || self.horizon(durability) >= end)
    }

    /// What came of the wait for a record; nothing as long as it goes on.
    pub(crate) fn outcome(&self, lsn: Lsn, durability: Durability) -> Option<Result<(), LogError>> {
        if self.horizon(durability) > lsn {
            return Some(Ok(()));
        }
        Some(Err(lock(&self.turn).failure.clone()?.error()))
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The records before this place have come so far.
    #[inline]
    pub fn horizon(&self, durability: Durability) -> Lsn {
        // Acquire: a thread that acts on it sees what was written before.
        Lsn(match durability {
            Durability::Buffered => self.buffered.load(Ordering::Acquire),
            Durability::Synced => self.durable.load(Ordering::Acquire),
        })
    }

    /// How many syncs of segments have made records durable since the log was opened.
    pub fn syncs(&self) -> u64 {
        // Relaxed: a count.
        self.syncs.load(Ordering::Relaxed)
    }

    /// How it is kept.
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Where the next record will be.
    pub fn end(&self) -> Lsn {
        Lsn(self.ring.reserved())
    }

    /// Gives up all that lies before `lsn`, in whole segments, but for what is being copied: nothing will be read
    /// from before it.
    ///
    /// # Errors
    /// If the system cannot remove a file. It is used again, or removed, after the log has been opened the next time.
    pub fn discard(&self, lsn: Lsn) -> Result<(), LogError> {
        let mut kept = lock(&self.kept);
        kept.discarded = kept.discarded.max(lsn.0);
        self.discard_unkept(kept)
    }

    /// Gives up what may be given up by now.
    pub(crate) fn discard_again(&self) -> Result<(), LogError> {
        self.discard_unkept(lock(&self.kept))
    }

    fn discard_unkept(&self, kept: MutexGuard<'_, Kept>) -> Result<(), LogError> {
        let first = kept.first_needed(self.end().0, self.options.planted(Bug::FollowedGivenUp));
        let removed = lock(&self.device).discard(kept.discarded.min(first));
        drop(kept);
        remove(&*self.directory, &removed)
    }

    pub(crate) fn archive_bell(&self) -> &ArchiveBell {
        &self.archive_bell
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
    }

    /// Makes the next segments before they are needed, so that no transaction waits for that.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if they cannot be made. That is tried again when they are needed.
    pub fn prepare(&self) -> Result<(), LogError> {
        self.prepare_to(self.wanted(self.end().0), false)
    }

    /// Up to where there should be segments while the log ends at `end`: two buffers further, but not before so much was written. A log
    /// that remains short needs no more than what [`admit`](Self::admit) makes.
    fn wanted(&self, end: u64) -> u64 {
        let buffer = self.options.buffer_bytes;
        end + buffer + buffer.min(end - self.begin)
    }

    fn prepare_to(&self, to: u64, is_waited_for: bool) -> Result<(), LogError> {
        let mut maker = lock(&self.maker);
        loop {
            // Under the lock of the maker: a log that has been removed leaves nothing behind.
            self.check()?;
            let number = {
                let device = lock(&self.device);
                // Relaxed: a hint.
                self.prepared.store(device.prepared_end(), Ordering::Relaxed);
                if device.prepared_end() >= to {
                    return Ok(());
                }
                device.number_unprepared()
            };
            let made = maker.make(number, is_waited_for, || lock(&self.device).take_idle())?;
            lock(&self.device).add_prepared(made);
        }
    }

    /// Flushes until a condition holds, together with other threads that want the same.
    fn flush(&self, durability: Durability, is_done: impl Fn() -> bool) -> Result<(), LogError> {
        // A record that is being filled is there in a moment.
        const PAUSE: Duration = Duration::from_micros(20);
        if is_done() {
            return Ok(());
        }
        let mut turn = lock(&self.turn);
        loop {
            if let Some(failure) = turn.failure.clone() {
                return Err(failure.error());
            }
            if is_done() {
                return Ok(());
            }
            if turn.is_taken {
                turn = self.ended.wait(turn).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            }
            turn.is_taken = true;
            drop(turn);
            match self.take_turn(durability) {
                Ok(has_flushed) if has_flushed || is_done() => {}
                Ok(_) => thread::sleep(PAUSE),
                Err(error) => return if is_done() { Ok(()) } else { Err(error) },
            }
            turn = lock(&self.turn);
        }
    }

    /// Flushes, and gives the turn back. Returns whether anything was there.
    fn take_turn(&self, durability: Durability) -> Result<bool, LogError> {
        let _turn = TakenTurn(self);
        match self.flush_now(durability) {
            Ok(has_flushed) => Ok(has_flushed),
            Err(WriteError::NoSegment) => {
                let needed = lock(&self.device).prepared_end() + 1;
                self.prepare_to(needed, true).map(|()| true)
            }
            // Before another thread has its turn: its sync would succeed without making up for this one.
            Err(WriteError::Failed(error)) => Err(self.fail(error)),
        }
    }

    /// Writes all that is there, and syncs it if that is asked for. Returns whether anything was there.
    fn flush_now(&self, durability: Durability) -> Result<bool, WriteError> {
        let mut device = lock(&self.device);
        let (buffered, durable) = (self.horizon(Durability::Buffered), self.horizon(Durability::Synced));
        let written = device.write(&self.ring, durability);
        // Relaxed: this thread alone writes it, under the lock of the device.
        if self.told.swap(device.number(), Ordering::Relaxed) != device.number() {
            self.archive_bell.ring();
        }
        let end = written?;
        if self.options.planted(Bug::EarlyAcknowledgement) {
            self.durable.store(end, Ordering::Release);
        }
        // Relaxed: a hint.
        if self.wanted(end) > self.prepared.load(Ordering::Relaxed) {
            self.waiting.ask(Request::Segments);
        }
        // Release: pairs with `horizon`.
        self.buffered.store(end, Ordering::Release);
        if durability == Durability::Synced && durable.0 < end {
            device.sync()?;
            // Relaxed: a count.
            self.syncs.store(device.syncs(), Ordering::Relaxed);
            self.durable.store(end, Ordering::Release);
            return Ok(true);
        }
        // Release: as above. Segments that are full have been synced.
        self.durable.fetch_max(device.synced(), Ordering::Release);
        Ok(buffered.0 < end)
    }

    /// Writes a frame into its place.
    fn put(&self, lsn: u64, kind: Kind, payload: &[u8]) -> Result<(), LogError> {
        let end = lsn + frame_bytes(payload.len());
        if !self.ring.has_room(end)
            && let Err(error) = self.flush(Durability::Buffered, || self.ring.has_room(end))
        {
            // The records after this one would wait for it for ever. `admit` lets that happen only to a caller that has
            // reserved more than a buffer without asking.
            return Err(if let LogError::NoRoom { source } = error { self.fail(source) } else { error });
        }
        // Relaxed: any earlier value is true as well.
        let durable = self.durable.load(Ordering::Relaxed);
        let header = FrameHeader::new(kind, self.options.seed(self.salt, lsn), lsn, durable, payload);
        self.ring.fill(lsn, &header, payload);
        Ok(())
    }

    /// Takes nothing any more: `error` is why, unless there was a reason before, which is returned then.
    pub fn fail(&self, error: io::Error) -> LogError {
        self.end_with(Failure::Failed(Arc::new(error)))
    }

    fn end_with(&self, failure: Failure) -> LogError {
        let failure = lock(&self.turn).failure.get_or_insert(failure).clone();
        self.ended.notify_all();
        self.waiting.wake(|_, _| true);
        failure.error()
    }
}

/// The place of a record that is not there yet. All records after it wait for it: it is filled at once. If it is dropped, it
/// is filled with nothing.
#[must_use = "the records after it wait for it"]
pub struct Reservation<'l> {
    log: &'l Log,
    lsn: u64,
    payload_bytes: usize,
    is_open: bool,
}

impl Reservation<'_> {
    /// Where the record will be.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    /// Writes the record into its place, of which it is exactly as long. If the buffer is full that waits until it has been
    /// written, so no latch is held.
    ///
    /// # Errors
    /// As for [`Log::wait`]: the record is not in the log.
    ///
    /// # Panics
    /// If the payload has another length.
    pub fn fill(mut self, payload: &[u8]) -> Result<Lsn, LogError> {
        assert_eq!(payload.len(), self.payload_bytes, "a record is as long as its place");
        self.is_open = false;
        self.log.fill_at(self.lsn(), payload)?;
        Ok(self.lsn())
    }

    /// Where the record will be, for a caller that keeps nothing else. It fills the place by [`Log::fill_at`] or gives it up by
    /// [`Log::cancel_at`]: nothing else does.
    #[must_use = "the records after it wait for it"]
    pub fn into_lsn(mut self) -> Lsn {
        self.is_open = false;
        self.lsn()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // If that fails the log takes nothing any more.
            let _ = self.log.cancel_at(self.lsn(), self.payload_bytes);
        }
    }
}

/// Gives the turn back, also when the flush panics.
struct TakenTurn<'l>(&'l Log);

impl Drop for TakenTurn<'_> {
    fn drop(&mut self) {
        let mut turn = lock(&self.0.turn);
        turn.is_taken = false;
        let has_failed = std::thread::panicking();
        if has_failed {
            let error = io::Error::other("writing the log panicked");
            turn.failure.get_or_insert(Failure::Failed(Arc::new(error)));
        }
        drop(turn);
        self.0.ended.notify_all();
        self.0.waiting.wake(|lsn, durability| has_failed || self.0.horizon(durability) > lsn);
    }
}

/// What a panic leaves half-done under a lock is taken care of by [`TakenTurn`].
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
