//! Threads on a pool of 64 pages that allocate, change, free and read extents of 1 to 8 pages through a
//! directory, follow references that are stale, and check every word that they are told is valid.

mod common;

use common::{Model, assert_nothing_is_held, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use vellum_base::{Bytes, Extent, HEADER_BYTES, Lsn, PageId, PageKind};
use vellum_pool::{
    Allocation, ExclusiveGuard, Interrupt, Navigation, OptimisticGuard, Pool, PoolError, PoolOptions,
    PoolStatistics,
};
use vellum_vm::{Faults, File, ReleaseMethod, Releaser, SimulatedFile};

const POOL_PAGES: u64 = 64;
const SLOTS: usize = 120;
const THREADS: u64 = 4;

/// The directory: for each slot the head and the length of an extent, or zeroes.
fn place(slot: usize) -> usize {
    HEADER_BYTES + 16 * slot
}

fn slot_of(bytes: impl Bytes, slot: usize) -> Extent {
    let at = place(slot);
    Extent { head: PageId(bytes.u64_at(at)), pages: bytes.u32_at(at + 8) }
}

/// Writes a number and what follows from it.
fn write(extent: Extent, number: u64, payload: &mut [u8]) {
    let (first, rest) = payload.split_at_mut(8);
    first.copy_from_slice(&number.to_le_bytes());
    for (index, bytes) in rest.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&expected(extent, number, index).to_le_bytes());
    }
}

fn expected(extent: Extent, number: u64, index: usize) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ ((extent.head.0 << 24 | u64::from(extent.pages)) + index as u64)
}

/// Whether the bytes of an extent, or the first page of one, are what [`write`] makes of some number.
fn number_of(bytes: impl Bytes) -> Result<u64, String> {
    let extent = Extent { head: PageId(bytes.u64_at(8)), pages: bytes.u32_at(24) };
    let number = bytes.u64_at(HEADER_BYTES);
    for at in (HEADER_BYTES + 8..bytes.size()).step_by(8) {
        let index = (at - HEADER_BYTES - 8) / 8;
        let (found, wanted) = (bytes.u64_at(at), expected(extent, number, index));
        if found != wanted {
            return Err(format!("{extent}, number {number}, byte {at}: {found:x} and not {wanted:x}"));
        }
    }
    Ok(number)
}

struct Stress<'a> {
    pool: &'a Pool,
    directory: PageId,
    numbers: &'a AtomicU64,
    rng: StdRng,
    /// What was seen in the directory once.
    seen: Vec<Extent>,
    steps: u64,
    validated: u64,
    stale: u64,
}

impl<'a> Stress<'a> {
    fn step(&mut self) {
        self.steps += 1;
        let slot = self.rng.random_range(0..SLOTS);
        match self.rng.random_range(0..100) {
            0..40 => self.read_optimistically(slot),
            40..60 => self.read_shared(slot),
            60..75 => self.change(slot),
            75..88 => self.replace(slot),
            88..94 => self.remove(slot),
            _ => self.follow_stale_references(),
        }
    }

