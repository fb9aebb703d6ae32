//! Leaves that have changed since some moment, as they were at that moment.
//!
//! Leaves divide the keys of a tree among them, and so do their images, which are ordered by lower fence. So the leaf
//! that had a key has the last image whose lower fence is below the key, if that reaches to it; else it is unchanged.

use crate::{
    removed_range::RemovedRange,
    spill::{SpillTree, damaged},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    ops::Bound,
    rc::Rc,
    sync::{Arc, OnceLock, PoisonError, atomic},
};
use vellum_access::{Direction, LeafImage, Seen};
use vellum_base::PageId;
use vellum_base::primitive::{AtomicUsize, Ordering, RwLock};
use vellum_pool::PoolError;

/// How many trees there have been whose leaves were kept.
static NUMBERS: atomic::AtomicU64 = atomic::AtomicU64::new(0);

/// Images of leaves, in the spill file, by their trees; none for a tree that has [ended](Images::forget).
#[derive(Default)]
pub(super) struct Images {
    trees: RwLock<HashMap<PageId, Option<Arc<TreeImages>>>>,
}

/// The images of one tree.
struct TreeImages {
    /// A number that no other in this process has.
    number: u64,
    /// The image of the leaf that has no lower fence.
    first: OnceLock<Box<[u8]>>,
    /// The other images, by their lower fences.
    others: SpillTree,
    count: AtomicUsize,
}

impl Images {
    /// Keeps a page of a tree, if it is a leaf and its place has no image yet. `beside` is a tree in the same file.
    pub fn keep(&self, tree: PageId, page: &[u8], beside: &SpillTree) -> Result<(), PoolError> {
        let Some(image) = LeafImage::of(page) else { return Ok(()) };
        let images = match self.of(tree) {
            None if self.has_ended(tree) => return Ok(()),
            None => self.make(tree, beside)?,
            images => images,
        };
        let Some(images) = images else { return Ok(()) };
        let is_new = match LeafImage::lower_fence(page) {
            None => images.first.set(image.into()).is_ok(),
            // A leaf that has changed may be a part of what one image has.
            Some(fence) if images.have_beyond(&fence)? => false,
            Some(fence) => images.others.insert(&fence, &image)?,
        };
        // Relaxed: the count is only shown, and decides nothing.
        images.count.fetch_add(usize::from(is_new), Ordering::Relaxed);
        Ok(())
    }

    /// The image of the leaf that had a key, if the leaf has changed.
    pub fn find(&self, tree: PageId, key: &[u8]) -> Result<Option<Rc<LeafImage>>, PoolError> {
        thread_local! {
            /// The last image that this thread found, and its tree's number. Scans find one for many keys.
            static LAST: RefCell<Option<(u64, Rc<LeafImage>)>> = const { RefCell::new(None) };
        }
        let Some(images) = self.of(tree) else { return Ok(None) };
        // Fails, as below, if the thread is about to end.
        let last = LAST.try_with(|last| {
            let last = last.borrow();
            let (_, image) = last.as_ref().filter(|(of, image)| *of == images.number && image.covers(key))?;
            Some(image.clone())
        });
        if let Ok(Some(last)) = last {
            return Ok(Some(last));
        }
        let image = images.find(key)?.map(Rc::new);
        if let Some(image) = &image {
            let _ = LAST.try_with(|last| last.replace(Some((images.number, image.clone()))));
        }
        Ok(image)
    }

