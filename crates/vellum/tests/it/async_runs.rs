//! Transactions that tasks run, and run again after conflicts.

use crate::{asynchronous::block_on, support::options};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use vellum::{Database, Durability, Error, IsolationLevel, Options, Table, TableName, TransactionOptions};
use vellum_vm::SimulatedDisk;

fn database(seed: u64, options: &Options) -> (Database, Table<str, u64>) {
    let database = Database::create_in(Arc::new(SimulatedDisk::new(seed)), "data", options).unwrap();
    let table = database.create_table(TableName::<str, u64>::new("t")).unwrap();
    (database, table)
}

/// Lets other tasks of the thread go on.
async fn give_way() {
    let mut is_first = true;
    poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

async fn add(database: &Database, table: &Table<str, u64>, attempts: &AtomicU64) -> u64 {
    let added = database.run_async(|transaction| async move {
        attempts.fetch_add(1, Ordering::Relaxed);
        let count = transaction.get_async(table, "count").await?.unwrap_or(0);
        // Another task comes in between.
        give_way().await;
        transaction.put_async(table, "count", count + 1).await?;
        give_way().await;
        Ok(count + 1)
    });
    added.await.unwrap()
}

#[test]
fn tasks_that_change_the_same_record_all_get_their_way() {
    // On one thread, which none of them may keep waiting for another one, and on several.
    for (seed, threads) in [(1, 1), (2, 3)] {
        let (database, table) = database(seed, &options().durability(Durability::Buffered));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        let (table, attempts) = (Arc::new(table), Arc::new(AtomicU64::new(0)));
        let begun = Arc::new(AtomicU64::new(0));
        let (tasks, each) = (8, 20);
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let (database, table, attempts) = (database.clone(), table.clone(), attempts.clone());
                let begun = begun.clone();
                runtime.spawn(async move {
                    // On a busy machine one might be done before the next is spawned.
                    begun.fetch_add(1, Ordering::Relaxed);
                    while begun.load(Ordering::Relaxed) < tasks {
                        give_way().await;
                    }
                    for _ in 0..each {
                        add(&database, &table, &attempts).await;
                    }
                })
            })
            .collect();
        let all = tasks.len() as u64 * each;
        for task in tasks {
            runtime.block_on(task).unwrap();
        }
        assert_eq!(table.get("count").unwrap(), Some(all));
        assert!(attempts.load(Ordering::Relaxed) > all, "there was no conflict");
    }
}

