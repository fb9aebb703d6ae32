//! Waiting for the transaction with which there was a conflict.

use crate::{asynchronous::block_on, support::options};
use std::{
    future::Future,
    iter,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};
use vellum::{Database, Error, Result, Table, TransactionOptions};
use vellum_vm::{FileOperation, SimulatedDisk};

/// A time that is not over in this test.
const LONG: Duration = Duration::from_secs(60);

fn database(seed: u64) -> (Database, Table) {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", &options()).unwrap();
    let table = database.create_table("table").unwrap();
    table.put("key", "0").unwrap();
    (database, table)
}

#[test]
fn a_transaction_is_run_again_when_the_other_one_has_ended() {
    let (database, table) = database(1);
    for ends in ["committed", "rolled back"] {
        let other = database.begin().unwrap();
        other.put(&table, "key", "1").unwrap();
        let attempts = AtomicU32::new(0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                database.run(|transaction| {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    transaction.put(&table, "key", "2")
                })
            });
            let begun = Instant::now();
            while attempts.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(30));
            if ends == "committed" {
                other.commit().unwrap()
            } else {
                other.rollback().unwrap()
            }
            waiting.join().unwrap().unwrap();
            // It waits for 100 ms at most. On a busy machine this may have taken longer.
            let attempts = attempts.load(Ordering::Relaxed);
            let more = begun.elapsed().as_millis() as u32 / 100;
            assert!((2..=2 + more).contains(&attempts), "{ends}: {attempts} attempts");
        });
        assert_eq!(table.get("key").unwrap().unwrap(), b"2");
    }
}

#[test]
fn a_task_is_run_again_when_the_other_one_has_ended() {
    let (database, table) = database(2);
    let other = database.begin().unwrap();
    other.put(&table, "key", "1").unwrap();
    let attempts = AtomicU32::new(0);
    let run = database.run_async(|transaction| {
        let (attempts, table) = (&attempts, &table);
        async move {
            attempts.fetch_add(1, Ordering::Relaxed);
            transaction.put_async(table, "key", "2").await
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while attempts.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(30));
            other.commit().unwrap();
        });
        runtime.block_on(run).unwrap();
    });
    assert_eq!(attempts.into_inner(), 2);
    assert_eq!(table.get("key").unwrap().unwrap(), b"2");
}

#[test]
fn all_that_wait_for_one_go_on_and_none_is_lost() {
    const THREADS: u32 = 6;
    let (database, table) = database(3);
    let other = database.begin().unwrap();
    other.put(&table, "key", [0; 4]).unwrap();
    let (attempts, done) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                database
                    .run(|transaction| {
                        attempts.fetch_add(1, Ordering::Relaxed);
                        transaction.update_with(&table, "key", |value| {
                            let number =
                                value.and_then(|value| Some(u32::from_le_bytes(value.try_into().ok()?)));
                            Some((number.unwrap_or_default() + 1).to_le_bytes().to_vec())
                        })
                    })
                    .unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while attempts.load(Ordering::Relaxed) < THREADS {
            thread::yield_now();
        }
        assert_eq!(done.load(Ordering::Relaxed), 0);
        other.commit().unwrap();
    });
    assert_eq!(table.get("key").unwrap().unwrap(), THREADS.to_le_bytes());
}

#[test]
fn single_operations_wait_as_well() {
    let (database, table) = database(7);
    let wait_once = || {
        let other = database.begin().unwrap();
        let other_id = other.id();
        other.put(&table, "key", "1").unwrap();
        let begun = Instant::now();
        let done = thread::scope(|scope| {
            let waiting = scope.spawn(|| table.put("key", "2"));
            thread::sleep(Duration::from_millis(10));
            other.commit().unwrap();
            waiting.join().unwrap()
        });
        let attempts = database.begin().unwrap().id() - other_id - 1;
        (done, attempts, begun.elapsed())
    };
    // On a busy machine it may take longer than a single operation waits.
    let timely = || Some(wait_once()).filter(|(.., elapsed)| *elapsed < Duration::from_millis(20));
    let (done, attempts, _) = iter::repeat_with(timely).take(100).flatten().next().unwrap();
    done.unwrap();
    assert_eq!(table.get("key").unwrap().unwrap(), b"2");
    assert!(attempts <= 3, "{attempts} attempts");
}

