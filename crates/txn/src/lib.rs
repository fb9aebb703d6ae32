//! Internal to Vellum (use the crate `vellum`): joins the pool and the log, so that changes survive a crash, and groups
//! changes into transactions.
//!
//! - [`DurablePool`]: a pool whose changes are logged: opening with recovery, commits, checkpoints, the clean close;
//! - [`Transaction`]: what it sees and has changed, with or without a log;
//! - `change_log`: the log as the pool and the trees see it;
//! - `analysis`, `shares`, `on_demand` and `redo`: what the log says after a crash, and how and when it is redone;
//! - `backup`: copies of a database that is in use, and restoring them;
//! - `checkpoint`: the thread that takes checkpoints, so that there is never much to redo.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod analysis;
mod backup;
mod backup_error;
mod before;
mod bell;
mod chain;
mod change_log;
mod checkpoint;
mod coarse;
mod commit_error;
mod depot;
mod durable_pool;
mod error;
mod exposure;
mod follow;
mod gathered;
mod generations;
mod home;
mod leftovers;
mod loads;
mod lock_order;
mod on_demand;
mod pacing;
mod places;
mod plant;
mod put_off;
mod readable;
mod reads;
mod records;
mod redo;
mod removed_keys;
mod removed_range;
mod room;
mod settings;
mod shard;
mod shares;
mod single;
mod spill;
mod transaction;
mod transactions;
#[cfg(test)]
mod transactions_tests;
mod undo_buffer;
mod undo_buffers;
mod undo_list;
mod versions;
mod waiting;
mod write_set;
mod writer;

pub use backup::{BackupFile, BackupProgress, BackupSummary, PointInTime, RestoredPoint, Until, restore};
pub use backup_error::{BackupError, shown_time};
pub use commit_error::CommitError;
pub use durable_pool::{DurablePool, Earlier, Loading, LogState, Recovery};
pub use error::TxnError;
pub use follow::{Committed, Follower, LargeValue, LoadedTree, LoggedValue, TreeChange, TreeChangeKind};
pub use reads::Edge;
pub use settings::{Durability, LogSettings, SnapshotLimit};
pub use transaction::Transaction;
pub use transactions::{History, OldestSnapshot};
pub use vellum_wal::{
    Archive, ArchiveError, ArchiveState, ArchivedPart, Arrival, BufferDamage, BufferFlaw, FollowedLog,
    LogError, SyncCounts, is_segment,
};
pub use waiting::{Baton, Wait};
pub use write_set::Savepoint;
