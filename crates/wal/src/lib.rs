//! Internal to Vellum (use the crate `vellum`): the write-ahead log.
//!
//! One stream of records in total order, in segments of fixed size that are allocated before they are used, and are
//! recycled. The log does not know what records mean.
//!
//! - [`Log`]: appending, group commit, durability;
//! - [`LogFlusher`], [`Arrival`]: waiting for durability without a thread, or not waiting at all;
//! - [`LogReader`]: records in order, also with two threads; where the log ends, and whether that is an end or a hole;
//! - [`LogCopy`]: copies the log while it is written;
//! - [`FollowedLog`], [`FollowingReader`]: read the log while it grows, from its archive where it was given up;
//! - [`Archive`], [`LogArchiver`]: copy segments before they are given up, and read them again;
//! - [`LogRebuilder`]: builds a log from records;
//! - `ring`: the buffer, which many threads fill at once; `device`: segments and what is written to them; `files`:
//!   which segments there are; `frame` and `segment`: the format on storage.
//!
//! A record's LSN is its place in the stream, and is never reused: after each opening the log continues in a new
//! segment, on a new *timeline*, which salts all checksums.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod admission;
mod archive;
mod archive_bell;
mod archive_error;
mod archive_format;
mod archiver;
mod buffer_damage;
mod buffer_file;
mod buffer_format;
mod checkpoints;
mod continuing;
mod copying;
mod device;
mod durability;
mod error;
mod files;
mod flusher;
mod following;
mod frame;
mod held;
mod keepers;
mod kept;
mod lives;
mod log;
#[cfg(all(test, loom))]
mod models;
mod newer;
mod options;
mod plant;
mod prepared;
mod previous_end;
mod primitive;
mod read_ahead;
mod reader;
mod reading;
mod rebuild;
mod reservation;
mod ring;
mod segment;
mod segment_file;
#[cfg(all(test, not(loom)))]
mod simulation;
mod syncs;
mod tail;
mod turn;
mod waiting;
mod window;

pub use archive::{Archive, ArchiveReader};
pub use archive_error::ArchiveError;
pub use archive_format::ArchivedPart;
pub use archiver::{ArchiveState, CheckedArchive, LogArchiver};
pub use buffer_damage::{BufferDamage, BufferFlaw};
pub use copying::{LogCopy, LogPart};
pub use durability::Durability;
pub use error::LogError;
pub use files::remove_left;
pub use flusher::{Arrival, LogFlusher};
pub use following::{FollowedLog, FollowingReader, LogKeep};
pub use frame::PAYLOAD_BYTES_MAX;
pub use held::{HeldLog, LogKeeper};
pub use lives::{LifeEnds, LogLives, ReadableLives};
pub use log::Log;
pub use newer::refuse_newer;
pub use options::LogOptions;
pub use reader::{LogReader, Record};
pub use rebuild::LogRebuilder;
pub use reservation::Reservation;
pub use segment::{is_segment, name as segment_name};
pub use syncs::SyncCounts;
