//! The log: many threads append records, one at a time writes them, and they become durable together.
//!
//! **Group commit**: a thread that needs the log durable up to some place flushes it if no other thread does;
//! everything appended until then is part of that sync. The threads that come meanwhile wait, and one of them does the
//! next flush, for all of them. It [gathers](crate::syncs) them first.
//!
//! # Lock order
//! What is being copied; the maker of segments; then the device. The turn is not held while one of them is locked.
//! Files are made and removed while the device is not locked, so that no flush waits for it.

mod opening;
mod removal;

use crate::{
    Durability, LogError, LogOptions, LogReader,
    archive_bell::ArchiveBell,
    buffer_damage::BufferDamage,
    buffer_file::BufferFile,
    device::{Device, WriteError},
    files::{SegmentMaker, remove},
    frame::{FrameHeader, Kind, frame_bytes},
    kept::Kept,
    lives::LogLives,
    plant::Bug,
    prepared::Prepared,
    primitive::{AtomicU64, Ordering},
    ring::Ring,
    syncs::{SyncCounts, Syncs},
    turn::{Failure, Turn},
    waiting::{Request, Waiting},
};
use std::{io, sync::Arc, time::Duration};
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicBool, Condvar, Instant, Mutex, MutexGuard, spin_loop, thread};
use vellum_vm::Directory;

/// How long to wait for a record that is being filled, which takes only a moment.
const PAUSE: Duration = Duration::from_micros(20);

/// A write-ahead log that is open for appending. Threads share it.
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
    /// What was wrong with the buffer of the process before.
    buffer_damage: Option<BufferDamage>,
    /// The last checkpoint of which the log knew when it was opened.
    known_checkpoint: Lsn,
    /// Locked as long as the ring lies in it.
    _buffer_file: Option<BufferFile>,
    /// It accepts nothing more, and acknowledges nothing.
    pub(crate) has_failed: AtomicBool,
    /// Up to where segments have been written.
    written: AtomicU64,
    /// The operating system, and the device, have all records before these places. The first is for a ring in memory:
    /// in a ring that outlives the process, a record is with the operating system as soon as it is filled.
    buffered: AtomicU64,
    durable: AtomicU64,
    pub(crate) syncs: Syncs,
    /// Up to where there are segments, which are open as far as records may soon reach them.
    pub(crate) prepared: Prepared,
    /// How much of that is kept for undoing transactions.
    pub(crate) for_undo: AtomicU64,
    /// Where the log began when it was opened.
    begin: u64,
    turn: Mutex<Turn>,
    /// Signalled when a flush has ended.
    ended: Condvar,
    device: Mutex<Device>,
    maker: Mutex<SegmentMaker>,
    directory: Arc<dyn Directory>,
    waiting: Waiting,
    kept: Mutex<Kept>,
    archive_bell: ArchiveBell,
    /// The lives of the database, which the archive tells apart.
    pub lives: LogLives,
    /// The segment that is being written, as far as the archiver knows.
    told: AtomicU64,
}

impl Log {
    /// Reads again, from `from` on, what [`open`](Self::open) has shown. Several readers may read at once. They also
    /// read what is discarded meanwhile.
    ///
    /// # Errors
    /// [`LogError::Missing`] if the log has been discarded there.
    pub fn reread(&self, from: Lsn) -> Result<LogReader, LogError> {
        lock(&self.device).reread(from)
    }

    /// Whether records survive the process as soon as they are filled, because the buffer lies in a mapped file.
    /// Otherwise they do once they have been written.
    pub fn has_mapped_buffer(&self) -> bool {
        self.ring.is_shared()
    }

    /// Why the log accepts nothing more, if it has failed.
    ///
    /// # Errors
    /// [`LogError::OutcomeUnknown`] if it has failed, [`LogError::Closed`] if it was [removed](Self::remove).
    pub fn check(&self) -> Result<(), LogError> {
        let failure = lock(&self.turn).failure.clone();
        failure.map_or(Ok(()), |failure| Err(failure.error()))
    }

    /// Reserves the place of a record whose frame has `frame_bytes`.
    #[inline]
    pub(crate) fn reserve_place(&self, frame_bytes: u64) -> u64 {
        self.ring.reserve(frame_bytes)
    }

