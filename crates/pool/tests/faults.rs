//! The n-th I/O fails, or the machine crashes there, for every n of a workload that does everything.

mod common;

use common::{Model, assert_nothing_is_held, fill, filled, verify};
use std::sync::Arc;
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageKind};
use vellum_pool::{Allocation, ExtentWriter, Pool, PoolError, PoolOptions, Streams};
use vellum_vm::{CrashModel, Faults, SimulatedFile};

const POOL_PAGES: usize = 24;

fn options() -> PoolOptions {
    let bytes = (POOL_PAGES * PAGE_SIZE) as u64;
    PoolOptions::default().pool_bytes(bytes).capacity_bytes(1 << 28).background_eviction(false)
}

/// How far a workload has come.
#[derive(Default)]
struct Progress {
    /// What the file held at each checkpoint, the one that is being attempted included. The number of the
    /// checkpoint is in a root of the file.
    checkpoints: Vec<Model>,
    /// How many of them succeeded.
    completed: usize,
    /// Nothing was asked of the pool since the last one.
    idle: bool,
    /// The step that a checkpoint is under way in.
    in_checkpoint: bool,
    /// A sync of a checkpoint failed, so no later one may succeed.
    poisoned: bool,
    /// What a pool that is still open holds.
    model: Model,
    /// How many operations failed.
    failures: usize,
}

/// Whether a workload ends at the first error, as a crash would have it, or goes on.
#[derive(Clone, Copy, PartialEq)]
enum OnError {
    Stop,
    GoOn,
}

/// Takes note of an operation's outcome: gives the value if there is one, or ends the workload.
macro_rules! attempt {
    ($progress:expr, $mode:expr, $outcome:expr) => {
        match $outcome {
            Ok(value) => Some(value),
            Err(error) => {
                $progress.failures += 1;
                $progress.poisoned |= matches!(error, PoolError::Sync(_));
                assert!(!error.to_string().is_empty());
                if $mode == OnError::Stop {
                    return Err(error);
                }
                None
            }
        }
    };
}

fn checkpoint(pool: &mut Pool, progress: &mut Progress) -> Result<(), PoolError> {
    let number = progress.checkpoints.len() as u64 + 1;
    pool.set_root_slot(0, number)?;
    progress.checkpoints.push(progress.model.clone());
    progress.in_checkpoint = true;
    let outcome = pool.checkpoint();
    progress.in_checkpoint = false;
    match &outcome {
        Ok(()) => {
            progress.completed = progress.checkpoints.len();
            progress.idle = true;
        }
        Err(PoolError::Sync(_)) => progress.poisoned = true,
        Err(_) => {}
    }
    outcome
}

fn change(pool: &Pool, progress: &mut Progress, mode: OnError, round: u64) -> Result<(), PoolError> {
    progress.idle = false;
    // Allocate and fill.
    for index in 0..16u64 {
        let pages = [1, 1, 2, 1, 5][(index % 5) as usize];
        if let Some(mut guard) = attempt!(progress, mode, pool.allocate(pages, PageKind::USER)) {
            let (extent, number) = (guard.extent(), round * 100 + index);
            fill(extent, number, guard.payload_mut());
            drop(guard.keep());
            progress.model.insert(extent, number);
        }
    }
    // One that is not kept.
    drop(attempt!(progress, mode, pool.allocate(3, PageKind::USER)));
    // Past the pool, kept and not kept.
    for keep in [true, false] {
        if let Some(mut stream) = attempt!(progress, mode, pool.stream(30, PageKind::USER)) {
            let before = pool.statistics().pages_allocated;
            let extent = stream.extent();
            let payload = filled(extent, round);
            let written = payload.chunks(50_000).try_for_each(|part| stream.append(part));
            let finished = if keep {
                written.and_then(|()| stream.finish()).map(Some)
            } else {
                drop(stream);
                written.map(|()| None)
            };
            match attempt!(progress, mode, finished).flatten() {
                Some(head) => {
                    assert_eq!(head, extent.head);
                    progress.model.insert(extent, round);
                }
                None => assert_eq!(pool.statistics().pages_allocated, before - 30),
            }
        }
    }
    // Change what there is, so that it is read in and something else is evicted.
    let extents: Vec<Extent> = progress.model.keys().copied().collect();
    for (index, extent) in extents.iter().enumerate().filter(|(_, extent)| extent.pages < 24) {
        match index % 4 {
            0 => {
                if let Some(guard) = attempt!(progress, mode, pool.exclusive(*extent)) {
                    guard.free();
                    progress.model.remove(extent);
                }
            }
            1 => {
                if attempt!(progress, mode, pool.discard(*extent, Lsn(0))).is_some() {
                    progress.model.remove(extent);
                }
            }
            2 => {
                if let Some(mut guard) = attempt!(progress, mode, pool.exclusive(*extent)) {
                    let number = round * 1000 + index as u64;
                    fill(*extent, number, guard.payload_mut());
                    progress.model.insert(*extent, number);
                }
            }
            _ => drop(attempt!(progress, mode, pool.shared(*extent))),
        }
    }
    Ok(())
}