    fn look(&mut self) -> Result<OptimisticGuard<'a>, Interrupt> {
        self.pool.root(self.directory)
    }

    /// Remembers some of what it sees, for later, when it is stale.
    fn remember(&mut self, extent: Extent) {
        if extent.pages > 0 && self.rng.random_ratio(1, 8) {
            if self.seen.len() < 200 {
                self.seen.push(extent);
            } else {
                let at = self.rng.random_range(0..self.seen.len());
                self.seen[at] = extent;
            }
        }
    }

    fn read_optimistically(&mut self, slot: usize) {
        let dawdle = self.rng.random_ratio(1, 4);
        let (pool, directory) = (self.pool, self.directory);
        let outcome = pool.run(|| {
            let parent = pool.root(directory)?;
            let extent = slot_of(parent.bytes(), slot);
            parent.validate()?;
            if dawdle {
                // The reference becomes stale now and then.
                std::thread::yield_now();
            }
            if extent.pages != 1 {
                return Ok((extent, None));
            }
            let child = pool.child(&parent, place(slot))?;
            let number = number_of(child.bytes());
            child.validate()?;
            Ok((extent, Some(number.unwrap_or_else(|error| panic!("accepted {error}")))))
        });
        let (extent, number) = outcome.unwrap();
        self.validated += u64::from(number.is_some());
        self.remember(extent);
    }

    fn read_shared(&mut self, slot: usize) {
        let (pool, directory) = (self.pool, self.directory);
        let extent = pool
            .run(|| {
                let parent = pool.root(directory)?;
                let extent = slot_of(parent.bytes(), slot);
                parent.validate()?;
                if extent.pages > 0 {
                    let guard = Navigation::shared(pool, &parent, extent)?;
                    number_of(guard.page()).unwrap_or_else(|error| panic!("under a shared latch: {error}"));
                }
                Ok(extent)
            })
            .unwrap();
        self.remember(extent);
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes an extent: a single page from an optimistic look, a longer one under the directory's latch.
    fn change(&mut self, slot: usize) {
        let (pool, directory, number) = (self.pool, self.directory, self.number());
        let done = pool
            .run(|| {
                let parent = pool.root(directory)?;
                let extent = slot_of(parent.bytes(), slot);
                parent.validate()?;
                if extent.pages != 1 {
                    return Ok(extent.pages == 0);
                }
                let mut child = pool.child(&parent, place(slot))?.upgrade()?;
                write(extent, number, child.payload_mut());
                Ok(true)
            })
            .unwrap();
        if !done {
            let directory = pool.exclusive(Extent::page(directory)).unwrap();
            let extent = slot_of(directory.page(), slot);
            if extent.pages > 0 {
                let mut guard = pool.exclusive(extent).unwrap();
                number_of(guard.page()).unwrap_or_else(|error| panic!("under an exclusive latch: {error}"));
                write(extent, number, guard.payload_mut());
                if self.rng.random() {
                    // Readers may come in before it is over, and find it whole.
                    let shared = guard.downgrade();
                    drop(directory);
                    number_of(shared.page()).unwrap();
                }
            }
        }
    }

    fn set(directory: &mut ExclusiveGuard<'_>, slot: usize, extent: Extent) -> Extent {
        let old = slot_of(directory.page(), slot);
        let bytes = &mut directory.page_mut()[place(slot)..place(slot) + 16];
        bytes[..8].copy_from_slice(&extent.head.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&extent.pages.to_le_bytes());
        old
    }

    fn free(&mut self, old: Extent) {
        if old.pages == 0 {
            return;
        }
        if self.rng.random() {
            self.pool.discard(old, Lsn(0)).unwrap();
        } else {
            self.pool.exclusive(old).unwrap().free();
        }
    }

    fn replace(&mut self, slot: usize) {
        let pages = if self.rng.random_ratio(2, 3) { 1 } else { self.rng.random_range(2..=8) };
        let mut fresh = self.pool.allocate(pages, PageKind::USER).unwrap();
        assert!(fresh.payload_mut().iter().all(|byte| *byte == 0), "what is allocated is not empty");
        let extent = fresh.extent();
        write(extent, self.number(), fresh.payload_mut());
        if self.rng.random_ratio(1, 10) {
            // It is not wanted after all.
            return drop(fresh);
        }
        drop(fresh.keep());
        let mut directory = self.pool.exclusive(Extent::page(self.directory)).unwrap();
        let old = Self::set(&mut directory, slot, extent);
        drop(directory);
        self.free(old);
    }

    fn remove(&mut self, slot: usize) {
        let mut directory = self.pool.exclusive(Extent::page(self.directory)).unwrap();
        let old = Self::set(&mut directory, slot, Extent { head: PageId(0), pages: 0 });
        drop(directory);
        self.free(old);
    }

    /// Uses references of long ago. Whatever can be had of them is whole.
    fn follow_stale_references(&mut self) {
        let Some(extent) = self.seen.choose(&mut self.rng).copied() else { return };
        match self.pool.shared(extent) {
            Ok(guard) => {
                number_of(guard.page())
                    .unwrap_or_else(|error| panic!("stale, under a shared latch: {error}"));
            }
            Err(PoolError::Corruption { extent: named, .. }) => {
                assert_eq!(named, extent);
                self.stale += 1;
            }
            Err(error) => panic!("{error}"),
        }
        let outcome = self.pool.run(|| {
            let page = self.pool.root(extent.head)?;
            let number = number_of(page.bytes());
            page.validate()?;
            Ok(number)
        });
        match outcome {
            Ok(number) => {
                number.unwrap_or_else(|error| panic!("stale, accepted: {error}"));
            }
            Err(PoolError::Corruption { .. }) => self.stale += 1,
            Err(error) => panic!("{error}"),
        }
        let _ = self.look();
    }
}