#[test]
fn a_task_that_takes_long_ends_among_any_number_of_short_ones() {
    let (database, table) = database(3, &options().durability(Durability::Deferred));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let table = Arc::new(table);
    let is_done = Arc::new(AtomicU64::new(0));
    let short = |number: u64| {
        let (database, table, is_done) = (database.clone(), table.clone(), is_done.clone());
        async move {
            let table = &*table;
            while is_done.load(Ordering::Relaxed) == 0 {
                let changed = database.run_async(|transaction| async move {
                    transaction.put_async(table, format!("{number}"), number).await.map(drop)
                });
                changed.await.unwrap();
                give_way().await;
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|number| runtime.spawn(short(number))).collect();
    let long = {
        let (database, table) = (database.clone(), table.clone());
        async move {
            let table = &*table;
            let changed = database.run_async(|transaction| async move {
                for number in 0..4 {
                    // A task that is slower than the others: all of them have changed something meanwhile.
                    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(3)))
                        .await
                        .unwrap();
                    transaction.put_async(table, format!("{number}"), 100).await?;
                }
                Ok(())
            });
            changed.await
        }
    };
    runtime.block_on(runtime.spawn(long)).unwrap().unwrap();
    is_done.store(1, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

#[test]
fn errors_of_the_work_and_a_limit_of_time_end_it() {
    let (database, owned) = database(4, &options());
    let table = &owned;
    let refused = block_on(database.run_async(|transaction| async move {
        transaction.put_async(table, "a", 1).await?;
        Err::<(), _>(Error::NoSuchSavepoint)
    }));
    assert!(matches!(refused, Err(Error::NoSuchSavepoint)));
    assert_eq!(table.get("a").unwrap(), None);
    let other = database.begin().unwrap();
    other.put(table, "a", 2).unwrap();
    let limited = TransactionOptions::default().retry_for(Duration::from_millis(30));
    let attempts = &AtomicU64::new(0);
    let conflict = block_on(database.run_async_with(limited, |transaction| async move {
        attempts.fetch_add(1, Ordering::Relaxed);
        transaction.put_async(table, "a", 3).await
    }));
    assert!(matches!(conflict, Err(Error::Conflict { committed: false, .. })), "{conflict:?}");
    assert!(attempts.load(Ordering::Relaxed) > 1);
    other.commit().unwrap();
    // What the work does past its transaction, and conflicts with it, would conflict again.
    let own = block_on(database.run_async(|transaction| async move {
        transaction.put_async(table, "a", 4).await?;
        give_way().await;
        table.put("a", 5).map(drop)
    }));
    assert!(matches!(own, Err(Error::OwnConflict { .. })), "{own:?}");
    let own = block_on(database.run_async(|transaction| async move {
        transaction.get_async(table, "a").await?;
        table.put_async("a", 5).await?;
        transaction.put_async(table, "a", 6).await
    }));
    assert!(matches!(own, Err(Error::OwnConflict { .. })), "{own:?}");
    assert_eq!(table.get("a").unwrap(), Some(5));
    let mut kept = None;
    let refused = block_on(database.run_async(|transaction| {
        kept = Some(transaction.clone());
        async move { transaction.put_async(table, "a", 7).await }
    }));
    assert!(matches!(refused, Err(Error::TransactionKept)), "{refused:?}");
    drop(kept);
    assert_eq!(table.get("a").unwrap(), Some(5));
    // Why it has failed counts more than that, and a conflict would only come again.
    let (mut kept, mut failed) = (Vec::new(), 0);
    for is_conflict in [false, true] {
        let refused = block_on(database.run_async(|transaction| {
            kept.push(transaction);
            failed += 1;
            let conflict = || Error::Conflict { table: "table".into(), key: b"a".to_vec(), committed: true };
            let failure = if is_conflict { conflict() } else { Error::NoSuchTable { name: "none".into() } };
            async move { Err::<(), _>(failure) }
        }));
        match refused {
            Err(Error::Conflict { .. }) => assert!(is_conflict),
            Err(Error::NoSuchTable { .. }) => assert!(!is_conflict),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(failed, 2);
}

#[test]
fn one_whose_work_passes_over_its_conflict_is_run_again() {
    let (database, owned) = database(9, &options());
    let (table, attempts) = (&owned, &AtomicU64::new(0));
    for (run, end) in [(1, Ok(())), (2, Err(()))] {
        let held = database.begin().unwrap();
        held.put(table, "a", 1).unwrap();
        let held = &std::sync::Mutex::new(Some(held));
        let ran = block_on(database.run_async(|transaction| async move {
            if attempts.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
                let _ = transaction.put_async(table, "a", 2).await;
                give_way().await;
                held.lock().unwrap().take().unwrap().commit()?;
                return end.map_err(|()| Error::Ended);
            }
            transaction.put_async(table, "a", 3).await.map(drop)
        }));
        ran.unwrap();
        assert_eq!((attempts.load(Ordering::Relaxed), table.get("a").unwrap()), (2 * run, Some(3)));
    }
}

#[test]
fn one_that_is_dropped_has_done_nothing_and_keeps_nobody_waiting() {
    let (database, owned) = database(5, &options());
    let table = &owned;
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut run = pin!(database.run_async(|transaction| async move {
            transaction.put_async(table, "a", 1).await?;
            give_way().await;
            Ok(())
        }));
        assert!(run.as_mut().poll(&mut context).is_pending());
        assert!(matches!(table.insert("a", 2), Err(Error::Conflict { committed: false, .. })));
    }
    assert!(table.insert("a", 2).unwrap());
    assert_eq!(database.history().open, 0);
}

#[test]
fn a_serializable_one_is_run_again_when_what_it_has_read_has_changed() {
    let (owned, table) = database(6, &options().isolation(IsolationLevel::Serializable));
    let (database, table, attempts) = (&owned, &table, &AtomicU64::new(0));
    table.put("read", 1).unwrap();
    let seen = block_on(database.run_async(|transaction| async move {
        let read = transaction.get_async(table, "read").await?;
        if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| database.run(|other| other.put(table, "read", 7))).join()
            })
            .unwrap()?;
        }
        transaction.put_async(table, "written", 1).await?;
        Ok(read)
    }));
    assert_eq!((seen.unwrap(), attempts.load(Ordering::Relaxed)), (Some(7), 2));
}

