//! Many operations at once, by one thread, as long as all that they need is in memory.
//!
//! They go down the tree side by side, level by level: all look at their nodes, then all children are fetched into the
//! processor's cache, then all look at those. So their cache misses overlap, as those of a [`Batch`] do, and nothing
//! has to be kept about how far each has come. Where one cannot go on (its page is not in memory, is held by somebody
//! else, or has changed), the group ends, and a batch, which can wait, does what is left.
//!
//! The fetches of a level stand together, one right after the other: see [`Fetch`](crate::tree::descend::operation::Fetch) on why.

use crate::tree::{
    Batch, Task, Tree,
    change::write::Mode,
    check_key,
    descend::operation::{CHANGE_BYTES, GUIDE_BYTES, Located, Part},
};
use crate::{
    AccessError, Answer,
    node::{Find, NodeView, ValueAt, ValueKind},
};
use std::ops::Range;
use vellum_base::Bytes;
use vellum_pool::{OptimisticPage, Pager};

/// How many operations go side by side. Enough that what one of them fetches has come when its next turn does;
/// few enough that it has not been pushed out of the innermost cache again.
pub(in crate::tree) const GROUP_SIZE: usize = 32;

impl<'p, P: Pager> Tree<'p, P> {
    /// The leaves that cover the keys of up to [`GROUP_SIZE`] items, and what a search in them will touch on its way into
    /// the cache. Behind those of the items stand others. Nothing if one of them cannot be reached without waiting, or a
    /// key is too long.
    #[inline]
    fn leaves<T>(&self, items: &[T], key: impl Fn(&T) -> &[u8]) -> Option<[P::Optimistic<'p>; GROUP_SIZE]> {
        debug_assert!(items.len() <= GROUP_SIZE);
        if items.iter().any(|item| check_key(key(item)).is_err()) {
            return None;
        }
        let root = self.pager.root(self.root).ok()?;
        let top = self.level_of(&root, None).ok()?;
        let mut nodes = [root; GROUP_SIZE];
        let mut places = [0; GROUP_SIZE];
        for level in (1..=top).rev() {
            for ((node, place), item) in nodes.iter().zip(&mut places).zip(items) {
                *place = NodeView::new(node.bytes()).child_for(key(item));
            }
            // What is right below the root is in the cache anyway, because every operation comes by.
            let fetched = level == 1 || level < top;
            if fetched {
                for ((node, place), _) in nodes.iter().zip(&places).zip(items) {
                    self.pager.prefetch(NodeView::new(node.bytes()).child_at(*place), 0, GUIDE_BYTES);
                }
            }
            for ((node, place), _) in nodes.iter_mut().zip(&places).zip(items) {
                let child = self.pager.child_fetched(node, *place).ok()?;
                self.level_of(&child, Some(level)).ok()?;
                *node = child;
            }
            if fetched {
                for (node, item) in nodes.iter().zip(items) {
                    let (at, bytes) = NodeView::new(node.bytes()).search_range(key(item));
                    self.pager.prefetch(node.id(), at, bytes);
                }
            }
        }
        Some(nodes)
    }

    /// Where the values of up to [`GROUP_SIZE`] keys are, which are on their way into the cache; behind those stand others.
    /// Nothing if one of them cannot be found without waiting.
    #[inline]
    pub(in crate::tree) fn locate_group<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Option<[Option<Located>; GROUP_SIZE]> {
        let leaves = self.leaves(keys, AsRef::as_ref)?;
        let mut located = [None; GROUP_SIZE];
        for ((leaf, located), key) in leaves.iter().zip(&mut located).zip(keys) {
            let view = NodeView::new(leaf.bytes());
            let Find { index, found } = view.find(key.as_ref());
            let ValueAt { at, length, .. } = view.value_location(index);
            leaf.validate().ok()?;
            if found {
                self.pager.prefetch(leaf.id(), at, length.min(CHANGE_BYTES));
                *located = Some(Located { leaf: leaf.id(), token: leaf.token(), index });
            }
        }
        Some(located)
    }