/// Creates, changes, checkpoints, changes, closes, opens, changes, closes. Returns the pool if one is open.
fn workload(file: &SimulatedFile, progress: &mut Progress, mode: OnError) -> Result<Option<Pool>, PoolError> {
    let created = Pool::create_on(Arc::new(file.clone()), &options());
    let Some(mut pool) = attempt!(progress, mode, created) else { return Ok(None) };
    change(&pool, progress, mode, 1)?;
    attempt!(progress, mode, checkpoint(&mut pool, progress));
    change(&pool, progress, mode, 2)?;
    attempt!(progress, mode, checkpoint(&mut pool, progress));
    if !progress.idle {
        return Ok(Some(pool));
    }
    drop(pool);
    let opened = Pool::open_on(Arc::new(file.clone()), &options());
    let Some(mut pool) = attempt!(progress, mode, opened) else { return Ok(None) };
    // Changes in place first: nothing is allocated before the first page is written.
    progress.idle = false;
    let extents: Vec<Extent> = progress.model.keys().copied().filter(|extent| extent.pages < 24).collect();
    for extent in extents {
        if let Some(mut guard) = attempt!(progress, mode, pool.exclusive(extent)) {
            fill(extent, 77, guard.payload_mut());
            progress.model.insert(extent, 77);
        }
    }
    change(&pool, progress, mode, 3)?;
    attempt!(progress, mode, checkpoint(&mut pool, progress));
    Ok(Some(pool))
}

/// How many operations the workload takes when nothing fails.
fn operations() -> u64 {
    let file = SimulatedFile::new(1);
    let mut progress = Progress::default();
    let pool = workload(&file, &mut progress, OnError::Stop).unwrap().unwrap();
    let operations = file.counts().total();
    verify_but_large(&pool, &progress.model);
    assert_eq!((progress.completed, progress.failures), (3, 0));
    let statistics = pool.statistics();
    assert!(statistics.pages_evicted > 40, "{statistics:?}");
    operations
}

