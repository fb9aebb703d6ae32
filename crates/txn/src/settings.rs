//! How a database keeps its log.

use std::{sync::Arc, time::Duration};
use vellum_vm::Directory;

/// When a change counts as done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Durability {
    /// The log is in memory. It is written and synced at once if the device is free and has been for a millisecond,
    /// otherwise soon after. If the process is killed, or power is lost, the last changes may be lost, the latest
    /// first.
    Deferred,
    /// The operating system has the log: the change survives the end of the process. If power is lost, the last changes
    /// may be lost, the latest first.
    Buffered,
    /// The device has the log: the change survives a loss of power.
    #[default]
    Synced,
}

/// How long a transaction may make the database keep what others have replaced, and how much of it. A transaction that
/// goes beyond is *ended*: it gets errors, and what was kept for it goes. That happens when another transaction ends,
/// so nothing happens while nothing is changed. By default there is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotLimit {
    pub(crate) age: Option<Duration>,
    pub(crate) bytes: Option<u64>,
}

impl SnapshotLimit {
    /// How long a transaction may be open, if something was changed since it began.
    #[must_use]
    pub fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }

    /// How many bytes of keys and old values others may change since it began. Values of any length count in full.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

/// How a database keeps its log. The defaults suit a current machine.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The size of the log's files, in bytes. See [`vellum_wal::LogOptions::segment_bytes`]. Default 16 MiB.
    pub segment_bytes: u64,
    /// The size of the log's buffer in memory, in bytes: a power of two, at least
    /// [`BUFFER_BYTES_MIN`](Self::BUFFER_BYTES_MIN). Default 16 MiB.
    pub buffer_bytes: u64,
    /// How many bytes of log there may be before a checkpoint is taken in the background. After a crash the next
    /// opening reads about that much. Default 512 MiB.
    pub checkpoint_bytes: u64,
    /// How old the last checkpoint may become while there are changes. Default 60 seconds.
    pub checkpoint_interval: Duration,
    /// Whether checkpoints are taken in the background at all. Default true.
    pub background_checkpoints: bool,
    /// How many bytes of memory earlier versions of records may take before they go to a file. The undo of each open
    /// transaction may take an eighth of that. While the file cannot be written, versions take up to an eighth more.
    /// Default 64 MiB.
    pub version_memory_bytes: u64,
    /// Whether a recovery passes over damaged pages: on a copy, to save what can be saved. Default false.
    pub skip_damage: bool,
    /// Where the log is archived, if it is. Default nowhere.
    pub archive: Option<Arc<dyn Directory>>,
    /// What transactions may make the database keep. Default no limit.
    pub snapshot_limit: SnapshotLimit,
    /// Whether the log has every value whole: those that are changed in place, and those that are written past the log.
    /// Default false.
    pub whole_values: bool,
}

impl LogSettings {
    /// The least size of the log's buffer, in bytes: the longest record takes a quarter of it.
    pub const BUFFER_BYTES_MIN: u64 = 4 << 20;
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            buffer_bytes: 16 << 20,
            checkpoint_bytes: 512 << 20,
            checkpoint_interval: Duration::from_secs(60),
            background_checkpoints: true,
            version_memory_bytes: 64 << 20,
            skip_damage: false,
            archive: None,
            snapshot_limit: SnapshotLimit::default(),
            whole_values: false,
        }
    }
}
