//! The B+tree.
//!
//! Readers go down without latches: they look at a node, at its child, and then make sure that the node has
//! not changed meanwhile (*optimistic lock coupling*: Leis, Haubenschild, Neumann, 2019). Writers go down
//! the same way and latch the leaf at the end. Splits and merges latch a parent and then its child, never
//! more than one level at a time, and never wait with a latch in hand, so there is no order to violate: who
//! meets a latch gives up its own and begins anew.
//!
//! Every operation is a function under the restart protocol of [`vellum_pool::Navigation`].
//!
//! Whoever appends, to the end of the tree or behind its own last record elsewhere, finds the leaf by a
//! [`AppendHint`](vellum_pool::AppendHint), without going down: it keeps the page and the version that it was left with, and
//! counts only as long as that is still its version. So it needs no check of whose page it is.
//!
//! # Invariants
//! - The root's page id never changes. A root that splits moves its contents to two new pages.
//! - A node's level is one below its parent's; its fences are the separators on its two sides.
//! - A key is in the one leaf whose fences enclose it. Leaves do not know their neighbours: a cursor finds
//!   the next leaf by their parent, or by going down to the fence of the last one.
//! - A node may be empty; merging is a matter of space, not of correctness.

mod bulk;
mod change;
mod check;
mod descend;
mod read;

pub use bulk::BulkLoad;
pub use change::write::Written;
pub use check::{TreeReport, TreeShape};
pub use descend::{
    batch::Batch,
    operation::{Answer, Task},
};
pub use read::cursor::{Cursor, Entry};

use crate::{
    AccessError,
    blob::{BlobReader, BlobReference},
    error::damaged,
    node::{MAX_KEY_BYTES, NodeMut, NodeView, ValueAt, ValueKind},
    value::{Held, Value},
};
use descend::operation::Part;
use std::ops::Range;
use vellum_base::{Bytes, PageId, PageKind};
use vellum_pool::{AllocatedPage, AppendHints, ExclusivePage, Interrupt, OptimisticPage, Pager, SharedPage};

/// A B+tree from keys of up to 1024 bytes to values of up to 1 GiB, in the order of the keys' bytes.
///
/// It is a root page and a pager, and may be copied freely. Shared by threads: each operation is atomic.
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
    root: PageId,
    /// The leaves to which threads append records.
    ends: Option<&'p AppendHints>,
}

impl<P> Clone for Tree<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Tree<'_, P> {}

/// What a lookup found in a leaf.
pub(crate) enum Found<'p, P: Pager + 'p> {
    Nothing,
    Inline,
    Blob(BlobReference, P::Shared<'p>),
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Makes an empty tree.
    ///
    /// # Errors
    /// If the file cannot grow or the pool has no room.
    pub fn create(pager: &'p P) -> Result<Self, AccessError> {
        let mut guard = pager.allocate(1, PageKind::TREE_NODE)?;
        let root = guard.id();
        NodeMut::init(guard.page_mut(), 0, None, None, PageId(0))
            .map_err(|fault| vellum_pool::PoolError::contents(root, fault.to_string()))?;
        drop(guard.keep());
        Ok(Self::open(pager, root))
    }

    /// The tree whose root is `root`, which [`create`](Self::create) made at some time.
    #[inline]
    pub fn open(pager: &'p P, root: PageId) -> Self {
        Self { pager, root, ends: None }
    }

    /// The same tree, with append hints that all its handles share: who appends records, to the end of the tree or behind
    /// one another elsewhere, finds their leaf without going down the tree.
    #[inline]
    #[must_use]
    pub fn with_append_hints(self, ends: &'p AppendHints) -> Self {
        Self { ends: Some(ends), ..self }
    }

    /// The page of the root, which never changes.
    #[inline]
    pub fn root(&self) -> PageId {
        self.root
    }

    /// The value of `key`, copied.
    ///
    /// # Errors
    /// If the key is too long, or a page cannot be read or is damaged.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, AccessError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the contents of `target` by the value of `key`; returns whether there is one. Allocates
    /// nothing if `target` has room.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub fn get_into(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool, AccessError> {
        match self.look_up(key, target)? {
            Found::Nothing => Ok(false),
            Found::Inline => Ok(true),
            Found::Blob(reference, guard) => {
                let value = Value::<P>(Held::Blob { guard, length: reference.length as usize });
                target.extend_from_slice(&value);
                Ok(true)
            }
        }
    }