/// Verifies a pool in which some extents are larger than the pool's memory.
fn verify_but_large(pool: &Pool, model: &Model) {
    let mut model = model.clone();
    let large: Vec<_> = model.extract_if(.., |extent, _| extent.pages as usize > POOL_PAGES).collect();
    for (extent, number) in &model {
        let guard = pool.shared(*extent).unwrap();
        assert!(common::is_filled(*extent, *number, guard.payload()), "{extent} does not hold {number}");
    }
    for (extent, _) in &large {
        assert!(matches!(pool.shared(*extent), Err(PoolError::LargerThanPool { .. })));
        assert!(pool.is_extent(*extent));
    }
    let mut found = Vec::new();
    pool.for_each_extent(|extent| found.push(extent));
    let mut expected: Vec<_> = model
        .keys()
        .copied()
        .chain(large.iter().map(|(extent, _)| *extent))
        .chain(pool.own_extents())
        .collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Opens what a fault or crash left, with memory for everything, and compares it with the model.
fn verify_closed(file: &SimulatedFile, model: &Model) {
    let pool = Pool::open_on(Arc::new(file.clone()), &options().pool_bytes(4 << 20)).unwrap();
    verify(&pool, model).unwrap();
}

fn each_fault_is_survived(what: &str, plant: fn(&SimulatedFile, u64)) {
    let operations = operations();
    assert!(operations > 100, "{operations} operations are too few to learn from");
    let (mut failed, mut poisoned) = (0, 0);
    for n in 1..=operations {
        let context = || format!("{what}, operation {n} of {operations}");
        let file = SimulatedFile::new(n);
        plant(&file, n);
        let mut progress = Progress::default();
        let pool = workload(&file, &mut progress, OnError::GoOn).unwrap();
        file.heal();
        failed += usize::from(progress.failures > 0);
        let Some(mut pool) = pool else {
            assert!(progress.failures > 0, "{}", context());
            // It was never created, or it was closed, and can be opened now.
            assert_eq!(progress.idle, progress.completed > 0, "{}", context());
            if progress.idle {
                verify_closed(&file, &progress.model);
            }
            continue;
        };
        assert_eq!(pool.statistics().frees_refused, 0, "{}", context());
        verify_but_large(&pool, &progress.model);
        if !progress.poisoned {
            assert_nothing_is_held(&pool);
            verify_but_large(&pool, &progress.model);
        }
        let last = checkpoint(&mut pool, &mut progress);
        if progress.poisoned {
            poisoned += 1;
            assert!(matches!(last, Err(PoolError::Sync(_))), "{}: {last:?}", context());
            drop(pool);
            // The sync may have failed after the superblock that says "closed".
            assert_open_shows_a_checkpoint(&file, &progress, &context());
            continue;
        }
        last.unwrap_or_else(|error| panic!("{}: {error}", context()));
        drop(pool);
        verify_closed(&file, &progress.model);
    }
    assert!(failed as u64 > operations / 4, "only {failed} of {operations} faults were noticed");
    assert!(poisoned > 0);
}

#[test]
fn each_single_fault_is_survived() {
    each_fault_is_survived("one failure", SimulatedFile::fail_nth);
}

#[test]
fn each_outage_is_survived() {
    each_fault_is_survived("all fail from", SimulatedFile::fail_from);
}

/// What an opening may show: the last checkpoint if nothing was done since; otherwise that the file was not
/// closed, or the last checkpoint if nothing of what was done since came as far as the file, or the one that
/// was under way if all of it did.
fn assert_open_shows_a_checkpoint(file: &SimulatedFile, progress: &Progress, context: &str) -> Option<usize> {
    match Pool::open_on(Arc::new(file.clone()), &options().pool_bytes(4 << 20)) {
        Ok(pool) => {
            let number = pool.root_slot(0) as usize;
            let under_way = progress.checkpoints.len() > progress.completed;
            let last = number == progress.completed;
            assert!(
                last || (under_way && number == progress.checkpoints.len()),
                "{context}: shows checkpoint {number} after {}",
                progress.completed
            );
            let model = number.checked_sub(1).and_then(|index| progress.checkpoints.get(index));
            verify(&pool, model.unwrap_or_else(|| panic!("{context}: opened without a checkpoint"))).unwrap();
            Some(number)
        }
        Err(error) => {
            assert!(!progress.idle, "{context}: {error}");
            let expected = match &error {
                PoolError::NotClosedCleanly { .. } => true,
                // The very first superblocks may be torn, or not be there at all.
                PoolError::NotVellum { .. } | PoolError::Unfinished { .. } | PoolError::Corruption { .. } => {
                    progress.completed == 0
                }
                _ => false,
            };
            assert!(expected, "{context}: {error}");
            None
        }
    }
}

#[test]
fn a_crash_anywhere_shows_a_checkpoint_or_says_so() {
    let operations = operations();
    let (mut refused, mut shown) = (0, vec![0; 4]);
    for n in 1..=operations + 1 {
        let file = SimulatedFile::new(n);
        file.fail_from(n);
        let mut progress = Progress::default();
        let ended = workload(&file, &mut progress, OnError::Stop);
        assert_eq!(ended.is_err(), n <= operations, "operation {n} fails unnoticed:\n{}", file.history());
        drop(ended);
        for model in CrashModel::ALL {
            for _ in 0..2 {
                let context = format!("crash at operation {n} of {operations}, {model:?}");
                let left = file.crash_with(model);
                match assert_open_shows_a_checkpoint(&left, &progress, &context) {
                    Some(number) => shown[number] += 1,
                    None => refused += 1,
                }
            }
        }
    }
    // Each outcome happens, so the checks above have been made.
    assert!(shown[1..].iter().all(|count| *count > 0), "{shown:?}");
    assert!(refused > 100, "{refused}");
}

#[test]
fn random_faults_of_every_kind_corrupt_nothing() {
    for seed in 0..60 {
        let file = SimulatedFile::new(seed);
        file.set_faults(Faults {
            short: 0.2,
            interrupted: 0.1,
            read_error: 0.02,
            write_error: 0.02,
            grow_error: 0.05,
            ..Faults::default()
        });
        let mut progress = Progress::default();
        let pool = workload(&file, &mut progress, OnError::GoOn).unwrap();
        file.heal();
        let Some(mut pool) = pool else { continue };
        verify_but_large(&pool, &progress.model);
        assert_nothing_is_held(&pool);
        checkpoint(&mut pool, &mut progress).unwrap();
        drop(pool);
        verify_closed(&file, &progress.model);
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_file_can_be_closed() {
    for spare in 0..12 {
        let file = SimulatedFile::new(spare);
        let capacity = (300 + spare) * PAGE_SIZE as u64;
        file.set_faults(Faults { capacity_bytes: Some(capacity), ..Faults::default() });
        let mut pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
        let mut model = Model::new();
        let mut number = 0;
        let mut fill_up = |pool: &Pool, model: &mut Model| loop {
            number += 1;
            match pool.allocate(1 + (number % 3) as u32, PageKind::USER) {
                Ok(mut guard) => {
                    let extent = guard.extent();
                    fill(extent, number, guard.payload_mut());
                    model.insert(extent, number);
                    drop(guard.keep());
                }
                Err(PoolError::StorageFull { bytes, .. }) => {
                    break assert!(bytes > capacity - 8 * PAGE_SIZE as u64);
                }
                Err(error) => panic!("{error}"),
            }
        };
        fill_up(&pool, &mut model);
        assert!(pool.statistics().pages_in_file > 290);
        verify(&pool, &model).unwrap();
        pool.checkpoint().unwrap();
        // The old map's place is taken by others if there is another for the new map, and kept if not.
        for _ in 0..4 {
            fill_up(&pool, &mut model);
            pool.set_root_slot(1, 1).unwrap();
            pool.checkpoint().unwrap();
        }
        // What is deleted makes room.
        let victim = *model.keys().nth(20).unwrap();
        pool.exclusive(victim).unwrap().free();
        model.remove(&victim);
        fill_up(&pool, &mut model);
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file.clone()), &options()).unwrap();
        verify(&pool, &model).unwrap();
        assert!(file.snapshot().size() <= capacity);
    }
}