    /// Shows a part of the values of up to [`GROUP_SIZE`] keys to `visit`, in their order, until one cannot be had without
    /// waiting; returns how many it showed. `room` is room for a value.
    pub(in crate::tree) fn read_group<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        part: Part,
        room: &mut Vec<u8>,
        mut visit: impl FnMut(Option<&[u8]>),
    ) -> usize {
        let Some(leaves) = self.leaves(keys, AsRef::as_ref) else { return 0 };
        let mut found = [None; GROUP_SIZE];
        for ((leaf, found), key) in leaves.iter().zip(&mut found).zip(keys) {
            *found = self.find_and_fetch(leaf, key.as_ref(), part);
        }
        let mut shown = 0;
        for ((leaf, found), _) in leaves.iter().zip(found).zip(keys) {
            let Some(value) = read::<P>(leaf, found, room) else { break };
            visit(value);
            shown += 1;
        }
        shown
    }

    /// Runs up to [`GROUP_SIZE`] operations, and shows what came of them to `visit`, in their order, until one would have to
    /// wait; returns how many it showed. Lookups wait for nothing; changes may.
    pub(in crate::tree) fn run_group<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        tasks: &[(K, Task<V>)],
        room: &mut Vec<u8>,
        mut visit: impl FnMut(Result<Answer<'_>, AccessError>),
    ) -> usize {
        let Some(leaves) = self.leaves(tasks, |(key, _)| key.as_ref()) else { return 0 };
        let mut found = [None; GROUP_SIZE];
        for ((leaf, found), (key, task)) in leaves.iter().zip(&mut found).zip(tasks) {
            if let Some(part) = task.part() {
                *found = self.find_and_fetch(leaf, key.as_ref(), part);
            }
        }
        for (number, ((leaf, found), (key, task))) in leaves.into_iter().zip(found).zip(tasks).enumerate() {
            let key = key.as_ref();
            let (value, mode) = match task {
                Task::Get | Task::GetPart { .. } => {
                    let Some(value) = read::<P>(&leaf, found, room) else { return number };
                    visit(Ok(Answer::Value(value)));
                    continue;
                }
                Task::Remove => {
                    visit(self.remove(key).map(Answer::Removed));
                    continue;
                }
                Task::Insert(value) => (value.as_ref(), Mode::Insert),
                Task::Update(value) => (value.as_ref(), Mode::Update),
                Task::Upsert(value) => (value.as_ref(), Mode::Upsert),
            };
            let written = match self.write_in_leaf(leaf, key, value, mode) {
                Ok(Some(written)) => Ok(written),
                // Whatever was the matter with the leaf, the call for one key finds out about it.
                Ok(None) | Err(_) => self.write(key, value, mode),
            };
            visit(written.map(Answer::Written));
        }
        tasks.len()
    }

    /// Where a part of the value of a key lies in its leaf, if there is one. If it is a small one, that is on its way
    /// into the cache.
    #[inline]
    fn find_and_fetch(&self, leaf: &P::Optimistic<'p>, key: &[u8], part: Part) -> Option<ValueAt> {
        let found = NodeView::new(leaf.bytes()).get(key).map(|value| part.of(value));
        if let Some(ValueAt { at, length, kind: ValueKind::Inline }) = found {
            self.pager.prefetch(leaf.id(), at, length);
        }
        found
    }

    /// Looks all keys up, with up to `depth` reads under way at once, and shows what was found to `visit`, in the
    /// order of the keys and each with its number.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        visit: impl FnMut(usize, Result<Option<&[u8]>, AccessError>),
    ) {
        self.multi_read(keys, depth, Part::ALL, visit);
    }

    /// The same for a part of each value: of a value in a leaf, no other bytes are touched, but a large one is brought into
    /// memory as a whole, unlike by [`get_part_into`](Self::get_part_into).
    pub fn multi_get_part<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        part: Range<usize>,
        visit: impl FnMut(usize, Result<Option<&[u8]>, AccessError>),
    ) {
        self.multi_read(keys, depth, Part { offset: part.start, length: part.len() }, visit);
    }

    fn multi_read<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        part: Part,
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, AccessError>),
    ) {
        let (mut shown, mut room) = (0, Vec::new());
        for group in keys.chunks(GROUP_SIZE) {
            let done = self.read_group(group, part, &mut room, |value| {
                visit(shown, Ok(value));
                shown += 1;
            });
            if done < group.len() {
                break;
            }
        }
        let rest = keys.get(shown..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let Part { offset, length } = part;
        let tasks = rest.iter().map(|key| (key, Task::<&[u8]>::GetPart { offset, length }));
        Batch::new(self.pager, depth).run_machines(*self, tasks, |index, answer| match answer {
            Ok(Answer::Value(value)) => visit(shown + index, Ok(value)),
            Ok(Answer::Written(_) | Answer::Removed(_)) => visit(shown + index, Ok(None)),
            Err(error) => visit(shown + index, Err(error)),
        });
    }
}