    /// Adds the keys of all images of a tree.
    pub fn add_keys(&self, tree: PageId, range: &mut RemovedRange<'_>) -> Result<(), PoolError> {
        let Some(images) = self.of(tree) else { return Ok(()) };
        range.begin();
        let (direction, (lower, upper)) = (range.direction(), range.bounds());
        let below = match lower {
            Bound::Included(lower) | Bound::Excluded(lower) => images.others.last_before(lower)?,
            Bound::Unbounded => None,
        };
        // The leaf whose lower fence is below the bound may reach beyond it.
        let from = below.as_ref().map_or(Bound::Unbounded, |(fence, _)| Bound::Included(&fence[..]));
        let upper = upper.map(<[u8]>::to_vec);
        let mut add = |stored: &[u8]| {
            // All keys of this image and of later ones are beyond those of earlier ones.
            if range.is_full() {
                range.cut();
                return Ok(false);
            }
            read(stored)?.keys().for_each(|key| range.add(&key));
            Ok(true)
        };
        let first = images.first.get();
        if let Some(first) = first.filter(|_| direction == Direction::Forward) {
            add(first)?;
        }
        let upper = upper.as_ref().map(|upper| &upper[..]);
        images.others.scan((from, upper), direction, |_, stored| add(stored))?;
        if let Some(first) = first.filter(|_| direction == Direction::Backward) {
            add(first)?;
        }
        Ok(())
    }

    /// How many images there are.
    pub fn count(&self) -> usize {
        let trees = self.trees.read().unwrap_or_else(PoisonError::into_inner);
        trees.values().flatten().map(|images| images.count.load(Ordering::Relaxed)).sum()
    }

    /// A tree has ended, and no snapshot sees it. What has its root from now on is another tree.
    pub fn forget(&self, tree: PageId) {
        let images = self.trees.write().unwrap_or_else(PoisonError::into_inner).insert(tree, None);
        // They are freed here, where the trees are not locked.
        drop(images);
    }

    /// Whether there is an image of a leaf of a tree.
    pub fn has_any(&self, tree: PageId) -> bool {
        self.of(tree).is_some()
    }

    /// Whether a tree has ended that had this root.
    pub fn has_ended(&self, tree: PageId) -> bool {
        let trees = self.trees.read().unwrap_or_else(PoisonError::into_inner);
        trees.get(&tree).is_some_and(Option::is_none)
    }

    fn of(&self, tree: PageId) -> Option<Arc<TreeImages>> {
        self.trees.read().unwrap_or_else(PoisonError::into_inner).get(&tree).cloned().flatten()
    }

    /// Begins to keep images of a tree. None if it has ended meanwhile.
    fn make(&self, tree: PageId, beside: &SpillTree) -> Result<Option<Arc<TreeImages>>, PoolError> {
        let made = Arc::new(TreeImages {
            number: NUMBERS.fetch_add(1, atomic::Ordering::Relaxed),
            first: OnceLock::new(),
            others: beside.another()?,
            count: AtomicUsize::new(0),
        });
        // Another thread may have been faster.
        let mut trees = self.trees.write().unwrap_or_else(PoisonError::into_inner);
        Ok(trees.entry(tree).or_insert(Some(made)).clone())
    }
}

impl TreeImages {
    /// Whether an image has the keys just above a fence.
    fn have_beyond(&self, fence: &[u8]) -> Result<bool, PoolError> {
        let first = self.first.get().map(|stored| read(stored)).transpose()?;
        if first.is_some_and(|first| first.reaches_beyond(fence)) {
            return Ok(true);
        }
        let last = self.others.last_within(Bound::Included(fence))?;
        last.map_or(Ok(false), |(_, stored)| Ok(read(&stored)?.reaches_beyond(fence)))
    }

    fn find(&self, key: &[u8]) -> Result<Option<LeafImage>, PoolError> {
        if let Some((_, stored)) = self.others.last_before(key)? {
            let image = read(&stored)?;
            if image.covers(key) {
                return Ok(Some(image));
            }
        }
        let first = self.first.get().map(|stored| read(stored)).transpose()?;
        Ok(first.filter(|image| image.covers(key)))
    }
}

fn read(stored: &[u8]) -> Result<LeafImage, PoolError> {
    LeafImage::read(stored).ok_or_else(damaged)
}

