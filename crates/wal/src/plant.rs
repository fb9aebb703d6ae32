//! Bugs that the tests plant, one at a time, to show that they would find them: those of this crate, and those of whole databases.

use crate::{LogOptions, frame::seed};
use vellum_base::PAGE_SIZE;

/// What is done wrongly.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A sync is skipped.
    SkippedSync,
    /// What waits to be durable is acknowledged before the sync.
    EarlyAcknowledgement,
    /// An error of a write is swallowed.
    SwallowedWriteError,
    /// A sync that failed is tried again, as if the next one could make up for it.
    SyncTriedAgain,
    /// A segment begins before the one before is durable.
    SegmentBeforeSync,
    /// A timeline begins after an end that is not durable.
    EndNotSynced,
    /// A timeline begins after an end whose sync failed before, and succeeds now without doing anything.
    EndTrusted,
    /// The name of a recycled segment is not made durable before the segment is used.
    NameNotSynced,
    /// Records of earlier lives of a segment are taken as new.
    StaleRecords,
    /// Places in the log are used again after a crash.
    PlacesUsedAgain,
    /// Reading ends at a hole in what was durable, as if it were the end.
    PastHole,
    /// A segment is recycled that is still needed.
    RecycledTooEarly,
    /// A segment is recycled that is being read again.
    RecycledWhileRead,
    /// A log whose files were removed begins from zero.
    LeastIgnored,
    /// A removed log is gone before that is durable.
    RemovalNotSynced,
    /// Frames that an earlier lap has left in the buffer's file are taken as new.
    StaleBuffer,
    /// Frames of the buffer's file that do not follow on the segments are taken all the same.
    GapInBuffer,
    /// The buffer's file is used again before what it held is in segments.
    BufferUsedAgain,
    /// The buffer is released where a write ends, and not where a record does.
    ReleasedInPart,
    /// A segment is recycled before it was archived.
    RecycledUnarchived,
    /// A segment is recycled although a feed follows it.
    FollowedGivenUp,
}

#[cfg(test)]
impl Bug {
    pub const ALL: [Self; 19] = [
        Self::SkippedSync,
        Self::EarlyAcknowledgement,
        Self::SwallowedWriteError,
        Self::SyncTriedAgain,
        Self::SegmentBeforeSync,
        Self::EndNotSynced,
        Self::EndTrusted,
        Self::NameNotSynced,
        Self::StaleRecords,
        Self::PlacesUsedAgain,
        Self::PastHole,
        Self::RecycledTooEarly,
        Self::RecycledWhileRead,
        Self::LeastIgnored,
        Self::RemovalNotSynced,
        Self::StaleBuffer,
        Self::GapInBuffer,
        Self::BufferUsedAgain,
        Self::ReleasedInPart,
    ];
}

impl LogOptions {
    /// The seed of the checksum of a frame.
    #[inline]
    pub(crate) fn seed(&self, salt: u64, lsn: u64) -> u64 {
        let stale = self.planted(Bug::StaleRecords);
        seed(salt, if stale { lsn % (self.segment_bytes - PAGE_SIZE as u64) } else { lsn })
    }

    #[cfg(test)]
    pub(crate) fn planted(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn planted(&self, bug: Bug) -> bool {
        vellum_base::plant::is_planted("wal", bug)
    }
}
