//! Futures and submissions: answers, errors, closing, and other threads that want the same pages.

#[path = "../../../vm/tests/common/refuse.rs"]
mod refuse;

use std::{
    collections::HashMap,
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};
use vellum::{
    Answer, Database, Error, ErrorKind, Options, Put, Statistics, Table, TableFuture, Task, Written,
};
use vellum_vm::{Faults, SimulatedDisk, SimulatedFile};

pub(crate) const KEYS: u64 = 5000;

pub(crate) fn value(key: u64, version: u64) -> Vec<u8> {
    let length = if key.is_multiple_of(101) { 5000 } else { 100 };
    let mut value = vec![key as u8; length];
    value[..8].copy_from_slice(&(key * 1000 + version).to_be_bytes());
    value
}

/// A database of eight times its pool, closed and opened again, so that nothing is in memory.
pub(crate) fn cold(file: &SimulatedFile) -> (Database, Table) {
    let options = Options::default().pool_bytes(64 * 4096).capacity_bytes(1 << 30);
    let database = Database::create_on(Arc::new(file.clone()), &options).unwrap();
    let table = database.create_table("t").unwrap();
    let entries: Vec<_> = (0..KEYS).map(|key| (key.to_be_bytes(), value(key, 1))).collect();
    assert!(table.multi_put(&entries).into_iter().all(|put| put.unwrap() == Put::Inserted));
    drop(table);
    database.close().unwrap();
    let database = Database::open_on(Arc::new(file.clone()), &options).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

/// The simplest runtime there is: a thread that sleeps until it is woken.
pub(crate) struct Unpark(pub(crate) thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Awaits all futures, of which many are under way at once.
fn join_all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<_> = futures.iter().map(|_| None).collect();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while outputs.iter().any(Option::is_none) {
        for (slot, output) in futures.iter_mut().zip(&mut outputs) {
            let Some(future) = slot else { continue };
            if let Poll::Ready(ready) = Pin::new(future).poll(&mut Context::from_waker(&waker)) {
                (*output, *slot) = (Some(ready), None);
            }
        }
        if outputs.iter().any(Option::is_none) {
            thread::park();
        }
    }
    outputs.into_iter().flatten().collect()
}

/// A change outside of transactions that meets an open one must leave its thread to the task of that transaction.
#[test]
fn a_change_that_is_in_the_way_of_a_transaction_waits_as_a_task() {
    let database = Database::create_on(Arc::new(SimulatedFile::new(1)), &Options::default()).unwrap();
    let table = database.create_table("t").unwrap();
    table.put("k", "old").unwrap();
    for round in 0..20 {
        table.put("other", "old").unwrap();
        let transaction = database.begin().unwrap();
        transaction.put(&table, "k", "transaction's").unwrap();
        transaction.put(&table, "other", "transaction's").unwrap();
        let mut change = pin!(table.put_async("k", "future's"));
        // Of another record: which of two changes that wait comes first is not told.
        let mut removal = pin!(table.remove_async("other"));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let context = &mut Context::from_waker(&waker);
        // Blocked by a busy machine, it may be over after 20 ms.
        let begun = Instant::now();
        let is_quick = || begun.elapsed() < Duration::from_millis(10);
        let (changed, removed) = (change.as_mut().poll(context), removal.as_mut().poll(context));
        if is_quick() {
            assert!(changed.is_pending() && removed.is_pending(), "round {round}");
        }
        transaction.commit().unwrap();
        let is_told = is_quick();
        // Also if it takes longer: neither goes on in the next round.
        let changed = if let Poll::Ready(changed) = changed { changed } else { block_on(change) };
        let removed = if let Poll::Ready(removed) = removed { removed } else { block_on(removal) };
        if is_told {
            assert_eq!((changed.unwrap(), removed.unwrap()), (Put::Replaced, true));
        }
    }
    let transaction = database.begin().unwrap();
    transaction.put(&table, "k", "transaction's").unwrap();
    assert!(matches!(block_on(table.put_async("k", "late")), Err(Error::Conflict { .. })));
    drop(transaction);
    drop(table);
    database.close().unwrap();
}

#[test]
fn futures_answer_as_the_calls_do_and_the_database_can_be_closed_behind_them() {
    for round in 0..20 {
        let file = SimulatedFile::new(round);
        let (database, table) = cold(&file);
        file.set_faults(Faults { delay_max: Duration::from_micros(20), ..Faults::default() });
        let keys: Vec<u64> = (0..KEYS + 10).step_by(97 + round as usize).collect();
        let found = join_all(keys.iter().map(|key| table.get_async(key.to_be_bytes())).collect());
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found.unwrap(), (*key < KEYS).then(|| value(*key, 1)));
        }
        let updates: Vec<_> =
            (0..KEYS).step_by(61).map(|key| table.update_async(key.to_be_bytes(), value(key, 2))).collect();
        assert!(join_all(updates).into_iter().all(|updated| updated.unwrap()));
        assert_eq!(block_on(table.put_async([9; 9], "new")).unwrap(), Put::Inserted);
        assert!(!block_on(table.insert_async([9; 9], "again")).unwrap());
        assert!(block_on(table.remove_async(0u64.to_be_bytes())).unwrap());
        assert!(!block_on(table.remove_async(0u64.to_be_bytes())).unwrap());
        drop(table);
        // Everything was awaited: nothing uses the database any more.
        database.close().unwrap();
    }
}

