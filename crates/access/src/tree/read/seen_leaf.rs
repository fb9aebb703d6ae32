//! A leaf as it is seen by a view that does not see everything the leaf holds.

use super::record::StoredValue;
use crate::blob::BlobReference;
use crate::isolation::{Seen, SharedBytes, View};
use crate::node::{LeafCopy, NodeView};
use crate::tree::Tree;
use std::ops::Bound;
use vellum_base::PageId;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// The records of a leaf that a view sees, in key order. Records that the leaf itself holds are read from a copy of it.
#[derive(Default)]
pub(super) struct SeenLeaf {
    entries: Vec<SeenEntry>,
}

enum SeenEntry {
    /// As the leaf holds it, in this slot.
    Held(usize),
    /// As it was earlier.
    Earlier { key: Box<[u8]>, value: EarlierValue },
}

enum EarlierValue {
    Inline(SharedBytes),
    Large(BlobReference),
}

impl SeenLeaf {
    /// What a view of the tree with this root sees of a leaf: of its records, and of those that were removed from it.
    /// The leaf was copied as a whole, and is validated afterwards.
    ///
    /// # Errors
    /// If a version cannot be read.
    pub fn of(view: &View<'_>, root: PageId, leaf: &LeafCopy) -> Result<Self, PoolError> {
        let isolation = view.isolation;
        let nodes = leaf.view();
        let mut removed = if isolation.has_removed() { removed(view, root, nodes)? } else { Vec::new() };
        let mut removed = removed.drain(..).peekable();
        let (mut entries, mut key) = (Vec::with_capacity(leaf.count()), Vec::new());
        let earlier = |key: &[u8], entries: &mut Vec<SeenEntry>| {
            let value = match isolation.seen(root, key)? {
                Seen::Leaf => return Ok::<_, PoolError>(false),
                Seen::Absent => return Ok(true),
                Seen::Value(value) => EarlierValue::Inline(value),
                Seen::Large(reference) => EarlierValue::Large(reference),
            };
            entries.push(SeenEntry::Earlier { key: key.into(), value });
            Ok(true)
        };
        for slot in 0..leaf.count() {
            key.clear();
            nodes.append_key(slot, &mut key);
            while let Some(removed) = removed.next_if(|removed| **removed < key[..]) {
                earlier(&removed, &mut entries)?;
            }
            // The removed record has been inserted again.
            removed.next_if(|removed| **removed == key[..]);
            if !earlier(&key, &mut entries)? {
                entries.push(SeenEntry::Held(slot));
            }
        }
        for removed in removed {
            earlier(&removed, &mut entries)?;
        }
        Ok(Self { entries })
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The number of records whose keys are below `key`, or equal to it if `inclusive`.
    pub fn position(&self, leaf: &LeafCopy, key: &[u8], inclusive: bool) -> usize {
        let view = leaf.view();
        self.entries.partition_point(|entry| {
            let order = match entry {
                SeenEntry::Held(slot) => view.compare_key(*slot, key),
                SeenEntry::Earlier { key: earlier, .. } => (**earlier).cmp(key),
            };
            order.is_lt() || inclusive && order.is_eq()
        })
    }

    /// Appends the key of a record to `target`.
    pub fn append_key(&self, leaf: &LeafCopy, index: usize, target: &mut Vec<u8>) {
        match self.entries.get(index) {
            Some(SeenEntry::Held(slot)) => leaf.view().append_key(*slot, target),
            Some(SeenEntry::Earlier { key, .. }) => target.extend_from_slice(key),
            None => {}
        }
    }

    /// The value of a record; `None` if it is damaged.
    #[inline(always)]
    pub fn value<'l>(&'l self, leaf: &'l LeafCopy, index: usize) -> Option<StoredValue<'l>> {
        match self.entries.get(index)? {
            SeenEntry::Held(slot) => super::record::value_in(leaf.view(), *slot),
            SeenEntry::Earlier { value: EarlierValue::Inline(bytes), .. } => Some(StoredValue::Inline(bytes)),
            SeenEntry::Earlier { value: EarlierValue::Large(reference), .. } => {
                Some(StoredValue::Blob(*reference))
            }
        }
    }
}

/// Copies a leaf as a whole, and resolves it.
#[inline(never)]
pub(super) fn resolve<'p, P: Pager>(
    tree: &Tree<'p, P>,
    node: &P::Optimistic<'p>,
    leaf: &mut LeafCopy,
) -> Result<SeenLeaf, Interrupt> {
    leaf.copy_all(NodeView::new(node.bytes()));
    // So that the view is asked for keys, and not for a mixture of what the leaf held at several moments.
    node.validate()?;
    let seen =
        tree.view.as_ref().map(|view| SeenLeaf::of(view, tree.root, leaf)).transpose()?.unwrap_or_default();
    if tree.is_ended() {
        return Err(PoolError::Cancelled.into());
    }
    node.validate()?;
    Ok(seen)
}

/// The keys covered by a leaf whose records were removed, and which some snapshot may see.
fn removed(view: &View<'_>, root: PageId, leaf: NodeView<&[u8]>) -> Result<Vec<Box<[u8]>>, PoolError> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    let lower = if leaf.lower_fence(&mut lower) { Bound::Excluded(&lower[..]) } else { Bound::Unbounded };
    let upper = if leaf.upper_fence(&mut upper) { Bound::Included(&upper[..]) } else { Bound::Unbounded };
    view.isolation.removed(root, lower, upper)
}
