//! Futures of durability, and records that nobody waits for.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};
use vellum_base::Lsn;
use vellum_vm::{Directory, FileOperation, SimulatedDisk};
use vellum_wal::{Arrival, Durability, Log, LogError, LogFlusher, LogOptions, SyncCounts};

fn open(disk: &SimulatedDisk) -> Arc<Log> {
    let options = LogOptions { segment_bytes: 64 << 10, buffer_bytes: 32 << 10, ..LogOptions::new([7; 16]) };
    Arc::new(Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(())).unwrap())
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Awaits all of them on this thread.
fn join(mut arrivals: Vec<Arrival>) -> Vec<Result<(), LogError>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut results = Vec::new();
    while !arrivals.is_empty() {
        arrivals.retain_mut(|arrival| match Pin::new(arrival).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                results.push(result);
                false
            }
            Poll::Pending => true,
        });
        if !arrivals.is_empty() {
            thread::park();
        }
    }
    results
}

#[test]
fn many_futures_arrive_with_few_syncs() {
    let disk = SimulatedDisk::new(1);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let before = disk.counts().of(FileOperation::Sync);
    for _ in 0..10 {
        let arrivals = (0..100).map(|_| flusher.arrival(log.append(&[1; 50]).unwrap(), Durability::Synced));
        assert!(join(arrivals.collect()).into_iter().all(|result| result.is_ok()));
        assert_eq!(log.horizon(Durability::Synced), log.end());
    }
    let syncs = disk.counts().of(FileOperation::Sync) - before;
    assert!(syncs <= 60, "{syncs} syncs for 10 times 100 records");
    // Those of the disk are also of segments that are made, and of the folder.
    assert!((10..=syncs).contains(&log.sync_counts().syncs), "{} of {syncs}", log.sync_counts().syncs);
}

#[test]
fn those_who_wait_when_a_sync_begins_are_counted() {
    let disk = SimulatedDisk::new(7);
    let log = open(&disk);
    log.wait(log.append(b"a thread's").unwrap(), Durability::Synced).unwrap();
    let counts = |syncs, waiting, acknowledged| SyncCounts { syncs, waiting, acknowledged };
    assert_eq!(log.sync_counts(), counts(1, 1, 1));
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let filled = log.append(b"filled").unwrap();
    let hole = log.reserve(4).unwrap();
    // It asks for a sync, which makes the other record durable.
    let mut arrival = flusher.arrival(hole.lsn(), Durability::Synced);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut poll = || Pin::new(&mut arrival).poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    let deadline = Instant::now() + Duration::from_secs(20);
    while log.horizon(Durability::Synced) <= filled {
        assert!(Instant::now() < deadline, "the flusher did not hear");
        thread::sleep(Duration::from_millis(1));
    }
    hole.fill(b"late").unwrap();
    while poll().is_pending() {
        thread::park();
    }
    drop(flusher);
    assert_eq!(log.sync_counts(), counts(3, 3, 2));
}

#[test]
fn a_record_that_a_task_and_a_thread_wait_for_is_counted_once() {
    let disk = SimulatedDisk::new(8);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let hole = log.reserve(4).unwrap();
    let mut arrival = flusher.arrival(hole.lsn(), Durability::Synced);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    assert!(Pin::new(&mut arrival).poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|scope| {
        // The client has no more to do, and waits itself.
        let waits = scope.spawn(|| arrival.wait());
        thread::sleep(Duration::from_millis(50));
        hole.fill(b"late").unwrap();
        waits.join().unwrap().unwrap();
    });
    drop(flusher);
    assert_eq!(log.sync_counts(), SyncCounts { syncs: 1, waiting: 1, acknowledged: 1 });
}

/// Notes on which thread it is called.
#[derive(Default)]
struct Called(Mutex<Vec<String>>);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().push(thread::current().name().unwrap_or_default().to_owned());
    }
}