#[test]
fn one_that_waits_for_an_idle_transaction_does_not_hold_up_others() {
    let (database, table) = database(6);
    let commits_within = |time: Duration| {
        let start = Instant::now();
        let mut commits = 0;
        while start.elapsed() < time {
            database.run(|transaction| transaction.put(&table, "other", "1")).unwrap();
            commits += 1;
        }
        commits
    };
    let idle = database.begin().unwrap();
    idle.put(&table, "key", "1").unwrap();
    let before = commits_within(Duration::from_millis(300));
    let during = thread::scope(|scope| {
        scope.spawn(|| database.run(|transaction| transaction.put(&table, "key", "2")).unwrap());
        let during = commits_within(Duration::from_millis(300));
        idle.commit().unwrap();
        during
    });
    assert!(during * 3 > before, "{during} transactions, and {before} without the one that waits");
}

#[test]
fn programs_that_begin_transactions_themselves_can_wait() {
    let (database, table) = database(4);
    let other = database.begin().unwrap();
    other.put(&table, "key", "1").unwrap();
    let refused = database.begin().unwrap();
    let conflict = refused.put(&table, "key", "2").unwrap_err();
    assert!(matches!(conflict, Error::Conflict { committed: false, .. }));
    refused.rollback().unwrap();
    // The time is over first.
    assert!(database.wait_for_other(&conflict, Duration::from_millis(5)).is_none());
    thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..2).map(|_| scope.spawn(|| database.wait_for_other(&conflict, LONG).is_some())).collect();
        thread::sleep(Duration::from_millis(30));
        other.commit().unwrap();
        // Those that come too late are told at once that there is nothing to wait for.
        waiting.into_iter().for_each(|waiting| _ = waiting.join().unwrap());
    });
    assert!(database.wait_for_other(&conflict, LONG).is_none());
    assert!(database.wait_for_other(&Error::NoSuchSavepoint, LONG).is_none());
    // What was changed by another transaction that is committed is nothing to wait for.
    let (old, new) = (database.begin().unwrap(), database.begin().unwrap());
    new.put(&table, "key", "3").unwrap();
    new.commit().unwrap();
    let conflict = old.put(&table, "key", "4").unwrap_err();
    assert!(matches!(conflict, Error::Conflict { committed: true, .. }));
    assert!(database.wait_for_other(&conflict, LONG).is_none());
}

#[test]
fn a_limit_of_time_ends_the_wait() {
    let (database, table) = database(5);
    let other = database.begin().unwrap();
    other.put(&table, "key", "1").unwrap();
    let options = TransactionOptions::default().retry_for(Duration::from_millis(20));
    let refused = thread::scope(|scope| {
        scope
            .spawn(|| database.run_with(options, |transaction| transaction.put(&table, "key", "2")))
            .join()
            .unwrap()
    });
    assert!(matches!(refused, Err(Error::Conflict { committed: false, .. })));
    // Tables that another transaction is changing are waited for as well.
    other.create_table("new").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| database.create_table("new").map(drop));
        thread::sleep(Duration::from_millis(10));
        other.rollback().unwrap();
        _ = waiting.join().unwrap();
    });
}

