//! What a thread does to a database inside one of its transactions, and not by it: it ends, and says what is wrong.

use crate::support::options;
use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};
use vellum::{Database, Error, ErrorKind, Result, SnapshotLimit, Table, Transaction, TransactionOptions};

type Work = fn(&Database, &Table, &Transaction) -> Result<()>;

fn database() -> (tempfile::TempDir, Database) {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(directory.path().join("database"), &options()).unwrap();
    (directory, database)
}

/// Runs a transaction that would conflict with itself for ever.
fn run(what: &str, work: Work) -> Result<()> {
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    for key in ["hot", "other"] {
        table.put(key, "0").unwrap();
    }
    let attempts = Cell::new(0);
    database.run(|transaction| {
        attempts.set(attempts.get() + 1);
        assert!(attempts.get() < 100, "{what}: it is tried again and again");
        work(&database, &table, transaction)
    })
}

#[test]
fn what_conflicts_with_the_transaction_around_it_says_so() {
    let all: &[(&str, Work)] = &[
        ("an operation of the table", |_, table, transaction| {
            transaction.put(table, "hot", "1")?;
            table.put("hot", "2").map(drop)
        }),
        ("an operation of the table, on a key that is reserved", |_, table, transaction| {
            transaction.get_for_update(table, "none")?;
            table.put("none", "2").map(drop)
        }),
        ("a transaction that is run", |database, table, transaction| {
            transaction.put(table, "hot", "1")?;
            database.run(|inner| inner.put(table, "hot", "2").map(drop))
        }),
        ("a transaction in a transaction in it", |database, table, transaction| {
            transaction.put(table, "hot", "1")?;
            database.run(|inner| {
                inner.put(table, "other", "2")?;
                database.run(|innermost| innermost.remove(table, "hot").map(drop))
            })
        }),
        ("a transaction that is begun", |database, table, transaction| {
            transaction.put(table, "hot", "1")?;
            database.begin()?.put(table, "hot", "2").map(drop)
        }),
        ("an operation of a table that it has created", |_, _, transaction| {
            transaction.create_table("new")?.put("key", "value").map(drop)
        }),
        ("clearing a table that it has changed", |database, table, transaction| {
            transaction.put(table, "hot", "1")?;
            database.clear_table("table")
        }),
        ("dropping a table that it has renamed", |database, _, transaction| {
            transaction.rename_table("table", "elsewhere")?;
            database.rename_table("table", "here")
        }),
        ("changing what an operation has changed inside it", |_, table, transaction| {
            table.put("hot", "1")?;
            transaction.put(table, "hot", "2").map(drop)
        }),
        ("changing what a transaction has changed inside it", |database, table, transaction| {
            database.run(|inner| inner.put(table, "hot", "1").map(drop))?;
            transaction.put(table, "hot", "2").map(drop)
        }),
        ("a transaction that is run, and passes over its conflict", |database, table, transaction| {
            transaction.put(table, "hot", "1")?;
            database.run(|inner| {
                let _ = inner.put(table, "hot", "2");
                inner.put(table, "other", "2").map(drop)
            })
        }),
        ("passing over a conflict with what an operation has changed inside it", |_, table, transaction| {
            table.put("hot", "1")?;
            let _ = transaction.put(table, "hot", "2");
            Ok(())
        }),
    ];
    for (what, work) in all {
        match run(what, *work) {
            Err(error @ Error::OwnConflict { .. }) => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains("a transaction that this thread is running"), "{error}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn what_does_not_conflict_goes_on() {
    let done = run("nothing", |database, table, transaction| {
        transaction.put(table, "hot", "1")?;
        table.put("other", "1")?;
        database.run(|inner| inner.put(table, "third", "1").map(drop))?;
        database.create_table("new").map(drop)
    });
    done.unwrap();
    // A conflict with another transaction is one.
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    let other = database.begin().unwrap();
    other.put(&table, "hot", "1").unwrap();
    let other = Cell::new(Some(other));
    let mut attempts = 0;
    let ran = database.run(|transaction| {
        attempts += 1;
        if attempts == 3 {
            other.take().unwrap().commit()?;
        }
        transaction.put(&table, "own", "1")?;
        table.put("hot", "2").map(drop)
    });
    ran.unwrap();
    assert_eq!((attempts, table.get("hot").unwrap().unwrap()), (3, b"2".to_vec()));
}

#[test]
fn a_conflict_with_another_thread_is_none_with_what_was_committed_inside() {
    let (_directory, database) = database();
    let tables = ["table", "log"].map(|name| database.create_table(name).unwrap());
    let [table, log] = &tables;
    let held = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let held = database.begin().unwrap();
            held.put(table, "hot", "1").unwrap();
            held
        });
        thread.join().unwrap()
    });
    let (held, mut attempts) = (Cell::new(Some(held)), 0_u8);
    let ran = database.run(|transaction| {
        attempts += 1;
        if attempts == 30 {
            held.take().unwrap().commit()?;
        }
        log.put("attempt", [attempts])?;
        transaction.put(table, "hot", "2")
    });
    ran.unwrap();
    assert_eq!((attempts, table.get("hot").unwrap().unwrap()), (31, b"2".to_vec()));
}

