//! What takes part in a run: an engine, and how its transactions are run.

use super::{AnyEngineName, Durability, Isolation, Named};
use serde::{Deserialize, Serialize};

/// How transactions are run, as far as an engine lets one choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransactionSettings {
    /// What a change waits for, or the commit of a transaction.
    pub durability: Durability,
    /// How transactions of Vellum are kept apart.
    pub isolation: Isolation,
    /// How much log Vellum's tables may have before a checkpoint, in bytes, if that is chosen.
    pub checkpoint_log: Option<u64>,
    /// Whether Vellum's log is archived.
    pub is_archived: bool,
    /// Whether a transaction that only reads is held open through all rounds.
    pub is_snapshot_held: bool,
}

impl Default for TransactionSettings {
    fn default() -> Self {
        Self {
            durability: Durability::NoLog,
            isolation: Isolation::Snapshot,
            checkpoint_log: None,
            is_archived: false,
            is_snapshot_held: false,
        }
    }
}

/// An engine that takes part in a run, and in what it differs from what the run says for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contestant {
    /// Which one.
    pub engine: AnyEngineName,
    /// What its commits wait for.
    pub durability: Option<Durability>,
    /// How its transactions are kept apart.
    pub isolation: Option<Isolation>,
    /// How much log it may have before a checkpoint, in bytes.
    pub checkpoint_log: Option<u64>,
    /// Whether its log is archived.
    pub is_archived: bool,
    /// Whether a snapshot is held.
    pub is_snapshot_held: bool,
}

impl Contestant {
    /// The word for [`is_archived`](Self::is_archived).
    pub const ARCHIVE: &str = "archive";
    /// The word for [`is_snapshot_held`](Self::is_snapshot_held).
    pub const HELD: &str = "held";
    /// Before the size of [`checkpoint_log`](Self::checkpoint_log).
    pub const CHECKPOINT: &str = "checkpoint=";
    /// In place of that size: no checkpoints, but one after loading.
    pub const NONE: &str = "none";

    /// The name in reports, and on the command line.
    pub fn name(self) -> String {
        let size = |bytes: u64| match bytes {
            u64::MAX => format!("{}{}", Self::CHECKPOINT, Self::NONE),
            _ if bytes.is_multiple_of(1 << 20) => format!("{}{}MiB", Self::CHECKPOINT, bytes >> 20),
            _ => format!("{}{bytes}", Self::CHECKPOINT),
        };
        let words = [
            self.durability.map(|durability| durability.as_str().to_owned()),
            self.isolation.map(|isolation| isolation.as_str().to_owned()),
            self.checkpoint_log.map(size),
            self.is_archived.then(|| Self::ARCHIVE.to_owned()),
            self.is_snapshot_held.then(|| Self::HELD.to_owned()),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        let engine = self.engine.as_str();
        if words.is_empty() { engine.to_owned() } else { format!("{engine}@{}", words.join("+")) }
    }

    /// How its transactions are run, where the run says so for all.
    pub fn settings(self, all: TransactionSettings) -> TransactionSettings {
        TransactionSettings {
            durability: self.durability.unwrap_or(all.durability),
            isolation: self.isolation.unwrap_or(all.isolation),
            checkpoint_log: self.checkpoint_log.or(all.checkpoint_log),
            is_archived: self.is_archived || all.is_archived,
            is_snapshot_held: self.is_snapshot_held || all.is_snapshot_held,
        }
    }
}

impl<E: Into<AnyEngineName>> From<E> for Contestant {
    fn from(engine: E) -> Self {
        Self {
            engine: engine.into(),
            durability: None,
            isolation: None,
            checkpoint_log: None,
            is_archived: false,
            is_snapshot_held: false,
        }
    }
}
