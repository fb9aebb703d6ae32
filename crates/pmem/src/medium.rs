//! The medium of a store: memory, and the three steps by which a store instruction becomes durable.
//!
//! A change is durable when its cache lines have been flushed and the thread that flushed them has passed a fence.
//! Every flush and every fence of the store goes through this trait and names its [`Site`]; so the same code runs on a
//! file ([`FileMedium`](crate::file::FileMedium)) and on the shadow of the tests, which records what a crash would
//! leave, and can leave out any single one of them.

use crate::{
    error::Result,
    memory::{Memory, WORD, padded, store_bytes, words_of},
};
use std::sync::atomic::Ordering;

/// The places in the code that flush or fence. Each has a flush and a fence, and a test notices if either is left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Site {
    /// The superblocks of whatever the medium held before, which are being cleared.
    OldSuperblock,
    /// The superblocks of a new store.
    Superblock,
    /// How many blocks have ever been handed out.
    BlocksEnd,
    /// Unused blocks that were formatted before, which recovery is about to examine again because the recorded number
    /// of used blocks is raised.
    UnusedBlocks,
    /// A block that was formatted before is about to be reformatted.
    Unformat,
    /// Everything of a formatted block except the word that says that it is formatted.
    PageHeads,
    /// The word that says that a block is formatted. It has no fence of its own: the fence of the first record comes
    /// before anything depends on it.
    BlockHead,
    /// The word that says that blocks belong to a large record.
    LargeHead,
    /// The same word, when they no longer do.
    LargeGone,
    /// A page whose log extends over the following pages.
    SpanHead,
    /// The blocks after the first of a large record, before they become separate blocks again.
    InnerBlocks,
    /// A non-empty slot of a block that is formatted for the first time. It has no fence of its own: the fence of the
    /// heads of pages covers it.
    EmptySlot,
    /// The memory of a log before it begins. It has no fence of its own, for the same reason.
    EmptyLog,
    /// The words that say that the records of a page must be right.
    Occupancy,
    /// A new record to which nothing leads yet.
    Record,
    /// A new record that is written again because its sequence number was too low. It has no fence of its own: that of
    /// the record, or of the batch, covers it.
    Renumber,
    /// The word that makes a record valid.
    Publish,
    /// The word that makes a record invalid, after another one has replaced it.
    Retract,
    /// The word that makes a deleted record invalid.
    Delete,
    /// Both checksums of a record that is about to be changed in place.
    UpdateSums,
    /// The word that is changed in place.
    UpdateValue,
    /// Both checksums of a record, and the new content of the word that is changed.
    UpdateHead,
    /// The word of the value, which becomes what the head of the record says. It has no fence of its own: the client's
    /// next fence covers it.
    UpdateWord,
    /// A word that another client left to its next fence.
    Unsettled,
    /// The records of a batch.
    BatchRecord,
    /// The words that make the records of a batch valid.
    BatchPublish,
    /// The words that make the deleted records of a batch invalid.
    BatchDelete,
    /// Copies of records of a block that is being compacted.
    CopyRecord,
    /// The words that make the copies valid.
    CopyPublish,
    /// The words that make the originals invalid.
    CopyRetract,
    /// The superblocks and the number of used blocks as recovery found them: a process that was killed while the
    /// machine ran on may have left them only in the caches.
    RecoveryMeta,
    /// The same for the blocks.
    RecoveryScan,
    /// Both checksums of a record, and the word of its value that recovery is about to complete.
    RecoveryHead,
    /// A record that recovery found to be older than another of the same key, or torn.
    RecoveryRetract,
    /// The occupancy of records that recovery found right.
    RecoveryOccupancy,
}

/// What one thread has flushed but not fenced yet, as far as the medium must remember it.
#[derive(Debug, Default)]
pub struct Lane {
    /// Ranges of bytes, in the order of their flushes.
    pub pending: Vec<(u64, u64)>,
    /// The number of the thread, for the shadow.
    pub number: u64,
}

/// How many bytes [`Medium::write`] writes.
#[inline]
pub fn written_bytes(parts: &[&[u8]], behind: usize) -> usize {
    parts.iter().map(|part| padded(part.len())).sum::<usize>() + behind
}

/// The medium of a store.
pub trait Medium: Send + Sync + Sized + 'static {
    /// The memory. Memory beyond [`capacity`](Self::capacity) is not accessed.
    fn memory(&self) -> &Memory;

    /// Notes that these bytes were just stored to. Does nothing, except in the shadow.
    #[inline]
    fn touched(&self, _at: u64, _bytes: usize) {}

    /// Begins to write these bytes back.
    fn flush(&self, lane: &mut Lane, site: Site, at: u64, bytes: usize);

    /// Stores parts one after the other, each padded with zeroes to whole words, and `behind` bytes of zeroes after
    /// them; and begins to write them back, past the caches where the medium can. `at` and `behind` are multiples of
    /// eight. The stores are relaxed, and those past the caches become visible to other threads after the next fence.
    #[inline]
    fn write(&self, lane: &mut Lane, site: Site, at: u64, parts: &[&[u8]], behind: usize) {
        let bytes = written_bytes(parts, behind);
        let mut rest = self.memory().words(at, bytes / WORD);
        for part in parts {
            let (words, after) = rest.split_at(words_of(part.len()));
            store_bytes(words, part);
            rest = after;
        }
        rest.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.touched(at, bytes);
        self.flush(lane, site, at, bytes);
    }

    /// Waits until everything that the lane flushed is durable.
    ///
    /// # Errors
    /// [`Persist`](crate::PmemError::Persist) from a medium that relies on the system. What was flushed may then be
    /// lost although it can be read, and a later success does not change that.
    fn fence(&self, lane: &mut Lane, site: Site) -> Result<()>;

    /// The size in bytes.
    fn capacity(&self) -> u64;

    /// Grows it to at least `to` bytes, if it is smaller; new bytes read as zeroes.
    ///
    /// # Errors
    /// [`Full`](crate::PmemError::Full) and similar errors, after which the size is unchanged;
    /// [`Persist`](crate::PmemError::Persist) as from [`fence`](Self::fence).
    fn grow(&self, to: u64) -> Result<()>;

    /// Does some milliseconds of work that makes the memory faster, if there is any left; returns whether there was.
    fn tend(&self) -> bool {
        false
    }

    /// Returns everything after byte `to` to the system, if possible. A thread that still reads there reads zeroes.
    ///
    /// # Errors
    /// If the system fails; [`Persist`](crate::PmemError::Persist) as from [`fence`](Self::fence).
    fn shrink(&self, to: u64) -> Result<()>;
}