#[test]
fn only_the_logs_own_thread_wakes_tasks() {
    let disk = SimulatedDisk::new(9);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let called = Arc::new(Called::default());
    let waker = Waker::from(called.clone());
    for round in 0..200 {
        let hole = log.reserve(4).unwrap();
        let mut arrival = flusher.arrival(hole.lsn(), Durability::Synced);
        assert!(Pin::new(&mut arrival).poll(&mut Context::from_waker(&waker)).is_pending());
        thread::scope(|scope| {
            // A checkpoint makes what it needs durable. A waker that closes the database would wait for the checkpoint.
            let checkpoint = thread::Builder::new().name("vellum-checkpoint".to_owned());
            let work = || {
                let lsn = hole.lsn();
                hole.fill(b"late").unwrap();
                log.wait(lsn, Durability::Synced).unwrap();
            };
            checkpoint.spawn_scoped(scope, work).unwrap().join().unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while called.0.lock().unwrap().len() <= round {
            assert!(Instant::now() < deadline, "the task was not woken");
            thread::yield_now();
        }
    }
    let called = called.0.lock().unwrap();
    assert!(called.iter().all(|thread| thread == "vellum-log"), "{called:?}");
}

/// Notes whether it is called inside a waker of the same thread, which may hold locks while it flushes, as a checkpoint does.
struct Nests {
    /// The threads that are inside, and how many calls have ended.
    inside: Arc<Mutex<(Vec<thread::ThreadId>, u32)>>,
    is_nested: Arc<AtomicBool>,
    /// Where it lets another task wait, and then waits for the same record.
    then: Mutex<Option<(Arc<Log>, Arc<LogFlusher>)>>,
}

impl Wake for Nests {
    fn wake(self: Arc<Self>) {
        let own = thread::current().id();
        let mut inside = self.inside.lock().unwrap();
        self.is_nested.fetch_or(inside.0.contains(&own), Ordering::SeqCst);
        inside.0.push(own);
        drop(inside);
        if let Some((log, flusher)) = self.then.lock().unwrap().take() {
            let hole = log.reserve(4).unwrap();
            let lsn = hole.lsn();
            let mut arrival = flusher.arrival(lsn, Durability::Synced);
            let (inside, is_nested) = (self.inside.clone(), self.is_nested.clone());
            let next = Waker::from(Arc::new(Self { inside, is_nested, then: Mutex::default() }));
            assert!(Pin::new(&mut arrival).poll(&mut Context::from_waker(&next)).is_pending());
            hole.fill(b"more").unwrap();
            log.wait(lsn, Durability::Synced).unwrap();
            // It goes on waiting.
            std::mem::forget(arrival);
        }
        let mut inside = self.inside.lock().unwrap();
        inside.0.retain(|thread| *thread != own);
        inside.1 += 1;
    }
}

#[test]
fn a_waker_is_not_called_inside_another_one() {
    // The other task waits for the same log, or for another one.
    for place in [0, 1].repeat(20) {
        let logs = [12, 13].map(|seed| open(&SimulatedDisk::new(seed)));
        let flushers = logs.each_ref().map(|log| Arc::new(LogFlusher::start(log.clone()).unwrap()));
        let (inside, is_nested) = <(Arc<Mutex<(Vec<_>, _)>>, Arc<AtomicBool>)>::default();
        let then = Mutex::new(Some((logs[place].clone(), flushers[place].clone())));
        let nests = Nests { inside: inside.clone(), is_nested: is_nested.clone(), then };
        let hole = logs[0].reserve(4).unwrap();
        let mut arrival = flushers[0].arrival(hole.lsn(), Durability::Synced);
        let waker = Waker::from(Arc::new(nests));
        assert!(Pin::new(&mut arrival).poll(&mut Context::from_waker(&waker)).is_pending());
        hole.fill(b"late").unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while inside.lock().unwrap().1 < 2 {
            assert!(Instant::now() < deadline, "a task was not woken");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_nested.load(Ordering::SeqCst), "in log {place}");
    }
}

#[test]
fn what_nobody_waits_for_is_flushed_when_it_is_asked_for() {
    let disk = SimulatedDisk::new(2);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let (lsn, writes) = (log.append(b"deferred").unwrap(), disk.counts().of(FileOperation::Write));
    thread::sleep(Duration::from_millis(5));
    assert!(log.horizon(Durability::Synced) <= lsn, "nothing is flushed without a reason");
    assert_eq!(disk.counts().of(FileOperation::Write), writes, "nor written");
    log.request_flush(Durability::Synced);
    let deadline = Instant::now() + Duration::from_secs(20);
    while log.horizon(Durability::Synced) <= lsn {
        assert!(Instant::now() < deadline, "the flusher did not hear");
        thread::sleep(Duration::from_millis(1));
    }
    drop(flusher);
    // Without a flusher, waiting works as before.
    let lsn = log.append(b"another").unwrap();
    log.wait(lsn, Durability::Synced).unwrap();
}

#[test]
fn what_is_to_come_soon_comes_together_and_keeps_nobody_waiting() {
    let disk = SimulatedDisk::new(2);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let begun = Instant::now();
    let mut last = log.append(b"first").unwrap();
    while begun.elapsed() < Duration::from_millis(200) {
        last = log.append(b"deferred").unwrap();
        log.request_flush_soon();
        thread::sleep(Duration::from_micros(50));
    }
    let most = begun.elapsed().as_millis() as u64 + 2;
    assert!((2..=most).contains(&log.sync_counts().syncs), "{} syncs in {most} ms", log.sync_counts().syncs);
    // The last ones come too, though nothing else is asked for.
    while log.horizon(Durability::Synced) <= last {
        assert!(begun.elapsed() < Duration::from_secs(20), "the flusher forgot them");
        thread::sleep(Duration::from_millis(1));
    }
    // Those who wait are not kept by its rest.
    log.request_flush_soon();
    let record = log.append(b"synced").unwrap();
    assert!(join(vec![flusher.arrival(record, Durability::Synced)]).into_iter().all(|result| result.is_ok()));
}

#[test]
fn segments_are_made_before_they_are_needed() {
    let disk = SimulatedDisk::new(5);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let (deadline, begin) = (Instant::now() + Duration::from_secs(20), log.end().0);
    for _ in 0..20 {
        log.wait(log.append(&[1; 8000]).unwrap(), Durability::Buffered).unwrap();
        // For the two buffers after what is being written, once one has been.
        let buffers = (32 << 10) + (log.end().0 - begin).min(32 << 10);
        let ahead =
            || disk.names().unwrap().iter().filter(|name| name.starts_with("segment-")).count() as u64;
        while (ahead() + 1) * (60 << 10) < log.end().0 + buffers {
            assert!(Instant::now() < deadline, "{} segments", ahead());
            thread::sleep(Duration::from_millis(1));
        }
    }
    drop(flusher);
}

#[test]
fn a_log_that_remains_short_writes_little() {
    let disk = SimulatedDisk::new(6);
    let options = LogOptions { segment_bytes: 16 << 20, ..LogOptions::new([7; 16]) };
    let log = Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(()));
    let log: Arc<Log> = Arc::new(log.unwrap());
    let flusher = LogFlusher::start(log.clone()).unwrap();
    log.admit().unwrap();
    for _ in 0..10 {
        log.wait(log.append(&[1; 100]).unwrap(), Durability::Synced).unwrap();
    }
    drop(flusher);
    // The headers of the segment and of the buffer, and a record each: a segment that is written in advance takes 16 at least.
    assert_eq!(disk.counts().of(FileOperation::Write), 12);
    // There is room for all that may come before segments are asked for again.
    disk.leave_free(0);
    for _ in 0..100 {
        log.append(&[1; 100_000]).unwrap();
    }
    log.wait(log.append(b"last").unwrap(), Durability::Synced).unwrap();
}

#[test]
fn a_segment_for_which_there_is_no_room_takes_none() {
    let disk = SimulatedDisk::new(9);
    let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::new([7; 16]) };
    let log = Log::open(Arc::new(disk.clone()), &options, Lsn(0), |_| Ok::<_, LogError>(()));
    let log: Arc<Log> = Arc::new(log.unwrap());
    let flusher = LogFlusher::start(log.clone()).unwrap();
    log.admit().unwrap();
    disk.leave_free(300 << 10);
    let deadline = Instant::now() + Duration::from_secs(60);
    while log.admit().is_ok() {
        assert!(Instant::now() < deadline, "there is always room");
        log.wait(log.append(&[1; 8000]).unwrap(), Durability::Buffered).unwrap();
    }
    drop(flusher);
    let names = disk.names().unwrap();
    assert!(!names.iter().any(|name| name == "unfinished"), "{names:?}");
}

