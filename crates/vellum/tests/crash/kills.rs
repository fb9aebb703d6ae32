//! Processes that are killed at any moment. The child does what it is told by its seed, and says after each operation that it was
//! acknowledged; the parent kills it, and looks at what it has left.

use crate::number;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write, stdout},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use vellum::{Database, Durability, Options, Result, Table};

/// By which the child is told where and what.
const CHILD: &str = "VELLUM_CRASH_CHILD";
/// What a child prints before the number of an operation that was acknowledged: the harness prints as well.
const ACKNOWLEDGED: &str = "acknowledged ";
const KEYS: u64 = 500;

fn options(round: u64) -> Options {
    let durability = [Durability::Synced, Durability::Buffered][round as usize % 2];
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(1 << 20)
        .log_buffer_bytes(4 << 20)
        .checkpoint_log_bytes(200_000)
        .checkpoint_interval(Duration::from_millis(20))
        .durability(durability)
}

/// What the operation with this number does to which key: the value it gets, if it gets one.
fn operation(number: u64) -> (u64, Option<Vec<u8>>) {
    let mut random = StdRng::seed_from_u64(number);
    let key = random.random_range(0..KEYS);
    let length = if random.random_ratio(1, 30) { 10_000 } else { random.random_range(8..200) };
    let mut value = vec![number as u8; length];
    value.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
    (key, random.random_ratio(4, 5).then_some(value))
}

fn perform(table: &Table, number: u64) -> Result<()> {
    match operation(number) {
        (key, Some(value)) => table.put(key.to_be_bytes(), value).map(drop),
        (key, None) => table.remove(key.to_be_bytes()).map(drop),
    }
}

/// Goes on after the operation with this number, until it is killed.
fn child(path: &Path, round: u64, mut number: u64) -> Result<()> {
    let database = Database::open_or_create(path, &options(round))?;
    let table = database.table_or_create("table")?;
    loop {
        number += 1;
        perform(&table, number)?;
        let _ = writeln!(stdout(), "\n{ACKNOWLEDGED}{number}").and_then(|()| stdout().flush());
    }
}

/// Lets a child work for a while; the number of the last operation that it says was acknowledged.
fn kill_one(path: &Path, round: u64, done: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kills::kills", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{round} {done} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reader = thread::spawn(move || {
        let numbers = lines.map_while(|line| line.ok());
        numbers.filter_map(|line| line.strip_prefix(ACKNOWLEDGED)?.parse().ok()).last()
    });
    thread::sleep(Duration::from_micros(StdRng::seed_from_u64(round).random_range(2_000..150_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap().unwrap_or(done)
}

#[test]
fn kills() {
    if let Ok(told) = std::env::var(CHILD) {
        let mut told = told.splitn(3, ' ');
        let mut next = || told.next().unwrap();
        let (round, done) = (next().parse().unwrap(), next().parse().unwrap());
        panic!("{:?}", child(Path::new(next()), round, done));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let (mut expected, mut done) = (BTreeMap::new(), 0);
    let apply = |number: u64, expected: &mut BTreeMap<u64, Vec<u8>>| match operation(number) {
        (key, Some(value)) => drop(expected.insert(key, value)),
        (key, None) => drop(expected.remove(&key)),
    };
    for round in 0..number("VELLUM_ROUNDS").unwrap_or(20) {
        let acknowledged = kill_one(&path, round, done);
        (done + 1..=acknowledged).for_each(|number| apply(number, &mut expected));
        done = acknowledged;
        if !path.exists() {
            continue;
        }
        let database = Database::open_or_create(&path, &options(round))
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        let table = database.table_or_create("table").unwrap();
        let found: BTreeMap<u64, Vec<u8>> = (0..KEYS)
            .filter_map(|key| table.get(key.to_be_bytes()).unwrap().map(|value| (key, value)))
            .collect();
        if found != expected {
            // The one that was under way.
            done += 1;
            apply(done, &mut expected);
        }
        let wrong = (0..KEYS).find(|key| found.get(key) != expected.get(key));
        assert_eq!(wrong, None, "round {round}, after {acknowledged} operations");
        let report = database.verify(|_| {});
        assert!(report.is_clean(), "round {round}: {:?}", report.problems);
        if round % 3 == 0 {
            drop(table);
            database.close().unwrap();
        }
    }
    println!("{done} operations");
    assert!(done > 0, "no child has done anything");
}
