//! What all runs, and all runs with engines, are told.

use super::{Choice, Durability, Isolation, RecordEngineName};
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
    /// Where files are put; by default the system's folder for temporary files.
    pub dir: Option<PathBuf>,
    /// What random choices depend on.
    pub seed: u64,
}

impl RunSettings {
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
    /// What a change waits for, or the commit of a transaction.
    pub durability: Durability,
    /// How much log Vellum's tables may have before a checkpoint, in bytes, if that is chosen.
    pub checkpoint_log: Option<u64>,
    /// How transactions of Vellum are kept apart.
    pub isolation: Isolation,
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
