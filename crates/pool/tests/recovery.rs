//! A file that was not closed and has a log: what is refused, and how it is recovered.

mod common;

use common::log::MemoryLog;
use std::sync::Arc;
use vellum_base::{Extent, HEADER_BYTES, Lsn, PageHeader, PageId, PageKind, stamp_checksum, stamp_lsn};
use vellum_pool::{ChangeLog, ChangeRecords, Fault, Pool, PoolError, PoolFile, PoolOptions};
use vellum_vm::{CrashModel, File, SimulatedFile};

fn options() -> PoolOptions {
    PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28).background_eviction(false)
}

/// A closed file with one page and one extent of three.
fn closed() -> (SimulatedFile, [Extent; 2]) {
    let file = SimulatedFile::new(1);
    let pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
    let extents = [1, 3].map(|pages| {
        let mut guard = pool.allocate(pages, PageKind::TREE_NODE).unwrap();
        guard.payload_mut().fill(pages as u8);
        guard.keep().extent()
    });
    pool.set_root_slot(3, 77).unwrap();
    pool.close().unwrap();
    (file, extents)
}

fn open(file: &SimulatedFile) -> PoolFile {
    PoolFile::open_on(Arc::new(file.clone()), &options()).unwrap()
}

fn log(file: &PoolFile) -> Arc<MemoryLog> {
    Arc::new(MemoryLog::new(file.redo()))
}

#[test]
fn a_database_keeps_its_id_and_its_place_in_the_log() {
    let (file, [single, _]) = closed();
    let id = open(&file).database();
    assert_ne!(id, [0; 16]);
    assert_ne!(id, PoolFile::create_on(Arc::new(SimulatedFile::new(1)), &options()).unwrap().database());
    let opened = open(&file);
    assert_eq!((opened.database(), opened.redo(), opened.needs_recovery()), (id, Lsn(0), false));
    let log = log(&opened);
    let pool = opened.start(Some(log.clone())).unwrap();
    pool.exclusive(single).unwrap().set_lsn(log.append(b"a change"));
    pool.close().unwrap();
    let opened = open(&file);
    assert_eq!((opened.database(), opened.redo()), (id, log.end()));
    // Without a log the place never goes back, and the first change moves it on: no log follows on the place before. No backup may be
    // continued: the change has no LSN.
    let pool = opened.start(None).unwrap();
    drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    pool.close().unwrap();
    assert_ne!(open(&file).database(), id);
    let place = Lsn(log.end().0 + 1);
    assert_eq!(open(&file).redo(), place);
    // While they are asked for changes have LSNs without a log, too, and the place goes on after these.
    let pool = open(&file).start(None).unwrap();
    let clock = pool.lsn_clock().unwrap().clone();
    assert_eq!((clock.now(), ChangeRecords::stamp(&pool)), (place, Lsn(0)));
    clock.hold();
    let first = ChangeRecords::stamp(&pool);
    assert!(first > place && ChangeRecords::stamp(&pool) == first);
    let place = clock.advance();
    assert!(first < place && ChangeRecords::stamp(&pool) == place);
    clock.release();
    assert_eq!(ChangeRecords::stamp(&pool), Lsn(0));
    drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    pool.close().unwrap();
    assert!(open(&file).redo() > place);
}