#[test]
fn what_is_in_memory_is_there_at_the_first_poll() {
    let file = SimulatedFile::new(30);
    let (_database, table) = cold(&file);
    let key = 77u64.to_be_bytes();
    table.get(key).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(table.get_async(key));
    let Poll::Ready(found) = future.as_mut().poll(&mut context) else { panic!("it had to wait") };
    assert_eq!(found.unwrap(), Some(value(77, 1)));
    // What is not has to wait, once.
    let held = file.hold_reads();
    let mut future = pin!(table.get_async(4000u64.to_be_bytes()));
    assert!(future.as_mut().poll(&mut context).is_pending());
    drop(held);
    assert_eq!(block_on(future).unwrap(), Some(value(4000, 1)));
}

#[test]
fn futures_of_a_transaction_answer_as_its_calls_do() {
    for round in 0..5 {
        let file = SimulatedFile::new(40 + round);
        let (database, table) = cold(&file);
        file.set_faults(Faults { delay_max: Duration::from_micros(20), ..Faults::default() });
        let transaction = database.begin().unwrap();
        table.update(5u64.to_be_bytes(), value(5, 7)).unwrap();
        let keys: Vec<u64> = (0..KEYS + 10).step_by(97 + round as usize).chain([5]).collect();
        let futures = keys.iter().map(|key| transaction.get_async(&table, key.to_be_bytes())).collect();
        for (key, found) in keys.iter().zip(join_all(futures)) {
            assert_eq!(found.unwrap(), (*key < KEYS).then(|| value(*key, 1)), "as it was when it began");
        }
        let changed: Vec<u64> = (0..KEYS).step_by(61).filter(|key| *key != 5).collect();
        let update = |key: &u64| transaction.update_async(&table, key.to_be_bytes(), value(*key, 2));
        assert!(join_all(changed.iter().map(update).collect()).into_iter().all(|updated| updated.unwrap()));
        assert_eq!(block_on(transaction.put_async(&table, [9; 9], "new")).unwrap(), Put::Inserted);
        assert!(!block_on(transaction.insert_async(&table, [9; 9], "again")).unwrap());
        assert!(block_on(transaction.insert_async(&table, "large", vec![1; 50_000])).unwrap());
        assert!(block_on(transaction.remove_async(&table, 1u64.to_be_bytes())).unwrap());
        assert!(!block_on(transaction.remove_async(&table, 1u64.to_be_bytes())).unwrap());
        assert!(!block_on(transaction.update_async(&table, 1u64.to_be_bytes(), "")).unwrap());
        assert_eq!(block_on(transaction.get_async(&table, "large")).unwrap().unwrap(), vec![1; 50_000]);
        let reserved = block_on(transaction.get_for_update_async(&table, 4001u64.to_be_bytes()));
        assert_eq!(reserved.unwrap(), Some(value(4001, 1)));
        assert!(matches!(table.remove(4001u64.to_be_bytes()), Err(Error::Conflict { .. })));
        assert_eq!(table.get(61u64.to_be_bytes()).unwrap(), Some(value(61, 1)));
        // What is dropped while it waits has done nothing.
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = 0;
        for key in (2..KEYS).step_by(61) {
            let mut future = pin!(transaction.put_async(&table, key.to_be_bytes(), "dropped"));
            match future.as_mut().poll(&mut context) {
                Poll::Pending => {
                    waiting += 1;
                    let seen = transaction.get(&table, key.to_be_bytes()).unwrap();
                    assert!(seen.is_none_or(|seen| seen != b"dropped"));
                }
                Poll::Ready(put) => _ = put.unwrap(),
            }
        }
        assert!(waiting > 10, "nothing had to wait");
        let long = block_on(transaction.put_async(&table, vec![0; 2000], "")).unwrap_err();
        assert_eq!(long.kind(), ErrorKind::InvalidInput);
        let conflict = block_on(transaction.put_async(&table, 5u64.to_be_bytes(), "")).unwrap_err();
        assert!(matches!(conflict, Error::Conflict { committed: true, .. }));
        assert!(matches!(block_on(transaction.get_async(&table, "large")), Err(Error::Ended)));
        drop(transaction);
        let transaction = database.begin().unwrap();
        assert!(
            join_all(
                changed
                    .iter()
                    .map(|key| transaction.update_async(&table, key.to_be_bytes(), value(*key, 3)))
                    .collect()
            )
            .into_iter()
            .all(|updated| updated.unwrap())
        );
        assert!(transaction.commit_async().unwrap().is_none(), "there is no log");
        assert_eq!(table.get(61u64.to_be_bytes()).unwrap(), Some(value(61, 3)));
        drop(table);
        database.close().unwrap();
    }
}

