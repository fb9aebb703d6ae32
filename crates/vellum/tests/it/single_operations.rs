//! Operations outside of transactions, beside transactions that change other records, and the same.

use crate::asynchronous::block_on;
use crate::support::options;
use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use vellum::{Database, ErrorKind, Put, Table, Task};
use vellum_vm::SimulatedDisk;

fn database(seed: u64) -> (Database, Table) {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

/// Is over when it is dropped, be that because the test fails.
struct Over<'f>(&'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn operations_that_are_begun_together_do_not_conflict_with_transactions_of_other_records() {
    let (database, table) = database(1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                database.run(|transaction| transaction.put(&table, "theirs", "value").map(drop)).unwrap();
                thread::yield_now();
            }
        });
        let _over = Over(&is_over);
        let entries: Vec<_> = (0..200_u32).map(|key| (key.to_be_bytes(), [7; 50])).collect();
        for round in 0..100 {
            for put in table.multi_put(&entries) {
                assert_eq!(put.unwrap(), if round == 0 { Put::Inserted } else { Put::Replaced });
            }
            let mut submissions = table.submissions();
            for (tag, (key, value)) in entries.iter().enumerate() {
                submissions.submit(key, Task::Upsert(value.to_vec()), tag as u64);
            }
            while !submissions.is_empty() {
                submissions.wait();
                submissions.reap(|tag, key, answer| {
                    assert_eq!(key, (tag as u32).to_be_bytes());
                    answer.unwrap();
                });
            }
            for (key, value) in entries.iter().take(20) {
                assert_eq!(block_on(table.put_async(key, value)).unwrap(), Put::Replaced);
            }
        }
    });
    assert_eq!(table.range(..).unwrap().count(), 201);
}

/// Bytes of which the first read makes somebody else store a value under the same key, if that is let.
struct Source<'t> {
    table: &'t Table,
    bytes: io::Chain<io::Take<io::Repeat>, io::Repeat>,
    others: Vec<vellum::Result<Put>>,
}

impl Read for Source<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.others.is_empty() {
            self.others.push(self.table.put("key", "another"));
        }
        self.bytes.read(target)
    }
}

#[test]
fn a_value_that_is_read_from_a_source_is_read_once_whatever_others_change() {
    const LENGTH: u64 = 6000;
    let (database, table) = database(2);
    for is_other_open in [false, true] {
        let other = is_other_open.then(|| database.begin().unwrap());
        let bytes = io::repeat(1).take(LENGTH).chain(io::repeat(2));
        let mut source = Source { table: &table, bytes, others: Vec::new() };
        table.put_from("key", LENGTH, &mut source).unwrap();
        assert_eq!(source.others.pop().unwrap().unwrap_err().kind(), ErrorKind::Conflict);
        assert!(table.get("key").unwrap().unwrap() == [1; LENGTH as usize]);
        table.remove("key").unwrap();
        drop(other);
    }
}

#[test]
fn a_source_is_not_read_as_long_as_another_transaction_has_changed_the_record() {
    let (database, table) = database(3);
    let other = database.begin().unwrap();
    other.put(&table, "key", "theirs").unwrap();
    let mut source = &[1; 6000][..];
    let error = table.put_from("key", 6000, &mut source).unwrap_err();
    assert_eq!((error.kind(), source.len()), (ErrorKind::Conflict, 6000));
    other.commit().unwrap();
    table.put_from("key", 6000, &mut source).unwrap();
    assert!(table.get("key").unwrap().unwrap() == [1; 6000]);
}