#[test]
fn a_conflict_with_another_task_is_none_with_what_was_committed_inside() {
    let (database, owned) = database(5, &options());
    let (table, log) = (&owned, &database.create_table("log").unwrap());
    let held = database.begin().unwrap();
    held.put(table, "a", 1).unwrap();
    let (held, attempts) = (&std::sync::Mutex::new(Some(held)), &AtomicU64::new(0));
    let ran = block_on(database.run_async(|transaction| async move {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if attempt == 30 {
            held.lock().unwrap().take().unwrap().commit()?;
        }
        log.put("attempt", attempt.to_le_bytes())?;
        transaction.put_async(table, "a", 2).await
    }));
    ran.unwrap();
    assert_eq!((attempts.load(Ordering::Relaxed), table.get("a").unwrap()), (31, Some(2)));
}

#[test]
fn a_conflict_with_another_thread_is_none_with_what_was_committed_inside_either() {
    let (database, owned) = database(8, &options());
    let (table, log) = (&owned, &database.create_table("log").unwrap());
    let attempts = &AtomicU64::new(0);
    let ran = block_on(database.run_async(|transaction| async move {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if attempt <= 30 {
            std::thread::scope(|scope| scope.spawn(|| table.put("hot", attempt)).join()).unwrap()?;
        }
        log.put("attempt", attempt.to_le_bytes())?;
        transaction.put_async(table, "hot", 0).await
    }));
    ran.unwrap();
    assert_eq!((attempts.load(Ordering::Relaxed), table.get("hot").unwrap()), (31, Some(0)));
    // Nor if it reads in transactions inside, and what it has committed there is older or newer than the other's.
    for is_first in [true, false] {
        attempts.store(0, Ordering::Relaxed);
        let ran = block_on(database.run_async(|transaction| {
            let database = &database;
            async move {
                let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
                if is_first {
                    log.put_async("attempt", attempt.to_le_bytes()).await?;
                }
                if attempt <= 30 {
                    std::thread::scope(|scope| scope.spawn(|| table.put("hot", attempt)).join()).unwrap()?;
                }
                database.run(|inner| inner.get(table, "hot").map(drop))?;
                transaction.put_async(table, "hot", 0).await
            }
        }));
        ran.unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), 31);
    }
}

#[test]
fn a_conflict_with_what_was_committed_inside_is_told_even_if_others_commit_in_other_attempts() {
    let (database, owned) = database(9, &options());
    let (table, attempts) = (&owned, &AtomicU64::new(0));
    let ran = block_on(database.run_async(|transaction| async move {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(attempt < 100, "it is tried again and again");
        if attempt % 2 == 0 {
            std::thread::scope(|scope| scope.spawn(|| table.put("other", attempt)).join()).unwrap()?;
        }
        table.put_async("hot", attempt).await?;
        give_way().await;
        transaction.put_async(table, "hot", 0).await
    }));
    assert!(matches!(ran, Err(Error::OwnConflict { .. })), "{ran:?}");
}