/// Reads what was found in a leaf. Nothing, if the leaf has changed since or the value is a large one.
#[inline]
fn read<'r, 'p, P: Pager + 'p>(
    leaf: &P::Optimistic<'p>,
    found: Option<ValueAt>,
    room: &'r mut Vec<u8>,
) -> Option<Option<&'r [u8]>> {
    room.clear();
    match found {
        None => {}
        Some(ValueAt { at, length, kind: ValueKind::Inline }) => leaf.bytes().append_to(at, length, room),
        Some(ValueAt { kind: ValueKind::Blob, .. }) => return None,
    }
    leaf.validate().ok()?;
    Some(found.map(|_| &room[..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Written;
    use std::sync::Arc;
    use vellum_base::PageId;
    use vellum_pool::{Interrupt, Navigation, Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// A file with a tree of three levels: values of 500 bytes under the numbers below 3000, and a large one behind each
    /// tenth of them.
    fn filled(file: &SimulatedFile) -> PageId {
        let pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
        let tree = Tree::create(&pool).unwrap();
        for number in 0..3000 {
            tree.insert(&key(number), &[number as u8; 500]).unwrap();
            if number % 10 == 0 {
                tree.insert(&[&key(number)[..], b"large"].concat(), &[number as u8; 5000]).unwrap();
            }
        }
        assert_eq!(tree.shape().unwrap().height, 3);
        let root = tree.root();
        pool.close().unwrap();
        root
    }

    fn options() -> PoolOptions {
        PoolOptions::default().pool_bytes(1 << 24).capacity_bytes(1 << 28)
    }

    fn key(number: u32) -> [u8; 40] {
        let mut key = [b'k'; 40];
        key[30..34].copy_from_slice(&number.to_be_bytes());
        key
    }

    /// As many as a group did of lookups, each found right.
    fn wave_of(tree: Tree<'_, Pool>, keys: &[Vec<u8>]) -> usize {
        let mut room = Vec::new();
        let expected = |place: usize| tree.get(&keys[place]).unwrap();
        let mut shown = 0;
        let part = Part { offset: 100, length: 300 };
        let read = tree.read_group(keys, part, &mut room, |value| {
            assert_eq!(value, expected(shown).as_ref().map(|value| &value[100..400]));
            shown += 1;
        });
        let tasks: Vec<(_, Task<&[u8]>)> = keys.iter().map(|key| (key, Task::Get)).collect();
        let mut run = 0;
        let done = tree.run_group(&tasks, &mut room, |answer| {
            assert_eq!(answer.unwrap(), Answer::Value(expected(run).as_deref()));
            run += 1;
        });
        assert_eq!((read, done, run), (shown, shown, shown));
        shown
    }

    #[test]
    fn a_group_does_all_that_is_in_memory_and_ends_where_it_would_have_to_wait() {
        let file = SimulatedFile::new(1);
        let root = filled(&file);
        let pool = Pool::open_on(Arc::new(file), &options()).unwrap();
        let tree = Tree::open(&pool, root);
        let keys: Vec<_> = (0..GROUP_SIZE as u32).map(|number| key(number * 90 + 1).to_vec()).collect();
        // Nothing has been read yet; then all but one leaf.
        assert_eq!((wave_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        keys[1..].iter().for_each(|key| assert!(tree.get(key).unwrap().is_some()));
        assert_eq!(wave_of(tree, &keys[1..]), GROUP_SIZE - 1);
        assert_eq!((wave_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        assert!(tree.get(&keys[0]).unwrap().is_some());
        assert_eq!(wave_of(tree, &keys), GROUP_SIZE);
        for (key, at) in keys.iter().zip(tree.locate_group(&keys).unwrap()) {
            let at = at.unwrap();
            let leaf = pool.reacquire(at.leaf, at.token).unwrap();
            let found = NodeView::new(leaf.bytes()).find(key);
            assert_eq!((found.index, found.found), (at.index, true));
        }
    }

    #[test]
    fn a_group_ends_at_large_values_keys_that_are_too_long_and_leaves_that_others_hold() {
        let file = SimulatedFile::new(2);
        let root = filled(&file);
        let pool = Pool::open_on(Arc::new(file), &options()).unwrap();
        let tree = Tree::open(&pool, root);
        let mut keys: Vec<_> = (0..20).map(|number| key(number * 7).to_vec()).collect();
        keys.iter().for_each(|key| assert!(tree.get(key).unwrap().is_some()));
        keys[3] = b"absent".to_vec();
        keys[4] = vec![];
        assert_eq!(wave_of(tree, &keys), 20);
        keys[17] = [&key(20)[..], b"large"].concat();
        assert_eq!(wave_of(tree, &keys), 17);
        assert!(tree.locate_group(&keys).unwrap()[17].is_some(), "who changes it finds out that it is large");
        keys[17] = vec![b'x'; 1025];
        assert_eq!((wave_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        keys.truncate(17);
        let held = pool.run(|| latch_of(tree, &keys[9])).unwrap();
        assert_eq!(
            tree.read_group(&keys, Part::ALL, &mut Vec::new(), |_| panic!("somebody holds a leaf")),
            0
        );
        drop(held);
        assert_eq!(wave_of(tree, &keys), 17);
    }

    fn latch_of<'p>(
        tree: Tree<'p, Pool>,
        key: &[u8],
    ) -> Result<<Pool as Navigation>::Exclusive<'p>, Interrupt> {
        tree.leaf(key)?.upgrade()
    }

    /// What a group writes is what the calls for single keys write, in leaves that it fills and splits on the way.
    #[test]
    fn a_group_writes_through_leaves_that_become_full() {
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(3)), &options()).unwrap();
        let tree = Tree::create(&pool).unwrap();
        for first in 0..200u32 {
            let keys: Vec<_> = (0..GROUP_SIZE as u32).map(|number| key(number * 211 + first)).collect();
            let tasks: Vec<_> = keys.iter().map(|key| (&key[..], Task::Insert([first as u8; 300]))).collect();
            let mut inserted = 0;
            let done = tree.run_group(&tasks, &mut Vec::new(), |answer| {
                assert_eq!(answer.unwrap(), Answer::Written(Written::Inserted));
                inserted += 1;
            });
            assert_eq!((done, inserted), (GROUP_SIZE, GROUP_SIZE));
        }
        for number in 0..200 * GROUP_SIZE as u32 {
            let (first, place) = (number / GROUP_SIZE as u32, number % GROUP_SIZE as u32);
            assert_eq!(tree.get(&key(place * 211 + first)).unwrap(), Some(vec![first as u8; 300]));
        }
    }
}
