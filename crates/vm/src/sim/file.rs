//! The simulated file as its users and its tests see it.

use super::faults::{CrashModel, Faults, FileOperation, OperationCounts};
use super::image::Image;
use super::queue::{Device, SimulatedQueue, assert_aligned, assert_disjoint};
use super::state::{Change, Disk, Mapped};
use crate::file::{File, FileDescription};
use crate::queue::Queue;
use crate::request::{Operation, Request};
use crate::transfer::{Transfer, transfer_all};
use crate::{IoEngine, WordTable};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use vellum_base::PAGE_SIZE;
use vellum_base::primitive::{Mutex, MutexGuard, thread};

/// The number of syncs after which mapped words are examined.
const LOOK_EVERY: u64 = 8;

/// The time between two looks of a read at whether it is still held up.
const HOLD_LOOK: Duration = Duration::from_millis(1);

/// A file in memory that fails as configured, the same way each time for the same seed.
///
/// Clones share the contents, so a test keeps one while the code under test owns another. As a test double it is
/// strict: offsets, lengths and addresses that are not multiples of [`PAGE_SIZE`](vellum_base::PAGE_SIZE), and requests
/// of one batch that overlap, cause panics.
///
/// # Examples
/// Data that was not synced does not survive every crash:
/// ```
/// use vellum_vm::{AlignedBuffer, CrashModel, File, SimulatedFile};
/// let file = SimulatedFile::new(42);
/// file.grow(4096)?;
/// file.sync()?;
/// let mut page = AlignedBuffer::new(4096);
/// page.fill(1);
/// // SAFETY: the page is not changed meanwhile.
/// unsafe { file.write(0, page.as_ptr(), 4096)? };
/// assert_eq!(file.crash_with(CrashModel::LoseAll).snapshot().to_vec(), [0; 4096]);
/// file.sync()?;
/// assert_eq!(file.crash().snapshot().to_vec(), [1; 4096]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimulatedFile {
    disk: Arc<Mutex<Disk>>,
    index: usize,
    /// Present if the file was opened through a directory: decides which other openings are allowed.
    lock: Option<Arc<OpenLock>>,
    /// The error of the first sync of this opening that failed; 0 if none has. Changed while the disk is locked.
    sync_failure: Arc<AtomicI32>,
}

impl SimulatedFile {
    /// An empty file without faults.
    pub fn new(seed: u64) -> Self {
        Self::from_image(seed, Image::default())
    }

    /// A file with these contents, all of them durable, and without faults.
    pub fn from_image(seed: u64, image: Image) -> Self {
        let mut disk = Disk::new(seed, Faults::default());
        let index = disk.add("the file", image);
        Self::of(Arc::new(Mutex::new(disk)), index, None)
    }

    pub(super) fn of(disk: Arc<Mutex<Disk>>, index: usize, lock: Option<Arc<OpenLock>>) -> Self {
        Self { disk, index, lock, sync_failure: Arc::default() }
    }

    /// The seed from which everything random here comes.
    pub fn seed(&self) -> u64 {
        self.state().seed
    }

    /// The faults of the file.
    pub fn faults(&self) -> Faults {
        self.state().files[self.index].faults.clone()
    }

    /// Replaces the faults of the file.
    pub fn set_faults(&self, faults: Faults) {
        self.state().files[self.index].faults = faults;
    }

    /// Ends all faults and scheduled failures, except for the crash model.
    pub fn heal(&self) {
        let file = &mut self.state().files[self.index];
        file.faults = file.faults.healed();
        file.schedule.clear();
    }

    /// Makes the `n`-th operation from now, of any kind, fail with EIO; the next one is the first.
    pub fn fail_nth(&self, n: u64) {
        self.state().files[self.index].schedule.fail(None, n, false);
    }

    /// Makes the `n`-th operation from now, of any kind, and all that follow it fail with EIO.
    pub fn fail_from(&self, n: u64) {
        self.state().files[self.index].schedule.fail(None, n, true);
    }

    /// Makes the `n`-th operation of one kind from now fail with EIO.
    pub fn fail_nth_of(&self, operation: FileOperation, n: u64) {
        self.state().files[self.index].schedule.fail(Some(operation), n, false);
    }

    /// Makes the `n`-th operation of one kind from now, and all of that kind that follow it, fail with EIO.
    pub fn fail_from_of(&self, operation: FileOperation, n: u64) {
        self.state().files[self.index].schedule.fail(Some(operation), n, true);
    }

    /// Makes reads wait until what this returns is dropped, so that a test can look at what waits for one.
    ///
    /// Reads that have begun are not held up. A thread that both reads and is to drop it waits forever.
    #[must_use = "reads go on when it is dropped"]
    pub fn hold_reads(&self) -> HeldReads {
        self.state().files[self.index].read_holds += 1;
        HeldReads(self.clone())
    }