#[test]
fn one_that_waits_after_a_conflict_holds_nothing() {
    let (database, owned) = database(10, &options());
    let table = &owned;
    let other = database.begin().unwrap();
    other.put(table, "b", 1).unwrap();
    let (mut context, refused) = (Context::from_waker(Waker::noop()), &AtomicU64::new(0));
    let mut run = pin!(database.run_async(|transaction| async move {
        transaction.put_async(table, "a", 2).await?;
        let put = transaction.put_async(table, "b", 2).await;
        refused.fetch_add(u64::from(put.is_err()), Ordering::Relaxed);
        put
    }));
    // The operations may have to wait themselves.
    while refused.load(Ordering::Relaxed) == 0 {
        assert!(run.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(database.history().open, 1);
    let third = database.begin().unwrap();
    third.put(table, "a", 3).unwrap();
    third.commit().unwrap();
    other.commit().unwrap();
    block_on(run).unwrap();
    assert_eq!((table.get("a").unwrap(), table.get("b").unwrap()), (Some(2), Some(2)));
}

#[test]
fn a_run_inside_one_that_has_its_turn_does_not_wait_for_it() {
    let (database, owned) = database(11, &options().log(false));
    let (database, table, attempts) = (&database, &owned, &AtomicU64::new(0));
    let put = |key: &'static str| {
        database.run_async(move |inner| async move { inner.put_async(table, key, 1).await })
    };
    let put = &put;
    let ran = block_on(database.run_async(|_| async move {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if attempt == 8 {
            // The turn lasts for twice as long, which is enough on a busy machine.
            std::thread::sleep(Duration::from_secs(1));
        }
        if attempt <= 8 {
            // As if another one had been faster.
            return Err(Error::Conflict { table: "t".into(), key: b"key".into(), committed: true });
        }
        let mut context = Context::from_waker(Waker::noop());
        // Another task waits for the turn.
        let waits = std::thread::scope(|scope| {
            let polled = || pin!(put("other")).poll(&mut Context::from_waker(Waker::noop())).is_pending();
            scope.spawn(polled).join().unwrap()
        });
        assert!(waits, "it has no turn");
        for key in ["first", "second"] {
            let inner = pin!(put(key));
            assert!(matches!(inner.poll(&mut context), Poll::Ready(Ok(_))), "it waits");
        }
        // It has a turn of its own only if it is not inside, and the outer one keeps its turn.
        let conflicts = &AtomicU64::new(0);
        let inner = database.run_async(|inner| async move {
            if conflicts.fetch_add(1, Ordering::Relaxed) < 10 {
                return Err(Error::Conflict { table: "t".into(), key: b"key".into(), committed: true });
            }
            inner.put_async(table, "third", 1).await
        });
        inner.await?;
        Ok(())
    }));
    ran.unwrap();
    assert_eq!((attempts.load(Ordering::Relaxed), table.count(..).unwrap()), (9, 3));
}

/// It uses the database, as a task does that is polled where it is woken.
struct Storing {
    table: Table<str, u64>,
    count: AtomicU64,
}

impl Wake for Storing {
    fn wake(self: Arc<Self>) {
        self.table.put("stored", 1).unwrap();
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waker_may_use_the_database_when_the_transaction_ends_that_its_task_waits_for() {
    for is_committed in [true, false] {
        let (database, table) = database(90, &options());
        let waker = Storing { table: table.clone(), count: AtomicU64::new(0) };
        let (storing, transaction) = (Arc::new(waker), database.begin().unwrap());
        transaction.put(&table, "count", 1).unwrap();
        let table = &table;
        let mut run =
            pin!(database.run_async(|inner| async move { inner.put_async(table, "count", 2).await }));
        let waker = Waker::from(storing.clone());
        // It may have to wait for the driver first.
        let is_waiting = |_: &u32| run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        assert_eq!(
            (0..50).take_while(is_waiting).map(|_| thread::sleep(Duration::from_millis(1))).count(),
            50
        );
        let before = storing.count.load(Ordering::Relaxed);
        if is_committed {
            transaction.commit().unwrap()
        } else {
            transaction.rollback().unwrap()
        }
        assert!(storing.count.load(Ordering::Relaxed) > before);
        block_on(run).unwrap();
        assert_eq!(table.get("count").unwrap(), Some(2));
        assert_eq!(table.get("stored").unwrap(), Some(1));
    }
}
