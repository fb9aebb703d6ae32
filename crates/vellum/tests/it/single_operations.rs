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
use vellum::{Answer, Database, Durability, ErrorKind, Put, Table, Task, TransactionOptions, Written};
use vellum_vm::{CrashModel, SimulatedDisk};

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

/// What the closure of a batch commits, in another database or in this one, does not keep the batch from waiting for its
/// own changes.
#[test]
fn batches_are_durable_although_their_closures_commit_other_things() {
    let keys: Vec<[u8; 4]> = (0..100_u32).map(u32::to_be_bytes).collect();
    for (is_other, modifies) in [(true, true), (true, false), (false, true), (false, false)] {
        let disk = SimulatedDisk::new(5);
        let options = options().durability(Durability::Synced);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let (table, log) = (database.create_table("table").unwrap(), database.create_table("log").unwrap());
        let (_second, second) = self::database(6);
        keys.iter().for_each(|key| assert!(table.insert(key, [0]).unwrap()));
        let commit_other = || {
            if is_other {
                second.put("key", "value").unwrap();
            } else {
                let deferred = TransactionOptions::default().durability(Durability::Deferred);
                let transaction = database.begin_with(deferred).unwrap();
                transaction.put(&log, "key", "value").unwrap();
                transaction.commit().unwrap();
            }
        };
        if modifies {
            let change = |_, value: &mut [u8]| value[0] += 1;
            table
                .multi_modify_with(&keys, change, |_, changed| {
                    assert!(changed.unwrap());
                    commit_other();
                })
                .unwrap();
        } else {
            let tasks = keys.iter().map(|key| (key, Task::Upsert([1])));
            table
                .multi_run(tasks, |_, answer| {
                    answer.unwrap();
                    commit_other();
                })
                .unwrap();
        }
        let crashed = disk.crash_with(CrashModel::LoseAll);
        let recovered = Database::open_in(Arc::new(crashed), "data", &options).unwrap();
        let table = recovered.table("table").unwrap();
        for key in &keys {
            assert_eq!(table.get(key).unwrap(), Some(vec![1]), "{key:?}, {is_other}, {modifies}");
        }
    }
}

/// A transaction that begins while a batch is run, and keeps none of its records, is no reason to refuse what is left.
#[test]
fn a_batch_goes_on_although_a_transaction_begins_or_the_table_is_cleared() {
    for clears in [false, true] {
        let (database, table) = database(7);
        let keys: Vec<[u8; 4]> = (0..100_u32).map(u32::to_be_bytes).collect();
        keys.iter().for_each(|key| assert!(table.insert(key, [1]).unwrap()));
        let mut open = None;
        let mut begin = |place: usize| {
            if place == 3 {
                if clears {
                    database.clear_table("table").unwrap();
                }
                open = Some(database.begin().unwrap());
            }
        };
        let mut found = Vec::new();
        table
            .multi_modify_with(
                &keys,
                |_, value| value[0] += 1,
                |place, changed| {
                    found.push(changed.unwrap());
                    begin(place);
                },
            )
            .unwrap();
        assert_eq!(found.len(), keys.len());
        for (key, was_there) in keys.iter().zip(&found) {
            let expected = (*was_there && !clears).then(|| vec![2]);
            assert!(clears || *was_there);
            assert_eq!(table.get(key).unwrap(), expected);
        }
        drop(open);
        let (mut cleared, mut written) = (false, 0);
        let tasks = keys.iter().map(|key| (key, Task::Upsert([7])));
        table
            .multi_run(tasks, |place, answer| {
                answer.unwrap();
                written += 1;
                if place == 3 && !cleared {
                    cleared = true;
                    database.clear_table("table").unwrap();
                }
            })
            .unwrap();
        assert_eq!(written, keys.len());
    }
}

#[test]
fn what_a_batch_begins_after_the_table_was_cleared_uses_its_new_contents() {
    for keeps_snapshot in [false, true] {
        let (database, table) = database(8);
        table.put("key", "old").unwrap();
        let snapshot = keeps_snapshot.then(|| database.begin().unwrap());
        let others: Vec<[u8; 4]> = (0..1000_u32).map(u32::to_be_bytes).collect();
        let last = [Task::Get, Task::Update("newer"), Task::Get, Task::Remove, Task::Get];
        let tasks = others.iter().map(|key| (&key[..], Task::Get));
        // Each in a group of its own.
        let tasks = last.iter().fold(tasks.collect::<Vec<_>>(), |mut tasks, task| {
            tasks.push((b"key", task.by_ref()));
            tasks.extend(others.iter().map(|key| (&key[..], Task::Get)));
            tasks
        });
        let mut answers = Vec::new();
        table
            .multi_run(tasks, |place, answer| {
                if place == 0 {
                    database.clear_table("table").unwrap();
                    table.put("key", "new").unwrap();
                }
                if place >= 1000 && (place - 1000) % 1001 == 0 {
                    answers.push(format!("{:?}", answer.unwrap()));
                }
            })
            .unwrap();
        let value = |text: &str| format!("{:?}", Answer::Value(Some(text.as_bytes())));
        let [replaced, removed] = [Answer::Written(Written::Replaced), Answer::Removed(true)];
        let nothing = format!("{:?}", Answer::Value(None));
        assert_eq!(
            answers,
            [value("new"), format!("{replaced:?}"), value("newer"), format!("{removed:?}"), nothing]
        );
        drop(snapshot);
    }
}

#[test]
fn a_removal_of_a_range_waits_for_a_transaction_in_its_way_and_other_changes_give_up() {
    let (database, table) = database(40);
    (0..10u8).for_each(|key| _ = table.put([key], "value").unwrap());
    let open = database.begin().unwrap();
    open.put(&table, [5], "another").unwrap();
    thread::scope(|scope| {
        let removing = scope.spawn(|| table.remove_range(..));
        thread::sleep(std::time::Duration::from_millis(200));
        assert!(!removing.is_finished(), "it waits");
        assert_eq!(table.remove([5]).unwrap_err().kind(), ErrorKind::Conflict);
        open.commit().unwrap();
        assert_eq!(removing.join().unwrap().unwrap(), 10);
    });
    assert!(table.is_empty().unwrap());
}