#[test]
fn a_failure_reaches_every_future() {
    let disk = SimulatedDisk::new(3);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    disk.fail_nth_of(FileOperation::Sync, 1);
    let arrivals: Vec<_> =
        (0..10).map(|_| flusher.arrival(log.append(b"x").unwrap(), Durability::Synced)).collect();
    for result in join(arrivals) {
        assert!(matches!(result, Err(LogError::OutcomeUnknown { .. })), "{result:?}");
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_future_waiting() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as a runtime may");
        }
    }
    let disk = SimulatedDisk::new(4);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    for _ in 0..20 {
        let mut bad = pin!(flusher.arrival(log.append(b"bad").unwrap(), Durability::Synced));
        let _ = bad.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))));
        let good = flusher.arrival(log.append(b"good").unwrap(), Durability::Synced);
        assert!(join(vec![good]).remove(0).is_ok());
        assert!(log.horizon(Durability::Synced) > bad.lsn());
    }
}

#[test]
fn an_arrival_has_one_waker_and_none_once_it_is_dropped() {
    let disk = SimulatedDisk::new(10);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let _hole = log.reserve(4).unwrap();
    let later = log.append(b"not before the hole").unwrap();
    for durability in [Durability::Buffered, Durability::Synced] {
        let wakers = [(); 2].map(|()| Arc::new(Unpark(thread::current())));
        let mut arrivals: Vec<_> = (0..10).map(|_| flusher.arrival(later, durability)).collect();
        for (waker, others) in [(&wakers[0], &wakers[1]), (&wakers[1], &wakers[0])] {
            for arrival in &mut arrivals {
                let polled = Pin::new(arrival).poll(&mut Context::from_waker(&Waker::from(waker.clone())));
                assert!(polled.is_pending());
            }
            assert_eq!((Arc::strong_count(waker), Arc::strong_count(others)), (11, 1));
        }
        drop(arrivals);
        assert_eq!(Arc::strong_count(&wakers[1]), 1, "{durability:?}");
    }
}

