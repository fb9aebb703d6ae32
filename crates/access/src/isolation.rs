//! How transactions are kept apart, as the tree sees it.
//!
//! A leaf holds the newest version of each record, of whatever transaction. Earlier versions are kept by an [`Isolation`], by
//! key, and nothing in a node tells of them. Whether one of them may be needed the LSN of the leaf tells: that is seldom so.
//!
//! - **Writers.** Before a record is changed, it is [claimed](Isolation::claim) under the latch of its leaf, so that the old
//!   value is kept, or the change refused. A write that changes nothing, because of what the leaf holds, is
//!   [checked](Isolation::check).
//! - **Readers.** A reader of a leaf that is not older than its snapshot asks what it [sees](Isolation::seen) of each record
//!   *before* it validates the leaf. So what it was told and what it has read belong to one moment.
//! - **Snapshots that are ended** while they are used, because they hold back too much. What a reader was told counts only if the
//!   snapshot has not been [ended](Isolation::is_ended) afterwards; else the operation is
//!   [cancelled](vellum_pool::PoolError::Cancelled). What a leaf holds that is older than the snapshot is seen all the same.
//! - **Large values.** What a transaction replaces or removes is not freed: its reference is among the old values. Outside of
//!   a snapshot it may be freed as soon as the transaction ends. So a reader latches it, and then asks again.

