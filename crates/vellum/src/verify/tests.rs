use crate::{Database, Options, Problem, VerifyReport};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use vellum_base::{Lsn, PageKind};
use vellum_pool::{AllocatedPage, Allocation};
use vellum_vm::SimulatedDisk;

fn create(options: Options) -> Database {
    let options = options.pool_bytes(1 << 20).background_checkpoints(false).huge_pages(false);
    Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap()
}

/// Allocates pages, and forgets them; returns the first one.
fn lose(database: &Database, pages: u32) -> u64 {
    let lost = Allocation::allocate(database.inner().pool(), pages, PageKind::BLOB).unwrap();
    AllocatedPage::keep(lost, Lsn(0)).id().0
}

fn leaks(report: &VerifyReport) -> Vec<(u64, u32)> {
    let leak = |problem: &Problem| match problem {
        Problem::Leaked { page, pages } => (*page, *pages),
        other => panic!("{other}"),
    };
    report.problems.iter().map(leak).collect()
}

#[test]
fn what_is_lost_is_found_whatever_others_do() {
    for options in [Options::default(), Options::default().log(false)] {
        let database = create(options);
        let table = database.create_table("table").unwrap();
        let lost = lose(&database, 3);
        assert_eq!(leaks(&database.verify(|_| {})), [(lost, 3)]);
        // While the verification reads, extents come and go.
        let mut number = 0_u64;
        let report = database.verify(|_| {
            number += 1;
            table.put((number % 10).to_be_bytes(), vec![1; 9_000]).unwrap();
        });
        assert!(number > 0);
        assert_eq!((leaks(&report), report.undecided_pages), (vec![(lost, 3)], 0));
    }
}

/// What is replaced while a snapshot sees it is not lost, and it is said that this is not known.
#[test]
fn what_a_snapshot_may_need_is_not_called_lost() {
    let database = create(Options::default());
    let table = database.create_table("table").unwrap();
    table.put("key", vec![1; 9_000]).unwrap();
    let snapshot = database.begin().unwrap();
    table.put("key", vec![2; 9_000]).unwrap();
    let report = database.verify(|_| {});
    assert_eq!((leaks(&report), report.undecided_pages), (vec![], 3));
    assert_eq!(snapshot.get(&table, "key").unwrap().as_deref(), Some(&[1; 9_000][..]));
    let lost = lose(&database, 1);
    assert_eq!(database.verify(|_| {}).undecided_pages, 4);
    drop(snapshot);
    let report = database.verify(|_| {});
    assert_eq!((leaks(&report), report.undecided_pages), (vec![(lost, 1)], 0));
}

/// A transaction ends while the verification waits.
#[test]
fn transactions_are_waited_for() {
    let database = create(Options::default());
    let table = database.create_table("table").unwrap();
    table.put("key", vec![1; 9_000]).unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "key", vec![2; 9_000]).unwrap();
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            begins.recv().unwrap();
            thread::sleep(Duration::from_millis(50));
            transaction.rollback().unwrap();
        });
        let report = database.verify(|_| _ = begun.send(()));
        assert_eq!((leaks(&report), report.undecided_pages), (vec![], 0));
    });
}
