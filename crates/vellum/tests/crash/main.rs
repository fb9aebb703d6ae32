//! Databases that crash, are killed, and meet failing disks: is everything there that was acknowledged, and nothing in part?
//!
//! - `histories`: several transactions and single operations at a time on a simulated disk that crashes at any operation, also
//!   while it recovers; all of it follows from the seed;
//! - `tables`: the transactions among them that change tables as a whole, plain ones too, several at a time, with savepoints, and store
//!   very large values; `table_changes` has one of them, `table_requests` what they ask for, `claims` which of them is first;
//! - `archives`: the log is archived meanwhile, and databases are restored to points in time;
//! - `restores`: the same with several threads, beside backups and compactions; `numbered` is what they do;
//! - `clients`: several threads on such a disk;
//! - `replayed`: several threads with operations and transactions of every kind, on tables that come and go, which are done again one
//!   after the other on a map;
//! - `heaps`: several threads that share a heap of objects;
//! - `compactions`: `histories` with a file that is compacted meanwhile;
//! - `schedule`: with `--cfg shuttle`, the order in which threads run follows from the seed as well, for `clients`, `replayed`, `heaps`,
//!   `histories` and `compactions`; the others are not there then;
//! - `feeds`: a feed of changes is what a model has done;
//! - `forks`: a database, copies of it, and what was restored from its backups; a feed goes on in those that have its position;
//! - `failures`: each operation of the disk fails in turn;
//! - `passing`: an operation of the disk fails, and the disk is well again when the step is over that it was in;
//! - `full_disk`: disks without room, simulated ones and a small file system;
//! - `full_from`: disks that are full from any operation on;
//! - `kills`: processes that are killed for good, on a real disk, at any moment;
//! - `system_calls`: such processes, killed at each of their system calls;
//! - `planted`: each bug that is planted in the engine is found by one of these.
//!
//! A failure names its seed. `VELLUM_SEEDS=10000` tries more, `VELLUM_SEED=77` tries one again, `VELLUM_ROUNDS=500` kills more often:
//! ```text
//! VELLUM_SEED=77 cargo test -p vellum --test crash histories
//! ```

#![cfg_attr(shuttle, allow(dead_code, reason = "what only the others use"))]

#[cfg(not(shuttle))]
mod archives;
mod claims;
mod clients;
mod compactions;
#[cfg(not(shuttle))]
mod failures;
#[cfg(not(shuttle))]
mod feeds;
#[cfg(not(shuttle))]
mod forks;
#[cfg(not(shuttle))]
mod full_disk;
#[cfg(not(shuttle))]
mod full_from;
mod heap_objects;
mod heaps;
mod histories;
#[cfg(not(shuttle))]
mod kills;
mod life;
mod model;
#[cfg(not(shuttle))]
mod numbered;
mod open;
#[cfg(not(shuttle))]
mod passing;
mod planted;
mod replayed;
#[cfg(not(shuttle))]
mod restores;
#[cfg(shuttle)]
mod schedule;
#[cfg(not(shuttle))]
mod snapshots;
#[cfg(not(shuttle))]
mod system_calls;
mod table_changes;
mod table_requests;
mod tables;
#[cfg(not(shuttle))]
mod tracer;
mod watcher;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::channel,
    thread,
    time::Duration,
};
use vellum_base::plant;

/// A seed that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(120);

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

/// Runs a check for many seeds, or the one that is asked for. Says which failed, and how many of how many did.
///
/// If a bug is planted, it is over when that is found.
fn for_seeds(default: u64, check: fn(u64) -> Result<(), String>) {
    let seeds: Vec<u64> = match number("VELLUM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let first = number("VELLUM_FIRST_SEED").unwrap_or(0);
            (first..first + number("VELLUM_SEEDS").unwrap_or(default)).collect()
        }
    };
    #[cfg(shuttle)]
    let check = move |seed| schedule::run(seed, check);
    run_all(&seeds, check);
}

/// Runs a check for these seeds.
fn run_all(seeds: &[u64], check: impl Fn(u64) -> Result<(), String> + Sync) {
    let bug = planted::plant();
    // What a group of records tells is then divided in small databases, too.
    plant::divide_records(100);
    let mut wrong = Vec::new();
    for seed in seeds {
        if let Err(why) = run_one(*seed, &check) {
            if bug.is_some() {
                return planted::tell(*seed, &why);
            }
            println!("seed {seed}: {why}");
            wrong.push(*seed);
        }
    }
    if bug.is_none() {
        println!("{} of {} seeds were clean", seeds.len() - wrong.len(), seeds.len());
    }
    assert!(wrong.is_empty(), "{} of {} seeds: {:?}", wrong.len(), seeds.len(), wrong);
}

/// Runs a check, which is to end.
fn run_one(seed: u64, check: &(impl Fn(u64) -> Result<(), String> + Sync)) -> Result<(), String> {
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| check(seed)));
            let _ = sender.send(outcome.unwrap_or_else(|_| Err("it panicked".to_owned())));
        });
        receiver.recv_timeout(LONGEST).unwrap_or_else(|_| {
            // It cannot be ended any other way.
            planted::tell(seed, "it does not end");
            println!("seed {seed}: it does not end");
            std::process::exit(1)
        })
    })
}
