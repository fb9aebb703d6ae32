//! What a store lies on: memory, and the three steps by which a store to it becomes durable.
//!
//! A change is durable when its cache lines were flushed and the thread that flushed them has passed a fence.
//! Every flush and every fence of the store goes through this trait and names its [`Site`]; so the same code
//! runs on a file ([`FileMedium`](crate::file::FileMedium)) and on the shadow of the tests, which keeps the books
//! about what a crash would leave, and which can leave out any single one of them.

use crate::{
    error::Result,
    memory::{Memory, WORD, padded, store_bytes, words_of},
};
use std::sync::atomic::Ordering;

/// The places in the code that flush or fence. Each has a flush and a fence, and a test that notices when either
/// is left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Site {
    /// The superblocks of whatever the medium held before, which are about to mean nothing.
    OldSuperblock,
    /// The heads of all blocks that the medium has when a store is made on it. They have no fence of their own: the one before
    /// the new superblocks is theirs too.
    OldBlocks,
    /// The superblocks of a new store.
    Superblock,
    /// How many blocks have ever been handed out.
    BlocksEnd,
    /// A block that was formatted before is about to be formatted anew.
    Unformat,
    /// Everything of a formatted block but the word that says that it is formatted.
    PageHeads,
    /// The word that says that a block is formatted. It has no fence of its own: that of the first record comes before
    /// anything depends on it.
    BlockHead,
    /// The word that says that blocks belong to a large record.
    LargeHead,
    /// The same word, when they do not any more.
    LargeGone,
    /// A page that takes in the pages after it.
    SpanHead,
    /// The blocks after the first of a large record, before they become blocks of their own again.
    InnerBlocks,
    /// A slot of a block that is formatted for the first time, where something lies. It has no fence of its own: that of the heads of
    /// pages is its.
    EmptySlot,
    /// The memory of a log before it begins. It has no fence of its own, as above.
    EmptyLog,
    /// What says of the records of a page that they must be right.
    Occupancy,
    /// A new record that nothing leads to yet.
    Record,
    /// The word that makes a record valid.
    Publish,
    /// The word that makes a record invalid, after another took its place.
    Retract,
    /// The word that makes a deleted record invalid.
    Delete,
    /// Both checksums of a record that is about to be changed in place.
    UpdateSums,
    /// The word that is changed in place.
    UpdateValue,
    /// Both checksums of a record and the word that one of its words becomes.
    UpdateHead,
    /// The word that becomes what the head of its record says. It has no fence of its own: the next one of the client is its.
    UpdateWord,
    /// A word that another client left to its next fence.
    Unsettled,
    /// The records of a batch.
    BatchRecord,
    /// The words that make the records of a batch valid.
    BatchPublish,
    /// The words that make the deleted records of a batch invalid.
    BatchDelete,
    /// Copies of records of a block that is compacted.
    CopyRecord,
    /// The words that make the copies valid.
    CopyPublish,
    /// The words that make the originals invalid.
    CopyRetract,
    /// The superblocks and the number of used blocks as recovery found them: a process that ended without the machine may have
    /// left them in the caches alone.
    RecoveryMeta,
    /// The same of the blocks.
    RecoveryScan,
    /// A record that recovery found to be older than another of the same key, or torn.
    RecoveryRetract,
    /// The same of records that recovery found right.
    RecoveryOccupancy,
}

/// What one thread has flushed and not fenced yet, as far as the medium must remember it.
#[derive(Debug, Default)]
pub struct Lane {
    /// Ranges of bytes, in the order of their flushes.
    pub pending: Vec<(u64, u64)>,
    /// Which thread this is, for the shadow.
    pub number: u64,
}

/// How many bytes [`Medium::write`] writes.
#[inline]
pub fn written_bytes(parts: &[&[u8]], behind: usize) -> usize {
    parts.iter().map(|part| padded(part.len())).sum::<usize>() + behind
}

/// What a store lies on.
pub trait Medium: Send + Sync + Sized + 'static {
    /// The memory. What is behind [`capacity`](Self::capacity) is not accessed.
    fn memory(&self) -> &Memory;

    /// These bytes were just stored to. Nothing happens, except in the shadow.
    #[inline]
    fn touched(&self, _at: u64, _bytes: usize) {}

    /// Begins to write these bytes back.
    fn flush(&self, lane: &mut Lane, site: Site, at: u64, bytes: usize);

    /// Stores parts one after the other, each filled up with zeroes to whole words, and `behind` bytes of zeroes after them;
    /// and begins to write them back, past the caches where the medium can. `at` and `behind` are multiples of eight. The stores
    /// are relaxed ones, and those past the caches are seen by others after the next fence.
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
    /// [`Persist`](crate::PmemError::Persist) from a medium that asks the system to do it. What was flushed may then be lost
    /// although it can be read, and a later success does not mean otherwise.
    fn fence(&self, lane: &mut Lane, site: Site) -> Result<()>;

    /// How many bytes there are.
    fn capacity(&self) -> u64;

    /// Makes it at least `to` bytes large, if it is smaller; what is new reads as zeroes.
    ///
    /// # Errors
    /// [`Full`](crate::PmemError::Full) and the like; it is then as it was.
    fn grow(&self, to: u64) -> Result<()>;

    /// Does some milliseconds' work that makes use of the memory faster, if there is any left; whether there was.
    fn tend(&self) -> bool {
        false
    }

    /// Gives back what is after byte `to`, if that is possible. A thread that still reads there reads zeroes.
    ///
    /// # Errors
    /// What the system says.
    fn shrink(&self, to: u64) -> Result<()>;
}
