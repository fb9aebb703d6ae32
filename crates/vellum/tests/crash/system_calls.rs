//! Processes that are killed at each of their system calls that concern files, and again while they recover.
//!
//! A child creates a database and does what its script says; behind each step it says that it was acknowledged. It is killed at one
//! of its system calls. A second child opens what it has left, which recovers it, and closes it; it is killed as well. Then the parent
//! looks at what is left.
//!
//! `VELLUM_CALLS=1000` kills at each of the first thousand calls, before and after it; usually some of all are taken.

use crate::{
    life::{End, Journal},
    model::{Changed, Contents, Operation},
    number,
    tracer::{self, Kill},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write, stdout},
    path::Path,
    process::Command,
    time::Duration,
};
use vellum::{Database, Durability, Options, Result};

/// By which a child is told where, how durable, and whether it only opens and closes.
const CHILD: &str = "VELLUM_SYSTEM_CALLS_CHILD";
/// A child's line for each step that is acknowledged.
const ACKNOWLEDGED: &str = "acknowledged";
const DURABILITY: [Durability; 3] = [Durability::Synced, Durability::Buffered, Durability::Deferred];

enum Step {
    Operation(Operation),
    Checkpoint,
    Sync,
}

/// What a child does: always the same.
fn script() -> Vec<Step> {
    let (mut random, mut contents) = (StdRng::seed_from_u64(15), Contents::new());
    let steps = (0..60).map(|number| {
        if number % 20 == 15 {
            return Step::Checkpoint;
        }
        if number % 20 == 5 {
            return Step::Sync;
        }
        let mut operation = Operation::draw(&contents, &mut random);
        if operation.record().is_some() && random.random_ratio(1, 2) {
            operation = Operation::Commit { changed: draw_transaction(&contents, &mut random) };
        }
        operation.apply(&mut contents);
        Step::Operation(operation)
    });
    steps.collect()
}

fn draw_transaction(contents: &Contents, random: &mut StdRng) -> Changed {
    let mut changed = BTreeMap::new();
    for _ in 0..random.random_range(2..8) {
        let operation = Operation::draw(contents, random);
        if let Some((table, key)) = operation.record_of_transactions() {
            let result = operation.result(contents[&table].get(&key));
            changed.insert((table, key), result);
        }
    }
    changed
}

fn perform(step: &Step, database: &Database) -> Result<()> {
    match step {
        Step::Checkpoint => database.checkpoint(),
        Step::Sync => database.sync(),
        Step::Operation(Operation::Commit { changed }) => {
            let transaction = database.begin()?;
            for ((table, key), value) in changed {
                let table = database.table(table)?;
                match value {
                    Some(value) => transaction.put(&table, key, value).map(drop)?,
                    None => transaction.remove(&table, key).map(drop)?,
                }
            }
            transaction.commit()
        }
        Step::Operation(operation) => operation.perform(database),
    }
}

fn options(durability: Durability) -> Options {
    Options::default()
        .pool_bytes(256 << 10)
        .capacity_bytes(256 << 20)
        .log_segment_bytes(64 << 10)
        .log_buffer_bytes(4 << 20)
        .checkpoint_interval(Duration::from_millis(20))
        .durability(durability)
}

fn child(path: &Path, durability: Durability, opens_only: bool) -> Result<()> {
    let database = Database::open_or_create(path, &options(durability))?;
    for step in script().iter().filter(|_| !opens_only) {
        perform(step, &database)?;
        let _ = writeln!(stdout(), "\n{ACKNOWLEDGED}").and_then(|()| stdout().flush());
    }
    database.close()
}