/// What is in the directory, for a comparison with everything else.
fn model(pool: &Pool, directory: PageId) -> (Vec<Extent>, Vec<u64>) {
    let guard = pool.shared(Extent::page(directory)).unwrap();
    let slots: Vec<_> = (0..SLOTS).map(|slot| slot_of(guard.page(), slot)).filter(|e| e.pages > 0).collect();
    drop(guard);
    let numbers = slots.iter().map(|e| number_of(pool.shared(*e).unwrap().page()).unwrap()).collect();
    (slots, numbers)
}

fn assert_no_leak(pool: &Pool, directory: PageId) {
    let (mut expected, _) = model(pool, directory);
    expected.push(Extent::page(directory));
    expected.extend(pool.own_extents());
    expected.sort_unstable();
    let mut found = Vec::new();
    pool.for_each_extent(|extent| found.push(extent));
    assert_eq!(found, expected, "space leaked");
}

/// How long to go on: so many milliseconds, or more where a machine is slow and says so.
fn patiently(milliseconds: u64) -> Duration {
    let factor = std::env::var("TEST_PATIENCE").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    Duration::from_millis(milliseconds * factor)
}

/// What the random numbers begin with; runs that repeat a test set it, so that no two are alike.
fn run_seed() -> u64 {
    std::env::var("TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

fn stress(seed: u64, file: Arc<dyn File>, options: PoolOptions, time: Duration) -> PoolStatistics {
    let options = options.pool_bytes(POOL_PAGES * 4096).capacity_bytes(1 << 30);
    let mut pool = Pool::create_on(file.clone(), &options).unwrap();
    let directory = pool.allocate(1, PageKind::USER).unwrap().keep().id();
    let (numbers, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let (mut steps, validated, stale) = (0, AtomicU64::new(0), AtomicU64::new(0));
    let first_seed = (run_seed() * 1000 + seed) * 100;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pool, numbers, stop, validated, stale) = (&pool, &numbers, &stop, &validated, &stale);
                scope.spawn(move || {
                    let rng = StdRng::seed_from_u64(first_seed + thread);
                    let seen = Vec::new();
                    let mut stress =
                        Stress { pool, directory, numbers, rng, seen, steps: 0, validated: 0, stale: 0 };
                    while !stop.load(Ordering::Relaxed) {
                        let before = (stress.validated, stress.stale);
                        stress.step();
                        validated.fetch_add(stress.validated - before.0, Ordering::Relaxed);
                        stale.fetch_add(stress.stale - before.1, Ordering::Relaxed);
                    }
                    stress.steps
                })
            })
            .collect();
        // Where the machine has other things to do, so much time is not enough to have tried everything.
        let (begin, latest) = (Instant::now(), time.max(Duration::from_secs(1)) * 60);
        let is_enough = || {
            validated.load(Ordering::Relaxed) > 100
                && stale.load(Ordering::Relaxed) > 10
                && pool.statistics().pages_evicted > 100
        };
        let goes_on = |passed: Duration| passed < time || !is_enough() && passed < latest;
        while goes_on(begin.elapsed()) && !threads.iter().any(|thread| thread.is_finished()) {
            assert!(pool.statistics().pages_resident <= POOL_PAGES);
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            steps += thread.join().unwrap();
        }
    });
    let statistics = pool.statistics();
    let (validated, stale) = (validated.into_inner(), stale.into_inner());
    assert!(validated > 100 && stale > 10, "{validated} validated, {stale} stale");
    assert!(statistics.pages_evicted > 100, "{statistics:?}");
    println!(
        "counted: {steps} operations, {} pages read, {} pages evicted, {} pages written, memory by {}",
        statistics.pages_read, statistics.pages_evicted, statistics.pages_written, statistics.release_method
    );
    assert_eq!((statistics.frees_refused, statistics.write_errors), (0, 0));
    pool.checkpoint().unwrap();
    let (slots, written) = model(&pool, directory);
    assert_no_leak(&pool, directory);
    assert_nothing_is_held(&pool);
    pool.close().unwrap();
    let pool = Pool::open_on(file, &options).unwrap();
    assert_eq!(model(&pool, directory), (slots, written));
    assert_no_leak(&pool, directory);
    statistics
}