#[test]
fn a_conflict_with_what_another_thread_has_committed_is_none_with_what_was_committed_inside() {
    let (_directory, database) = database();
    let tables = ["table", "log"].map(|name| database.create_table(name).unwrap());
    let [table, log] = &tables;
    // Each has changed its record before the run has precedence.
    let held = [(); 30].map(|()| database.begin().unwrap());
    for (number, other) in (1_u8..).zip(&held) {
        other.put(table, [number], "1").unwrap();
    }
    let (mut held, mut attempts) = (held.into_iter(), 0_u8);
    let ran = database.run(|transaction| {
        attempts += 1;
        if let Some(other) = held.next() {
            thread::scope(|scope| scope.spawn(|| other.commit()).join()).unwrap()?;
        }
        log.put("attempt", [attempts])?;
        database.run(|inner| inner.get(table, [attempts]).map(drop))?;
        transaction.put(table, [attempts], "2")
    });
    ran.unwrap();
    assert_eq!((attempts, table.get([30]).unwrap().unwrap()), (31, b"1".to_vec()));
}

#[test]
fn a_run_that_is_given_a_time_ends() {
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    // A conflict with a transaction of this thread is another error.
    let other = thread::scope(|scope| scope.spawn(|| database.begin().unwrap()).join().unwrap());
    other.put(&table, "hot", "1").unwrap();
    let options = TransactionOptions::default().retry_for(std::time::Duration::from_millis(20));
    let mut attempts = 0;
    let ran = database.run_with(options, |transaction| {
        attempts += 1;
        transaction.put(&table, "hot", "2")
    });
    assert!(matches!(ran, Err(Error::Conflict { committed: false, .. })), "{ran:?}");
    assert!(attempts > 1);
    drop(other);
    database.run_with(options, |transaction| transaction.put(&table, "hot", "2")).unwrap();
}

#[test]
fn a_run_that_is_given_a_time_says_that_its_thread_has_begun_the_other_transaction() {
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    let held = database.begin().unwrap();
    let line = line!() - 1;
    held.put(&table, "hot", "1").unwrap();
    held.create_table("new").unwrap();
    for time in [Duration::ZERO, Duration::from_millis(20)] {
        let options = TransactionOptions::default().retry_for(time);
        let mut attempts = 0;
        let put = database.run_with(options, |transaction| {
            attempts += 1;
            transaction.put(&table, "hot", "2").map(drop)
        });
        assert_eq!(attempts > 1, time > Duration::ZERO);
        let created = database.run_with(options, |transaction| transaction.create_table("new").map(drop));
        for error in [put.unwrap_err(), created.unwrap_err()] {
            assert!(matches!(error, Error::HeldByThread { .. }), "{error}");
            assert!(error.to_string().contains(&format!("nested_runs.rs:{line}")), "{error}");
        }
    }
}

/// Runs what conflicts with a transaction that was begun in this line.
fn assert_held((database, table): (&Database, &Table), work: Work, line: u32) {
    let begun = Instant::now();
    let running = || {
        let error = database.run(|transaction| {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is tried again for ever");
            work(database, table, transaction)
        });
        error.unwrap_err()
    };
    let error = running();
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(matches!(error, Error::HeldByThread { .. }), "{error}");
    assert!(error.to_string().contains(&format!("nested_runs.rs:{line}")), "{error}");
}

