//! A leaf as it is seen by a view that does not see everything the leaf holds.

use super::record::StoredValue;
use crate::blob::BlobReference;
use crate::isolation::{Removed, Seen, SharedBytes, View};
use crate::node::{LeafCopy, NodeView};
use crate::tree::Tree;
use crate::tree::descend::{Direction, Towards};
use std::ops::Bound;
use vellum_base::PageId;
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

/// The records of a leaf, or of a part of it, that a view sees, in key order. Records that the leaf itself holds are
/// read from a copy of it.
#[derive(Default)]
pub(super) struct SeenLeaf {
    entries: Vec<SeenEntry>,
    part: LeafPart,
}

/// Which part of a leaf is resolved, in a direction.
#[derive(Default)]
struct LeafPart {
    direction: Direction,
    /// Whether it begins where the leaf does.
    has_start: bool,
    /// The last key that was resolved, seen or not, if it does not end where the leaf does.
    last: Option<Box<[u8]>>,
}

/// Which part of a leaf is to be resolved: each record costs a search for its versions.
pub(super) struct Wanted<'k> {
    direction: Direction,
    /// The key right before which the part begins, or right after which if so it says; `None` at an end of the leaf.
    from: Option<(&'k [u8], bool)>,
    /// How many records of the leaf, at most.
    most: usize,
}

/// Removed records of a leaf are resolved in portions of this size: any number may have been where it is now.
const REMOVED_PORTION: usize = 256;

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

impl<'k> Wanted<'k> {
    /// What a cursor wants that comes to a leaf by this way, stands `after` its key, and wants `most` records.
    pub fn by(direction: Direction, towards: Towards<'k>, after: bool, most: usize) -> Self {
        // At an end of the leaf, only the other direction has something.
        let (direction, from) = match towards {
            Towards::Key(key) | Towards::After(key) => (direction, Some((key, after))),
            Towards::First => (Direction::Forward, None),
            Towards::Last => (Direction::Backward, None),
        };
        Self { direction, from, most }
    }
}

impl SeenLeaf {
    /// What a view of the tree with this root sees of a leaf: of its records, and of those that were removed from it.
    /// The leaf was copied as a whole, and is validated afterwards.
    ///
    /// # Errors
    /// If a version cannot be read.
    pub fn of(
        view: &View<'_>,
        root: PageId,
        leaf: &LeafCopy,
        wanted: &Wanted<'_>,
    ) -> Result<Self, PoolError> {
        let Wanted { direction, from, most } = *wanted;
        let isolation = view.isolation;
        let nodes = leaf.view();
        let position = |key: &[u8], after: bool| {
            let find = nodes.find(key);
            find.index + usize::from(find.found && after)
        };
        let from = from.map(|(key, after)| position(key, after));
        let (mut slots, last) = match direction {
            Direction::Forward => {
                let first = from.unwrap_or(0);
                let end = first.saturating_add(most).min(leaf.count());
                (first..end, end.checked_sub(1).filter(|_| end < leaf.count()))
            }
            Direction::Backward => {
                let end = from.unwrap_or(leaf.count());
                let first = end.saturating_sub(most);
                (first..end, Some(first).filter(|first| *first > 0))
            }
        };
        let mut last = last.map(|slot| {
            let mut key = Vec::new();
            nodes.append_key(slot, &mut key);
            key.into_boxed_slice()
        });
        let mut removed = if isolation.has_removed() {
            removed(view, root, nodes, wanted, last.as_deref())?
        } else {
            Removed::default()
        };
        if let Some(complete_to) = removed.complete_to {
            match direction {
                Direction::Forward => {
                    slots.end = slots.end.min(position(&complete_to, true)).max(slots.start);
                }
                Direction::Backward => {
                    slots.start = slots.start.max(position(&complete_to, false)).min(slots.end);
                }
            }
            last = Some(complete_to);
        }
        let part = LeafPart { direction, has_start: wanted.from.is_none(), last };
        let mut removed = removed.keys.drain(..).peekable();
        let (mut entries, mut key) = (Vec::with_capacity(slots.len()), Vec::new());
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
        for slot in slots {
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
        Ok(Self { entries, part })
    }

    /// Whether the leaf has more in this direction that was not resolved.
    pub fn has_more(&self, direction: Direction) -> bool {
        if direction == self.part.direction { self.part.last.is_some() } else { !self.part.has_start }
    }

    /// The last key that was resolved in this direction, if the leaf may have more beyond it. `None` where the part begins.
    pub fn last_before_more(&self, direction: Direction) -> Option<&[u8]> {
        self.part.last.as_deref().filter(|_| direction == self.part.direction)
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

/// Copies a leaf as a whole, and resolves what is wanted of it.
#[inline(never)]
pub(super) fn resolve<'p, P: Pager>(
    tree: &Tree<'p, P>,
    node: &P::Optimistic<'p>,
    leaf: &mut LeafCopy,
    wanted: &Wanted<'_>,
) -> Result<SeenLeaf, Interrupt> {
    leaf.copy_all(NodeView::new(node.bytes()));
    // So that the view is asked for keys, and not for a mixture of what the leaf held at several moments.
    node.validate()?;
    let of = |view| SeenLeaf::of(view, tree.root(), leaf, wanted);
    let seen = tree.view.as_ref().map(of).transpose()?.unwrap_or_default();
    if tree.is_ended() {
        return Err(PoolError::Cancelled.into());
    }
    node.validate()?;
    Ok(seen)
}

/// The keys covered by a leaf, or by the wanted part of it up to the key `last`, whose records were removed, and which
/// some snapshot may see: if there are more than a portion, the first ones.
fn removed(
    view: &View<'_>,
    root: PageId,
    leaf: NodeView<&[u8]>,
    wanted: &Wanted<'_>,
    last: Option<&[u8]>,
) -> Result<Removed, PoolError> {
    let Wanted { direction, from, .. } = *wanted;
    let last = last.map(Bound::Included);
    let (lower, upper) = match direction {
        Direction::Forward => (from.map(|(key, after)| bound(key, !after)), last),
        Direction::Backward => (last, from.map(|(key, after)| bound(key, after))),
    };
    let (lower_fence, upper_fence) = leaf.fences();
    let lower = lower.or(lower_fence.as_deref().map(Bound::Excluded)).unwrap_or(Bound::Unbounded);
    let upper = upper.or(upper_fence.as_deref().map(Bound::Included)).unwrap_or(Bound::Unbounded);
    view.isolation.removed(root, (lower, upper), (direction, REMOVED_PORTION))
}

fn bound(key: &[u8], is_included: bool) -> Bound<&[u8]> {
    if is_included { Bound::Included(key) } else { Bound::Excluded(key) }
}
