//! The same, step by step: failures, waits, and events while a copy is on its way.

use super::*;
use std::sync::atomic::Ordering;
use vellum_vm::{CrashModel, FileOperation};

/// The bugs that the scenarios below find.
pub(super) const FOUND: [Plant; 5] = [
    Plant::CopyForgotten,
    Plant::ReusedUnderCopy,
    Plant::SwallowedWriteError,
    Plant::NamedMapFreed,
    Plant::MapNotSynced,
];

fn world() -> World {
    World::new(7, None, Duration::ZERO, &options())
}

/// Runs a scenario without a bug, and with one that it must find.
fn find(bug: Plant, scenario: impl Fn(Option<Plant>) -> Result<(), String>) {
    scenario(None).unwrap();
    let found = scenario(Some(bug)).expect_err("it is to be found");
    println!("{bug:?}: {found}");
}

#[test]
fn a_checkpoint_names_where_the_log_begins() {
    let world = world();
    let page = world.new_page(1).unwrap();
    for round in 0..5 {
        world.set_word(page, round, 77).unwrap();
        let redo = world.log.end();
        world.checkpoint().unwrap();
        let crashed = world.file.file.crash_with(CrashModel::LoseAll);
        let opened = PoolFile::open_on(Arc::new(crashed), &options()).unwrap();
        assert_eq!((opened.redo(), opened.needs_recovery()), (redo, true));
        world.crash().check().unwrap();
    }
    let statistics = world.pool.statistics();
    assert_eq!((statistics.checkpoints, statistics.checkpoint_pages_written), (5, 5));
    // Nothing is left of the earlier maps: there are two superblocks, a map and the page.
    assert_eq!(statistics.pages_allocated, 4);
}

#[test]
fn a_checkpoint_of_what_was_not_changed_does_nothing() {
    let mut world = world();
    world.checkpoint().unwrap();
    world.new_page(1).unwrap();
    world.pool.checkpoint().unwrap();
    let before = world.file.file.counts();
    world.checkpoint().unwrap();
    world.pool.checkpoint().unwrap();
    let after = world.file.file.counts();
    assert_eq!(before.of(FileOperation::Write), after.of(FileOperation::Write));
    assert_eq!(world.pool.statistics().checkpoints, 0);
}

/// Fills the pool with other pages, so that everything is evicted that can be.
fn push_out(world: &World) -> Result<(), String> {
    (0..200).try_for_each(|number| world.new_page(number).map(|_| ())).map_err(|error| error.to_string())
}

