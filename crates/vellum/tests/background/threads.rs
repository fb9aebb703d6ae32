//! Intervals of any length, and what becomes known of a panic.

use crate::{hooked::Hooked, options};
use std::{
    collections::BTreeMap,
    future::Future,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};
use vellum::Database;
use vellum_vm::{FileOperation, SimulatedDisk};

/// Whether it becomes true soon.
fn soon(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The result of a future that is ready soon, whichever thread makes it so.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let (mut future, begun) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it waits for ever");
        thread::yield_now();
    }
}

/// A disk on which a thread of this name panics at its next write once the flag is set.
fn panicking(name: &'static str) -> (Arc<Hooked>, Arc<AtomicBool>) {
    panicking_after(name, 0)
}

/// A disk on which a thread of this name panics after so many writes once the flag is set.
fn panicking_after(name: &'static str, writes: usize) -> (Arc<Hooked>, Arc<AtomicBool>) {
    let is_armed = Arc::new(AtomicBool::new(false));
    let (armed, written) = (is_armed.clone(), AtomicUsize::new(0));
    let hooked = Hooked::new(SimulatedDisk::new(1), move || {
        let is_it = thread::current().name() == Some(name) && armed.load(Ordering::SeqCst);
        if is_it && written.fetch_add(1, Ordering::SeqCst) >= writes {
            panic!("planted in {name}");
        }
    });
    (hooked, is_armed)
}

#[test]
fn a_checkpoint_is_taken_for_much_log_if_none_is_for_its_age() {
    for interval in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 62)] {
        let options = options()
            .log_segment_bytes(64 << 10)
            .log_buffer_bytes(4 << 20)
            .checkpoint_log_bytes(256 << 10)
            .checkpoint_interval(interval);
        let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap();
        let table = database.create_table("table").unwrap();
        for number in 0..2000u32 {
            table.put(number.to_be_bytes(), [7; 500]).unwrap();
        }
        // There was a megabyte of it.
        assert!(soon(|| database.log_state().unwrap().log_bytes < 512 << 10), "{:?}", database.log_state());
        assert_eq!(database.log_state().unwrap().checkpoint_error, None);
        drop(table);
        database.close().unwrap();
    }
}

/// The threads of this process that take checkpoints, and the processor time of each, in hundredths of a second.
fn checkpoint_threads() -> BTreeMap<PathBuf, u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let time = |task: &PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        let (_, fields) = stat.split_once("(vellum-checkpoi) ")?;
        Some(fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum())
    };
    tasks.filter_map(|task| time(&task).map(|time| (task, time))).collect()
}

#[test]
fn the_shortest_interval_leaves_the_processor_idle() {
    let options = options().checkpoint_interval(Duration::ZERO);
    let others = checkpoint_threads();
    let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    table.put(b"key", b"value").unwrap();
    assert!(soon(|| database.log_state().unwrap().log_bytes == 0), "{:?}", database.log_state());
    // One of these is the thread of this database, which has a name now. The others have a longer interval.
    let mut threads = checkpoint_threads();
    threads.retain(|thread, _| !others.contains_key(thread));
    thread::sleep(Duration::from_secs(1));
    let spent = checkpoint_threads();
    let spent = threads.iter().filter_map(|(thread, before)| Some(spent.get(thread)? - before)).min();
    assert!(spent.unwrap() < 40, "{spent:?}");
}

#[test]
fn a_panic_of_the_thread_that_takes_checkpoints_is_told() {
    let (disk, is_armed) = panicking("vellum-checkpoint");
    let options = options().checkpoint_interval(Duration::from_millis(1));
    let database = Database::create_in(disk, "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    is_armed.store(true, Ordering::SeqCst);
    table.put(b"key", b"value").unwrap();
    let error = || database.log_state().unwrap().checkpoint_error;
    assert!(soon(|| error().is_some()));
    let told = error().unwrap();
    assert!(told.contains("`vellum-checkpoint` has panicked (planted in vellum-checkpoint)"), "{told}");
    // It stays so, and everything else goes on.
    table.put(b"key", b"later").unwrap();
    assert_eq!(error(), Some(told));
}

#[test]
fn a_panic_of_the_thread_that_archives_is_told() {
    let (archive, is_armed) = panicking("vellum-archive");
    let options = options().log_segment_bytes(64 << 10).log_archive_in(archive);
    let database = Database::create_in(Arc::new(SimulatedDisk::new(1)), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    is_armed.store(true, Ordering::SeqCst);
    for number in 0..500u32 {
        table.put(number.to_be_bytes(), [7; 500]).unwrap();
    }
    let error = || database.log_state().unwrap().archive.unwrap().error;
    assert!(soon(|| error().is_some()));
    let told = error().unwrap();
    assert!(told.contains("`vellum-archive` has panicked (planted in vellum-archive)"), "{told}");
}

/// Whatever that thread was doing, writing the log or making its files: nothing waits for it ever after.
#[test]
fn a_panic_of_the_thread_that_writes_the_log_ends_the_log() {
    for writes in 0..40 {
        let (disk, is_armed) = panicking_after("vellum-log", writes);
        let options = options().log_segment_bytes(64 << 10).background_checkpoints(false);
        let database = Database::create_in(disk, "data", &options).unwrap();
        let table = database.create_table("table").unwrap();
        is_armed.store(true, Ordering::SeqCst);
        let mut number = 0_u32;
        let commit = |number: u32| -> vellum::Result<()> {
            let transaction = database.begin()?;
            // So much that a file of the log has a few of them.
            (0..16).try_for_each(|part| {
                transaction.put(&table, (number * 16 + part).to_be_bytes(), [7; 900]).map(drop)
            })?;
            Ok(ready(transaction.commit_async()?.unwrap())?)
        };
        let error = loop {
            match commit(number) {
                Ok(()) => number += 1,
                Err(error) => break error.to_string(),
            }
            assert!(number < 2000, "after {writes} writes nothing was told");
        };
        assert!(error.contains("panicked"), "after {writes} writes: {error}");
        // Others are told the same.
        assert!(table.put(b"key", b"value").unwrap_err().to_string().contains("panicked"));
    }
}

/// A commit that is waited for does not keep the database open. Nobody flushes the log any more, and another opening may have
/// it.
#[test]
fn a_commit_that_is_not_durable_yet_is_told_when_its_database_goes_without_being_closed() {
    let disk = SimulatedDisk::new(1);
    // A checkpoint would flush the log.
    let options = options().background_checkpoints(false);
    let begin = || {
        let database = Database::open_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let table = database.table("table").unwrap();
        let transaction = database.begin().unwrap();
        transaction.put(&table, b"key", b"value").unwrap();
        let arrival = transaction.commit_async().unwrap().unwrap();
        // After a panic the database is not closed.
        let panicked = thread::spawn(move || {
            let _last = (table, database);
            panic!("of the caller");
        });
        panicked.join().unwrap_err();
        arrival
    };
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    database.create_table("table").unwrap();
    database.close().unwrap();
    let told = ready(begin()).unwrap_err().to_string();
    assert!(told.contains("the database is gone, and was not closed"), "{told}");
    let arrival = begin();
    let writes = disk.counts().of(FileOperation::Write);
    arrival.wait().unwrap_err();
    assert_eq!(disk.counts().of(FileOperation::Write), writes, "it has written to the log of others");
    let database = Database::open_in(Arc::new(disk), "data", &options).unwrap();
    assert!(database.verify(|_| {}).is_clean());
}
