//! The pool: frames, the table, and how pages come, go and are written.
//!
//! - *Coming.* A frame is taken from the free ones, entered in the table while held exclusively, read into, and released.
//! - *Going.* A clock passes over the frames. What was not used since it passed last is held; dirty pages of a batch are
//!   written in one submission while they can be read; what is still not wanted then leaves the table.
//! - *Free frames.* A thread keeps a sixteenth of them free; who finds none evicts a batch itself.
//!
//! # Lock order
//! A frame that is in the table is held before its shard is locked; in a locked shard only frames are held that nobody
//! else can have. Below shards come the space and the list of free frames, each of which is locked for no other.

use super::frame::{DIRTY, EXCLUSIVE, Frame, Frames, HELD};
use super::page_table::{FRAMES_MAX, PageTable};
use super::space::Space;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum, verify_header};
use vellum_pool::{Fault, Interrupt, Miss, PoolError};
use vellum_vm::{CreateMode, DiskFile, File, FileOptions, Request};

/// Pages evicted together.
const BATCH: usize = 256;

/// How often who finds no free frame tries to evict before giving up.
const EVICTIONS_MAX: u32 = 1000;

/// How often a latched page is looked at before the thread sleeps between looks, and for how long.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

/// The pool of a table in the lab. Its file is not opened again.
pub struct HashPool {
    shared: Arc<Shared>,
    cleaner: Option<JoinHandle<()>>,
}

impl std::ops::Deref for HashPool {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What its threads share.
pub struct Shared {
    pub file: Arc<dyn File>,
    pub frames: Frames,
    pub table: PageTable,
    pub space: Space,
    free: Mutex<Vec<u32>>,
    /// How many are free, for who only wants to know.
    free_count: AtomicUsize,
    hand: AtomicUsize,
    /// Extents to be freed when nobody holds them any more.
    pending_frees: Mutex<Vec<Extent>>,
    /// Pages that are being read without a place in the table, and by how many queues.
    pub reading: Mutex<HashMap<PageId, u32>>,
    /// Frames that are being read into without a place in the table.
    pub frames_reading: AtomicUsize,
    /// A large extent could not be written, so that what refers to it is wrong.
    failed: AtomicBool,
    stopped: AtomicBool,
    wanted: Condvar,
    asleep: Mutex<()>,
    pub counters: Counters,
}

/// What it counts.
#[derive(Default)]
pub struct Counters {
    pub pages_read: AtomicU64,
    pub pages_written: AtomicU64,
    pub pages_evicted: AtomicU64,
}

/// Adds to a counter, which orders nothing.
pub fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many frames there are room for in so many bytes, with their states, the list of free ones and the table.
fn frames_in(pool_bytes: u64) -> usize {
    let bytes_of =
        |frames: usize| frames * (PAGE_SIZE + size_of::<Frame>() + 4) + PageTable::slots(frames) * 8;
    let (mut least, mut most) = (0, FRAMES_MAX);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if bytes_of(middle) as u64 <= pool_bytes { least = middle } else { most = middle - 1 }
    }
    least
}

impl HashPool {
    /// A pool of so many bytes, page table included, on a new file.
    ///
    /// # Errors
    /// If the file cannot be made, or there is no room for a few frames.
    pub fn create(path: &Path, pool_bytes: u64) -> Result<Self, PoolError> {
        let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        Self::on(Arc::new(DiskFile::open(path, &options)?), frames_in(pool_bytes))
    }

    /// A pool of so many frames.
    ///
    /// # Errors
    /// If there is no room for them, or the system refuses a thread.
    pub fn on(file: Arc<dyn File>, frames: usize) -> Result<Self, PoolError> {
        vellum_pool::detect_simd();
        if frames < 4 {
            let bytes = (frames * PAGE_SIZE) as u64;
            return Err(PoolError::PoolTooSmall { bytes, least: 64 << 10 });
        }
        let shared = Arc::new(Shared {
            file,
            frames: Frames::new(frames)?,
            table: PageTable::new(frames)?,
            space: Space::default(),
            free: Mutex::new((0..frames as u32).rev().collect()),
            free_count: AtomicUsize::new(frames),
            hand: AtomicUsize::new(0),
            pending_frees: Mutex::default(),
            reading: Mutex::default(),
            frames_reading: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            wanted: Condvar::new(),
            asleep: Mutex::new(()),
            counters: Counters::default(),
        });
        let of_cleaner = shared.clone();
        let cleaner = std::thread::Builder::new()
            .name("cleaner".to_owned())
            .spawn(move || of_cleaner.clean())
            .map_err(PoolError::Queue)?;
        Ok(Self { shared, cleaner: Some(cleaner) })
    }
}

