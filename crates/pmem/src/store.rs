//! A store: creating, opening, statistics, the background thread.

use crate::{
    core::Core,
    error::{PmemError, Result},
    file::{FileMedium, Opening},
    format::{Format, Layout},
    handles::{Client, Reader},
    index::Index,
    layout::Geometry,
    medium::{Lane, Medium},
    memory::WORD,
    options::{Options, Persistence},
    reclaim::{self, Pace, Reclaimed},
    recover::{self, Recovery},
    space::{Purpose, Space},
    superblock::{Shape, Superblock},
};
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};
use vellum_base::{PAGE_SIZE, tell_panic};

/// The number of segments that an index may grow to: some 3 billion entries.
const SEGMENTS_MAX: u32 = 1 << 21;
/// By how much the recorded number of used blocks is raised at a time.
const END_STEP: u64 = 256;

/// How often the memory is tended between two checks for space to reclaim.
const TENDED_AT_ONCE: u32 = 32;
/// A file that is as long as it was for so many checks has stopped to grow.
const STILL_CHECKS: u32 = 5;
/// The share of its time for which the background tends the memory of such a file.
const TENDING_SHARE: f64 = 0.75;

/// A store in a file. Dropping it ends its background thread; the file is closed when the last handle is dropped.
///
/// # Examples
/// ```
/// use vellum_pmem::{Options, Put, Store, Variable};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("store");
/// # let options = Options { chunk_bytes: 1 << 20, growth_bytes: 1 << 20, ..Options::default() };
/// let store = Store::<Variable>::create(&path, &options)?;
/// let mut client = store.client()?;
/// assert_eq!(client.put(b"key", b"value")?, Put::Inserted);
/// assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// drop((client, store));
///
/// let store = Store::<Variable>::open(&path, &options)?;
/// assert_eq!(store.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store<L: Layout, M: Medium = FileMedium> {
    core: Arc<Core<L, M>>,
    recovery: Recovery,
    background: Option<Background>,
}

/// A thread that reclaims space and tends the memory, and one that makes the file longer ahead of writers.
#[derive(Debug)]
struct Background {
    threads: Vec<JoinHandle<()>>,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    stop: Mutex<bool>,
    wake: Condvar,
    failure: Mutex<Option<String>>,
}

/// Statistics of a store.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// The shape of its records.
    pub shape: Shape,
    /// The number of records.
    pub records: u64,
    /// The size of a block in bytes.
    pub block_bytes: u64,
    /// The number of blocks, including free ones.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks that clients returned before they were full.
    pub blocks_unfinished: u64,
    /// Blocks that were compacted since the store was opened.
    pub blocks_compacted: u64,
    /// Blocks that were returned to the file system since the store was opened.
    pub blocks_returned: u64,
    /// The size of the file in bytes.
    pub file_bytes: u64,
    /// Memory of the index in bytes.
    pub index_bytes: u64,
    /// Whether records carry checksums.
    pub checksums: bool,
    /// The last failure of reclaiming in the background, or the panic that ended it, if any.
    pub reclaim_failure: Option<String>,
}

