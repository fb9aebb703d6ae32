//! Bugs that the tests of this crate, and those of whole databases, plant, one at a time, to show that they would find
//! them.

use crate::{LogOptions, frame::seed};
use vellum_base::PAGE_SIZE;

/// What is done wrong.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A sync is skipped.
    SkippedSync,
    /// Records that threads wait for are acknowledged before the sync.
    EarlyAcknowledgement,
    /// An error of a write is swallowed.
    SwallowedWriteError,
    /// A sync that failed is tried again, as if the next one could make up for it.
    SyncTriedAgain,
    /// A segment begins before the one before is durable.
    SegmentBeforeSync,
    /// Records are written to a segment before its first page is durable.
    HeaderNotSynced,
    /// A timeline begins after an end that is not durable.
    EndNotSynced,
    /// A timeline begins after an end whose sync failed before, and now succeeds without doing anything.
    EndTrusted,
    /// The name of a recycled segment is not made durable before the segment is used.
    NameNotSynced,
    /// Records of earlier lives of a segment are taken as new.
    StaleRecords,
    /// Places in the log are reused after a crash.
    PlacesUsedAgain,
    /// Reading ends at a hole in what was durable, as if it were the end.
    PastHole,
    /// A segment is recycled while it is still needed.
    RecycledTooEarly,
    /// A segment is recycled while it is being reread.
    RecycledWhileRead,
    /// A log whose files were removed begins from zero.
    LeastIgnored,
    /// A removed log is gone before the removal is durable.
    RemovalNotSynced,
    /// Frames that an earlier lap has left in the buffer's file are taken as new.
    StaleBuffer,
    /// Frames of the buffer's file are taken although they do not follow on the segments.
    GapInBuffer,
    /// The buffer's file is reused before its contents are in segments.
    BufferUsedAgain,
    /// The buffer is released where a write ends, not where a record ends.
    ReleasedInPart,
    /// The file of a segment that was never begun is recycled while the one before says that it is needed.
    MarkStays,
    /// What an opening has begun is removed although the database looks for it.
    WithdrawnUnnoted,
    /// A segment is recycled before it has been archived.
    RecycledUnarchived,
    /// A segment is recycled although a feed follows it.
    FollowedGivenUp,
}

#[cfg(test)]
impl Bug {
    pub const ALL: [Self; 22] = [
        Self::SkippedSync,
        Self::EarlyAcknowledgement,
        Self::SwallowedWriteError,
        Self::SyncTriedAgain,
        Self::SegmentBeforeSync,
        Self::HeaderNotSynced,
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
        Self::MarkStays,
        Self::WithdrawnUnnoted,
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