impl Drop for HashPool {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.asleep));
        self.shared.wanted.notify_all();
        if let Some(cleaner) = self.cleaner.take() {
            let _ = cleaner.join();
        }
    }
}

impl Shared {
    /// How many frames should be free.
    fn free_wanted(&self) -> usize {
        (self.frames.count() / 16).min(4096)
    }

    /// How many frames are missing until so many are free beyond what should be.
    pub fn shortage(&self, beyond: usize) -> usize {
        // Relaxed: a number that guides.
        (self.free_wanted() + beyond).saturating_sub(self.free_count.load(Ordering::Relaxed))
    }

    /// Keeps frames free, until the pool is dropped.
    fn clean(&self) {
        let mut asleep = lock(&self.asleep);
        while !self.stopped.load(Ordering::SeqCst) {
            if self.shortage(0) > 0 {
                drop(asleep);
                // What fails is found out by who needs the room.
                let idle = !matches!(self.evict(BATCH), Ok(1..));
                asleep = lock(&self.asleep);
                if !idle {
                    continue;
                }
            }
            let nap = Duration::from_millis(if self.shortage(0) > 0 { 1 } else { 100 });
            asleep = self.wanted.wait_timeout(asleep, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A free frame, if there is one, held exclusively.
    pub fn take_free(&self) -> Option<u32> {
        let frame = lock(&self.free).pop();
        if let Some(frame) = frame {
            let left = self.free_count.fetch_sub(1, Ordering::Relaxed) - 1;
            self.frames.state(frame).exclusive_of_free();
            if left + 1 == self.free_wanted() {
                self.wanted.notify_one();
            }
        }
        frame
    }

    /// A free frame, held exclusively; evicts others if there is none.
    ///
    /// # Errors
    /// If no page can be evicted.
    pub fn take_frame(&self) -> Result<u32, PoolError> {
        if self.failed.load(Ordering::Relaxed) {
            let source = io::Error::other("a large value could not be written before");
            return Err(PoolError::Write { extent: Extent::page(PageId(0)), source });
        }
        for _ in 0..EVICTIONS_MAX {
            if let Some(frame) = self.take_free() {
                return Ok(frame);
            }
            self.wanted.notify_one();
            if self.evict(BATCH)? == 0 {
                std::thread::sleep(NAP);
            }
        }
        Err(self.exhausted())
    }

    /// The error of who finds no frame.
    pub fn exhausted(&self) -> PoolError {
        PoolError::PoolExhausted { pool_pages: self.frames.count(), wanted_pages: 1 }
    }

    /// Gives frames back that are held exclusively and in no table.
    pub fn give_back(&self, frames: &[u32]) {
        for frame in frames {
            let state = self.frames.state(*frame);
            state.set_page(PageId(0), false);
            state.release_replaced();
        }
        self.free_count.fetch_add(frames.len(), Ordering::Relaxed);
        lock(&self.free).extend(frames);
    }

    /// Takes the page of a frame that is held exclusively out of the table.
    pub fn unmap(&self, frame: u32) {
        let page = self.frames.state(frame).page();
        let mut shard = self.table.lock(page);
        shard.note_change(page);
        shard.remove(page);
    }

    /// Evicts up to so many pages, and says how many.
    ///
    /// # Errors
    /// If none could go because what was changed could not be written.
    pub fn evict(&self, wanted: usize) -> Result<usize, PoolError> {
        let candidates = self.candidates(wanted, true);
        let is_clean = |frame: &u32| self.frames.state(*frame).load() & DIRTY == 0;
        let (mut going, dirty): (Vec<u32>, Vec<u32>) = candidates.into_iter().partition(is_clean);
        going.iter().for_each(|frame| self.unmap(*frame));
        let outcome = self.write_back(&dirty, &mut going);
        self.give_back(&going);
        count(&self.counters.pages_evicted, going.len() as u64);
        match outcome {
            Err(error) if going.is_empty() => Err(error),
            _ => Ok(going.len()),
        }
    }

    /// The next frames that the clock comes to whose pages were not used since it passed last, held exclusively.
    pub fn candidates(&self, wanted: usize, dirty_too: bool) -> Vec<u32> {
        let wanted = wanted.min((self.frames.count() / 4).max(1));
        let mut found = Vec::with_capacity(wanted);
        // The second time round nothing is marked as used any more, unless it was used meanwhile.
        for _ in 0..2 * self.frames.count() {
            if found.len() >= wanted {
                break;
            }
            let frame = (self.hand.fetch_add(1, Ordering::Relaxed) % self.frames.count()) as u32;
            let state = self.frames.state(frame);
            let now = state.load();
            if state.page().0 == 0
                || now & DIRTY != 0 && !dirty_too
                || state.take_use()
                || !state.try_exclusive(now)
            {
                continue;
            }
            if state.page().0 == 0 || state.load() & DIRTY != 0 && !dirty_too {
                state.release(false);
            } else {
                found.push(frame);
            }
        }
        found
    }

    /// Writes the pages of frames that are held exclusively, and appends those that can go to `going`, held and unmapped;
    /// the others are released.
    fn write_back(&self, dirty: &[u32], going: &mut Vec<u32>) -> Result<(), PoolError> {
        if dirty.is_empty() {
            return Ok(());
        }
        let mut requests: Vec<Request> = Vec::with_capacity(dirty.len());
        for frame in dirty {
            let state = self.frames.state(*frame);
            // SAFETY: the frame is held exclusively.
            stamp_checksum(unsafe { self.frames.bytes_mut(*frame) });
            state.downgrade();
            requests.push(Request::write(state.page().offset(), self.frames.address(*frame), PAGE_SIZE));
        }
        // SAFETY: the frames are held shared until the requests are done, so that nobody writes to them; each is another
        // page.
        unsafe { self.file.run(&mut requests) };
        let mut outcome = Ok(());
        for (frame, request) in dirty.iter().zip(requests) {
            let state = self.frames.state(*frame);
            if let Err(source) = request.result {
                outcome = Err(PoolError::Write { extent: Extent::page(state.page()), source });
                state.release_shared();
                continue;
            }
            count(&self.counters.pages_written, 1);
            if !state.take_use() && state.try_exclusive_from_shared() {
                self.unmap(*frame);
                going.push(*frame);
            } else {
                state.release_written();
            }
        }
        outcome
    }

    /// Evicts these pages, as far as they are there, clean, and were not used since they came.
    pub fn evict_clean(&self, pages: impl Iterator<Item = PageId>) {
        let mut going = Vec::new();
        for page in pages {
            let Some(frame) = self.table.find(page) else { continue };
            let state = self.frames.state(frame);
            let now = state.load();
            if now & DIRTY != 0 || !state.try_exclusive(now) {
                continue;
            }
            if state.page() == page && state.load() & DIRTY == 0 && !state.take_use() {
                self.unmap(frame);
                going.push(frame);
            } else {
                state.release(false);
            }
        }
        count(&self.counters.pages_evicted, going.len() as u64);
        self.give_back(&going);
    }

    /// Brings in a single page that somebody misses.
    ///
    /// # Errors
    /// If it cannot be read, or is not what it should be, unless the reference to it does not stand any more.
    pub fn load(&self, miss: &Miss) -> Result<(), PoolError> {
        let page = miss.extent.head;
        let frame = self.take_frame()?;
        let state = self.frames.state(frame);
        let mut shard = self.table.lock(page);
        let is_there = shard.find(page).is_some();
        let is_wrong = !is_there && !self.space.is_extent(Extent::page(page));
        if !is_there && !is_wrong {
            state.set_page(page, true);
        }
        if is_there || is_wrong || !shard.insert(page, frame) {
            drop(shard);
            self.give_back(&[frame]);
            return match is_wrong && self.still_refers(miss) {
                true => Err(PoolError::Corruption { extent: miss.extent, fault: Fault::NotAllocated }),
                false if is_there || is_wrong => Ok(()),
                false => Err(self.exhausted()),
            };
        }
        drop(shard);
        // SAFETY: the frame is held exclusively; others look at it as optimistic readers only.
        let read = unsafe { self.file.read(page.offset(), self.frames.address(frame), PAGE_SIZE) };
        match self.checked(frame, page, read) {
            Ok(()) => {
                state.release_replaced();
                Ok(())
            }
            Err(error) => {
                self.unmap(frame);
                self.give_back(&[frame]);
                if self.still_refers(miss) { Err(error) } else { Ok(()) }
            }
        }
    }

    /// What a read of a page into a frame, held exclusively, has brought.
    ///
    /// # Errors
    /// If it failed, or the page is damaged.
    pub fn checked(&self, frame: u32, page: PageId, read: io::Result<()>) -> Result<(), PoolError> {
        let extent = Extent::page(page);
        read.map_err(|source| PoolError::Read { extent, source })?;
        count(&self.counters.pages_read, 1);
        // SAFETY: the frame is held exclusively.
        let bytes = unsafe { self.frames.bytes(frame) };
        let header = verify_header(bytes, extent);
        header.map(drop).map_err(|fault| PoolError::Corruption { extent, fault: Fault::Header(fault) })
    }

    /// Makes a new page, held exclusively, with a fresh header and zeroes behind it.
    ///
    /// # Errors
    /// If the file cannot grow, or no page can be evicted.
    pub fn allocate(&self, kind: PageKind) -> Result<u32, PoolError> {
        self.free_pending();
        let frame = self.take_frame()?;
        let extent = match self.space.allocate(1, &*self.file) {
            Ok(extent) => extent,
            Err(error) => {
                self.give_back(&[frame]);
                return Err(error);
            }
        };
        // SAFETY: the frame is held exclusively.
        let bytes = unsafe { self.frames.bytes_mut(frame) };
        bytes.fill(0);
        PageHeader { extent, lsn: Lsn(0), kind }.write(bytes);
        let page = extent.head;
        self.frames.state(frame).set_page(page, true);
        let mut shard = self.table.lock(page);
        shard.note_change(page);
        if shard.insert(page, frame) {
            return Ok(frame);
        }
        drop(shard);
        self.give_back(&[frame]);
        self.space.free(extent);
        Err(self.exhausted())
    }

    /// Frees the page of a frame that is held exclusively.
    pub fn free(&self, frame: u32) {
        let page = self.frames.state(frame).page();
        self.unmap(frame);
        self.give_back(&[frame]);
        self.space.free(Extent::page(page));
    }

    /// Frees an extent, now or when nobody holds it any more.
    ///
    /// # Errors
    /// If it is none.
    pub fn discard(&self, extent: Extent) -> Result<(), PoolError> {
        if !self.space.is_extent(extent) {
            return Err(PoolError::Corruption { extent, fault: Fault::NotAllocated });
        }
        self.free_pending();
        if !self.try_discard(extent) {
            lock(&self.pending_frees).push(extent);
        }
        Ok(())
    }

    fn try_discard(&self, extent: Extent) -> bool {
        if extent.pages > 1 {
            // Those who read it have a copy of their own, and look afterwards whether the reference still stands.
            return self.space.free(extent);
        }
        let page = extent.head;
        let mut shard = self.table.lock(page);
        let Some(frame) = shard.find(page) else {
            // With the shard locked nobody brings it in meanwhile.
            shard.note_change(page);
            return self.space.free(extent);
        };
        drop(shard);
        let state = self.frames.state(frame);
        if !state.try_exclusive(state.load()) {
            return false;
        }
        if state.page() != page {
            state.release(false);
            return false;
        }
        self.free(frame);
        true
    }

    /// Frees what had to wait, as far as nobody holds it.
    pub fn free_pending(&self) {
        if let Ok(mut pending) = self.pending_frees.try_lock()
            && !pending.is_empty()
        {
            pending.retain(|extent| !self.try_discard(*extent));
        }
    }

    /// Notes that a large extent to which something will refer could not be written.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Whether the reference by which somebody came to a page still stands.
    pub fn still_refers(&self, miss: &Miss) -> bool {
        miss.referrer.is_none_or(|(page, token)| {
            let (frame, seen) = from_token(token);
            let state = self.frames.state(frame);
            state.page() == page && state.validate(seen)
        })
    }

    /// Whether a page is held exclusively, or being read.
    pub fn is_latched(&self, page: PageId) -> bool {
        match self.table.find(page) {
            Some(frame) => self.frames.state(frame).load() & EXCLUSIVE != 0,
            None => lock(&self.reading).contains_key(&page),
        }
    }

    /// Waits, not for ever, until a page may be looked at.
    pub fn wait(&self, page: PageId) {
        for spin in 0..10 * SPINS {
            let held = |frame| {
                let state = self.frames.state(frame);
                state.page() == page && state.load() & HELD != 0
            };
            if !self.table.find(page).is_some_and(held) {
                return;
            }
            match spin {
                0..SPINS => std::hint::spin_loop(),
                _ => std::thread::sleep(NAP),
            }
        }
    }

    /// The statistics of the lab.
    pub fn statistics(&self) -> serde_json::Value {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        serde_json::json!({
            "pages_limit": self.frames.count(),
            "pages_read": number(&self.counters.pages_read),
            "pages_written": number(&self.counters.pages_written),
            "pages_evicted": number(&self.counters.pages_evicted),
            "pages_in_file": self.space.pages(),
        })
    }
}

/// A frame in some state as one number.
pub fn token(frame: u32, state: u64) -> u64 {
    Frame::version(state) | u64::from(frame)
}

/// The frame and the version that a token stands for.
pub fn from_token(token: u64) -> (u32, u64) {
    ((token & (FRAMES_MAX as u64 - 1)) as u32, Frame::version(token))
}

/// The interrupt of who looks at a page that `referrer`, a page and its token, refers to.
pub fn missing(page: PageId, referrer: Option<(PageId, u64)>) -> Interrupt {
    Interrupt::Miss(Miss { extent: Extent::page(page), referrer })
}
