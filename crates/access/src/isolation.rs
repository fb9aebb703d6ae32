//! The isolation of transactions, as the tree sees it.
//!
//! A leaf holds the newest version of each record, whichever transaction wrote it. An [`Isolation`] keeps earlier
//! versions by key; nothing in a node refers to them. The LSN of the leaf tells whether one of them may be needed,
//! which is rare.
//!
//! - **Writers.** Before a record is changed, it is [claimed](Isolation::claim) under the latch of its leaf, so that
//!   the old value is kept, or the change is refused. A write that changes nothing because of what the leaf holds is
//!   [checked](Isolation::check) instead.
//! - **Readers.** A reader of a leaf that is not older than its snapshot asks what it [sees](Isolation::seen) of each
//!   record *before* it validates the leaf. So the answers and the bytes that it has read belong to one moment.
//! - **Snapshots that are ended** while they are in use, because they hold back too much. An answer counts only if the
//!   snapshot has not been [ended](Isolation::is_ended) since; otherwise the operation is
//!   [cancelled](vellum_pool::PoolError::Cancelled). What a leaf holds from before the snapshot can still be read.
//! - **Large values.** A large value that a transaction replaces or removes is not freed: the old values refer to it.
//!   For a reader without a snapshot it may be freed as soon as the transaction ends. Such a reader latches it, and
//!   asks again.

use crate::blob::BlobReference;
use crate::direction::Direction;
use crate::gateway::{RecordKind, Recorder, ValueImage};
use std::{
    fmt,
    ops::{Bound, Deref, Range},
    sync::Arc,
};
use vellum_base::primitive::{AtomicU64, AtomicUsize, Ordering};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// The bytes of an earlier value: a range of shared memory.
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
    /// What the leaf holds, even if that is nothing.
    Leaf,
    /// Nothing.
    Absent,
    /// An earlier value.
    Value(SharedBytes),
    /// An earlier value that is a large one.
    Large(BlobReference),
}

/// What is to be done to a record that is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Nothing: it is only reserved.
    Reserve,
    /// Its value is changed and keeps its length.
    SameLength,
    /// It gets a value that takes so many bytes in the leaf.
    Put {
        /// The bytes.
        bytes: usize,
    },
    /// It is removed.
    Remove,
}

impl Intent {
    /// How many bytes more, or less, the leaf then holds of it.
    pub fn growth(self, key: &[u8], before: Option<ValueImage<'_>>) -> i64 {
        let held = before.map_or(0, |before| key.len() + before.bytes.len());
        let then = match self {
            Self::Reserve | Self::SameLength => held,
            Self::Put { bytes } => key.len() + bytes,
            Self::Remove => 0,
        };
        then as i64 - held as i64
    }
}

/// The reason why a record must not be changed.
#[derive(Debug)]
pub enum Claim {
    /// Another transaction has changed the record.
    Conflict {
        /// Whether that transaction committed after the snapshot was taken; otherwise it is still open.
        committed: bool,
    },
    /// A single operation must not change the record while transactions are open.
    NeedsTransaction,
    /// The snapshot has been [ended](Isolation::is_ended).
    Ended,
    /// It cannot be read which transaction has changed the record.
    Failed(Box<PoolError>),
}

impl From<PoolError> for Claim {
    #[cold]
    fn from(error: PoolError) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// Keeps earlier versions of records, and decides what a transaction sees and may change. One for each writer or
/// reader.
pub trait Isolation: Send + Sync {
    /// Returns what is seen of a record. The caller has read the leaf, and validates it afterwards.
    ///
    /// # Errors
    /// If the version that is seen cannot be read.
    fn seen(&self, tree: PageId, key: &[u8]) -> Result<Seen, PoolError>;

    /// Announces a change of the record. Its leaf is latched, has the LSN `leaf`, and holds `before` under the key.
    ///
    /// Before the leaf is released, one of three follows: [`recorded`](Self::recorded), [`unchanged`](Self::unchanged)
    /// or [`give_up`](Self::give_up).
    ///
    /// # Errors
    /// If the record must not be changed.
    fn claim(
        &self,
        tree: PageId,
        key: &[u8],
        leaf: Lsn,
        before: Option<ValueImage<'_>>,
        intent: Intent,
    ) -> Result<(), Claim>;

    /// Checks that this writer sees what the leaf holds under the key, even if that is nothing. The leaf has the LSN
    /// `leaf`. The caller has read it, and validates it afterwards.
    ///
    /// # Errors
    /// If the writer sees something else: the error that a change of the record would give.
    fn check(&self, tree: PageId, key: &[u8], leaf: Lsn) -> Result<(), Claim>;