use crate::blob::BlobReference;
use crate::gateway::{RecordKind, Recorder, ValueImage};
use std::{
    fmt,
    ops::{Bound, Deref, Range},
    sync::Arc,
};
use vellum_base::primitive::{AtomicU64, AtomicUsize, Ordering};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// The bytes of an earlier value: some of those of a piece of memory that others share.
#[derive(Clone)]
pub struct SharedBytes {
    all: Arc<[u8]>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The bytes of a range.
    pub fn new(all: Arc<[u8]>, range: Range<usize>) -> Self {
        Self { all, range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.all.get(self.range.clone()).unwrap_or_default()
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedBytes {}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What a snapshot sees of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// What the leaf holds, be that nothing.
    Leaf,
    /// Nothing.
    Absent,
    /// An earlier value.
    Value(SharedBytes),
    /// An earlier value that is a large one.
    Large(BlobReference),
}

/// Why a record must not be changed.
#[derive(Debug)]
pub enum Claim {
    /// Another transaction has changed it.
    Conflict {
        /// It was committed after the snapshot was taken; else it is open.
        committed: bool,
    },
    /// A single operation must not change it while transactions are open.
    NeedsTransaction,
    /// The snapshot has been [ended](Isolation::is_ended).
    Ended,
    /// Which transaction has changed it cannot be read.
    Failed(Box<PoolError>),
}

impl From<PoolError> for Claim {
    #[cold]
    fn from(error: PoolError) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// Keeps earlier versions of records, and says what a transaction sees and may change. One for each writer or reader.
pub trait Isolation: Send + Sync {
    /// What is seen of a record. Its leaf has been read, and is validated afterwards.
    ///
    /// # Errors
    /// If what is seen cannot be read.
    fn seen(&self, tree: PageId, key: &[u8]) -> Result<Seen, PoolError>;

    /// The record is about to be changed. Its leaf is latched, has the LSN `leaf`, and holds `before` under the key.
    ///
    /// The change need not follow: the leaf may be full, and the record is claimed again then.
    ///
    /// # Errors
    /// If the record must not be changed.
    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        leaf: Lsn,
        before: Option<ValueImage<'_>>,
        removes: bool,
    ) -> Result<(), Claim>;

    /// Whether what the leaf, which has the LSN `leaf`, holds under the key, be that nothing, is what this writer sees. The leaf has been
    /// read, and is validated afterwards.
    ///
    /// # Errors
    /// If not: the error of a change of the record.
    fn check(&self, tree: PageId, key: &[u8], leaf: Lsn) -> Result<(), Claim>;

    /// Whether records may be seen that are in no leaf any more.
    fn has_removed(&self) -> bool;

    /// Keys of a tree within bounds, in ascending order: all whose records are seen and are in no leaf any more, and others.
    ///
    /// # Errors
    /// If they cannot be read.
    fn removed(
        &self,
        tree: PageId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Vec<Box<[u8]>>, PoolError>;

    /// Whether the snapshot has been ended, so that what it sees may have been forgotten: whatever was told before this is asked
    /// has no meaning then.
    fn is_ended(&self) -> bool {
        false
    }

    /// The record of the change that was claimed last has its place in the log. The leaf is still latched.
    fn recorded(&self, lsn: Lsn);
}

/// Records of which no other thread knows, or that no other can change: the leaf holds what is seen, and everything may be
/// changed.
#[derive(Clone, Copy, Debug)]
pub struct Unshared;

impl Isolation for Unshared {
    fn seen(&self, _: PageId, _: &[u8]) -> Result<Seen, PoolError> {
        Ok(Seen::Leaf)
    }

    fn claim(&self, _: PageId, _: &[u8], _: Lsn, _: Option<ValueImage<'_>>, _: bool) -> Result<(), Claim> {
        Ok(())
    }

    fn check(&self, _: PageId, _: &[u8], _: Lsn) -> Result<(), Claim> {
        Ok(())
    }

    fn has_removed(&self) -> bool {
        false
    }

    fn removed(&self, _: PageId, _: Bound<&[u8]>, _: Bound<&[u8]>) -> Result<Vec<Box<[u8]>>, PoolError> {
        Ok(Vec::new())
    }

    fn recorded(&self, _: Lsn) {}
}

/// On whose behalf records are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// Of no transaction: each change counts by itself.
    None,
    /// Of a transaction, which has this number in the log.
    Transaction(u64),
    /// Of one that is being undone.
    Undo {
        /// Its number.
        transaction: u64,
        /// The change that is being undone.
        of: Lsn,
    },
}

/// How a tree is seen and changed: see [`Tree::with_view`](crate::Tree::with_view).
#[derive(Clone, Copy)]
pub struct View<'v> {
    /// An LSN: of a leaf with a lesser one, what it holds is what is seen. The highest number if nothing need ever be asked.
    pub settled: &'v AtomicU64,
    /// What is asked otherwise.
    pub isolation: &'v dyn Isolation,
    /// On whose behalf records are changed.
    pub writer: Writer,
    /// Zero if no transaction is open, for a writer that is none: if it finds that, it claims nothing. While it is not zero, changes
    /// [need LSNs](vellum_pool::ChangeRecords::needs_lsn).
    pub open: Option<&'v AtomicUsize>,
}

impl View<'_> {
    /// Whether the record of a leaf that is latched may be changed without a claim. If changes needed no LSN when the leaf was latched, no
    /// transaction was open.
    #[inline(always)]
    pub(crate) fn is_alone(&self, needs_lsn: bool) -> bool {
        // SeqCst: a transaction that begins counts itself before it reads. If it is not counted yet, it reads the leaf after this.
        self.open.is_some_and(|open| !needs_lsn || open.load(Ordering::SeqCst) == 0)
    }

    /// Whether a leaf with this LSN, which has been read and is validated afterwards, holds just what is seen.
    #[inline(always)]
    pub(crate) fn is_settled(&self, leaf: Lsn) -> bool {
        // Acquire: the place is published before a leaf is latched that is changed after it, so a thread that reads the
        // leaf finds it. It goes when what was changed is committed, or the leaf has been changed back, which shows when the leaf is
        // validated after this.
        leaf.0 < self.settled.load(Ordering::Acquire)
    }

    /// Whether a large value is freed by the record that replaces or removes it.
    pub(crate) fn frees(&self) -> bool {
        !matches!(self.writer, Writer::Transaction(_))
    }
}

impl Recorder for View<'_> {
    fn kind(&self) -> RecordKind {
        match self.writer {
            Writer::None => RecordKind::Single,
            Writer::Transaction(number) => RecordKind::Transaction(number),
            Writer::Undo { transaction, of } => RecordKind::Undo { transaction, of },
        }
    }

    fn recorded(&self, lsn: Lsn) {
        self.isolation.recorded(lsn);
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settled = self.settled.load(Ordering::Relaxed);
        f.debug_struct("View")
            .field("settled", &settled)
            .field("writer", &self.writer)
            .finish_non_exhaustive()
    }
}
