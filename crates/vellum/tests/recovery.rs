//! Databases that were not closed.

use std::sync::Arc;
use vellum::{Database, Durability, Error, Options};
use vellum_vm::SimulatedDisk;

fn options() -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .background_eviction(false)
        .huge_pages(false)
        .background_checkpoints(false)
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    let length = if number.is_multiple_of(97) { 5000 } else { number as usize % 150 };
    vec![number as u8; length]
}

#[test]
fn what_was_done_is_there_after_a_crash() {
    for seed in 0..6 {
        let disk = SimulatedDisk::new(seed);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        let table = database.create_table("table").unwrap();
        for number in 0..3000 {
            table.put(key(number), value(number)).unwrap();
            match (number % 5, number % 1000) {
                (4, _) => assert!(table.remove(key(number - 2)).unwrap()),
                (_, 700) => database.checkpoint().unwrap(),
                _ => {}
            }
        }
        let crashed = disk.crash();
        drop((table, database));
        let database = Database::open_in(Arc::new(crashed.clone()), "data", &options()).unwrap();
        let recovery = database.recovery().unwrap();
        assert!(recovery.records > 100, "{recovery:?}");
        let table = database.table("table").unwrap();
        for number in 0..3000 {
            let expected = (number % 5 != 2).then(|| value(number));
            assert_eq!(table.get(key(number)).unwrap(), expected, "{number} of seed {seed}");
        }
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
        drop(table);
        database.close().unwrap();
        let database = Database::open_in(Arc::new(crashed), "data", &options()).unwrap();
        assert!(database.recovery().is_none());
        assert!(database.verify(|_| {}).is_clean());
    }
}

#[test]
fn without_a_log_a_database_that_was_not_closed_is_refused() {
    let disk = SimulatedDisk::new(1);
    let options = options().log(false);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    assert!(matches!(database.checkpoint(), Err(Error::WithoutLog)));
    database.create_table("table").unwrap().put("key", "value").unwrap();
    let crashed = disk.crash();
    drop(database);
    let refused = Database::open_in(Arc::new(crashed), "data", &options).unwrap_err();
    assert_eq!(refused.kind(), vellum::ErrorKind::NotClosedCleanly);
}

#[test]
fn a_log_can_be_left_out_for_a_while() {
    let disk: Arc<SimulatedDisk> = Arc::new(SimulatedDisk::new(1));
    for round in 0..6u32 {
        let options = options().log(round % 2 == 0).durability(Durability::Deferred);
        let database = match round {
            0 => Database::create_in(disk.clone(), "data", &options).unwrap(),
            _ => Database::open_in(disk.clone(), "data", &options).unwrap(),
        };
        let table = database.table_or_create("table").unwrap();
        for number in 0..500 {
            table.put(key(number), [&round.to_le_bytes()[..], &[7; 100]].concat()).unwrap();
            table.put(key(round * 10_000 + number), value(number)).unwrap();
        }
        drop(table);
        database.close().unwrap();
    }
    let database = Database::open_in(disk, "data", &options()).unwrap();
    let table = database.table("table").unwrap();
    for number in 500..1000 {
        assert_eq!(table.get(key(number)).unwrap(), None);
    }
    assert_eq!(table.get(key(3)).unwrap().unwrap()[..4], 5u32.to_le_bytes());
    assert!(database.verify(|_| {}).is_clean());
}
