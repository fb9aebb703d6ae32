//! Several threads on a disk that crashes, with checkpoints and eviction in the background. Each has keys of its own, so what it must
//! find is exact: after the crash each key has the value that was acknowledged last, or a later one that was on its way.
//!
//! How threads meet is not in the seed.

use crate::for_seeds;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use vellum::{Database, Options, Table};
use vellum_vm::{CrashModel, SimulatedDisk};

const CLIENTS: u8 = 3;

/// What one client did: for each key its value when it was acknowledged last, and all that may have come after it.
type Done = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

fn options(random: &mut StdRng) -> Options {
    Options::default()
        .pool_bytes([512 << 10, 1 << 20][random.random_range(0..2)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .checkpoint_log_bytes(random.random_range(10_000..200_000))
        .checkpoint_interval(Duration::from_millis(random.random_range(0..5)))
        .huge_pages(false)
}

/// Works until something fails or it is to end.
fn client(table: &Table, number: u8, seed: u64, done: &mut Done, is_over: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed ^ u64::from(number) << 32);
    while !is_over.load(Ordering::SeqCst) {
        let key = vec![random.random_range(0..200), number, 7, 7];
        let length = if random.random_ratio(1, 20) { 9000 } else { random.random_range(0..300) };
        let value = random.random_ratio(3, 4).then(|| vec![random.random(); length]);
        let states = done.entry(key.clone()).or_insert_with(|| vec![None]);
        states.push(value.clone());
        let outcome = match &value {
            Some(value) => table.put(&key, value).map(drop),
            None => table.remove(&key).map(drop),
        };
        match outcome {
            Ok(()) => drop(states.drain(..states.len() - 1)),
            Err(_) => return,
        }
    }
}

/// Whether a database that was opened again holds what its clients were told; they begin with that.
fn check(database: &Database, clients: &mut [Done], seed: u64) -> Result<(), String> {
    let table = database.table("table").map_err(|error| error.to_string())?;
    for (number, done) in clients.iter_mut().enumerate() {
        for (key, states) in done.iter_mut() {
            let found = table.get(key).map_err(|error| error.to_string())?;
            if !states.contains(&found) {
                let short = |value: &Option<Vec<u8>>| {
                    value.as_ref().map(|value| (value.len(), value.first().copied()))
                };
                let expected: Vec<_> = states.iter().map(short).collect();
                return Err(format!(
                    "client {number}, {key:?}: {:?}, not one of {expected:?}",
                    short(&found)
                ));
            }
            *states = vec![found];
        }
    }
    let report = database.verify(|_| {});
    match report.problems.first() {
        Some(problem) => Err(format!("{} problems, seed {seed}: {problem}", report.problems.len())),
        None => Ok(()),
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let options = options(&mut random);
    let mut disk = SimulatedDisk::new(seed);
    let mut clients = vec![Done::new(); usize::from(CLIENTS)];
    let database =
        Database::create_in(Arc::new(disk.clone()), "data", &options).map_err(|error| error.to_string())?;
    database.create_table("table").map_err(|error| error.to_string())?;
    let mut database = Some(database);
    for life in 0..3 {
        let open = || Database::open_in(Arc::new(disk.clone()), "data", &options);
        let opened =
            database.take().map_or_else(open, Ok).map_err(|error| format!("life {life}: {error}"))?;
        check(&opened, &mut clients, seed).map_err(|why| format!("life {life}: {why}"))?;
        let table = opened.table("table").map_err(|error| error.to_string())?;
        let is_over = AtomicBool::new(false);
        let fails = random.random_ratio(2, 3);
        if fails {
            disk.fail_from(random.random_range(1..1500));
        }
        let pause = Duration::from_millis(random.random_range(1..40));
        let is_killed = random.random();
        // A crash happens while the clients work, and they work on in what is lost.
        thread::scope(|scope| {
            for (number, done) in (0..CLIENTS).zip(&mut clients) {
                let (table, is_over) = (&table, &is_over);
                scope.spawn(move || client(table, number, seed + life, done, is_over));
            }
            thread::sleep(pause);
            is_over.store(true, Ordering::SeqCst);
        });
        let survivor = if is_killed { disk.crash_with(CrashModel::KeepAll) } else { disk.crash() };
        disk.fail_from(1);
        drop((table, opened));
        disk = survivor;
    }
    let opened =
        Database::open_in(Arc::new(disk.clone()), "data", &options).map_err(|error| error.to_string())?;
    check(&opened, &mut clients, seed)?;
    opened.close().map_err(|error| error.to_string())
}

#[test]
fn clients() {
    for_seeds(60, run);
}
