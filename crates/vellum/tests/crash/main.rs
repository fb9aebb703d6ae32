//! Databases that crash, are killed, and meet failing disks: is everything there that was acknowledged, and nothing in part?
//!
//! - `histories`: one thread on a simulated disk that crashes at any operation, also while it recovers;
//! - `clients`: several threads on such a disk, each with keys of its own;
//! - `kills`: processes that are killed for good, on a real disk.
//!
//! A failure names its seed. `VELLUM_SEEDS=10000` tries more, `VELLUM_SEED=77` tries one again, `VELLUM_ROUNDS=500` kills more often:
//! ```text
//! VELLUM_SEED=77 cargo test -p vellum --test crash histories
//! ```

mod clients;
mod histories;
mod kills;
mod life;
mod model;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

/// Runs a check for many seeds, or the one that is asked for. Says which failed, and how many of how many did.
fn for_seeds(default: u64, check: impl Fn(u64) -> Result<(), String>) {
    let seeds: Vec<u64> = match number("VELLUM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("VELLUM_SEEDS").unwrap_or(default)).collect(),
    };
    let mut wrong = Vec::new();
    for seed in &seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(*seed)));
        let outcome = outcome.unwrap_or_else(|_| Err("it panicked".to_owned()));
        if let Err(why) = outcome {
            println!("seed {seed}: {why}");
            wrong.push(*seed);
        }
    }
    assert!(wrong.is_empty(), "{} of {} seeds: {:?}", wrong.len(), seeds.len(), wrong);
}
