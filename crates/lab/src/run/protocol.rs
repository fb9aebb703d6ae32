//! What the parent of a run and the processes of its engines say to each other: one JSON value a line, the
//! specification first, then commands, each answered by one reply.
//!
//! Each engine has a process of its own, so that its resident size and the bytes it reads and writes are
//! its alone. All but one of them wait for a command at any time.

use crate::config::Load;
use crate::report::contest::Measured;
use serde::{Deserialize, Serialize};

/// What the parent wants.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Load the table and warm up; nothing, for a workload that loads in each round.
    Prepare,
    /// Run one round.
    Round {
        /// With so many threads and clients.
        load: Load,
        /// Which one, from zero.
        round: usize,
    },
    /// Work until so much log is behind the last checkpoint.
    FillLog {
        /// With so many threads.
        threads: usize,
        /// How much, in bytes.
        bytes: u64,
    },
    /// Close the engine and end.
    Finish,
}

/// What an engine's process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Command::Prepare`].
    Prepared {
        /// How long loading took; none if each round loads.
        load_seconds: Option<f64>,
        /// One operation in so many is timed.
        sample_every: u64,
        /// Remarks that belong to the figures.
        notes: Vec<String>,
    },
    /// To [`Command::Round`].
    Round(Measured),
    /// To [`Command::FillLog`].
    FilledLog {
        /// What was done for that.
        operations: u64,
        /// How long it took.
        seconds: f64,
        /// How much log there is now, in bytes.
        log_bytes: u64,
    },
    /// To [`Command::Finish`].
    Finished(Finished),
    /// To any command: the run cannot go on.
    Failed {
        /// Why.
        message: String,
        /// Whether the engine worked, but what it stored is not what it should be.
        check: bool,
    },
}

/// What is known at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// The size of the data as it lies in pages, in bytes: the largest of all rounds.
    pub data_bytes: u64,
    /// The same right after loading; zero if each round loads.
    pub data_bytes_loaded: u64,
    /// The largest resident size of the process through its whole life, in bytes.
    pub resident_bytes_max: u64,
    /// Remarks on what was done and what was checked.
    pub notes: Vec<String>,
    /// What the engine counts about itself, and the workload about what it did.
    pub statistics: serde_json::Value,
    /// How much was written for what was changed.
    pub writing: serde_json::Value,
}