    /// Counts of the operations on the file.
    pub fn counts(&self) -> OperationCounts {
        self.state().files[self.index].schedule.counts
    }

    /// The seed, and below it the last operations and faults, one per line.
    pub fn history(&self) -> String {
        history(&self.state(), Some(self.index))
    }

    /// The number of writes and changes of size that are not durable.
    pub fn unsynced_count(&self) -> usize {
        self.state().files[self.index].pending.len()
    }

    /// The contents that a read sees now.
    pub fn snapshot(&self) -> Image {
        let mut state = self.state();
        state.files[self.index].look_at_words();
        state.files[self.index].contents.clone()
    }

    /// The contents that would survive a crash that loses all it can.
    pub fn durable_snapshot(&self) -> Image {
        self.state().files[self.index].durable.clone()
    }

    /// The file that a crash at this moment leaves, by the crash model among its faults. Each call draws anew. This
    /// file continues as if nothing had happened.
    #[must_use]
    pub fn crash(&self) -> Self {
        self.crash_by(None)
    }

    /// The file that a crash by this model leaves.
    #[must_use]
    pub fn crash_with(&self, model: CrashModel) -> Self {
        self.crash_by(Some(model))
    }

    /// Inverts a bit, counted from the beginning of the file, durably.
    pub fn flip_bit(&self, bit: u64) {
        let file = &mut self.state().files[self.index];
        file.contents.flip_bit(bit);
        file.durable.flip_bit(bit);
    }

    /// Replaces the bytes at `offset`, durably.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let file = &mut self.state().files[self.index];
        file.contents.write(offset, bytes);
        file.durable.write(offset, bytes);
    }

    fn crash_by(&self, model: Option<CrashModel>) -> Self {
        let (image, seed) = self.state().crash_file(self.index, model);
        let survivor = Self::from_image(seed, image);
        survivor.set_faults(Faults { crash: self.faults().crash, ..Faults::default() });
        survivor
    }

    fn state(&self) -> MutexGuard<'_, Disk> {
        state(&self.disk)
    }

    /// Counts an operation, and fails or waits if it should.
    fn begin(&self, operation: FileOperation, offset: u64, bytes: usize) -> io::Result<()> {
        if operation != FileOperation::Read && self.lock.as_ref().is_some_and(|lock| !lock.exclusive) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened read-only"));
        }
        let delay = self.state().begin(self.index, operation, offset, bytes)?;
        if delay > Duration::ZERO {
            thread::sleep(delay);
        }
        while operation == FileOperation::Read && self.state().files[self.index].read_holds > 0 {
            thread::sleep(HOLD_LOOK);
        }
        Ok(())
    }

    /// Reads part of the requested bytes.
    ///
    /// # Safety
    /// As for [`File::read`].
    unsafe fn read_some(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<usize> {
        let mut state = self.state();
        let bytes = state.portion(self.index, FileOperation::Read, bytes)?;
        state.files[self.index].look_at_words();
        // SAFETY: passed on from the caller; a portion is not longer than the whole.
        let there = unsafe { state.files[self.index].contents.read_to(offset, address, bytes) };
        let probability = state.files[self.index].faults.bit_flip_on_read;
        if there > 0 && state.random.chance(probability) {
            let bit = state.random.below(there as u64 * 8);
            let byte = address.wrapping_add((bit / 8) as usize);
            // SAFETY: the byte is one of those just read.
            unsafe { byte.write(byte.read() ^ (1 << (bit % 8))) };
            state.note(self.index, FileOperation::Read, offset + bit / 8, 1, "returned with a bit inverted");
        }
        Ok(there)
    }
}

impl Device for SimulatedFile {
    fn draw(&self, end: u64) -> u64 {
        self.state().random.below(end)
    }

    unsafe fn scribble(&self, address: *mut u8, bytes: usize) {
        let mut state = self.state();
        let spoilt = state.random.below(bytes as u64 + 1) as usize;
        // SAFETY: passed on from the caller; the part is not longer than the whole.
        unsafe { std::ptr::write_bytes(address, state.random.next() as u8, spoilt) };
    }
}

