//! The B+tree.
//!
//! Readers go down without latches: they look at a node and at its child, and then make sure that the node has not
//! changed meanwhile (*optimistic lock coupling*: Leis, Haubenschild, Neumann, 2019). Writers go down the same way and
//! latch the leaf at the end. Splits and merges latch a parent and then its child, never more than one level at a time.
//! They never wait while they hold a latch, so there is no latch order to violate: an operation that meets a latch
//! releases its own and begins again.
//!
//! Every operation is a function under the restart protocol of [`vellum_pool::Navigation`].
//!
//! A thread that appends records, to the end of the tree or after its own last record elsewhere, finds the leaf by an
//! [`AppendHint`](vellum_pool::AppendHint), without going down. The hint is a page and the version with which the
//! thread left it, and holds only while the page has that version. So the page is certainly still a leaf of the tree.
//!
//! # Invariants
//! - The root's page id never changes. A root that splits moves its contents to two new pages.
//! - A node's level is one below its parent's; its fences are the separators on its two sides.
//! - A key is in the one leaf whose fences enclose it. Leaves do not know their neighbours: a cursor finds the next
//!   leaf through their parent, or by going down to the fence of the last leaf.
//! - A node may be empty; merging saves space and is not needed for correctness.

mod batch;
mod bulk;
mod change;
mod check;
mod current;
mod descend;
mod hints;
mod read;
mod salvage;
mod sound;

pub(crate) use change::blob::write_blob;

pub use batch::task::{Answer, Task};
pub use batch::{Batch, Lookups};
pub use bulk::BulkLoad;
pub use change::exchange::Held;
pub use change::relocate::Relocation;
pub use change::write::{Prepared, WriteMode, Written};
pub use check::{TreeReport, TreeShape};
pub use current::{CurrentRoot, NumberedRoot};
pub use hints::TreeHints;
pub use read::blob_reader::BlobReader;
pub use read::cursor::{Cursor, CursorPosition, Entry};
pub use salvage::Salvaged;

use crate::gateway::RecordGroup;
use crate::node::{MAX_KEY_BYTES, NodeMut};
use crate::{error::AccessError, isolation::View};
use vellum_base::PageId;
use vellum_pool::Pager;

/// A B+tree from keys of up to 1024 bytes to values of up to 1 GiB, in the order of the keys' bytes.
///
/// A tree is a root page and a pager, and may be copied freely. Threads may share it: each operation is atomic.
///
/// ```
/// use vellum_access::Tree;
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// tree.upsert(b"key", b"value")?;
/// assert_eq!(tree.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// pool.set_root_slot(0, tree.root().0)?; // where to find it when the file is opened again
/// pool.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tree<'p, P> {
    pager: &'p P,
    /// Its root; the number is of use only if it may be replaced.
    at: NumberedRoot,
    hints: Option<&'p TreeHints>,
    /// How the tree is seen and changed, if other transactions may see it differently.
    view: Option<View<'p>>,
    /// Which tree may be changed, if this tree may be replaced by another one.
    current: Option<&'p CurrentRoot>,
}

impl<P> Clone for Tree<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Tree<'_, P> {}

impl<'p, P: Pager> Tree<'p, P> {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// If the file cannot grow or the pool has no room.
    pub fn create(pager: &'p P) -> Result<Self, AccessError> {
        let mut group = RecordGroup::begin(pager);
        let tree = Self::create_in(&mut group)?;
        group.end();
        Ok(tree)
    }

    /// Creates an empty tree together with the record of another tree that says where it is: see [`RecordGroup`]. The
    /// new tree may be used after the group has ended.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_in(group: &mut RecordGroup<'p, P>) -> Result<Self, AccessError> {
        let empty = |page: &mut [u8]| Ok(NodeMut::init(page, 0, None, None, PageId(0)).map(drop)?);
        let root = group.make(empty)?;
        Ok(Self::open(group.pager(), root))
    }

    /// Opens the tree with the root `root`, which [`create`](Self::create) made earlier.
    #[inline]
    pub fn open(pager: &'p P, root: PageId) -> Self {
        Self { pager, at: NumberedRoot::first(root), hints: None, view: None, current: None }
    }

    /// The same tree, with hints that all its handles share. With them, a thread that appends records, to the end of
    /// the tree or after one another elsewhere, finds their leaf without going down the tree, and a cursor can estimate
    /// the number of entries of a leaf before it reads it.
    #[inline]
    #[must_use]
    pub fn with_hints(self, hints: &'p TreeHints) -> Self {
        Self { hints: Some(hints), ..self }
    }

    /// The same tree as a transaction sees and changes it, or a single operation while there may be transactions.
    /// Without a view a tree shows what its leaves hold, and any operation may change that.
    #[inline]
    #[must_use]
    pub fn with_view(self, view: View<'p>) -> Self {
        Self { view: Some(view), ..self }
    }

    /// The same tree, as `seen` in `current`. It may be changed only while it is the current one: an operation that comes too
    /// late is [cancelled](vellum_pool::PoolError::Cancelled), and has changed nothing. So a tree that has been
    /// replaced by another one can be [truncated](Self::truncate). A cursor goes on in the other one.
    #[inline]
    #[must_use]
    pub fn while_current(self, current: &'p CurrentRoot, seen: NumberedRoot) -> Self {
        Self { current: Some(current), at: seen, ..self }
    }

    /// Goes over to the tree that has [replaced](Self::while_current) this one; false if none has.
    #[inline]
    pub(in crate::tree) fn follow(&mut self) -> bool {
        match self.current.filter(|current| !current.is(self.at)) {
            // Hints are those of one tree.
            Some(current) => (self.at, self.hints) = (current.wait(), None),
            None => return false,
        }
        true
    }

    /// The root, and which one it was if the tree may be [replaced](Self::while_current).
    #[inline]
    pub fn numbered_root(&self) -> NumberedRoot {
        self.at
    }

    /// The page of the root, which never changes.
    #[inline]
    pub fn root(&self) -> PageId {
        self.at.root()
    }
}

#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<(), AccessError> {
    if key.len() > MAX_KEY_BYTES { Err(AccessError::KeyTooLong { bytes: key.len() }) } else { Ok(()) }
}