#[test]
fn a_conflict_about_a_table_with_a_transaction_that_the_thread_has_begun_says_so() {
    let (_directory, database) = database();
    let tables = ["changed", "loaded"].map(|name| database.create_table(name).unwrap());
    let held = database.begin().unwrap();
    let line = line!() - 1;
    held.put(&tables[0], "hot", "1").unwrap();
    let loader = held.bulk_loader(&tables[1]).unwrap();
    let works: [(usize, Work); 4] = [
        (0, |_, _, transaction| transaction.clear_table("changed")),
        (0, |_, _, transaction| transaction.drop_table("changed")),
        (0, |_, table, transaction| transaction.bulk_load(table, [("a", "b")]).map(drop)),
        (1, |_, table, transaction| transaction.put(table, "a", "b").map(drop)),
    ];
    let short = TransactionOptions::default().retry_for(Duration::from_millis(20));
    thread::scope(|scope| {
        // For another thread it is a conflict like any other.
        let other = scope.spawn(|| database.run_with(short, |other| other.clear_table("changed")));
        assert!(matches!(other.join().unwrap(), Err(Error::Conflict { committed: false, .. })));
    });
    for (table, work) in works {
        assert_held((&database, &tables[table]), work, line);
    }
    drop(loader);
    held.rollback().unwrap();
    database.run(|transaction| transaction.clear_table("changed")).unwrap();
}

#[test]
fn a_conflict_with_a_transaction_whose_snapshot_was_ended_says_so_too() {
    let directory = tempfile::tempdir().unwrap();
    let options = options().snapshot_limit(SnapshotLimit::default().bytes(100));
    let database = Database::create(directory.path().join("database"), &options).unwrap();
    let table = database.create_table("table").unwrap();
    let held = database.begin().unwrap();
    let line = line!() - 1;
    held.put(&table, "hot", "1").unwrap();
    (0..100).for_each(|byte| _ = table.put("other", [byte; 100]).unwrap());
    assert_eq!(held.get(&table, "hot").unwrap_err().kind(), ErrorKind::SnapshotTooOld);
    let history = database.history();
    let oldest = history.oldest.unwrap();
    assert_eq!((history.open, oldest.transaction, oldest.begun_at.line()), (1, held.id(), line));
    assert!(history.log_bytes > 0);
    assert_held((&database, &table), |_, table, other| other.put(table, "hot", "2").map(drop), line);
    drop(held);
    let history = database.history();
    assert_eq!((history.open, history.oldest, history.log_bytes), (0, None, 0));
    database.run(|transaction| transaction.put(&table, "hot", "2").map(drop)).unwrap();
}

#[test]
fn a_conflict_with_a_transaction_that_the_thread_has_begun_ends_and_says_so() {
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    table.put("hot", "0").unwrap();
    let held = database.begin().unwrap();
    let line = line!() - 1;
    held.put(&table, "hot", "1").unwrap();
    // Reserving a record is enough, and so is what it does to a table.
    held.get_for_update(&table, "none").unwrap();
    held.create_table("new").unwrap();
    let works: [Work; 3] = [
        |_, table, transaction| transaction.put(table, "hot", "2").map(drop),
        |_, table, transaction| transaction.put(table, "none", "2").map(drop),
        |_, _, transaction| transaction.create_table("new").map(drop),
    ];
    for work in works {
        assert_held((&database, &table), work, line);
    }
    let short = TransactionOptions::default().retry_for(Duration::from_millis(20));
    // For another thread it is a conflict like any other.
    thread::scope(|scope| {
        let other = scope.spawn(|| database.run_with(short, |other| other.put(&table, "hot", "2").map(drop)));
        assert!(matches!(other.join().unwrap(), Err(Error::Conflict { committed: false, .. })));
        // A thread that it was given to ends it.
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(300));
            held.commit().unwrap();
        });
        database.run(|transaction| transaction.put(&table, "hot", "3").map(drop)).unwrap();
    });
    assert_eq!(table.get("hot").unwrap().unwrap(), b"3");
}

/// A reason of the program's own.
#[derive(Debug, PartialEq)]
struct TooFew(u32);

impl std::fmt::Display for TooFew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} are left", self.0)
    }
}

impl std::error::Error for TooFew {}

#[test]
fn work_gives_its_transaction_up_with_an_error_of_its_own() {
    let (_directory, database) = database();
    let table = database.create_table("table").unwrap();
    let attempts = Cell::new(0);
    let given_up = database.run(|transaction| {
        attempts.set(attempts.get() + 1);
        transaction.put(&table, "key", "value")?;
        Err::<(), _>(Error::other(TooFew(3)))
    });
    let error = given_up.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Other, "3 are left".to_owned()));
    let Error::Other(own) = error else { panic!("{error}") };
    assert_eq!(own.downcast_ref(), Some(&TooFew(3)));
    assert_eq!((attempts.get(), table.get("key").unwrap()), (1, None));
    // The key is not kept for it.
    table.put("key", "other").unwrap();
}