impl File for SimulatedFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        assert_aligned(offset, address, bytes);
        if let Err(error) = self.begin(FileOperation::Read, offset, bytes) {
            // SAFETY: passed on from the caller.
            unsafe { self.scribble(address, bytes) };
            return Err(error);
        }
        transfer_all(Transfer::new(bytes, false, false), |done, length| {
            // SAFETY: passed on from the caller, and `done + length` is within `bytes`.
            unsafe { self.read_some(offset + done as u64, address.add(done), length) }
        })
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        assert_aligned(offset, address, bytes);
        // SAFETY: the caller vouches that the bytes are there and do not change during the call.
        let source = unsafe { std::slice::from_raw_parts(address, bytes) };
        if let Err(error) = self.begin(FileOperation::Write, offset, bytes) {
            if error.raw_os_error() == Some(libc::EIO) {
                self.state().write_torn(self.index, offset, source);
            }
            return Err(error);
        }
        transfer_all(Transfer::new(bytes, true, false), |done, length| {
            let mut state = self.state();
            let length = state.portion(self.index, FileOperation::Write, length)?;
            state.write(self.index, offset + done as u64, &source[done..done + length])?;
            Ok(length)
        })
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        assert_disjoint(requests.iter());
        let mut order: Vec<_> = (0..requests.len()).collect();
        for end in (1..order.len()).rev() {
            let other = self.state().random.below(end as u64 + 1) as usize;
            order.swap(end, other);
        }
        for index in order {
            let Request { operation, offset, address, bytes, .. } = requests[index];
            // SAFETY: passed on from the caller.
            requests[index].result = unsafe {
                match operation {
                    Operation::Read => self.read(offset, address, bytes),
                    Operation::Write => self.write(offset, address, bytes),
                }
            };
        }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(SimulatedQueue::new(self.clone(), depth)))
    }

    fn sync(&self) -> io::Result<()> {
        let begun = self.begin(FileOperation::Sync, 0, 0);
        let mut state = self.state();
        // Relaxed: the disk is locked.
        let (failure, allowed) =
            (self.sync_failure.load(Ordering::Relaxed), state.files[self.index].faults.forgotten_failures);
        if failure != 0 && !allowed {
            return Err(io::Error::from_raw_os_error(failure));
        }
        if let Err(error) = begun {
            state.doom(self.index);
            self.sync_failure.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
            return Err(error);
        }
        state.files[self.index].sync();
        // One of the moments at which the system may write mapped words to the device.
        state.syncs += 1;
        if state.syncs.is_multiple_of(LOOK_EVERY) {
            state.look_at_words();
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state().files[self.index].contents.size())
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        self.begin(FileOperation::Resize, to, 0)?;
        let mut state = self.state();
        if to > state.files[self.index].contents.size() {
            state.check_capacity(self.index, to)?;
            state.files[self.index].apply(Change::Resize { size: to });
        }
        Ok(())
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        self.begin(FileOperation::Resize, to, 0)?;
        let file = &mut self.state().files[self.index];
        if to < file.contents.size() {
            file.apply(Change::Resize { size: to });
        }
        Ok(())
    }

    fn map_words(&self, offset: u64, words: usize) -> io::Result<Arc<WordTable>> {
        let bytes = words as u64 * 8;
        self.begin(FileOperation::Map, offset, words * 8)?;
        assert!(
            offset.is_multiple_of(PAGE_SIZE as u64) && bytes.is_multiple_of(PAGE_SIZE as u64),
            "whole pages"
        );
        let mut state = self.state();
        let file = &mut state.files[self.index];
        if offset + bytes > file.contents.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        file.look_at_words();
        let table = Arc::new(WordTable::new(words, "words of a simulated file").map_err(io::Error::other)?);
        let mut contents = vec![0; words * 8];
        file.contents.read(offset, &mut contents);
        table.fill_from(&contents);
        file.mapped = Some(Mapped { offset, words: table.clone(), bytes });
        Ok(table)
    }

    fn description(&self) -> FileDescription {
        FileDescription { direct: false, engine: IoEngine::Simulated, path: None }
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let file = &state.files[self.index];
        write!(
            f,
            "SimulatedFile({}, seed {}, {:?}, {} changes not synced)",
            file.name,
            state.seed,
            file.contents,
            file.pending.len()
        )
    }
}

/// Holds up the reads of a file until it is dropped; see [`SimulatedFile::hold_reads`].
#[derive(Debug)]
pub struct HeldReads(SimulatedFile);

impl Drop for HeldReads {
    fn drop(&mut self) {
        self.0.state().files[self.0.index].read_holds -= 1;
    }
}

/// Keeps other handles from opening a file. Belongs to all clones of a handle.
pub(super) struct OpenLock {
    pub disk: Arc<Mutex<Disk>>,
    pub index: usize,
    pub exclusive: bool,
}

impl Drop for OpenLock {
    fn drop(&mut self) {
        let mut disk = state(&self.disk);
        let holders = &mut disk.files[self.index].holders;
        *holders = if self.exclusive { 0 } else { *holders - 1 };
    }
}

/// Takes the lock on a disk. A test that panicked while it held the lock is over already.
pub(super) fn state(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last operations and faults of one file or of all.
pub(super) fn history(disk: &Disk, only: Option<usize>) -> String {
    let mut text = format!("seed {}\n", disk.seed);
    let name = |index: usize| disk.files.get(index).map_or("?", |file| file.name.as_str());
    // Writing to a string does not fail.
    let _ = disk.history.print(&mut text, name, only);
    text
}