/// A waker of a runtime that is being shut down, say.
struct Panics(mpsc::Sender<()>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
        panic!("this waker panics");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_future_waiting() {
    let file = SimulatedFile::new(34);
    let (database, table) = cold(&file);
    for round in 0..3u64 {
        let held = file.hold_reads();
        let (sender, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Panics(sender)));
        let mut context = Context::from_waker(&waker);
        let mut future = Box::pin(table.get_async((1000 + 500 * round).to_be_bytes()));
        assert!(future.as_mut().poll(&mut context).is_pending());
        drop(held);
        // Beside it, and after it.
        let beside = table.get_async((3000 + 500 * round).to_be_bytes());
        assert_eq!(block_on(beside).unwrap(), Some(value(3000 + 500 * round, 1)));
        woken.recv().unwrap();
        assert_eq!(block_on(table.get_async([0; 8])).unwrap(), Some(value(0, 1)));
        // The answer is there for whoever asks again.
        assert_eq!(block_on(future).unwrap(), Some(value(1000 + 500 * round, 1)));
    }
    drop(table);
    database.close().unwrap();
}

/// Drops futures that wait.
struct Drops(Mutex<Vec<TableFuture<Option<Vec<u8>>>>>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let dropped = std::mem::take(&mut *self.0.lock().unwrap());
        drop(dropped);
    }
}

#[test]
fn what_was_dropped_before_its_turn_is_not_read() {
    let file = SimulatedFile::new(35);
    let (database, table) = cold(&file);
    let held = file.hold_reads();
    let mut first = Box::pin(table.get_async([0; 8]));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let drops = Arc::new(Drops(Mutex::default()));
    let waker = Waker::from(drops.clone());
    for key in 0..KEYS {
        let mut future = table.get_async(key.to_be_bytes());
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        drops.0.lock().unwrap().push(future);
    }
    // The first of them that is done drops the others.
    drop(held);
    assert_eq!(block_on(first).unwrap(), Some(value(0, 1)));
    assert_eq!(block_on(table.get_async((KEYS - 1).to_be_bytes())).unwrap(), Some(value(KEYS - 1, 1)));
    let Statistics { pages_read, pages_allocated, .. } = database.statistics();
    assert!(pages_read < pages_allocated / 2, "{pages_read} of {pages_allocated}");
}

#[test]
fn futures_that_are_dropped_harm_nobody() {
    let file = SimulatedFile::new(31);
    let (database, table) = cold(&file);
    let mut context = Context::from_waker(Waker::noop());
    for key in (0..KEYS).step_by(13) {
        let mut future = table.get_async(key.to_be_bytes());
        let _ = Pin::new(&mut future).poll(&mut context);
    }
    drop(table.get_async("never polled"));
    assert_eq!(block_on(table.get_async(4999u64.to_be_bytes())).unwrap(), Some(value(4999, 1)));
    drop(table);
    // The driver may still be at work on futures that were dropped.
    let mut database = database;
    while let Err(error) = database.close_in_place() {
        assert!(matches!(error, Error::StillInUse { .. }), "{error}");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(database.verify(|_| {}).is_clean());
}

#[test]
fn a_value_larger_than_the_pool_is_read_past_it() {
    let (database, table) = cold(&SimulatedFile::new(3));
    // The pool has 256 KiB.
    let contents: Vec<u8> = (0..2_000_000u32).map(|index| (index ^ index >> 11) as u8).collect();
    table.put_from("large", contents.len() as u64, &mut &contents[..]).unwrap();
    let (large, small) = (table.get_async("large"), table.get_async(1000u64.to_be_bytes()));
    assert!(block_on(large).unwrap().unwrap() == contents);
    assert!(block_on(small).unwrap().is_some());
    drop(table);
    database.close().unwrap();
}

#[test]
fn errors_reach_who_awaits() {
    let file = SimulatedFile::new(32);
    let (database, table) = cold(&file);
    let too_long = block_on(table.get_async([7; 2000])).unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::InvalidInput);
    file.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    let failed = join_all((0..KEYS).step_by(500).map(|key| table.get_async(key.to_be_bytes())).collect());
    assert!(failed.into_iter().all(|found| found.unwrap_err().kind() == ErrorKind::Io));
    file.heal();
    assert!(block_on(table.get_async(1u64.to_be_bytes())).unwrap().is_some());
    drop(table);
    database.close().unwrap();
}

