//! Ranges whose steps are futures: the same entries as ranges that wait, and no thread that waits for a page.

use crate::asynchronous::{KEYS, block_on, cold, value};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};
use vellum::{
    AsyncEntries, Database, Error, ErrorKind, IsolationLevel, Options, Put, Table, TableName,
    TransactionOptions,
};
use vellum_vm::{Faults, SimulatedFile};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// All entries, from one end or from both in turn.
fn collect(mut entries: AsyncEntries<'_>, mut is_front: impl FnMut() -> bool) -> Pairs {
    let (mut front, mut back) = (Pairs::new(), Pairs::new());
    block_on(async {
        loop {
            let at_front = is_front();
            let entry = if at_front { entries.next().await } else { entries.next_back().await };
            let Some(entry) = entry else { break };
            if at_front { front.push(entry.unwrap()) } else { back.push(entry.unwrap()) }
        }
        assert!(entries.next().await.is_none() && entries.next_back().await.is_none());
    });
    front.extend(back.into_iter().rev());
    front
}

fn expected(keys: impl Iterator<Item = u64>) -> Pairs {
    keys.map(|key| (key.to_be_bytes().to_vec(), value(key, 1))).collect()
}

#[test]
fn each_entry_comes_once_from_whatever_end_while_pages_come_and_go() {
    for seed in 0..12 {
        let file = SimulatedFile::new(seed);
        let (database, table) = cold(&file);
        file.set_faults(Faults { delay_max: Duration::from_micros(20), ..Faults::default() });
        let mut random = StdRng::seed_from_u64(seed);
        let transaction = database.begin().unwrap();
        for _ in 0..6 {
            let mut bounds = [random.random_range(0..KEYS), random.random_range(0..KEYS)];
            bounds.sort_unstable();
            let range = bounds[0].to_be_bytes()..bounds[1].to_be_bytes();
            let fronts = [0.0, 1.0, 0.5][random.random_range(0..3usize)];
            let entries = if random.random_bool(0.5) {
                table.range_async(range).unwrap()
            } else {
                transaction.range_async(&table, range).unwrap()
            };
            let found = collect(entries, || random.random_bool(fronts));
            assert!(found == expected(bounds[0]..bounds[1]), "seed {seed}, {bounds:?}, {fronts}");
        }
        let all = collect(table.range_async(..).unwrap(), || random.random_bool(0.5));
        assert!(all == expected(0..KEYS), "seed {seed}");
        drop((transaction, table));
        database.close().unwrap();
    }
}