    /// Whether records may be seen that are no longer in any leaf.
    fn has_removed(&self) -> bool;

    /// Keys in bounds: every key whose record is seen but in no leaf any more, and maybe others. A portion says in which
    /// direction and how many are wanted: if there are more, it may be only those that come first.
    ///
    /// # Errors
    /// If the keys cannot be read.
    fn removed(
        &self,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError>;

    /// Whether the snapshot has been ended, so that the versions it sees may be gone. If it has, every answer given
    /// before this call is void.
    fn is_ended(&self) -> bool {
        false
    }

    /// Reports the LSN of the change that was claimed last. The leaf is still latched.
    fn recorded(&self, lsn: Lsn);

    /// Reports that the record that was claimed last stays as it is. No other transaction may change it before this one
    /// ends. The leaf is still latched.
    fn unchanged(&self) {}

    /// Reports that the leaf of a key is sparse, and could not be merged because undo may need it as it is. No latch is
    /// held.
    fn put_off_merge(&self, tree: PageId, key: &[u8]) {
        let _ = (tree, key);
    }

    /// Takes the last claim back: the record is not changed. Others may still be refused until this transaction ends. If a change had been begun in place, `value` is the value
    /// in the leaf, and becomes what it was. The leaf is still latched.
    fn give_up(&self, value: Option<&mut [u8]>) {
        let _ = value;
    }
}

/// Keys of removed records, in ascending order: see [`Isolation::removed`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// The keys.
    pub keys: Vec<Box<[u8]>>,
    /// Up to this key, in the direction of the portion, none is missing, and beyond it are more. It is within the bounds, so
    /// it leads further. `None` if none is missing at all.
    pub complete_to: Option<Box<[u8]>>,
}

/// Isolation for records that no other thread knows, or that no other thread can change: what the leaf holds is what is
/// seen, and everything may be changed.
#[derive(Clone, Copy, Debug)]
pub struct Unshared;

impl Isolation for Unshared {
    fn seen(&self, _: PageId, _: &[u8]) -> Result<Seen, PoolError> {
        Ok(Seen::Leaf)
    }

    fn claim(&self, _: PageId, _: &[u8], _: Lsn, _: Option<ValueImage<'_>>, _: Intent) -> Result<(), Claim> {
        Ok(())
    }

    fn check(&self, _: PageId, _: &[u8], _: Lsn) -> Result<(), Claim> {
        Ok(())
    }

    fn has_removed(&self) -> bool {
        false
    }

    fn removed(
        &self,
        _: PageId,
        _: (Bound<&[u8]>, Bound<&[u8]>),
        _: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        Ok(Removed::default())
    }

    fn recorded(&self, _: Lsn) {}
}

/// The transaction, if any, for which records are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// No transaction: each change counts by itself.
    None,
    /// A transaction, which has this number in the log.
    Transaction(u64),
    /// A transaction that is being undone.
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
    /// An LSN. A leaf with a smaller one holds just what is seen. The highest number if nothing need ever be asked.
    pub settled: &'v AtomicU64,
    /// Answers for all other leaves.
    pub isolation: &'v dyn Isolation,
    /// For whom records are changed.
    pub writer: Writer,
    /// The number of open transactions, for a writer outside transactions: while it is zero, such a writer claims
    /// nothing. While it is not zero, changes [need LSNs](vellum_pool::ChangeRecords::needs_lsn).
    pub open: Option<&'v AtomicUsize>,
}

impl View<'_> {
    /// Whether a record of a latched leaf may be changed without a claim. If changes needed no LSN when the leaf was
    /// latched, no transaction was open.
    #[inline(always)]
    pub(crate) fn is_alone(&self, needs_lsn: bool) -> bool {
        // SeqCst: a transaction counts itself before it first reads. If it is not counted yet, it reads the leaf later.
        self.open.is_some_and(|open| !needs_lsn || open.load(Ordering::SeqCst) == 0)
    }

    /// Whether a leaf with this LSN, which has been read and will be validated, holds just what is seen.
    #[inline(always)]
    pub(crate) fn is_settled(&self, leaf: Lsn) -> bool {
        // Acquire: the settled place is published before a leaf is latched for a change after that place, so a thread
        // that reads the leaf finds it. The place moves on when the change is committed, or when the leaf has been
        // changed back, which the validation of the leaf after this notices.
        leaf.0 < self.settled.load(Ordering::Acquire)
    }

    /// Whether the record that replaces or removes a large value also frees it.
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

    fn unchanged(&self) {
        self.isolation.unchanged();
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