/// The last handles go in the driver's own thread.
#[test]
fn the_driver_may_be_the_last_to_leave() {
    struct Send(Mutex<Option<Table>>, mpsc::Sender<()>);
    impl Wake for Send {
        fn wake(self: Arc<Self>) {
            // Runs in the driver's thread.
            drop(self.0.lock().unwrap().take());
            self.1.send(()).unwrap();
        }
    }
    let file = SimulatedFile::new(33);
    let (database, table) = cold(&file);
    let held = file.hold_reads();
    let (sender, receiver) = mpsc::channel();
    let waker = Waker::from(Arc::new(Send(Mutex::new(Some(table.clone())), sender)));
    let mut future = table.get_async(3000u64.to_be_bytes());
    drop((table, database));
    assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    drop((future, held));
    receiver.recv_timeout(Duration::from_secs(10)).expect("it is woken all the same");
}

#[test]
fn an_event_loop_submits_polls_and_reaps() {
    let file = SimulatedFile::new(40);
    let (database, table) = cold(&file);
    let mut submissions = table.submissions();
    let mut expected: HashMap<u64, Option<Vec<u8>>> = HashMap::new();
    for key in (0..KEYS + 50).step_by(7) {
        submissions.submit_get(key.to_be_bytes(), key);
        expected.insert(key, (key < KEYS).then(|| value(key, 1)));
    }
    submissions.submit("new", Task::Upsert("value".into()), u64::MAX);
    assert_eq!(submissions.len(), expected.len() + 1);
    let mut turns = 0;
    while !submissions.is_empty() {
        submissions.poll();
        turns += 1;
        // Another thread wants pages that may be under way.
        let key = turns % KEYS;
        assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value(key, 1)));
        submissions.reap(|tag, key, answer| match answer.unwrap() {
            Answer::Written(written) => {
                assert_eq!((tag, key, written), (u64::MAX, &b"new"[..], Written::Inserted))
            }
            Answer::Value(value) => {
                assert_eq!(key, tag.to_be_bytes());
                assert_eq!(expected.remove(&tag).unwrap().as_deref(), value);
            }
            Answer::Removed(_) => panic!("nothing was to be removed"),
        });
    }
    assert!(expected.is_empty());
    drop(submissions);
    drop(table);
    database.close().unwrap();
}

#[test]
fn a_submission_gets_a_value_for_which_the_pool_has_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().pool_bytes(64 << 10).capacity_bytes(1 << 30);
    let database = Database::create(directory.path().join("data"), &options).unwrap();
    let table = database.create_table("table").unwrap();
    let lengths = [62_000_usize, 140_000, 1_000_000];
    for length in lengths {
        table.put((length as u64).to_be_bytes(), vec![7; length]).unwrap();
    }
    let mut submissions = table.submissions();
    for length in lengths {
        submissions.submit_get((length as u64).to_be_bytes(), length as u64);
    }
    let mut count = 0;
    while count < lengths.len() {
        submissions.wait();
        count += submissions.reap(|length, _, answer| match answer.unwrap() {
            Answer::Value(value) => assert_eq!(value, Some(&vec![7; length as usize][..])),
            other => panic!("{other:?}"),
        });
    }
}