    /// Replaces the contents of `target` by some bytes of the value of `key`: those of `part` that it has. Returns
    /// whether there is a value. Of one in a leaf no other bytes are touched, so that reading a few bytes of a record of
    /// many costs few cache misses; of a large one only the parts around them are read.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    ///
    /// ```
    /// # use vellum_access::Tree;
    /// # use vellum_pool::{Pool, PoolOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
    /// let tree = Tree::create(&pool)?;
    /// tree.insert(b"key", b"a long value")?;
    /// let mut part = Vec::new();
    /// assert!(tree.get_part_into(b"key", 2..6, &mut part)?);
    /// assert_eq!(part, b"long");
    /// assert!(tree.get_part_into(b"key", 7..100, &mut part)?);
    /// assert_eq!(part, b"value");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_part_into(
        &self,
        key: &[u8],
        part: Range<usize>,
        target: &mut Vec<u8>,
    ) -> Result<bool, AccessError> {
        check_key(key)?;
        let wanted = Part { offset: part.start, length: part.len() };
        loop {
            let found = self.pager.run(|| {
                target.clear();
                let leaf = self.leaf(key)?;
                let found = NodeView::new(leaf.bytes()).get(key);
                if let Some(value @ ValueAt { kind: ValueKind::Inline, .. }) = found {
                    let ValueAt { at, length, .. } = wanted.of(value);
                    leaf.bytes().append_to(at, length, target);
                }
                leaf.validate()?;
                Ok(found.map(|value| value.kind))
            })?;
            match found {
                None => return Ok(false),
                Some(ValueKind::Inline) => return Ok(true),
                Some(ValueKind::Blob) => {}
            }
            let Some(mut reader) = self.reader(key)? else { continue };
            let length = reader.length().saturating_sub(part.start as u64).min(part.len() as u64);
            target.resize(length as usize, 0);
            match reader.read_at(part.start as u64, target) {
                Ok(_) => return Ok(true),
                // Somebody has replaced or removed it: look again.
                Err(AccessError::ValueChanged) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The value of `key`: a large one is not copied, but read where it lies, and stays latched as long as
    /// the result lives.
    ///
    /// # Errors
    /// As for [`get`](Self::get); a value larger than the pool must be read in parts: see
    /// [`reader`](Self::reader).
    pub fn value(&self, key: &[u8]) -> Result<Option<Value<'p, P>>, AccessError> {
        let mut copy = Vec::new();
        Ok(match self.look_up(key, &mut copy)? {
            Found::Nothing => None,
            Found::Inline => Some(Value(Held::Copy(copy))),
            Found::Blob(reference, guard) => {
                Some(Value(Held::Blob { guard, length: reference.length as usize }))
            }
        })
    }

    /// The length of the value of `key`, without reading it.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn value_length(&self, key: &[u8]) -> Result<Option<u64>, AccessError> {
        check_key(key)?;
        Ok(self.pager.run(|| {
            let leaf = self.leaf(key)?;
            let view = NodeView::new(leaf.bytes());
            let length = match view.get(key) {
                None => None,
                Some(at) if at.kind == ValueKind::Inline => Some(at.length as u64),
                Some(at) => Some(blob_reference::<P>(&leaf, at)?.length),
            };
            leaf.validate()?;
            Ok(length)
        })?)
    }

    /// A reader of the value of `key` in parts, if it is a large one; `None` if there is no value or a small
    /// one, which [`get`](Self::get) reads.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn reader(&self, key: &[u8]) -> Result<Option<BlobReader<'p, P>>, AccessError> {
        let reference = self.with_blob(key, |_, leaf, found| {
            leaf.validate()?;
            Ok(found)
        })?;
        Ok(reference.map(|reference| BlobReader::new(*self, key, reference)))
    }

    /// Runs `read` on the leaf of `key` and the blob that it refers to there.
    pub(crate) fn with_blob<T>(
        &self,
        key: &[u8],
        mut read: impl FnMut(&'p P, &P::Optimistic<'p>, Option<BlobReference>) -> Result<T, Interrupt>,
    ) -> Result<T, AccessError> {
        check_key(key)?;
        Ok(self.pager.run(|| {
            let leaf = self.leaf(key)?;
            let found = match NodeView::new(leaf.bytes()).get(key) {
                Some(at) if at.kind == ValueKind::Blob => Some(blob_reference::<P>(&leaf, at)?),
                _ => None,
            };
            read(self.pager, &leaf, found)
        })?)
    }

    #[inline]
    fn look_up(&self, key: &[u8], target: &mut Vec<u8>) -> Result<Found<'p, P>, AccessError> {
        check_key(key)?;
        Ok(self.pager.run(|| {
            target.clear();
            let leaf = self.leaf(key)?;
            let view = NodeView::new(leaf.bytes());
            match view.get(key) {
                None => {
                    leaf.validate()?;
                    Ok(Found::Nothing)
                }
                Some(at) if at.kind == ValueKind::Inline => {
                    leaf.bytes().append_to(at.at, at.length, target);
                    leaf.validate()?;
                    Ok(Found::Inline)
                }
                Some(at) => {
                    let reference = blob_reference::<P>(&leaf, at)?;
                    let guard = self.pager.shared(&leaf, reference.extent())?;
                    if !reference.leads_to(guard.page()) {
                        return Err(damaged(leaf.id(), NOT_ITS_VALUE));
                    }
                    Ok(Found::Blob(reference, guard))
                }
            }
        })?)
    }
}

/// Reads the reference to a blob that stands at `at` of a leaf, and makes sure that it really stood there.
pub(crate) fn blob_reference<'p, P: Pager + 'p>(
    leaf: &P::Optimistic<'p>,
    at: ValueAt,
) -> Result<BlobReference, Interrupt> {
    let mut bytes = Vec::with_capacity(at.length);
    leaf.bytes().append_to(at.at, at.length, &mut bytes);
    leaf.validate()?;
    BlobReference::decode(&bytes).ok_or_else(|| damaged(leaf.id(), "a reference to a large value is damaged"))
}

/// What is wrong with a reference that leads to an extent which is not its value.
const NOT_ITS_VALUE: &str = "a reference to a large value leads to something else";

#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<(), AccessError> {
    if key.len() > MAX_KEY_BYTES { Err(AccessError::KeyTooLong { bytes: key.len() }) } else { Ok(()) }
}

/// Latches what was read optimistically, as a node to change.
#[inline]
pub(crate) fn latch<'p, P: Pager + 'p>(page: P::Optimistic<'p>) -> Result<P::Exclusive<'p>, Interrupt> {
    page.upgrade()
}

/// The node in a page that is latched.
#[inline]
pub(crate) fn view_of(page: &impl ExclusivePage) -> NodeView<&[u8]> {
    NodeView::new(page.page())
}
