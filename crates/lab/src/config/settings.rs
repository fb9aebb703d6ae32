//! What all runs, and all runs with engines, are told.

use super::{Choice, RecordEngineName, TransactionSettings, Workload};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What all runs are told.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// How long each round lasts at least.
    pub seconds: Duration,
    /// How many rounds each contestant has.
    pub rounds: usize,
    /// How many threads work, or several numbers, each of which is measured.
    pub threads: Vec<usize>,
    /// How many clients each thread serves, or several numbers, each of which is measured with each number of threads.
    pub clients: Vec<usize>,
    /// Where files are put; by default the system's folder for temporary files.
    pub dir: Option<PathBuf>,
    /// What random choices depend on.
    pub seed: u64,
}

/// How many threads work at once, and for how many clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The threads.
    pub threads: usize,
    /// The clients of each.
    pub clients: usize,
}

impl Load {
    /// Threads that are their own clients.
    pub fn threads(threads: usize) -> Self {
        Self { threads, clients: 1 }
    }
}

impl RunSettings {
    /// What is measured, in its order.
    pub fn loads(&self) -> Vec<Load> {
        let with_clients = |threads: &usize| {
            let threads = *threads;
            self.clients.iter().map(move |clients| Load { threads, clients: *clients })
        };
        self.threads.iter().flat_map(with_clients).collect()
    }

    /// A new folder for the files of this run, removed when it ends.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn temporary_folder(&self) -> crate::Result<tempfile::TempDir> {
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        tempfile::Builder::new()
            .prefix("vellum-lab-")
            .tempdir_in(&parent)
            .map_err(|error| format!("{}: {error}", parent.display()).into())
    }
}

/// What engines that keep tables, and their runs, are told.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The limit of the pool of an engine that has one, in bytes.
    pub pool: u64,
    /// How long the workload runs before the first round; by default as long as a round.
    pub warm_up: Option<Duration>,
    /// Whether vellum's resident size and the growth of its data are held against their limits.
    pub check: bool,
    /// Whether LMDB writes through its map.
    pub lmdb_write_map: Choice,
    /// How transactions are run.
    pub transactions: TransactionSettings,
}

/// What runs on single records are told.
#[derive(Clone, Debug)]
pub struct RecordSettings {
    /// The engines, in the order of their turns.
    pub engines: Vec<RecordEngineName>,
    /// Records in the store.
    pub records: u64,
    /// The size of each key, in bytes.
    pub key_bytes: usize,
    /// The size of each value, in bytes.
    pub value_bytes: usize,
}

/// What `lab recovery` is told.
#[derive(Clone, Debug)]
pub struct RecoverySettings {
    /// What makes the log.
    pub workload: Workload,
    /// The size of each value of records, in bytes.
    pub value_bytes: usize,
    /// How much log there is, in bytes, or several sizes, each of which is measured.
    pub log: Vec<u64>,
    /// The limits of the pool, in bytes, each of which is measured.
    pub pools: Vec<u64>,
    /// Whether the files leave the system's cache before the database is opened.
    pub is_cold: bool,
}