#[test]
fn a_transaction_whose_work_passes_over_its_conflict_is_run_again() {
    let (database, table) = database(6);
    for (what, end) in [("nothing", Ok(())), ("Ended", Err(()))] {
        let (other, attempts) = (Mutex::new(Some(database.begin().unwrap())), AtomicU32::new(0));
        other.lock().unwrap().as_ref().unwrap().put(&table, "key", "1").unwrap();
        let run = || {
            database.run(|transaction| {
                // The first conflict is with a transaction that is open, and the second with one that is committed.
                match attempts.fetch_add(1, Ordering::Relaxed) {
                    0 => _ = transaction.put(&table, "key", "2"),
                    1 => {
                        thread::scope(|scope| {
                            scope.spawn(|| other.lock().unwrap().take().unwrap().commit().unwrap());
                        });
                        _ = transaction.put(&table, "key", "3");
                    }
                    _ => return transaction.put(&table, "key", "4").map(drop),
                }
                end.map_err(|()| Error::Ended)
            })
        };
        run().unwrap_or_else(|error| panic!("{what} was returned: {error}"));
        assert_eq!((attempts.into_inner(), table.get("key").unwrap()), (3, Some(b"4".to_vec())));
    }
    // An error of another transaction is no conflict of this one.
    let mut attempts = 0;
    let ended = database.run(|_| {
        attempts += 1;
        Err::<(), _>(Error::Ended)
    });
    assert!(matches!(ended, Err(Error::Ended)));
    assert_eq!(attempts, 1);
}

type Task = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A task that is run at once by the thread that wakes it, as some runtimes do.
struct AtOnce {
    task: Mutex<Option<Task>>,
    /// How often it was woken.
    woken: AtomicU32,
    done: mpsc::Sender<Result<()>>,
}

impl AtOnce {
    /// Runs it for the first time.
    fn begin(
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) -> (Arc<Self>, mpsc::Receiver<Result<()>>) {
        let (done, outcome) = mpsc::channel();
        let task = Arc::new(Self { task: Mutex::new(Some(Box::pin(task))), woken: AtomicU32::new(0), done });
        task.clone().wake();
        (task, outcome)
    }
}

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        let waker = Waker::from(self.clone());
        // A thread that wakes it while it runs leaves it to the one that runs it.
        while let Ok(mut task) = self.task.try_lock() {
            let woken = self.woken.load(Ordering::SeqCst);
            let Some(running) = &mut *task else { return };
            if let Poll::Ready(done) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                *task = None;
                // The test may be over.
                let _ = self.done.send(done);
                return;
            }
            drop(task);
            if self.woken.load(Ordering::SeqCst) == woken {
                return;
            }
        }
    }
}

/// Both wait for one transaction. The first lets the second go on, which runs in its thread, and makes a change of its own.
#[test]
fn a_change_that_lets_the_next_one_go_on_waits_for_the_log_all_the_same() {
    let mut rounds = 0..100;
    loop {
        assert!(rounds.next().is_some(), "the second one never ran inside the first");
        let disk = SimulatedDisk::new(8);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
        let table = database.create_table("table").unwrap();
        let other = database.begin().unwrap();
        other.put(&table, "key", "0").unwrap();
        let mut first = Box::pin(table.put_async("key", "1"));
        let context = &mut Context::from_waker(Waker::noop());
        // The driver tries it a few times before it waits for the other one.
        for _ in 0..8 {
            assert!(first.as_mut().poll(context).is_pending());
            thread::sleep(Duration::from_millis(1));
        }
        let second = table.put_async("key", "2");
        let (second, _outcome) = AtOnce::begin(async move { second.await.map(drop) });
        thread::sleep(Duration::from_millis(2));
        other.commit().unwrap();
        disk.fail_from_of(FileOperation::Sync, 1);
        let woken = second.woken.load(Ordering::SeqCst);
        let polled = first.as_mut().poll(context);
        let has_run = second.woken.load(Ordering::SeqCst) > woken;
        let done = if let Poll::Ready(done) = polled { done } else { block_on(first) };
        // On a busy machine they may have waited for too long.
        if has_run && !matches!(done, Err(Error::Conflict { .. })) {
            let refused = done.expect_err("it is not durable");
            assert_eq!(refused.kind(), vellum::ErrorKind::OutcomeUnknown, "{refused}");
            break;
        }
    }
}

/// The rollback would wait for the task, and the task for the table.
#[test]
fn a_task_that_is_run_by_a_rollback_finds_the_table_free() {
    let (database, table) = database(9);
    let other = database.begin().unwrap();
    other.clear_table("table").unwrap();
    let (tasks, changed) = (database.clone(), table.clone());
    let (_task, outcome) = AtOnce::begin(async move {
        let put = |transaction: Arc<vellum::Transaction>| {
            let table = changed.clone();
            async move { transaction.put_async(&table, "key", "1").await.map(drop) }
        };
        tasks.run_async(put).await
    });
    let (ended, ends) = mpsc::channel();
    thread::spawn(move || ended.send(other.rollback()));
    ends.recv_timeout(LONG).expect("it waits for itself").unwrap();
    outcome.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(table.get("key").unwrap().unwrap(), b"1");
}