#[test]
fn what_was_not_closed_and_has_a_log_is_opened_by_a_recovery_alone() {
    let (file, [single, triple]) = closed();
    let opened = open(&file);
    let log = log(&opened);
    let pool = opened.start(Some(log.clone())).unwrap();
    // Nothing has been changed yet.
    assert!(!open(&file).needs_recovery());
    let mut guard = pool.exclusive(single).unwrap();
    let lsn = log.append(b"a change");
    guard.payload_mut().fill(9);
    guard.set_lsn(lsn);
    drop(guard);
    drop(pool);
    let text = |outcome: Result<(), PoolError>| match outcome {
        Err(error @ PoolError::NotClosedCleanly { has_log: true, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let said = text(open(&file).start(None).map(drop));
    assert!(said.contains("open it for writing as a database"), "{said}");
    text(PoolFile::open_on(Arc::new(file.clone()), &options().read_only(true)).map(drop));
    text(Pool::open_on(Arc::new(file.clone()), &options().change_log(log.clone())).map(drop));
    // What there is, is there: the map, the roots, and the pages as they were.
    let opened = open(&file);
    assert_eq!((opened.needs_recovery(), opened.redo()), (true, lsn));
    assert!(opened.is_extent(single) && opened.is_extent(triple));
    let pool = opened.start(Some(log)).unwrap();
    assert_eq!((pool.root_slot(3), pool.shared(single).unwrap().payload()[0]), (77, 1));
}

#[test]
fn a_new_file_with_a_log_is_recovered_from_nothing() {
    let file = SimulatedFile::new(1);
    let new = PoolFile::create_on(Arc::new(file.clone()), &options()).unwrap();
    let log = log(&new);
    let pool = new.start(Some(log.clone())).unwrap();
    drop(pool.allocate(1, PageKind::TREE_NODE).unwrap().keep());
    drop(pool);
    let mut opened = open(&file);
    assert!(opened.needs_recovery());
    assert_eq!((0..100).filter(|page| opened.is_extent(Extent::page(PageId(*page)))).count(), 0);
    let page = Extent::page(PageId(700));
    opened.note_allocated(page).unwrap();
    let pool = opened.start(Some(log)).unwrap();
    let mut all = Vec::new();
    pool.for_each_extent(|extent| all.push(extent.head.0));
    assert_eq!(all, [0, 1, 700]);
    // The file is long enough, though it had not grown that far.
    pool.redo(page.head, true, |_| Ok(true)).unwrap();
    pool.close().unwrap();
    open(&file).start(None).unwrap().shared(page).map(drop).unwrap();
}

#[test]
fn events_of_space_may_be_noted_again() {
    let (file, [single, triple]) = closed();
    let log = {
        let opened = open(&file);
        let log = log(&opened);
        drop(opened.start(Some(log.clone())).unwrap().exclusive(single).unwrap());
        log
    };
    let mut opened = open(&file);
    let own = opened_map(&file);
    let page = |number| Extent::page(PageId(number));
    // Known, freed twice, and what shares pages with something else.
    opened.note_allocated(single).unwrap();
    opened.note_freed(page(50));
    opened.note_allocated(Extent { head: PageId(20), pages: 10 }).unwrap();
    opened.note_allocated(Extent { head: PageId(25), pages: 2 }).unwrap();
    assert!(!opened.is_extent(Extent { head: PageId(20), pages: 10 }));
    opened.note_allocated(Extent { head: PageId(18), pages: 4 }).unwrap();
    opened.note_freed(triple);
    opened.note_freed(triple);
    opened.note_allocated(page(triple.head.0 + 1)).unwrap();
    // The pool's own, of which an older log may tell something else.
    opened.note_freed(own);
    opened.note_allocated(Extent { head: own.head, pages: 2 }).unwrap();
    opened.note_freed(page(0));
    assert!(matches!(opened.note_allocated(page(1 << 40)), Err(PoolError::CapacityExhausted { .. })));
    let pool = opened.start(Some(log)).unwrap();
    let mut all = Vec::new();
    pool.for_each_extent(|extent| all.push(extent));
    let mut expected = vec![
        page(0),
        page(1),
        own,
        single,
        page(triple.head.0 + 1),
        Extent { head: PageId(18), pages: 4 },
        Extent { head: PageId(25), pages: 2 },
    ];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(pool.statistics().pages_allocated, 11);
    assert_eq!(pool.own_extents(), [page(0), page(1), own]);
}

/// Where the map of a file lies.
fn opened_map(file: &SimulatedFile) -> Extent {
    let mut newest = (0, Extent::page(PageId(0)));
    for page in 0..2 {
        let mut bytes = [0; 4096];
        file.snapshot().read(page * 4096, &mut bytes);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        newest = newest.max((number(48), Extent { head: PageId(number(80)), pages: number(88) as u32 }));
    }
    newest.1
}

#[test]
fn redo_changes_pages_and_begins_them_anew() {
    let (file, [single, triple]) = closed();
    let opened = open(&file);
    let log = log(&opened);
    let pool = opened.start(Some(log)).unwrap();
    let page = single.head;
    let lsn_of = |bytes: &[u8]| PageHeader::read(bytes).lsn;
    // A change that is there already leaves the bytes as they are, and the page is written again all the same.
    let written = pool.statistics().pages_written;
    pool.redo(page, false, |bytes| {
        assert_eq!((bytes.len(), bytes[HEADER_BYTES], lsn_of(bytes)), (4096, 1, Lsn(0)));
        Ok(false)
    })
    .unwrap();
    let fill = |value: u8, lsn: u64| {
        move |bytes: &mut [u8]| {
            bytes[HEADER_BYTES..].fill(value);
            stamp_lsn(bytes, Lsn(lsn));
            Ok(true)
        }
    };
    pool.redo(page, false, fill(5, 100)).unwrap();
    assert_eq!(pool.shared(single).unwrap().payload()[7], 5);
    // In memory, and begun anew.
    pool.redo(page, true, |bytes| {
        assert_eq!(lsn_of(bytes), Lsn(0));
        assert!(bytes[HEADER_BYTES..].iter().all(|byte| *byte == 0));
        fill(6, 110)(bytes)
    })
    .unwrap();
    assert_eq!(pool.shared(single).unwrap().payload()[7], 6);
    // What cannot be redone is an error, and the page is as it is on storage.
    match pool.redo(page, false, |bytes| fill(9, 120)(bytes).and(Err::<bool, _>("half done".into()))) {
        Err(PoolError::Corruption { extent, fault: Fault::Contents(what) }) => {
            assert_eq!((extent, what.as_str()), (single, "half done"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.shared(single).unwrap().payload()[7], 1);
    assert_eq!(pool.statistics().pages_written, written);
    for wrong in [triple.head, PageId(triple.head.0 + 1), PageId(5000), PageId(u64::MAX)] {
        for fresh in [false, true] {
            let outcome = pool.redo(wrong, fresh, |_| -> Result<(), _> { panic!("it is no page") });
            assert!(matches!(outcome, Err(PoolError::Corruption { .. })), "{wrong}: {outcome:?}");
        }
    }
}

#[test]
fn a_page_that_shows_a_change_already_is_written_again() {
    let (file, [single, _]) = closed();
    let opened = open(&file);
    let log = log(&opened);
    let pool = opened.start(Some(log)).unwrap();
    pool.redo(single.head, false, |_| Ok(false)).unwrap();
    // As if the page had been in the system's cache only.
    file.overwrite(single.head.offset(), &[0xee; 4096]);
    pool.close().unwrap();
    let pool = open(&file).start(None).unwrap();
    assert_eq!(pool.shared(single).unwrap().payload()[7], 1);
}

#[test]
fn a_torn_page_that_is_begun_anew_is_not_read() {
    let (file, [single, _]) = closed();
    file.overwrite(single.head.offset() + 512, &[0xee; 512]);
    for tried in [false, true] {
        let opened = open(&file);
        let log = log(&opened);
        let pool = opened.start(Some(log)).unwrap();
        if tried {
            assert!(pool.shared(single).is_err());
        }
        let outcome = pool.redo(single.head, false, |_| Ok(true));
        assert!(matches!(outcome, Err(PoolError::Corruption { .. })), "{outcome:?}");
        pool.redo(single.head, true, |bytes| {
            bytes[HEADER_BYTES..].fill(8);
            Ok(true)
        })
        .unwrap();
        assert_eq!(pool.statistics().pages_read, 1 + u64::from(tried));
        assert_eq!(pool.shared(single).unwrap().payload()[0], 8);
    }
}

#[test]
fn threads_redo_more_pages_than_fit_into_memory() {
    const PAGES: u64 = 400;
    let file = SimulatedFile::new(3);
    let new = PoolFile::create_on(Arc::new(file.clone()), &options()).unwrap();
    let log = log(&new);
    drop(new.start(Some(log.clone())).unwrap().allocate(1, PageKind::TREE_NODE).unwrap().keep());
    let mut opened = PoolFile::open_on(Arc::new(file.crash_with(CrashModel::KeepAll)), &options()).unwrap();
    (2..PAGES + 2).for_each(|page| opened.note_allocated(Extent::page(PageId(page))).unwrap());
    let pool = opened.start(Some(log.clone())).unwrap();
    let last = log.append(b"of all pages");
    log.make_all_durable();
    std::thread::scope(|scope| {
        for part in 0..2 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..3u8 {
                    for page in (2..PAGES + 2).filter(|page| page % 2 == part) {
                        let change = |bytes: &mut [u8]| {
                            assert_eq!(bytes[HEADER_BYTES], round);
                            bytes[HEADER_BYTES] = round + 1;
                            stamp_lsn(bytes, last);
                            Ok(true)
                        };
                        pool.redo(PageId(page), round == 0, change).unwrap();
                    }
                }
            });
        }
    });
    assert!(pool.statistics().pages_evicted > PAGES);
    for page in 2..PAGES + 2 {
        assert_eq!(pool.shared(Extent::page(PageId(page))).unwrap().payload()[0], 3);
    }
    assert!(file.size().unwrap() > 0);
}

#[test]
fn a_file_of_version_1_gets_an_id_with_its_first_change() {
    let (file, [single, _]) = closed();
    for page in 0..2 {
        let mut bytes = [0; 4096];
        file.snapshot().read(page * 4096, &mut bytes);
        bytes[40] = 1;
        bytes[232..].fill(0);
        stamp_checksum(&mut bytes);
        file.overwrite(page * 4096, &bytes);
    }
    let version = |file: &SimulatedFile| {
        let mut bytes = [0; 4096];
        file.snapshot().read(0, &mut bytes);
        bytes[40]
    };
    let opened = open(&file);
    assert_eq!((opened.redo(), opened.needs_recovery()), (Lsn(0), false));
    let ids = [opened.database(), open(&file).database()];
    assert!(ids[0] != ids[1] && !ids.contains(&[0; 16]));
    drop(opened.start(None).unwrap().shared(single).unwrap());
    assert_eq!(version(&file), 1, "it was only read");
    let opened = open(&file);
    let (id, log) = (opened.database(), log(&opened));
    let pool = opened.start(Some(log)).unwrap();
    pool.exclusive(single).unwrap().payload_mut().fill(4);
    assert_eq!((version(&file), open(&file).database()), (4, id));
    pool.close().unwrap();
    assert_eq!((version(&file), open(&file).database()), (4, id));
    assert_eq!(open(&file).start(None).unwrap().root_slot(3), 77);
}