/// What the image of a leaf shows of a record.
pub(super) fn seen_in(image: &LeafImage, key: &[u8]) -> Result<Seen, PoolError> {
    image.seen(key).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{removed_range::in_portions, spill::SpillFile};
    use std::ops::RangeBounds as _;
    use vellum_access::node::{NODE_BYTES, NodeMut, ValueKind};
    use vellum_vm::SimulatedDisk;

    const TREE: PageId = PageId(9);

    /// What a leaf with these fences shows of "key", after it was kept.
    fn keep(images: &Images, beside: &SpillTree, fences: [Option<&[u8]>; 2], value: &[u8]) -> Seen {
        let mut page = [0; NODE_BYTES];
        let mut leaf = NodeMut::init(&mut page, 0, fences[0], fences[1], PageId(0)).unwrap();
        leaf.insert(b"key", value, ValueKind::Inline).unwrap();
        images.keep(TREE, &page, beside).unwrap();
        seen_in(&images.find(TREE, b"key").unwrap().unwrap(), b"key").unwrap()
    }

    /// Otherwise a snapshot would be shown what a leaf held after it had been changed and split.
    #[test]
    fn a_part_of_a_leaf_that_has_an_image_is_not_kept() {
        let file = SpillFile::new(Some(Arc::new(SimulatedDisk::new(1))), 1 << 20);
        let beside = SpillTree::create(&file).unwrap();
        for upper in [None, Some(&b"z"[..])] {
            for lower in [None, Some(&b"a"[..])] {
                let images = Images::default();
                let first = keep(&images, &beside, [lower, upper], b"first");
                for part in [&b"b"[..], b"ke"] {
                    assert_eq!(keep(&images, &beside, [Some(part), upper], b"later"), first);
                }
                assert_eq!(images.count(), 1);
            }
        }
        // A leaf that begins where another one ends has its own.
        let images = Images::default();
        let mut page = [0; NODE_BYTES];
        NodeMut::init(&mut page, 0, Some(b"a"), Some(b"b"), PageId(0)).unwrap();
        images.keep(TREE, &page, &beside).unwrap();
        keep(&images, &beside, [Some(b"b"), None], b"value");
        assert_eq!(images.count(), 2);
    }

    /// Each portion ends with the keys of an image, whose fences may be keys, too.
    #[test]
    fn portions_have_the_keys_of_all_images_in_each_direction() {
        let file = SpillFile::new(Some(Arc::new(SimulatedDisk::new(1))), 1 << 20);
        let beside = SpillTree::create(&file).unwrap();
        for seed in 0..8_u8 {
            let (images, mut keys) = (Images::default(), Vec::new());
            for leaf in 0..20_u8 {
                // Some leaves are unchanged, and have no image; some are empty.
                if leaf.wrapping_add(seed) % 5 == 0 {
                    continue;
                }
                let fences = [(leaf > 0).then_some([leaf, 0]), (leaf < 19).then_some([leaf + 1, 0])];
                let mut page = [0; NODE_BYTES];
                let [lower, upper] = fences.each_ref().map(|fence| fence.as_ref().map(|fence| &fence[..]));
                let mut node = NodeMut::init(&mut page, 0, lower, upper, PageId(0)).unwrap();
                let own: &[[u8; 2]] = match leaf.wrapping_add(seed) % 3 {
                    0 => &[],
                    1 => &[[leaf, 1], [leaf, 7], [leaf + 1, 0]],
                    _ => &[[leaf, 1]],
                };
                for key in own {
                    node.insert(key, b"", ValueKind::Inline).unwrap();
                    keys.push(*key);
                }
                images.keep(TREE, &page, &beside).unwrap();
            }
            let ends = [None, Some([4, 0]), Some([4, 1]), Some([9, 7]), Some([17, 0])];
            for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))) {
                let (from, to) = (ends[from].as_ref(), ends[to].as_ref());
                if from.zip(to).is_some_and(|(from, to)| from >= to) {
                    continue;
                }
                let lower = from.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
                let upper = to.map_or(Bound::Unbounded, |key| Bound::Included(&key[..]));
                for direction in [Direction::Forward, Direction::Backward] {
                    let found = in_portions((lower, upper), direction, |bounds| {
                        let mut range = RemovedRange::new(bounds, (direction, 2));
                        images.add_keys(TREE, &mut range).unwrap();
                        range.finish()
                    });
                    let expected = keys.iter().filter(|key| (lower, upper).contains(&key[..]));
                    assert!(found.iter().map(|key| &key[..]).eq(expected.map(|key| &key[..])), "seed {seed}");
                }
            }
        }
    }
}
