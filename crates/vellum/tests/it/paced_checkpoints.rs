//! A checkpoint in the background takes its time, unless something waits for it.

use crate::support::options;
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use vellum::Database;
use vellum_vm::SimulatedDisk;

/// How many records of 900 bytes there are.
const RECORDS: u64 = 100_000;
/// How many pages a checkpoint has to write at least. After each batch of 128 it pauses for 10 ms.
const PAGES: u64 = RECORDS / 5;
const LONG: Duration = Duration::from_millis(PAGES / 128 * 10);

/// A database in which a checkpoint has begun to write, while nothing is changed any more; how many were taken before; and
/// when it was noticed.
fn with_checkpoint_under_way() -> (Database, u64, Instant) {
    let options = options()
        .pool_bytes(256 << 20)
        .log_segment_bytes(16 << 20)
        .background_checkpoints(true)
        .checkpoint_interval(Duration::MAX)
        .checkpoint_log_bytes(RECORDS * 900);
    let disk = SimulatedDisk::new(31);
    let database = Database::create_in(Arc::new(disk), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    let before = database.statistics();
    let transaction = database.begin().unwrap();
    for number in 0..RECORDS {
        _ = transaction.put(&table, number.to_be_bytes(), [7; 900]).unwrap();
    }
    transaction.commit().unwrap();
    while database.statistics().checkpoint_pages_written == before.checkpoint_pages_written {
        thread::sleep(Duration::from_millis(1));
    }
    let seen = Instant::now();
    assert_eq!(database.statistics().checkpoints, before.checkpoints);
    (database, before.checkpoints, seen)
}

#[test]
fn a_checkpoint_that_nobody_waits_for_takes_its_time() {
    let (database, taken, seen) = with_checkpoint_under_way();
    while database.statistics().checkpoints == taken {
        assert!(seen.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(seen.elapsed() > LONG / 2, "{:?}", seen.elapsed());
    assert!(database.statistics().checkpoint_pages_written >= PAGES);
    database.close().unwrap();
}

#[test]
fn one_that_somebody_waits_for_does_not() {
    let (database, taken, seen) = with_checkpoint_under_way();
    database.checkpoint().unwrap();
    let took = seen.elapsed();
    assert!(took < LONG * 3 / 4, "a checkpoint waited for the one before it: {took:?}");
    assert!(database.statistics().checkpoints >= taken + 2);
    database.close().unwrap();
    let (database, _, seen) = with_checkpoint_under_way();
    database.close().unwrap();
    let took = seen.elapsed();
    assert!(took < LONG * 3 / 4, "closing waited for a checkpoint: {took:?}");
}