    /// Fills the place of a [reservation](crate::Reservation::into_lsn): as [`Reservation::fill`](crate::Reservation::fill).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait): the record is not in the log.
    #[inline]
    pub fn fill_at(&self, lsn: Lsn, payload: &[u8]) -> Result<(), LogError> {
        self.put(lsn.0, Kind::Record, payload)
    }

    /// Leaves the place of a [reservation](crate::Reservation::into_lsn) of `payload_bytes` empty.
    ///
    /// # Errors
    /// As for [`fill_at`](Self::fill_at).
    pub fn cancel_at(&self, lsn: Lsn, payload_bytes: usize) -> Result<(), LogError> {
        self.put(lsn.0, Kind::Void, &vec![0; payload_bytes])
    }

    /// Returns once the record at `lsn`, and all before, are as durable as asked. Others appended so far come along.
    ///
    /// # Errors
    /// [`LogError::NoRoom`] if there is no room for it now; [`LogError::OutcomeUnknown`] if it could not be written:
    /// the log accepts nothing more.
    #[inline]
    pub fn wait(&self, lsn: Lsn, durability: Durability) -> Result<(), LogError> {
        if durability == Durability::Buffered && self.ring.is_shared() {
            self.wait_until_filled(|| self.horizon(durability) > lsn)?;
            self.wake_tasks();
            return Ok(());
        }
        if self.horizon(durability) > lsn {
            return Ok(());
        }
        let _counted = (durability == Durability::Synced).then(|| self.syncs.wait(lsn));
        self.flush(durability, || self.horizon(durability) > lsn)
    }

    /// Makes all records that have been reserved so far as durable as requested.
    pub(crate) fn flush_all(&self, durability: Durability) -> Result<(), LogError> {
        let end = self.end();
        if durability == Durability::Buffered && self.ring.is_shared() {
            self.wait_until_filled(|| self.horizon(durability) >= end)?;
            self.wake_tasks();
            return Ok(());
        }
        self.flush(durability, || self.horizon(durability) >= end)
    }

    /// Wakes the tasks whose records have arrived, or never will, and requests a sync for the others.
    pub(crate) fn wake_tasks(&self) {
        if self.waiting.has_tasks() {
            // Acquire: pairs with the failure.
            let has_failed = self.has_failed.load(Ordering::Acquire);
            self.waiting.wake(|lsn, durability| has_failed || self.horizon(durability) > lsn);
        }
    }

    /// Writes all records that are filled now to segments; the errors are those of [`wait`](Self::wait).
    pub fn write_filled(&self) -> Result<(), LogError> {
        let end = self.ring.advance();
        // Relaxed: a hint, which may be too low.
        self.flush(Durability::Buffered, || self.written.load(Ordering::Relaxed) >= end)
    }

    /// Waits until a condition holds that depends on records being filled. That takes a moment: the threads that fill
    /// them wait for nothing but room.
    fn wait_until_filled(&self, is_done: impl Fn() -> bool) -> Result<(), LogError> {
        const SPINS: u32 = 100;
        const YIELDS: u32 = 120;
        let mut round = 0;
        while !is_done() {
            match round {
                0..SPINS => spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => thread::sleep(PAUSE),
            }
            if round >= SPINS || self.has_failed.load(Ordering::Acquire) {
                self.check()?;
            }
            round = (round + 1).min(YIELDS);
        }
        Ok(())
    }