fn methods() -> Vec<ReleaseMethod> {
    [ReleaseMethod::ProcessMadvise, ReleaseMethod::Madvise]
        .into_iter()
        .filter(|method| Releaser::new(Some(*method)).is_ok())
        .collect()
}

#[test]
fn threads_on_a_simulated_file() {
    for (seed, method) in (1..).zip(methods()) {
        for background in [true, false] {
            let options = PoolOptions::default().release_method(method).background_eviction(background);
            let file = Arc::new(SimulatedFile::new(seed));
            let statistics = stress(seed, file, options, patiently(2000));
            assert_eq!(statistics.release_method, method);
        }
    }
}

#[test]
fn threads_on_a_slow_file() {
    let file = SimulatedFile::new(7);
    file.set_faults(Faults { delay_max: Duration::from_micros(300), short: 0.1, ..Faults::default() });
    let statistics = stress(7, Arc::new(file), PoolOptions::default(), patiently(2000));
    assert!(statistics.restarts > 0 && statistics.waits > 0, "{statistics:?}");
}

/// Reads and writes fail now and then. Operations that fail change nothing; those that do not are right.
#[test]
fn threads_on_a_failing_file() {
    let file = SimulatedFile::new(9);
    let options = PoolOptions::default().pool_bytes(POOL_PAGES * 4096).capacity_bytes(1 << 30);
    let mut pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let extents: Vec<Extent> = (0..200)
        .map(|index| {
            let mut guard = pool.allocate(1 + index % 8, PageKind::USER).unwrap();
            let extent = guard.extent();
            write(extent, 1, guard.payload_mut());
            drop(guard.keep());
            extent
        })
        .collect();
    file.set_faults(Faults { read_error: 0.05, write_error: 0.05, ..Faults::default() });
    let failures = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, extents, failures) = (&pool, &extents, &failures);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                let end = Instant::now() + patiently(1500);
                while Instant::now() < end {
                    let extent = *extents.choose(&mut rng).unwrap();
                    let outcome = if rng.random() {
                        pool.shared(extent).map(|guard| number_of(guard.page()).unwrap()).map(drop)
                    } else {
                        pool.exclusive(extent).map(|mut guard| {
                            let number = number_of(guard.page()).unwrap();
                            write(extent, number + 1, guard.payload_mut());
                        })
                    };
                    match outcome {
                        Ok(()) => {}
                        Err(PoolError::Read { .. } | PoolError::Write { .. }) => {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(failures.into_inner() > 10);
    file.heal();
    assert_nothing_is_held(&pool);
    for extent in &extents {
        number_of(pool.shared(*extent).unwrap().page()).unwrap();
    }
    pool.checkpoint().unwrap();
}

#[test]
fn threads_on_a_real_file() {
    let directory = tempfile::tempdir().unwrap();
    for (seed, background) in [(11, true), (12, false)] {
        let path = directory.path().join(seed.to_string());
        let file_options = vellum_vm::FileOptions {
            create: vellum_vm::CreateMode::CreateNew,
            ..vellum_vm::FileOptions::default()
        };
        let file = vellum_vm::DiskFile::open(&path, &file_options).unwrap();
        let options = PoolOptions::default().background_eviction(background);
        stress(seed, Arc::new(file), options, patiently(2000));
    }
}

/// Two extents that need most of the pool each, and many that wait for the same page.
#[test]
fn many_wait_for_one_page_and_all_get_it() {
    let options = PoolOptions::default().pool_bytes(POOL_PAGES * 4096).capacity_bytes(1 << 30);
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(3)), &options).unwrap();
    let extent = pool.allocate(1, PageKind::USER).unwrap().keep().extent();
    let (threads, rounds) = (8, 2000);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds {
                    if (thread + round) % 4 == 0 {
                        let guard = pool.shared(extent).unwrap();
                        std::hint::black_box(guard.payload().u64_at(0));
                    }
                    let mut guard = pool.exclusive(extent).unwrap();
                    let count = guard.payload().u64_at(0) + 1;
                    guard.payload_mut()[..8].copy_from_slice(&count.to_le_bytes());
                    if round % 64 == 0 {
                        // Long enough for the others to go to sleep.
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            });
        }
    });
    assert_eq!(pool.shared(extent).unwrap().payload().u64_at(0), threads * rounds);
    assert!(pool.statistics().waits > 0);
    let model = Model::new();
    pool.exclusive(extent).unwrap().free();
    verify(&pool, &model).unwrap();
}