/// Starts a child, and kills it. Returns how it ended, and how many steps it says are acknowledged.
fn run_child(
    folder: &Path,
    durability: usize,
    opens_only: bool,
    kill: Option<Kill>,
) -> io::Result<(tracer::End, usize)> {
    let output = folder.join("output");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["system_calls::system_calls", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{durability} {opens_only} {}", folder.join("data").display()))
        .stdout(File::create(&output)?)
        .stderr(File::create(folder.join("errors"))?);
    let end = tracer::run(&mut command, kill)?;
    let output = String::from_utf8_lossy(&fs::read(output)?).into_owned();
    assert!(end.code.is_none_or(|code| code == 0), "{output}");
    Ok((end, output.lines().filter(|line| *line == ACKNOWLEDGED).count()))
}

/// What a child was told to do, and has said was acknowledged, but for the last: that may be done or not.
fn journal(acknowledged: usize, durability: Durability, closed: bool) -> Journal {
    let mut journal = Journal::default();
    for (number, step) in script().into_iter().enumerate().take(acknowledged + 1) {
        match step {
            Step::Operation(operation) if number == acknowledged => journal.attempt(operation),
            Step::Operation(operation) => journal.acknowledge(operation, durability),
            Step::Checkpoint | Step::Sync if number < acknowledged => journal.sync(),
            Step::Checkpoint | Step::Sync => {}
        }
    }
    if closed {
        journal.sync();
    }
    journal
}

/// Whether what children have left is what was acknowledged, and can be worked with.
fn check(folder: &Path, mut journal: Journal, durability: Durability) -> std::result::Result<(), String> {
    let path = folder.join("data");
    let say = |error: vellum::Error| error.to_string();
    let database = Database::open_or_create(&path, &options(durability)).map_err(say)?;
    journal.check(&database, End::Killed)?;
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..5 {
        let operation = Operation::draw(&journal.now, &mut random);
        operation.perform(&database).map_err(say)?;
        journal.acknowledge(operation, durability);
    }
    database.close().map_err(say)?;
    let database = Database::open(&path, &options(durability)).map_err(say)?;
    if database.recovery().is_some() {
        return Err("it was closed and is recovered".to_owned());
    }
    journal.check(&database, End::Closed)
}

/// A folder in memory if there can be one: a process that is killed loses nothing that it has written, wherever that is.
fn folder() -> io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Kills the first child at one call, and the second, which recovers, at another. Says whether the first was killed.
fn round(durability: usize, first: Kill, second: Kill) -> io::Result<bool> {
    let folder = folder()?;
    let (end, acknowledged) = run_child(folder.path(), durability, false, Some(first))?;
    run_child(folder.path(), durability, true, Some(second))?;
    let is_killed = end.code.is_none();
    let level = DURABILITY[durability];
    let checked = check(folder.path(), journal(acknowledged, level, !is_killed), level);
    if let Err(why) = checked {
        let kept = folder.keep();
        panic!(
            "{level:?}, killed at {first:?} after {acknowledged} steps, then at {second:?}: {why}\n  {} is kept",
            kept.display()
        );
    }
    Ok(is_killed)
}

#[test]
fn system_calls() {
    if let Ok(told) = std::env::var(CHILD) {
        let mut told = told.splitn(3, ' ');
        let mut next = || told.next().unwrap();
        let durability = DURABILITY[next().parse::<usize>().unwrap()];
        let opens_only = next().parse().unwrap();
        child(Path::new(next()), durability, opens_only).unwrap();
        return;
    }
    let folder = folder().unwrap();
    let all = match run_child(folder.path(), 0, false, None) {
        Ok((end, acknowledged)) => {
            assert_eq!(acknowledged, script().len());
            end.calls
        }
        Err(error) => {
            eprintln!("SKIPPED, NOTHING WAS TESTED: processes cannot be traced here ({error})");
            return;
        }
    };
    let mut random = StdRng::seed_from_u64(all);
    let numbers: Vec<u64> = match number("VELLUM_CALLS") {
        Some(most) => (1..=most.min(all)).collect(),
        None => (1..=all).step_by(all as usize / 40 + 1).collect(),
    };
    let mut killed = 0;
    for call in numbers {
        for is_done in [false, true] {
            for durability in 0..DURABILITY.len() {
                // A sample takes one of the six.
                if number("VELLUM_CALLS").is_none() && random.random_ratio(5, 6) {
                    continue;
                }
                let second = Kill { number: random.random_range(1..150), is_done: random.random() };
                killed += u64::from(round(durability, Kill { number: call, is_done }, second).unwrap());
            }
        }
    }
    println!("{all} calls, killed at {killed} of them");
    assert!(killed > 0);
}