    /// The outcome of the wait for a record; `None` while it goes on.
    pub(crate) fn outcome(&self, lsn: Lsn, durability: Durability) -> Option<Result<(), LogError>> {
        if self.horizon(durability) > lsn {
            if durability == Durability::Buffered && self.ring.is_shared() {
                self.wake_tasks();
            }
            return Some(Ok(()));
        }
        Some(Err(lock(&self.turn).failure.clone()?.error()))
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The place before which all records are as durable as requested.
    #[inline]
    pub fn horizon(&self, durability: Durability) -> Lsn {
        // Acquire: a thread that acts on it sees what was written before.
        Lsn(match durability {
            Durability::Buffered if !self.ring.is_shared() => self.buffered.load(Ordering::Acquire),
            // Acquire, too: a thread that has seen a failure acknowledges nothing.
            Durability::Buffered if self.has_failed.load(Ordering::Acquire) => self.ring.frontier(),
            Durability::Buffered => self.ring.advance(),
            Durability::Synced => self.durable.load(Ordering::Acquire),
        })
    }

    /// How many syncs of segments have made records durable since the log was opened, and for how many waiters.
    pub fn sync_counts(&self) -> SyncCounts {
        self.syncs.counts()
    }

    /// The options of the log.
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// A place before which everything has been read, as another reader is told of it, and the life of the database that has logged what is
    /// before it; zero if that is unknown. Where this log begins, nothing has been logged since the former one ended, and another history
    /// may have come to the same place: so it is told as where the former one ended.
    pub fn told_place(&self, place: Lsn) -> (Lsn, u64) {
        let place = if place.0 <= self.begin { place.min(self.device().former_end()) } else { place };
        (place, self.lives.before(place))
    }

    /// Where the next record will be.
    pub fn end(&self) -> Lsn {
        Lsn(self.ring.reserved())
    }

    /// Gives up all whole segments before `lsn`, except what is being copied: nothing before it will be read.
    ///
    /// # Errors
    /// If the system cannot remove a file. The file is reused, or removed, after the log has been opened again.
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
        remove(&*self.directory, &removed)?;
        // While a segment is being made, this is left for the next time.
        let Ok(_maker) = self.maker.try_lock() else { return Ok(()) };
        let removed = lock(&self.device).give_up_prepared(self.wanted(self.end().0));
        remove(&*self.directory, &removed)
    }

    pub(crate) fn archive_bell(&self) -> &ArchiveBell {
        &self.archive_bell
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    pub(crate) fn directory(&self) -> &dyn Directory {
        &*self.directory
    }

    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
    }

    /// Up to where there should be segments while the log ends at `end`: two buffers further, but of the second no more
    /// than was appended. A log that remains short needs no more than [`admit`](Self::admit) makes.
    pub(crate) fn wanted(&self, end: u64) -> u64 {
        let buffer = self.options.buffer_bytes;
        // Relaxed: a hint.
        end + buffer + buffer.min(end - self.begin) + self.for_undo.load(Ordering::Relaxed)
    }

    pub(crate) fn prepare_to(&self, to: u64, is_waited_for: bool) -> Result<(), LogError> {
        let mut maker = lock(&self.maker);
        loop {
            // Under the lock of the maker, so that a log that has been removed leaves nothing behind.
            self.check()?;
            let number = {
                let mut device = lock(&self.device);
                let opened = device.open_prepared();
                self.prepared.note(device.ready_end());
                if device.ready_end() >= to {
                    return Ok(());
                }
                opened.map_err(LogError::not_opened)?;
                device.number_unprepared()
            };
            let pays = maker.is_to_be_written(self.end().0 - self.begin, self.sync_counts().syncs);
            let made = maker.make(number, pays && !is_waited_for, || lock(&self.device).take_idle())?;
            lock(&self.device).add_prepared(made);
        }
    }