/// Takes a checkpoint, and calls `meanwhile` when the copy of a page has been made and waits for the log.
fn checkpoint_while(
    bug: Option<Plant>,
    meanwhile: impl FnOnce(&World, PageId) -> Result<(), String> + Send + 'static,
) -> (Arc<World>, PageId) {
    let world = Arc::new(World::new(7, bug, Duration::ZERO, &options()));
    let page = world.new_page(1).unwrap();
    let redo = world.log.end();
    world.log.make_durable_before(redo).unwrap();
    world.set_word(page, 3, 33).unwrap();
    let (other, done) = (world.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let is_done = done.clone();
    *world.log.meanwhile.lock().unwrap() = Some(Box::new(move || {
        meanwhile(&other, page).unwrap();
        done.store(true, Ordering::SeqCst);
    }));
    world.pool.checkpoint_at(redo).unwrap();
    assert!(is_done.load(Ordering::SeqCst), "the copy waits for the log");
    (world, page)
}

fn word(world: &World, page: PageId, place: usize) -> u64 {
    let guard = world.pool.shared(Extent::page(page)).unwrap();
    u64::from_le_bytes(guard.payload()[8 * place..8 * place + 8].try_into().unwrap())
}

#[test]
fn a_page_that_changes_while_its_copy_is_on_its_way_stays_dirty_and_in_memory() {
    let change = |world: &World, page| world.set_word(page, 3, 44).map_err(|error| error.to_string());
    find(Plant::CopyForgotten, |bug| {
        let (world, page) = checkpoint_while(bug, move |world, page| {
            change(world, page)?;
            push_out(world)
        });
        push_out(&world)?;
        match word(&world, page, 3) {
            44 => world.crash().check(),
            old => Err(format!("an older copy landed over a newer one: {old}")),
        }
    });
    find(Plant::CleanThoughChanged, |bug| {
        let (world, page) = checkpoint_while(bug, change);
        push_out(&world)?;
        match word(&world, page, 3) {
            44 => world.crash().check(),
            old => Err(format!("a change was forgotten: {old}")),
        }
    });
}

#[test]
fn space_is_not_reused_while_a_copy_of_what_it_held_is_on_its_way() {
    find(Plant::ReusedUnderCopy, |bug| {
        let values = Arc::new(Mutex::new(Vec::new()));
        let streamed = values.clone();
        let (world, _) = checkpoint_while(bug, move |world, page| {
            let shown = |error: PoolError| error.to_string();
            world.free_page(page).map_err(shown)?;
            world.log.make_all_durable();
            for number in 0..100 {
                let extent = world.replace(None, 1, number, true).map_err(shown)?;
                streamed.lock().unwrap().push((extent, number));
            }
            Ok(())
        });
        for (extent, number) in values.lock().unwrap().iter() {
            let guard = world.pool.shared(*extent).map_err(|error| error.to_string())?;
            if guard.payload() != filled(*extent, *number) {
                return Err(format!("{extent} was overwritten"));
            }
        }
        // The checkpoint's map may lie there now.
        assert_eq!(world.pool.statistics().pages_quarantined, 0);
        world.crash().check()
    });
}

/// A checkpoint whose `n`th write fails, and what follows. Returns whether a write failed.
fn failing_write(bug: Option<Plant>, n: u64, seed: u64) -> Result<bool, String> {
    let shown = |error: PoolError| error.to_string();
    let world = World::new(seed, bug, Duration::ZERO, &options());
    let pages: Vec<_> = (0..20).map(|number| world.new_page(number).unwrap()).collect();
    let mut value = world.replace(None, 3, 1, false).map_err(shown)?;
    world.checkpoint().map_err(shown)?;
    // Every other page, so that there are several requests.
    pages.iter().step_by(2).try_for_each(|page| world.set_word(*page, 5, n)).map_err(shown)?;
    let file = &world.file.file;
    file.fail_nth_of(FileOperation::Write, n);
    let outcome = world.checkpoint();
    let failed = file.counts().scheduled_failures > 0;
    file.heal();
    match outcome {
        Err(PoolError::Write { .. }) if failed => {}
        Ok(()) if !failed => {}
        Ok(()) => world.crash().check()?,
        Err(error) => return Err(error.to_string()),
    }
    // Free space is used first.
    for number in 0..10 {
        world.replace(None, 1, number, true).map_err(shown)?;
    }
    for number in 0..20 {
        value = world.replace(Some(value), 1 + number % 2, number.into(), true).map_err(shown)?;
        world.log.make_all_durable();
        world.crash().check()?;
    }
    world.checkpoint().map_err(shown)?;
    world.crash().check()?;
    // The superblocks, the map, the pages, the value; and pages that are freed but not durably.
    let statistics = world.pool.statistics();
    let expected = 2 + 1 + 20 + 10 + 2 + statistics.pages_quarantined;
    assert_eq!(statistics.pages_allocated, expected, "what a failure left is free again");
    Ok(failed)
}

#[test]
fn a_write_that_fails_leaves_the_checkpoint_before() {
    let scenario = |bug| {
        // A failed write has written any subset of its sectors; the superblocks lie in one sector.
        for seed in 0..4 {
            let mut n = 1;
            while failing_write(bug, n, seed).map_err(|error| format!("write {n}, seed {seed}: {error}"))? {
                n += 1;
            }
            assert!(n > 10, "{n} writes");
        }
        Ok(())
    };
    find(Plant::SwallowedWriteError, scenario);
    find(Plant::NamedMapFreed, scenario);
}

#[test]
fn after_a_sync_that_fails_nothing_is_changed_any_more() {
    find(Plant::MapNotSynced, |bug| {
        for n in 1.. {
            let world = World::new(7, bug, Duration::ZERO, &options());
            let page = world.new_page(1).unwrap();
            world.checkpoint().unwrap();
            world.set_word(page, 1, 2).unwrap();
            world.file.file.fail_nth_of(FileOperation::Sync, n);
            if world.checkpoint().is_ok() {
                assert_eq!(n, 4, "one of the map, two of the superblocks");
                break;
            }
            assert!(matches!(world.pool.checkpoint_at(world.log.end()), Err(PoolError::Sync(_))));
            assert!(matches!(world.set_word(page, 1, 3), Err(PoolError::Sync(_))));
            assert!(matches!(world.pool.persist(&[Extent::page(page)]), Err(PoolError::Sync(_))));
            (0..40).try_for_each(|_| world.crash().check())?;
        }
        Ok(())
    });
}

#[test]
fn a_close_that_fails_can_be_tried_again() {
    for n in 1.. {
        let mut world = world();
        let page = world.new_page(1).unwrap();
        world.checkpoint().unwrap();
        world.set_word(page, 1, 2).unwrap();
        world.file.file.fail_nth_of(FileOperation::Write, n);
        let outcome = world.pool.checkpoint();
        let failed = world.file.file.counts().scheduled_failures > 0;
        assert_eq!(outcome.is_err(), failed);
        world.file.file.heal();
        for _ in 0..5 {
            world.crash().check().unwrap();
        }
        world.set_word(page, 1, 3).unwrap();
        world.log.make_all_durable();
        for _ in 0..5 {
            world.crash().check().unwrap();
        }
        world.pool.checkpoint().unwrap();
        world.crash().check().unwrap();
        assert_eq!(world.pool.statistics().pages_allocated, 4);
        if !failed {
            assert!(n > 4, "a page, the map, the superblocks");
            return;
        }
    }
}

#[test]
fn what_a_record_frees_is_used_again_when_that_is_durable() {
    let mut world = world();
    let pages: Vec<_> = (0..10).map(|number| world.new_page(number).unwrap()).collect();
    let value = world.replace(None, 4, 1, false).unwrap();
    pages.iter().for_each(|page| world.free_page(*page).unwrap());
    // An extent that a thread still reads is freed later.
    let reader = world.pool.shared(value).unwrap();
    let other = world.replace(Some(value), 1, 2, true).unwrap();
    drop(reader);
    assert_eq!(world.pool.statistics().pages_quarantined, 10);
    let new: Vec<_> = (0..20).map(|number| world.new_page(number).unwrap()).collect();
    assert!(new.iter().all(|page| !pages.contains(page) && !(value.head..value.end()).contains(page)));
    world.pool.for_each_extent(|extent| assert_ne!(extent, value));
    assert_eq!(world.pool.statistics().pages_quarantined, 14);
    world.log.make_all_durable();
    world.new_page(100).unwrap();
    assert_eq!(world.pool.statistics().pages_quarantined, 0);
    let end = world.pool.statistics().pages_in_file;
    (0..10).try_for_each(|number| world.new_page(number).map(|_| ())).unwrap();
    assert_eq!(world.pool.statistics().pages_in_file, end);
    // A close leaves nothing in quarantine.
    new.iter().for_each(|page| world.free_page(*page).unwrap());
    assert_eq!(world.pool.statistics().pages_quarantined, 20);
    world.pool.checkpoint().unwrap();
    let statistics = world.pool.statistics();
    assert_eq!((statistics.pages_quarantined, statistics.pages_allocated), (0, 2 + 1 + 11 + 1));
    assert!(world.pool.is_extent(other));
    world.crash().check().unwrap();
}

#[test]
fn a_full_file_waits_for_the_log_and_not_for_ever() {
    let options = options().capacity_bytes(80 * 4096);
    let world = World::new(7, None, Duration::ZERO, &options);
    let mut pages = Vec::new();
    let full = loop {
        match world.new_page(1) {
            Ok(page) => pages.push(page),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, PoolError::CapacityExhausted { .. }), "{full}");
    world.log.make_all_durable();
    let waits = world.waits();
    pages.drain(..5).for_each(|page| world.free_page(page).unwrap());
    assert_eq!((world.pool.statistics().pages_quarantined, world.waits()), (5, waits));
    (0..5).for_each(|number| pages.push(world.new_page(number).unwrap()));
    assert_eq!((world.pool.statistics().pages_quarantined, world.waits()), (0, waits + 1));
    assert!(matches!(world.new_page(1), Err(PoolError::CapacityExhausted { .. })));
    world.log.broken.store(true, Ordering::SeqCst);
    world.free_page(pages[0]).unwrap();
    assert!(matches!(world.new_page(1), Err(PoolError::Log(_))));
}

#[test]
fn eviction_waits_for_the_log_only_if_nothing_else_goes() {
    let world = world();
    let unlogged: Vec<_> = (0..40).map(|number| world.replace(None, 1, number, false).unwrap()).collect();
    world.log.make_all_durable();
    let (waits, limit) = (world.waits(), world.pool.limit_pages() as u64);
    let pages: Vec<_> = (0..40).map(|number| world.new_page(number).unwrap()).collect();
    // The other pages were evicted.
    assert_eq!(world.waits(), waits);
    assert!(world.log.requests.load(Ordering::SeqCst) > 0);
    let more: Vec<_> = (0..40).map(|number| world.new_page(number).unwrap()).collect();
    assert!(world.waits() > waits);
    assert!(world.pool.statistics().pages_resident <= limit);
    // While the log does not work, clean pages can be read.
    world.log.broken.store(true, Ordering::SeqCst);
    let outcome = (0..100).try_for_each(|number| world.new_page(number).map(|_| ()));
    assert!(matches!(outcome, Err(PoolError::Log(_))), "{outcome:?}");
    world.log.broken.store(false, Ordering::SeqCst);
    for page in pages.into_iter().chain(more) {
        drop(world.pool.shared(Extent::page(page)).unwrap());
    }
    unlogged.iter().for_each(|extent| drop(world.pool.shared(*extent).unwrap()));
    world.crash().check().unwrap();
}

#[test]
fn a_checkpoint_writes_long_extents_while_they_are_read_and_waits_for_their_writers() {
    let world = world();
    let value = world.pool.allocate(5, PageKind::BLOB).unwrap();
    let extent = value.extent();
    let (lsn, record) = world.reserve(vec![Change::Write(extent, 9)], &[]);
    let mut value = AllocatedPage::keep(value, lsn);
    world.log.fill(lsn, &record);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| world.checkpoint());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!checkpoint.is_finished() || world.pool.statistics().checkpoint_pages_written == 0);
        value.payload_mut().copy_from_slice(&filled(extent, 9));
        value.set_lsn(lsn);
        drop(value);
        checkpoint.join().unwrap().unwrap();
    });
    let reader = world.pool.shared(extent).unwrap();
    world.checkpoint().unwrap();
    assert_eq!(reader.payload(), filled(extent, 9));
    drop(reader);
    assert_eq!(world.pool.statistics().checkpoint_pages_written, 5);
    world.crash().check().unwrap();
}