impl<L: Layout> Store<L> {
    /// Creates a store in a file that must not exist, or on a device of persistent memory.
    ///
    /// # Errors
    /// If the file exists or cannot be created, the device holds something ([`Options::overwrite`] says what happens
    /// then), the options are invalid, or stores to it cannot be made durable as requested.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        options.check().map_err(PmemError::Options)?;
        if options.read_only {
            return Err(PmemError::Options("a store that is made cannot be opened only to be read"));
        }
        // If this fails, the file is removed with the medium, if the medium has created it.
        let medium = FileMedium::open(path, Opening::Create, options)?;
        if !options.overwrite {
            check_vacant(&medium, path)?;
        }
        let store = Self::create_on(medium, options, SEGMENTS_MAX, END_STEP)?;
        store.core.medium.keep()?;
        Ok(store)
    }

    /// Opens a store, rebuilding its index.
    ///
    /// # Errors
    /// If the file is missing, in use, not a store, of a later version or another layout, or damaged.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Self::open_with_progress(path, options, &|_, _| {})
    }

    /// Opens a store; `progress` is called from time to time with the number of blocks examined, and their total.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(
        path: impl AsRef<Path>,
        options: &Options,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        let path = path.as_ref();
        let superblock = describe(path)?;
        // The options with which the store was created take precedence.
        let capacity_bytes = options.capacity_bytes.max(superblock.chunk_bytes);
        let growth_bytes = options.growth_bytes.min(superblock.chunk_bytes);
        let options = Options {
            pages_per_block: superblock.pages_per_block,
            chunk_bytes: superblock.chunk_bytes,
            checksums: superblock.checksums,
            capacity_bytes,
            growth_bytes,
            ..options.clone()
        };
        options.check().map_err(PmemError::Options)?;
        let medium = FileMedium::open(path, Opening::Existing, &options)?;
        Self::open_on(medium, path, &options, (SEGMENTS_MAX, END_STEP), progress)
    }

    /// How changes become durable.
    pub fn persistence(&self) -> Persistence {
        self.core.medium.persistence()
    }

    /// Whether the system confirms that the file is persistent memory, as far as [`persistence`](Self::persistence)
    /// requires it; if not, the user vouched for it.
    pub fn is_confirmed(&self) -> bool {
        self.core.medium.is_confirmed()
    }

    /// The instruction that writes cache lines back, if one is used.
    pub fn instruction(&self) -> Option<&'static str> {
        self.core.medium.instruction()
    }
}

/// Describes the store in a file, without opening it as one.
///
/// # Errors
/// If it cannot be read, or is not a store.
pub fn describe(path: &Path) -> Result<Superblock> {
    // Chunk and capacity do not matter for reading the first pages.
    let options = Options {
        read_only: true,
        chunk_bytes: 1 << 20,
        growth_bytes: 1 << 20,
        capacity_bytes: 1 << 20,
        persistence: None,
        ..Options::default()
    };
    Superblock::read(&FileMedium::open(path, Opening::Existing, &options)?, path)
}

/// Fails unless a medium is empty or begins with zeroes.
fn check_vacant(medium: &FileMedium, path: &Path) -> Result<()> {
    let words = medium.capacity().min(2 * PAGE_SIZE as u64) / WORD as u64;
    let is_vacant =
        medium.memory().words(0, words as usize).iter().all(|word| word.load(Ordering::Relaxed) == 0);
    let what = match Superblock::read(medium, path) {
        _ if is_vacant => return Ok(()),
        Ok(superblock) => format!("a store for {}", superblock.shape),
        Err(_) => "something that is no store".to_owned(),
    };
    Err(PmemError::Occupied { path: path.to_owned(), what })
}

impl<L: Layout, M: Medium> Store<L, M> {
    /// Creates a store on a medium. The contents of the medium are lost.
    pub(crate) fn create_on(medium: M, options: &Options, segments_max: u32, end_step: u64) -> Result<Self> {
        let superblock = Superblock::new(L::shape(), options);
        let geometry = Geometry::new(superblock.pages_per_block);
        let first_block = geometry.first_block();
        let held_bytes = medium.capacity();
        Superblock::clear(&medium, &mut Lane::default(), geometry)?;
        // Room for one block, and for the one reserved for reclaiming.
        medium.grow(geometry.block_at(first_block + 2))?;
        superblock.write(&medium, &mut Lane::default(), first_block)?;
        let core = Self::assemble(medium, superblock, options, segments_max, end_step)?;
        core.space.restore(first_block, [], Vec::new(), held_bytes);
        core.space.watch_room(core.medium.capacity());
        Ok(Self::start(core, Recovery::default(), options))
    }