/// Counts how often a task is woken.
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_is_in_memory_is_there_at_the_first_poll_and_what_is_not_keeps_no_thread() {
    let file = SimulatedFile::new(50);
    let (_database, table) = cold(&file);
    let counts = Arc::new(Counts(AtomicUsize::new(0)));
    let waker = Waker::from(counts.clone());
    let mut context = Context::from_waker(&waker);
    table.range(7u64.to_be_bytes()..).unwrap().take(3).for_each(|entry| drop(entry.unwrap()));
    let mut entries = table.range_async(7u64.to_be_bytes()..).unwrap();
    for key in 7..10u64 {
        let Poll::Ready(Some(Ok(entry))) = entries.poll_next(&mut context) else { panic!("it had to wait") };
        assert_eq!(entry, (key.to_be_bytes().to_vec(), value(key, 1)));
    }
    assert_eq!(counts.0.load(Ordering::SeqCst), 0);
    // Each read takes up to 0.2 s, and nearly all of that is spent outside of the polls.
    file.set_faults(Faults { delay_max: Duration::from_millis(200), ..Faults::default() });
    let mut entries = table.range_async(3000u64.to_be_bytes()..).unwrap();
    let (mut found, mut waited) = (Pairs::new(), 0);
    let (begun, mut inside) = (Instant::now(), Duration::ZERO);
    while found.len() < 100 {
        let polled = Instant::now();
        let step = entries.poll_next(&mut context);
        inside += polled.elapsed();
        match step {
            Poll::Ready(Some(entry)) => found.push(entry.unwrap()),
            Poll::Ready(None) => panic!("it ended early"),
            Poll::Pending => {
                waited += 1;
                while counts.0.swap(0, Ordering::SeqCst) == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "it was never woken");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    assert!(found == expected(3000..3100));
    assert!(waited > 2, "hardly anything had to be read");
    assert!(inside < begun.elapsed() / 4, "{inside:?} of {:?} inside of polls", begun.elapsed());
}

#[test]
fn a_step_that_is_dropped_loses_no_entry() {
    let file = SimulatedFile::new(51);
    let (database, table) = cold(&file);
    file.set_faults(Faults { delay_max: Duration::from_millis(2), ..Faults::default() });
    let mut context = Context::from_waker(Waker::noop());
    // Some of these values are large ones.
    for (is_front, keys) in [(true, 95..1200u64), (false, 3095..4200)] {
        let mut entries = table.range_async(keys.start.to_be_bytes()..keys.end.to_be_bytes()).unwrap();
        let (mut found, mut dropped) = (Pairs::new(), 0);
        block_on(async {
            loop {
                let first = {
                    let step =
                        async { if is_front { entries.next().await } else { entries.next_back().await } };
                    pin!(step).as_mut().poll(&mut context)
                };
                let entry = match first {
                    Poll::Ready(entry) => entry,
                    Poll::Pending => {
                        dropped += 1;
                        if is_front { entries.next().await } else { entries.next_back().await }
                    }
                };
                let Some(entry) = entry else { break };
                found.push(entry.unwrap());
            }
        });
        assert!(dropped > 5, "hardly anything had to wait: {dropped}");
        if !is_front {
            found.reverse();
        }
        assert!(found == expected(keys));
    }
    drop(table);
    let mut database = database;
    while database.close_in_place().is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_entry_that_one_end_waits_for_comes_though_the_ends_have_met() {
    let file = SimulatedFile::new(56);
    let (database, table) = cold(&file);
    file.set_faults(Faults { delay_max: Duration::from_millis(2), ..Faults::default() });
    let transaction = database.begin().unwrap();
    let (mut context, mut waited) = (Context::from_waker(Waker::noop()), 0);
    for (round, first) in (101..4000u64).step_by(101).enumerate() {
        let asked_first = round.is_multiple_of(2);
        let entries_of = |keys: std::ops::Range<u64>| {
            let range = keys.start.to_be_bytes()..keys.end.to_be_bytes();
            if round % 4 < 2 { table.range_async(range) } else { transaction.range_async(&table, range) }
                .unwrap()
        };
        // The first and the last value are large ones. A loop asks both ends in turn and waits for neither.
        let mut entries = entries_of(first..first + 102);
        let (mut found, mut has_ended, mut is_front) = (BTreeMap::new(), [false; 2], asked_first);
        while has_ended != [true; 2] {
            let entry =
                if is_front { entries.poll_next(&mut context) } else { entries.poll_next_back(&mut context) };
            match entry {
                Poll::Ready(Some(entry)) => {
                    let (key, value) = entry.unwrap();
                    assert!(found.insert(key, value).is_none(), "an entry came twice");
                }
                Poll::Ready(None) => has_ended[usize::from(is_front)] = true,
                Poll::Pending => {}
            }
            is_front = !is_front;
        }
        assert!(found.into_iter().collect::<Pairs>() == expected(first..first + 102), "from {first}");
        // The key is in memory and its value is not. The step that waits for it is dropped, and the other end is asked.
        assert!(table.contains((first + 202).to_be_bytes()).unwrap());
        let mut entries = entries_of(first + 202..first + 203);
        let polled =
            if asked_first { entries.poll_next(&mut context) } else { entries.poll_next_back(&mut context) };
        waited += usize::from(polled.is_pending());
        let rest = block_on(async {
            match (polled, asked_first) {
                (Poll::Ready(entry), _) => entry,
                (Poll::Pending, true) => entries.next_back().await,
                (Poll::Pending, false) => entries.next().await,
            }
        });
        assert_eq!(rest.map(|entry| entry.unwrap().1), Some(value(first + 202, 1)));
        block_on(async { assert!(entries.next().await.is_none() && entries.next_back().await.is_none()) });
    }
    assert!(waited > 5, "hardly anything had to wait: {waited}");
}

#[test]
fn a_transaction_sees_one_moment_and_its_own_changes() {
    let file = SimulatedFile::new(52);
    let (database, table) = cold(&file);
    file.set_faults(Faults { delay_max: Duration::from_micros(20), ..Faults::default() });
    let transaction = database.begin().unwrap();
    let mut model: BTreeMap<_, _> = expected(0..KEYS).into_iter().collect();
    for key in (0..KEYS).step_by(7) {
        table.put(key.to_be_bytes(), value(key, 2)).unwrap();
        table.remove((key + 1).to_be_bytes()).unwrap();
    }
    for key in (3..KEYS).step_by(70) {
        transaction.put(&table, key.to_be_bytes(), vec![3; 3000]).unwrap();
        model.insert(key.to_be_bytes().to_vec(), vec![3; 3000]);
    }
    for is_front in [true, false] {
        let seen = collect(transaction.range_async(&table, ..).unwrap(), || is_front);
        assert!(seen == model.clone().into_iter().collect::<Pairs>());
    }
    let now = collect(table.range_async(..).unwrap(), || true);
    assert!(now == table.range(..).unwrap().map(Result::unwrap).collect::<Pairs>());
    let typed = database.create_table(TableName::<u32, String>::new("typed")).unwrap();
    typed.put(5, "five").unwrap();
    let entry = block_on(async { typed.range_async(..7).unwrap().next_back().await.unwrap() });
    assert_eq!(entry.unwrap(), (5, "five".to_owned()));
    let long = table.range_async(vec![0; 2000]..).map(drop).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_a_range_has_read_conflicts_unless_it_is_untracked() {
    let database =
        Database::create_on(Arc::new(SimulatedFile::new(53)), &Options::default().log(false)).unwrap();
    let table = database.create_table("t").unwrap();
    (0..10u8).for_each(|key| assert_eq!(table.put([key], "x").unwrap(), Put::Inserted));
    for (is_untracked, key, conflicts) in [(false, 2u8, true), (false, 200, true), (true, 2, false)] {
        let options = TransactionOptions::default().isolation(IsolationLevel::Serializable);
        let transaction = database.begin_with(options).unwrap();
        let entries = if is_untracked {
            transaction.range_untracked_async(&table, ..).unwrap()
        } else {
            transaction.range_async(&table, ..).unwrap()
        };
        assert!(collect(entries, || true).len() >= 10);
        table.put([key], "y").unwrap();
        transaction.put(&table, "own", "z").unwrap();
        let done = transaction.commit();
        assert_eq!(matches!(done, Err(Error::Conflict { .. })), conflicts, "{done:?}");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_and_the_end() {
    let file = SimulatedFile::new(54);
    let (_database, table) = cold(&file);
    file.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    let mut entries = table.range_async(2000u64.to_be_bytes()..).unwrap();
    let failed = block_on(entries.next()).unwrap().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert!(block_on(entries.next()).is_none());
    file.set_faults(Faults::default());
    let mut entries = table.range_async(2000u64.to_be_bytes()..).unwrap();
    assert_eq!(block_on(entries.next()).unwrap().unwrap().1, value(2000, 1));
}

#[test]
fn tasks_of_a_runtime_may_take_ranges_with_them() {
    let file = SimulatedFile::new(55);
    let (database, table) = cold(&file);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let sum = |table: Arc<Table>, database: Database| async move {
        let transaction = database.begin().unwrap();
        let mut entries = transaction.range_async(&table, ..).unwrap();
        let mut count = 0;
        while let Some(entry) = entries.next().await {
            entry.unwrap();
            count += 1;
        }
        count
    };
    let table = Arc::new(table);
    let tasks: Vec<_> = (0..4).map(|_| runtime.spawn(sum(table.clone(), database.clone()))).collect();
    for task in tasks {
        assert_eq!(runtime.block_on(task).unwrap(), KEYS);
    }
}