/// What the map of a checkpoint covers is what its records say, even if the file was cut down meanwhile.
#[test]
fn a_checkpoint_covers_what_is_freed_and_cut_off_while_it_is_taken() {
    for pages_freed in 1..40 {
        let world = world();
        let mut pages: Vec<_> = (0..150).map(|number| world.new_page(number).unwrap()).collect();
        let last = world.replace(None, 3, 1, false).unwrap();
        pages.drain(..2).for_each(|page| world.free_page(page).unwrap());
        world.log.make_all_durable();
        world.checkpoint().unwrap();
        let redo = world.log.end();
        let freed = pages.split_off(pages.len() - pages_freed);
        freed.iter().for_each(|page| world.free_page(*page).unwrap());
        if pages_freed % 2 == 0 {
            world.replace(Some(last), 1, 2, true).unwrap();
        }
        world.log.make_all_durable();
        world.pool.trim();
        world.pool.checkpoint_at(redo).unwrap();
        for model in [CrashModel::LoseAll, CrashModel::KeepAll] {
            let (records, end) = world.log.crash();
            let crashed = Crashed { file: world.file.file.crash_with(model), records, end };
            crashed.check().unwrap_or_else(|error| panic!("{pages_freed} pages: {error}"));
        }
    }
}

/// The superblocks on storage may name the checkpoint before: what it needs of the log may be given up only when they do
/// not.
#[test]
fn after_a_close_that_failed_a_checkpoint_is_one() {
    let mut failures = 0;
    for n in 1.. {
        let mut world = world();
        let page = world.new_page(1).unwrap();
        world.checkpoint().unwrap();
        world.set_word(page, 1, 2).unwrap();
        world.file.file.fail_nth_of(FileOperation::Write, n);
        let failed = world.pool.checkpoint().is_err();
        world.file.file.heal();
        if !failed {
            break;
        }
        failures += 1;
        let redo = world.log.end();
        world.log.make_durable_before(redo).unwrap();
        world.pool.checkpoint_at(redo).unwrap();
        let crashed = world.file.file.crash_with(CrashModel::LoseAll);
        let opened = PoolFile::open_on(Arc::new(crashed), &options()).unwrap();
        assert!(opened.redo() >= redo, "{:?} is not {redo:?}, write {n}", opened.redo());
        world.crash().check().unwrap();
    }
    assert!(failures > 3, "the superblocks among them");
}