    /// Opens the store on a medium.
    pub(crate) fn open_on(
        medium: M,
        path: &Path,
        options: &Options,
        (segments_max, end_step): (u32, u64),
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        let superblock = Superblock::read(&medium, path)?;
        if superblock.shape != L::shape() {
            let (found, wanted) = (superblock.shape.to_string(), L::shape().to_string());
            return Err(PmemError::Shape { found, wanted });
        }
        let core = Self::assemble(medium, superblock, options, segments_max, end_step)?;
        let recovery = recover::recover(&core, options, progress)?;
        Ok(Self::start(core, recovery, options))
    }

    fn assemble(
        medium: M,
        superblock: Superblock,
        options: &Options,
        segments_max: u32,
        end_step: u64,
    ) -> Result<Core<L, M>> {
        let geometry = Geometry::new(superblock.pages_per_block);
        let index = Index::new(segments_max, segments_max == SEGMENTS_MAX)?;
        let space = Space::new(geometry, medium.memory().bytes(), end_step)?;
        Ok(Core::new(medium, superblock, (index, space), options.read_only, options.reclaim))
    }

    fn start(core: Core<L, M>, recovery: Recovery, options: &Options) -> Self {
        let core = Arc::new(core);
        let background =
            (options.reclaim.background && !options.read_only).then(|| Background::start(core.clone()));
        Self { core, recovery, background }
    }

    /// A handle for one thread that reads and writes. It has its own block, so that writing needs no coordination with
    /// others until the block is full; when dropped, it returns the rest of the block.
    ///
    /// # Errors
    /// [`PmemError::ReadOnly`]; [`PmemError::Clients`] if there are 65 536 already.
    pub fn client(&self) -> Result<Client<L, M>> {
        let writer = self.core.writer(Purpose::Write)?;
        Ok(Client::new(self.reader(), writer))
    }

    /// A handle that only reads; it needs no block.
    pub fn reader(&self) -> Reader<L, M> {
        Reader::new(self.core.clone())
    }

    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.core.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What recovery found when the store was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The statistics of the store.
    pub fn statistics(&self) -> Statistics {
        let core = &self.core;
        let counts = core.space.counts();
        let failure = |background: &Background| {
            background.signal.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        Statistics {
            shape: core.superblock.shape,
            records: core.index.len(),
            block_bytes: core.geometry.block_bytes(),
            blocks: counts.blocks,
            blocks_free: counts.free,
            blocks_unfinished: counts.partial,
            blocks_compacted: core.compacted.load(Ordering::Relaxed),
            blocks_returned: counts.returned,
            file_bytes: core.medium.capacity(),
            index_bytes: core.index.bytes(),
            checksums: core.superblock.checksums,
            reclaim_failure: self.background.as_ref().and_then(failure),
        }
    }

    /// Reclaims space now, as fast as possible. It may be called while others read and write. What the file grew by within the
    /// last second stays with it, as it may soon be needed.
    ///
    /// # Errors
    /// [`PmemError::ReadOnly`], or if changes cannot be made durable.
    pub fn reclaim(&self) -> Result<Reclaimed> {
        reclaim::now(&self.core)
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core<L, M> {
        &self.core
    }
}

impl Background {
    fn start<L: Layout, M: Medium>(core: Arc<Core<L, M>>) -> Self {
        let signal = Arc::<Signal>::default();
        let (own, own_core) = (signal.clone(), core.clone());
        let reclaim = move || tell_panic(|| own.work(&own_core), |told| own.fail(Some(told)));
        let own = signal.clone();
        let grow = move || tell_panic(|| own.grow(&core), |told| own.fail(Some(told)));
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).ok()
        };
        // If a thread cannot be started, space is reclaimed on request, or when it runs out, and writers wait for a file that
        // grows.
        let threads = [start("pmem-reclaim", Box::new(reclaim)), start("pmem-growth", Box::new(grow))];
        Self { threads: threads.into_iter().flatten().collect(), signal }
    }
}

impl Signal {
    /// Sleeps; returns whether to end.
    fn sleep(&self, time: Duration) -> bool {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if *stop || time.is_zero() {
            return *stop;
        }
        let slept = self.wake.wait_timeout_while(stop, time, |stop| !*stop);
        *slept.unwrap_or_else(PoisonError::into_inner).0
    }