#[test]
fn a_waker_may_drop_the_flusher_on_its_own_thread() {
    struct Drops {
        flusher: Mutex<Option<LogFlusher>>,
        is_done: AtomicBool,
    }
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.flusher.lock().unwrap().take());
            self.is_done.store(true, Ordering::SeqCst);
        }
    }
    let disk = SimulatedDisk::new(11);
    let log = open(&disk);
    let flusher = LogFlusher::start(log.clone()).unwrap();
    let hole = log.reserve(4).unwrap();
    let mut arrival = flusher.arrival(hole.lsn(), Durability::Synced);
    let drops = Arc::new(Drops { flusher: Mutex::new(Some(flusher)), is_done: AtomicBool::new(false) });
    let waker = Waker::from(drops.clone());
    assert!(Pin::new(&mut arrival).poll(&mut Context::from_waker(&waker)).is_pending());
    hole.fill(b"late").unwrap();
    // The thread flushes, and wakes the task.
    log.request_flush(Durability::Synced);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !drops.is_done.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "the flusher's thread waits for itself");
        thread::sleep(Duration::from_millis(1));
    }
    drop((arrival, waker, drops));
    // The thread has ended, and has given the log back.
    while Arc::strong_count(&log) > 1 {
        assert!(Instant::now() < deadline, "the thread goes on");
        thread::sleep(Duration::from_millis(1));
    }
}