/// It is no part of the transaction inside which the other one is committed, and conflicts with it like any other task.
#[test]
fn a_task_that_is_run_inside_a_transaction_of_another_one_waits_for_that() {
    let (database, table) = database(10);
    // On a busy machine it may not wait yet, or no longer.
    let mut rounds = 0..100;
    loop {
        assert!(rounds.next().is_some(), "it was never run inside");
        let mut other = Some(database.begin().unwrap());
        other.as_ref().unwrap().put(&table, "key", "1").unwrap();
        let (tasks, changed) = (database.clone(), table.clone());
        let (task, outcome) = AtOnce::begin(async move {
            let put = |transaction: Arc<vellum::Transaction>| {
                let table = changed.clone();
                async move {
                    transaction.put(&table, "key", "2")?;
                    transaction.put(&table, "own", "2").map(drop)
                }
            };
            tasks.run_async(put).await
        });
        thread::sleep(Duration::from_millis(20));
        let mut woken = 0;
        let ran = database.run(|transaction| {
            transaction.put(&table, "own", "1")?;
            let before = task.woken.load(Ordering::SeqCst);
            other.take().map_or(Ok(()), vellum::Transaction::commit)?;
            woken += task.woken.load(Ordering::SeqCst) - before;
            Ok(())
        });
        ran.unwrap();
        outcome.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(table.get("own").unwrap().unwrap(), b"2");
        if woken > 0 {
            break;
        }
    }
}

/// Each of those in its way is short, and there is always another one.
#[test]
fn a_change_by_itself_waits_longer_for_many_than_for_one() {
    let (database, table) = database(40);
    let is_over = AtomicBool::new(false);
    let changed: Vec<_> = thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let run = database.run(|transaction| {
                        transaction.put(&table, "key", "transaction")?;
                        thread::sleep(Duration::from_millis(4));
                        Ok(())
                    });
                    run.unwrap();
                }
            });
        }
        let change = |number: u32| match number % 2 {
            0 => table.put("key", "alone").map(drop),
            _ => block_on(table.put_async("key", "a task")).map(drop),
        };
        let changed = (0..30).map(change).collect();
        is_over.store(true, Ordering::Relaxed);
        changed
    });
    assert!(changed.iter().all(Result::is_ok), "{changed:?}");

    let other = database.begin().unwrap();
    other.put(&table, "key", "for long").unwrap();
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(matches!(table.put("key", "alone"), Err(Error::Conflict { committed: false, .. })));
        least = least.min(begun.elapsed());
    }
    assert!((Duration::from_millis(20)..Duration::from_millis(500)).contains(&least), "{least:?}");
}

/// Its versions have been moved to the file, for want of memory.
#[test]
fn one_that_has_changed_more_than_memory_holds_is_waited_for() {
    let disk = Arc::new(SimulatedDisk::new(41));
    let database = Database::create_in(disk, "data", &options().version_memory_bytes(64 << 10)).unwrap();
    let table = database.create_table("table").unwrap();
    for key in 0..3000_u32 {
        table.put(key.to_be_bytes(), [1; 200]).unwrap();
    }
    let reader = database.begin().unwrap();
    let other = database.begin().unwrap();
    for key in 0..3000_u32 {
        other.put(&table, key.to_be_bytes(), [2; 200]).unwrap();
    }
    let conflict = table.put(0_u32.to_be_bytes(), "alone").unwrap_err();
    assert!(matches!(conflict, Error::Conflict { committed: false, .. }), "{conflict}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            other.commit().unwrap();
        });
        assert!(database.wait_for_other(&conflict, LONG).is_some());
    });
    table.put(0_u32.to_be_bytes(), "alone").unwrap();
    drop(reader);
}
