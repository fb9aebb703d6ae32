//! A file's life: what a close keeps, what an opening refuses, what a misuse cannot break.

use std::sync::Arc;
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId, PageKind};
use vellum_pool::{
    Allocation, ExtentWriter, Fault, Interrupt, Miss, Navigation, PageWriter, Pool, PoolError, PoolOptions,
    PoolStatistics, Streams,
};
use vellum_vm::{File, FileOperation, SimulatedFile};

fn options() -> PoolOptions {
    PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28)
}

/// A closed file with one extent of one page and one of three, each filled with its number.
fn two_extents() -> (SimulatedFile, [Extent; 2]) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
    let extents = [1, 3].map(|pages| {
        let mut guard = pool.allocate(pages, PageKind::USER).unwrap();
        guard.payload_mut().fill(pages as u8);
        guard.keep().extent()
    });
    pool.close().unwrap();
    (file, extents)
}

fn open(file: &SimulatedFile) -> Pool {
    Pool::open_on(Arc::new(file.clone()), &options()).unwrap()
}

#[test]
fn a_change_in_memory_alone_is_written_by_the_close() {
    let (file, [single, triple]) = two_extents();
    for round in 10..13 {
        let pool = open(&file);
        pool.exclusive(single).unwrap().payload_mut().fill(round);
        pool.exclusive(triple).unwrap().payload_mut().fill(round + 100);
        assert_eq!(pool.statistics().pages_evicted, 0);
        pool.close().unwrap();
        let pool = open(&file);
        assert!(pool.shared(single).unwrap().payload().iter().all(|byte| *byte == round));
        assert!(pool.shared(triple).unwrap().payload().iter().all(|byte| *byte == round + 100));
    }
}

#[test]
fn what_was_only_freed_stays_free_after_the_close() {
    let (file, [single, triple]) = two_extents();
    let pool = open(&file);
    pool.exclusive(single).unwrap().free();
    pool.close().unwrap();
    let pool = open(&file);
    // The map may be in its place now.
    assert!(!pool.is_extent(single) || pool.own_extents().contains(&single));
    assert_eq!(pool.statistics().pages_allocated, 2 + 1 + 3);
    pool.discard(triple, Lsn(0)).unwrap();
    pool.close().unwrap();
    let pool = open(&file);
    let mut left = Vec::new();
    pool.for_each_extent(|extent| left.push(extent));
    assert_eq!(left, pool.own_extents());
}

#[test]
fn what_is_freed_while_a_thread_reads_it_is_not_shown_and_is_freed_later() {
    let (file, [single, triple]) = two_extents();
    let pool = open(&file);
    let shown = || {
        let mut shown = Vec::new();
        pool.for_each_extent(|extent| shown.push(extent));
        shown.retain(|extent| !pool.own_extents().contains(extent));
        shown
    };
    assert_eq!(shown(), [single, triple]);
    let reader = pool.shared(triple).unwrap();
    pool.discard(triple, Lsn(0)).unwrap();
    assert_eq!((shown(), pool.is_extent(triple)), (vec![single], true));
    drop(reader);
    assert_eq!((shown(), pool.is_extent(triple)), (vec![single], false));
}

#[test]
fn many_checkpoints_leak_no_space() {
    let (file, [single, _]) = two_extents();
    let mut pool = open(&file);
    let mut sizes = Vec::new();
    for round in 0..20 {
        pool.exclusive(single).unwrap().payload_mut().fill(round);
        pool.checkpoint().unwrap();
        sizes.push((pool.statistics().pages_allocated, file.size().unwrap()));
    }
    // Two superblocks, the map, and the two extents.
    assert!(sizes.iter().all(|(allocated, _)| *allocated == 2 + 1 + 4), "{sizes:?}");
    assert!(sizes.iter().all(|(_, bytes)| *bytes <= 8 * PAGE_SIZE as u64), "{sizes:?}");
}

#[test]
fn an_unchanged_file_is_not_written() {
    let (file, [single, triple]) = two_extents();
    let before = file.counts();
    for read_only in [false, true] {
        let options = options().read_only(read_only);
        let mut pool = Pool::open_on(Arc::new(file.clone()), &options).unwrap();
        // Asking to change a page counts as a change where it is possible, and is refused where it is not.
        if read_only {
            assert!(pool.exclusive(single).is_err());
        }
        assert_eq!(pool.shared(triple).unwrap().payload()[0], 3);
        pool.checkpoint().unwrap();
        pool.close().unwrap();
    }
    let after = file.counts();
    for operation in [vellum_vm::FileOperation::Write, vellum_vm::FileOperation::Resize] {
        assert_eq!(after.of(operation), before.of(operation), "{operation}");
    }
}