/// Two loops, each of which waits for what the other has under way and never polls.
#[test]
fn loops_that_do_not_poll_keep_nobody_waiting() {
    let file = SimulatedFile::new(41);
    let (_database, table) = cold(&file);
    table.get(0u64.to_be_bytes()).unwrap();
    let (mut first, mut second) = (table.submissions(), table.submissions());
    for step in 0..8u64 {
        first.submit_get((step * 600).to_be_bytes(), step);
        second.submit_get((step * 600 + 300).to_be_bytes(), step);
    }
    (0..6).for_each(|_| (first.poll(), second.poll()).0);
    for step in 0..8u64 {
        for key in [step * 600, step * 600 + 300] {
            assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value(key, 1)));
        }
        second.submit_get((step * 600).to_be_bytes(), 100 + step);
    }
    for submissions in [&mut second, &mut first] {
        while !submissions.is_empty() {
            submissions.wait();
            submissions.reap(|_, key, answer| {
                let key = u64::from_be_bytes(key.try_into().unwrap());
                assert_eq!(answer.unwrap(), Answer::Value(Some(&value(key, 1))));
            });
        }
    }
}

#[test]
fn a_value_in_memory_is_ready_whatever_the_thread_has_changed_before() {
    let disk = Arc::new(SimulatedDisk::new(31));
    let database = Database::create_in(disk, "data", &crate::support::options()).unwrap();
    let table = database.create_table("t").unwrap();
    table.put("a", "1").unwrap();
    let transaction = database.begin().unwrap();
    transaction.put(&table, "b", "2").unwrap();
    let mut future = pin!(table.get_async("a"));
    let answer = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(&answer, Poll::Ready(Ok(Some(value))) if **value == *b"1"), "{answer:?}");
}

/// The driver would keep the reads of all tasks waiting, and that transaction with them.
#[test]
fn a_change_waits_for_a_transaction_where_it_is_polled() {
    let (database, table) = cold(&SimulatedFile::new(36));
    let [key, other] = [1000_u64, 4000].map(u64::to_be_bytes);
    let transaction = database.begin().unwrap();
    transaction.put(&table, key, "theirs").unwrap();
    let mut waits = Box::pin(table.remove_async(key));
    let mut free = Box::pin(table.remove_async(2000_u64.to_be_bytes()));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(context).is_pending());
    // Nothing is in its way: if the driver reads its page at once, it is done.
    let polled = free.as_mut().poll(context);
    assert!(block_on(table.get_async(other)).unwrap().is_some());
    // Longer than a change waits for another transaction.
    thread::sleep(Duration::from_millis(60));
    transaction.commit().unwrap();
    assert!(block_on(waits).unwrap());
    assert!(match polled {
        Poll::Ready(removed) => removed.unwrap(),
        Poll::Pending => block_on(free).unwrap(),
    });
    assert!(block_on(table.get_async(key)).unwrap().is_none());
}

#[test]
fn a_record_is_reserved_when_its_leaf_is_in_memory() {
    let file = SimulatedFile::new(37);
    let (database, table) = cold(&file);
    let transaction = database.begin().unwrap();
    let key = 3000_u64.to_be_bytes();
    let held = file.hold_reads();
    let mut reserved = pin!(transaction.get_for_update_async(&table, key));
    assert!(reserved.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(held);
    assert_eq!(block_on(reserved).unwrap(), Some(value(3000, 1)));
    assert_eq!(table.remove(key).unwrap_err().kind(), ErrorKind::Conflict);
    transaction.rollback().unwrap();
    assert!(table.remove(key).unwrap());
}

/// The read of a future that cannot be handed to the driver is done where the future is polled. That is so only as long as the
/// system has no room for a thread.
#[test]
fn a_driver_that_could_not_be_started_is_started_later() {
    let file = SimulatedFile::new(38);
    let (database, table) = cold(&file);
    let alone = table.clone();
    let read = thread::spawn(move || {
        for call in [libc::SYS_clone3, libc::SYS_clone] {
            refuse::refuse(call, libc::EAGAIN);
        }
        block_on(alone.get_async(3000_u64.to_be_bytes()))
    });
    assert_eq!(read.join().unwrap().unwrap(), Some(value(3000, 1)));
    let (held, later) = (file.hold_reads(), table.clone());
    let (sender, polled) = mpsc::channel();
    let read = thread::spawn(move || {
        let mut future = Box::pin(later.get_async(4000_u64.to_be_bytes()));
        let answer = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        sender.send(answer.is_pending()).unwrap();
        block_on(future)
    });
    assert_eq!(
        polled.recv_timeout(Duration::from_secs(20)),
        Ok(true),
        "it is polled, and waits for the read"
    );
    drop(held);
    assert_eq!(read.join().unwrap().unwrap(), Some(value(4000, 1)));
    drop(table);
    database.close().unwrap();
}