    /// Flushes until a condition holds, together with other threads that want the same.
    fn flush(&self, durability: Durability, is_done: impl Fn() -> bool) -> Result<(), LogError> {
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
                if durability == Durability::Buffered {
                    self.syncs.hurry();
                }
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

    /// Flushes, and gives the turn back. Returns whether there was anything to flush.
    fn take_turn(&self, durability: Durability) -> Result<bool, LogError> {
        let mut turn = TakenTurn { log: self, is_complete: false };
        let flushed = self.flush_or_prepare(durability);
        turn.is_complete = true;
        flushed
    }

    fn flush_or_prepare(&self, durability: Durability) -> Result<bool, LogError> {
        match self.flush_now(durability) {
            Ok(has_flushed) => Ok(has_flushed),
            Err(WriteError::NoSegment) => {
                let needed = lock(&self.device).prepared_end() + 1;
                self.prepare_to(needed, true).map(|()| true)
            }
            Err(WriteError::NotOpened(error)) => Err(LogError::not_opened(error)),
            // Before another thread has its turn: a sync of that thread would succeed, but not make up for this one.
            Err(WriteError::Failed(error)) => Err(self.fail(error)),
        }
    }

    /// Writes everything there is, and syncs it if requested. Returns whether there was anything.
    fn flush_now(&self, durability: Durability) -> Result<bool, WriteError> {
        let durable = self.horizon(Durability::Synced);
        if durability == Durability::Synced {
            self.syncs.gather(durable, self.waiting.awaited());
        }
        let begun = Instant::now();
        let mut device = lock(&self.device);
        let before = device.written();
        let mut end = self.write_to(&mut device, durability)?;
        if durability == Durability::Synced && durable.0 < end {
            // What came during that write is added: a sync costs more than a short write.
            end = self.write_to(&mut device, durability)?;
        }
        if self.options.planted(Bug::EarlyAcknowledgement) {
            self.durable.store(end, Ordering::Release);
            self.ended.notify_all();
        }
        // What has been written brings segments nearer.
        self.prepared.note(device.ready_end());
        if self.wanted(end) > device.ready_end() {
            self.waiting.ask(Request::Segments);
        }
        // Release: pairs with `horizon`.
        self.buffered.store(end, Ordering::Release);
        if durability == Durability::Synced && durable.0 < end {
            let awaited = self.syncs.awaited(durable, self.waiting.awaited());
            device.sync()?;
            self.syncs.add(Lsn(end), &awaited, begun.elapsed());
            self.durable.store(end, Ordering::Release);
            return Ok(true);
        }
        // Release: as above. Full segments have been synced.
        self.durable.fetch_max(device.synced(), Ordering::Release);
        Ok(before < end)
    }

    /// Writes everything that is filled to the segments. Returns up to where they are written.
    fn write_to(&self, device: &mut Device, durability: Durability) -> Result<u64, WriteError> {
        let written = device.write(&self.ring, durability);
        // Relaxed: only this thread writes it, under the lock of the device.
        if self.told.swap(device.number(), Ordering::Relaxed) != device.number() {
            self.archive_bell.ring();
        }
        let end = written?;
        // Relaxed: a hint.
        self.written.store(end, Ordering::Relaxed);
        Ok(end)
    }

    /// Writes a frame into its place.
    fn put(&self, lsn: u64, kind: Kind, payload: &[u8]) -> Result<(), LogError> {
        let end = lsn + frame_bytes(payload.len());
        if !self.ring.has_room(end)
            && let Err(error) = self.flush(Durability::Buffered, || self.ring.has_room(end))
        {
            // The records after this one would wait for it for ever. `admit` lets that happen only to a caller that has
            // reserved more than a buffer without calling `admit`.
            return Err(if let LogError::NoRoom { source, .. } = error { self.fail(source) } else { error });
        }
        // Relaxed: any earlier value is correct as well.
        let durable = self.durable.load(Ordering::Relaxed);
        let header = FrameHeader::new(kind, self.options.seed(self.salt, lsn), lsn, durable, payload);
        self.ring.fill(lsn, &header, payload);
        if self.ring.is_shared() && lsn / self.write_bytes() < end / self.write_bytes() {
            self.waiting.ask(Request::Write);
        }
        Ok(())
    }

    /// Whether a record of `payload_bytes` would be filled without waiting.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_room_for(&self, payload_bytes: usize) -> bool {
        self.ring.has_room(self.end().0 + frame_bytes(payload_bytes))
    }

    /// After this many bytes they are written even if no thread waits for that, so that the ring always has room.
    #[inline]
    fn write_bytes(&self) -> u64 {
        self.options.buffer_bytes / 16
    }

    /// Makes the log accept nothing more, because of `error`. If there was an earlier reason, that one is returned.
    pub fn fail(&self, error: io::Error) -> LogError {
        self.end_with(Failure::Failed(Arc::new(error)))
    }

    fn end_with(&self, failure: Failure) -> LogError {
        // Release: a thread that finds the failure finds this.
        self.has_failed.store(true, Ordering::Release);
        // What comes next must be admitted, and is refused.
        self.prepared.end_for_good();
        let failure = lock(&self.turn).failure.get_or_insert(failure).clone();
        self.ended.notify_all();
        self.syncs.hurry();
        self.wake_tasks();
        failure.error()
    }
}

/// Gives the turn back, even if the flush panics.
struct TakenTurn<'l> {
    log: &'l Log,
    /// The flush has returned. The thread may be unwinding nevertheless, and a destructor writes to the log.
    is_complete: bool,
}

impl Drop for TakenTurn<'_> {
    fn drop(&mut self) {
        let Self { log, is_complete } = *self;
        let mut turn = lock(&log.turn);
        turn.is_taken = false;
        if !is_complete {
            let error = io::Error::other("writing the log panicked");
            log.has_failed.store(true, Ordering::Release);
            turn.failure.get_or_insert(Failure::Failed(Arc::new(error)));
        }
        drop(turn);
        log.ended.notify_all();
        log.wake_tasks();
    }
}

/// [`TakenTurn`] takes care of what a panic leaves half-done under a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