#[test]
fn a_read_only_pool_refuses_every_change() {
    let (file, [single, triple]) = two_extents();
    let pool = Pool::open_on(Arc::new(file.clone()), &options().read_only(true)).unwrap();
    let is_refused = |outcome: Result<(), PoolError>| assert!(matches!(outcome, Err(PoolError::ReadOnly)));
    is_refused(pool.exclusive(single).map(drop));
    is_refused(pool.allocate(1, PageKind::USER).map(drop));
    is_refused(pool.stream(20, PageKind::USER).map(drop));
    is_refused(pool.discard(triple, Lsn(0)));
    is_refused(pool.set_root_slot(0, 1));
    is_refused(pool.run(|| pool.root(single.head)?.upgrade().map(drop)));
    is_refused(Pool::create_on(Arc::new(SimulatedFile::new(2)), &options().read_only(true)).map(drop));
    assert_eq!(pool.shared(single).unwrap().payload()[0], 1);
}

#[test]
fn a_name_that_cannot_be_stored_is_an_error() {
    for name in ["seventeen letters", "a zero\0 inside", "\0"] {
        let outcome = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options().application(name));
        assert!(matches!(outcome, Err(PoolError::ApplicationName { .. })), "{name:?}");
    }
    let file = SimulatedFile::new(1);
    let sixteen = options().application("sixteen letters!");
    Pool::create_on(Arc::new(file.clone()), &sixteen).unwrap().close().unwrap();
    Pool::open_on(Arc::new(file.clone()), &sixteen).unwrap();
    match Pool::open_on(Arc::new(file), &options().application("other")).map(drop) {
        Err(PoolError::OtherApplication { found, expected, .. }) => {
            assert_eq!((found.as_str(), expected.as_str()), ("sixteen letters!", "other"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn absurd_options_are_errors() {
    for absurd in [options().pool_bytes(u64::MAX), options().pool_bytes(1 << 60)] {
        let outcome = Pool::create_on(Arc::new(SimulatedFile::new(1)), &absurd).map(drop);
        assert!(matches!(outcome, Err(PoolError::PoolTooLarge { .. })), "{outcome:?}");
    }
    let vast = options().capacity_bytes(u64::MAX);
    Pool::create_on(Arc::new(SimulatedFile::new(1)), &vast).unwrap().close().unwrap();
}

#[test]
fn a_pool_is_created_only_where_nothing_is() {
    let (file, _) = two_extents();
    let outcome = Pool::create_on(Arc::new(file.clone()), &options()).map(drop);
    assert!(matches!(outcome, Err(PoolError::NotEmpty { .. })), "{outcome:?}");
    open(&file);
}

#[test]
fn what_belongs_to_the_pool_is_not_shown_to_the_application() {
    let (file, [single, _]) = two_extents();
    let pool = open(&file);
    let own = pool.own_extents();
    assert_eq!(own.len(), 3);
    for extent in own {
        let refused = |outcome: Result<(), PoolError>| match outcome {
            Err(PoolError::Corruption { extent: found, fault: Fault::NotAllocated }) => {
                assert_eq!(found, extent)
            }
            other => panic!("{other:?}"),
        };
        refused(pool.shared(extent).map(drop));
        refused(pool.exclusive(extent).map(drop));
        refused(pool.discard(extent, Lsn(0)));
        refused(pool.run(|| pool.root(extent.head).map(drop)));
    }
    // The place of the old map is used again, and is the application's then.
    let guards: Vec<_> = (0..20).map(|_| pool.allocate(1, PageKind::USER).unwrap().keep()).collect();
    for guard in guards {
        let extent = guard.extent();
        drop(guard);
        drop(pool.shared(extent).unwrap());
    }
    drop(pool.shared(single).unwrap());
}

#[test]
fn references_that_lead_nowhere_are_errors() {
    let (file, [single, triple]) = two_extents();
    let pool = open(&file);
    drop((pool.shared(single).unwrap(), pool.shared(triple).unwrap()));
    let inner = PageId(triple.head.0 + 1);
    let (longer, shorter) = (Extent { pages: 4, ..triple }, Extent { pages: 2, ..triple });
    let nowhere = Extent { head: PageId(u64::MAX), pages: 2 };
    let wrong = [
        Extent::page(inner),
        Extent::page(triple.head),
        longer,
        shorter,
        nowhere,
        Extent::page(PageId(u64::MAX)),
        Extent::page(PageId(1 << 20)),
        Extent { head: single.head, pages: 0 },
        Extent { head: single.head, pages: 2 },
    ];
    for extent in wrong {
        for outcome in [
            pool.shared(extent).map(drop),
            pool.exclusive(extent).map(drop),
            pool.discard(extent, Lsn(0)),
            pool.resolve(Interrupt::Miss(Miss::certain(extent))),
        ] {
            match outcome {
                Err(error @ PoolError::Corruption { .. }) => assert!(!error.to_string().is_empty()),
                // To make resident what is resident takes nothing.
                Ok(()) if extent.head == triple.head || extent.head == single.head => {}
                other => panic!("{extent:?}: {other:?}"),
            }
        }
    }
    let huge = Extent { pages: u32::MAX, ..single };
    assert!(pool.shared(huge).is_err());
    assert!(matches!(pool.root(PageId(u64::MAX)), Err(Interrupt::Fatal(_))));
    pool.resolve(Interrupt::Conflict(PageId(u64::MAX))).unwrap();
    assert_eq!(pool.statistics().pages_resident, 4);
}

#[test]
fn a_free_too_many_is_counted_and_changes_nothing() {
    let (file, [single, triple]) = two_extents();
    let pool = open(&file);
    let refused = |statistics: PoolStatistics| statistics.frees_refused;
    // A thread read the page before it was freed, the other way round than `child` does it.
    let stale = pool.run(|| pool.root(single.head)).unwrap();
    pool.exclusive(single).unwrap().free();
    assert!(stale.upgrade().is_err());
    let again = pool.run(|| pool.root(single.head)).unwrap();
    again.upgrade().unwrap().free();
    assert_eq!(refused(pool.statistics()), 1);
    // The head of a longer extent is looked at as a page, and freed as one.
    drop(pool.shared(triple).unwrap());
    let head = pool.run(|| pool.root(triple.head)).unwrap();
    head.upgrade().unwrap().free();
    assert_eq!(refused(pool.statistics()), 2);
    assert!(pool.is_extent(triple));
    // The superblocks and the longer extent; the old map went when the file was marked as in use.
    assert_eq!(pool.statistics().pages_allocated, 2 + 3);
    assert_eq!(pool.shared(triple).unwrap().payload()[0], 3);
    pool.close().unwrap();
    open(&file);
}

#[test]
fn a_leaked_guard_does_not_let_the_file_look_closed() {
    for leak_shared in [false, true] {
        let (file, [single, triple]) = two_extents();
        let mut pool = open(&file);
        let mut guard = pool.exclusive(single).unwrap();
        guard.payload_mut().fill(9);
        if leak_shared {
            std::mem::forget(guard.downgrade());
        } else {
            drop(guard);
            std::mem::forget(pool.exclusive(single).unwrap());
        }
        pool.exclusive(triple).unwrap().payload_mut().fill(9);
        match pool.checkpoint() {
            Err(PoolError::Latched { extent }) => assert_eq!(extent, single),
            other => panic!("{other:?}"),
        }
        drop(pool);
        let again = Pool::open_on(Arc::new(file), &options()).map(drop);
        assert!(matches!(again, Err(PoolError::NotClosedCleanly { .. })), "{again:?}");
    }
}

#[test]
fn what_a_forgotten_stream_had_claimed_is_free_when_the_file_is_opened_again() {
    // With room in the pool the pages of a stream go there; without it they are written past the pool.
    for pages in [1, 20, 300] {
        let (file, [single, triple]) = two_extents();
        let mut pool = open(&file);
        let mut stream = pool.pages(PageKind::USER).unwrap();
        for _ in 0..pages {
            let fill = |bytes: &mut [u8]| {
                bytes[100..].fill(1);
                Ok::<(), PoolError>(())
            };
            stream.append(fill).unwrap();
        }
        std::mem::forget(stream);
        let mut stream = pool.stream(7, PageKind::USER).unwrap();
        let extent = stream.extent();
        stream.append(&[1; 20_000]).unwrap();
        std::mem::forget(stream);
        assert!(!pool.is_extent(extent));
        pool.checkpoint().unwrap();
        pool.close().unwrap();
        let pool = open(&file);
        assert!(!pool.is_extent(extent), "an extent that nobody finished");
        assert_eq!(pool.shared(single).unwrap().payload()[0], 1);
        assert_eq!(pool.shared(triple).unwrap().payload()[0], 3);
        // Its place is used again.
        let end = pool.statistics().pages_in_file;
        drop(pool.allocate(7, PageKind::USER).unwrap().keep());
        assert_eq!(pool.statistics().pages_in_file, end);
        pool.close().unwrap();
    }
}

#[test]
fn what_is_freed_twice_while_a_thread_reads_it_is_freed_once() {
    let (file, [_, triple]) = two_extents();
    let pool = open(&file);
    let reader = pool.shared(triple).unwrap();
    pool.discard(triple, Lsn(0)).unwrap();
    let again = pool.discard(triple, Lsn(0));
    assert!(matches!(again, Err(PoolError::Corruption { fault: Fault::NotAllocated, .. })), "{again:?}");
    drop(reader);
    pool.for_each_extent(|extent| assert_ne!(extent, triple));
    let new = pool.allocate(3, PageKind::USER).unwrap().keep().extent();
    assert_eq!(new, triple);
    pool.for_each_extent(|_| {});
    assert!(pool.is_extent(new));
    pool.close().unwrap();
}

#[test]
fn after_a_failed_sync_nothing_is_changed_any_more() {
    let (file, [single, triple]) = two_extents();
    let mut pool = open(&file);
    pool.exclusive(single).unwrap().payload_mut().fill(9);
    file.fail_nth_of(FileOperation::Sync, 1);
    assert!(matches!(pool.checkpoint(), Err(PoolError::Sync(_))));
    assert!(matches!(pool.exclusive(single).map(drop), Err(PoolError::Sync(_))));
    assert!(matches!(pool.allocate(1, PageKind::USER).map(drop), Err(PoolError::Sync(_))));
    assert!(matches!(pool.stream(3, PageKind::USER).map(drop), Err(PoolError::Sync(_))));
    assert!(matches!(pool.set_root_slot(0, 1), Err(PoolError::Sync(_))));
    assert!(matches!(pool.checkpoint(), Err(PoolError::Sync(_))));
    // What there is can be read.
    assert_eq!(pool.shared(single).unwrap().payload()[0], 9);
    assert_eq!(pool.shared(triple).unwrap().payload()[0], 3);
}

/// Streams that run out of memory have buffers instead, and so many of them that the rest of the pool can still be used.
#[test]
fn the_buffers_of_many_streams_leave_room_for_others() {
    for pool_pages in [64, 1000] {
        let file = SimulatedFile::new(1);
        let options =
            PoolOptions::default().pool_bytes((pool_pages * PAGE_SIZE) as u64).capacity_bytes(1 << 30);
        let pool = Pool::create_on(Arc::new(file), &options).unwrap();
        let fill = |bytes: &mut [u8]| {
            bytes[100..].fill(1);
            Ok::<(), PoolError>(())
        };
        let mut streams = Vec::new();
        let refused = loop {
            let mut stream = pool.pages(PageKind::USER).unwrap();
            // More than there is room for.
            match (0..pool_pages).try_for_each(|_| stream.append(fill).map(drop)) {
                Ok(()) => streams.push(stream),
                Err(error) => break error,
            }
            assert!(streams.len() < pool_pages, "there is no limit");
        };
        assert!(matches!(refused, PoolError::TooManyStreams { .. }), "{refused:?}");
        assert!(streams.len() >= 6, "{} of {pool_pages} pages", streams.len());
        // A quarter of the pool at once.
        let guards: Vec<_> = (0..pool_pages / 4).map(|_| pool.allocate(1, PageKind::USER).unwrap()).collect();
        drop(guards);
        // One that ends makes room for the next one.
        streams.pop().unwrap().settle().unwrap();
        let mut next = pool.pages(PageKind::USER).unwrap();
        (0..pool_pages).for_each(|_| assert!(next.append(fill).is_ok()));
        streams.iter_mut().for_each(|stream| stream.settle().unwrap());
        drop((next, streams));
        pool.close().unwrap();
    }
}