    fn fail(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Makes the file longer ahead of writers.
    fn grow<L: Format, M: Medium>(&self, core: &Core<L, M>) {
        let watch = |outcome| drop(core.watch(outcome));
        core.space.grow_ahead(&core.medium, || self.sleep(Duration::ZERO), watch);
    }

    fn work<L: Format, M: Medium>(&self, core: &Core<L, M>) {
        let stop = |time| self.sleep(time);
        let mut seen = None;
        let (mut capacity_seen, mut still) = (0, 0u32);
        while !self.sleep(core.reclaim.interval) {
            let mut pace = Pace::new(core.reclaim.busy_share, &stop);
            let now = Some(core.retractions.load(Ordering::Relaxed));
            if seen != now {
                seen = now;
                let outcome = core.writer(Purpose::Reclaim).and_then(|mut writer| {
                    let outcome = reclaim::pass(core, &mut writer, &mut pace);
                    core.end_writer(&mut writer);
                    outcome
                });
                self.fail(outcome.err().map(|error| error.to_string()));
            }
            // Once the file has stopped to grow, nothing is gained by waiting: whatever has to be copied is in the way
            // of readers for as long as it takes, and they are faster afterwards.
            let capacity = core.medium.capacity();
            still = if capacity == capacity_seen { still.saturating_add(1) } else { 0 };
            capacity_seen = capacity;
            let share = core.reclaim.busy_share;
            let share = if still < STILL_CHECKS { share } else { share.max(TENDING_SHARE) };
            let mut pace = Pace::new(share, &stop);
            // Only a little at a time: reclaiming space has priority.
            for _ in 0..TENDED_AT_ONCE {
                if !core.medium.tend() || pace.rest() {
                    break;
                }
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.signal.stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.wake.notify_all();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic in it, which is a bug, is among the statistics.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{fixed::Fixed, variable::Variable};

    #[test]
    fn a_sync_that_fails_is_no_lack_of_room_and_ends_all_changes() {
        for persistence in [Persistence::Msync, Persistence::Flushless] {
            let folder = tempfile::tempdir().unwrap();
            let options = Options {
                chunk_bytes: 1 << 20,
                growth_bytes: 1 << 16,
                persistence: Some(persistence),
                vouch_for_memory: true,
                ..Options::default()
            };
            let store = Store::<Variable>::create(folder.path().join("store"), &options).unwrap();
            let (mut client, mut other) = (store.client().unwrap(), store.client().unwrap());
            client.put(b"key", b"value").unwrap();
            let failed = || Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
            assert!(store.core().medium.syncs.run(failed).is_err());
            let error = client.put(b"large", &vec![1; 1 << 18]).unwrap_err();
            assert!(matches!(error, PmemError::Persist(_)), "{error}");
            assert!(matches!(other.put(b"key", b"new"), Err(PmemError::Poisoned)));
            assert_eq!(other.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        }
    }

    #[test]
    fn what_a_device_holds_is_not_overwritten_unless_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let options = Options { chunk_bytes: 1 << 20, growth_bytes: 1 << 20, ..Options::default() };
        let check = || check_vacant(&FileMedium::open(&path, Opening::Existing, &options).unwrap(), &path);
        drop(Store::<Fixed<8, 8>>::create(&path, &options).unwrap());
        let error = check().unwrap_err();
        assert!(matches!(error, PmemError::Occupied { .. }), "{error}");
        assert!(error.to_string().contains("a store for keys of 8 bytes"), "{error}");
        std::fs::write(&path, [vec![0; 8191], vec![1; 10_000]].concat()).unwrap();
        let error = check().unwrap_err();
        assert!(error.to_string().contains("no store"), "{error}");
        for vacant in [vec![0; 20_000], vec![]] {
            std::fs::write(&path, vacant).unwrap();
            check().unwrap();
        }
    }
}
