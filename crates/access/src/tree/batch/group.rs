//! Operations that run side by side: see [`descend::group`](crate::tree::descend::group).

use super::Batch;
use super::task::{Answer, Blocking, Performed, Task};
use crate::error::AccessError;
use crate::tree::{Tree, descend::group::GROUP_SIZE, read::record};
use std::ops::Range;
use vellum_pool::Pager;

impl<'p, P: Pager> Tree<'p, P> {
    /// Runs up to [`GROUP_SIZE`] operations, and shows their answers to `visit`, in order, until one would have to
    /// wait; returns how many it showed. Lookups never wait; changes may. `value` is a buffer for values that are read.
    #[inline]
    pub(super) fn run_group<'t, T, V: AsRef<[u8]> + ?Sized + 't>(
        &self,
        items: &'t [T],
        request: impl Fn(&'t T) -> (&'t [u8], Task<&'t V>),
        value: &mut Vec<u8>,
        mut visit: impl FnMut(Result<Answer<'_>, AccessError>),
    ) -> usize {
        let Some(leaves) = self.leaves(items, |item| request(item).0) else { return 0 };
        let mut found = [None; GROUP_SIZE];
        for ((leaf, found), item) in leaves.iter().zip(&mut found).zip(items) {
            let (key, task) = request(item);
            if let Some(part) = task.part() {
                *found = record::find(leaf, key, part);
                if let Some(fetch) = record::fetch(leaf, *found) {
                    fetch.begin(self.pager);
                }
            }
        }
        for (number, ((leaf, found), item)) in leaves.into_iter().zip(found).zip(items).enumerate() {
            value.clear();
            visit(match self.perform(leaf, request(item), found, Blocking::Always, value) {
                Ok(Performed::Done(result)) => result.map(|outcome| outcome.with(value)),
                Ok(Performed::WouldWait) | Err(_) => return number,
            });
        }
        items.len()
    }

    /// Looks up all keys, with up to `depth` reads under way at once, and shows the values to `visit`, in the order of
    /// the keys, each with its number.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        visit: impl FnMut(usize, Result<Option<&[u8]>, AccessError>),
    ) {
        self.multi_get_part(keys, depth, 0..usize::MAX, visit);
    }

    /// [`multi_get`](Self::multi_get) for a part of each value. No other bytes of a value in a leaf are read. A large
    /// value is brought into memory as a whole, unlike with [`get_part_into`](Self::get_part_into).
    pub fn multi_get_part<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        depth: usize,
        part: Range<usize>,
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, AccessError>),
    ) {
        let task = || Task::<&[u8]>::GetPart { offset: part.start, length: part.len() };
        let (mut shown, mut value) = (0, Vec::new());
        let mut show = |shown: &mut usize, answer: Result<Answer<'_>, AccessError>| {
            let found = answer.map(|answer| if let Answer::Value(value) = answer { value } else { None });
            visit(*shown, found);
            *shown += 1;
        };
        for group in keys.chunks(GROUP_SIZE) {
            if self.run_group(
                group,
                |key| (key.as_ref(), task()),
                &mut value,
                |answer| show(&mut shown, answer),
            ) < group.len()
            {
                break;
            }
        }
        let rest = keys.get(shown..).unwrap_or_default();
        if !rest.is_empty() {
            let tasks = rest.iter().map(|key| (key, task()));
            Batch::new(self.pager, depth).run_queue(*self, tasks, |_, _, answer| show(&mut shown, answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node::NodeView, tree::Written};
    use std::sync::Arc;
    use vellum_base::PageId;
    use vellum_pool::{Interrupt, Navigation, Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// A file with a tree of three levels: values of 500 bytes under the numbers below 3000, and a large one after
    /// every tenth.
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

    /// How many lookups a group did, all of them right.
    fn group_of(tree: Tree<'_, Pool>, keys: &[Vec<u8>]) -> usize {
        let mut room = Vec::new();
        let expected = |place: usize| tree.get(&keys[place]).unwrap();
        let run = |task: Task<&[u8]>, part: Range<usize>, room: &mut Vec<u8>| {
            let mut shown = 0;
            let done = tree.run_group(
                keys,
                |key: &Vec<u8>| (&key[..], task),
                room,
                |answer| {
                    let value = expected(shown);
                    let part = value.as_ref().map(|value| &value[part.start..part.end.min(value.len())]);
                    assert_eq!(answer.unwrap(), Answer::Value(part));
                    shown += 1;
                },
            );
            assert_eq!(done, shown);
            shown
        };
        let read = run(Task::GetPart { offset: 100, length: 300 }, 100..400, &mut room);
        assert_eq!(run(Task::Get, 0..usize::MAX, &mut room), read);
        read
    }

    #[test]
    fn a_group_does_all_that_is_in_memory_and_ends_where_it_would_have_to_wait() {
        let file = SimulatedFile::new(1);
        let root = filled(&file);
        let pool = Pool::open_on(Arc::new(file), &options()).unwrap();
        let tree = Tree::open(&pool, root);
        let keys: Vec<_> = (0..GROUP_SIZE as u32).map(|number| key(number * 90 + 1).to_vec()).collect();
        // Nothing has been read yet; then all but one leaf.
        assert_eq!((group_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        keys[1..].iter().for_each(|key| assert!(tree.get(key).unwrap().is_some()));
        assert_eq!(group_of(tree, &keys[1..]), GROUP_SIZE - 1);
        assert_eq!((group_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        assert!(tree.get(&keys[0]).unwrap().is_some());
        assert_eq!(group_of(tree, &keys), GROUP_SIZE);
        for (key, at) in keys.iter().zip(tree.locate_group(&keys).unwrap()) {
            let at = at.unwrap();
            let found = NodeView::new(at.leaf.bytes()).find(key);
            assert_eq!((found.index, found.found), (at.index, true));
            assert!(at.found && at.leaf.validate().is_ok());
        }
    }

    #[test]
    fn a_group_ends_at_large_values_beyond_memory_at_keys_that_are_too_long_and_at_latched_leaves() {
        let file = SimulatedFile::new(2);
        let root = filled(&file);
        let pool = Pool::open_on(Arc::new(file), &options()).unwrap();
        let tree = Tree::open(&pool, root);
        let mut keys: Vec<_> = (0..20).map(|number| key(number * 7).to_vec()).collect();
        keys.iter().for_each(|key| assert!(tree.get(key).unwrap().is_some()));
        keys[3] = b"absent".to_vec();
        keys[4] = vec![];
        assert_eq!(group_of(tree, &keys), 20);
        keys[17] = [&key(20)[..], b"large"].concat();
        // The group ends at it as long as it is not in memory.
        assert_eq!(group_of(tree, &keys), 17);
        assert!(tree.get(&keys[17]).unwrap().is_some());
        assert_eq!(group_of(tree, &keys), 20);
        assert!(tree.locate_group(&keys).unwrap()[17].is_some(), "who changes it finds out that it is large");
        keys[17] = vec![b'x'; 1025];
        assert_eq!((group_of(tree, &keys), tree.locate_group(&keys).is_some()), (0, false));
        keys.truncate(17);
        let held = pool.run(|| latch_of(tree, &keys[9])).unwrap();
        assert_eq!(group_of(tree, &keys), 0);
        drop(held);
        assert_eq!(group_of(tree, &keys), 17);
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
            let done = tree.run_group(
                &tasks,
                |(key, task)| (key, task.by_ref()),
                &mut Vec::new(),
                |answer| {
                    assert_eq!(answer.unwrap(), Answer::Written(Written::Inserted));
                    inserted += 1;
                },
            );
            assert_eq!((done, inserted), (GROUP_SIZE, GROUP_SIZE));
        }
        for number in 0..200 * GROUP_SIZE as u32 {
            let (first, place) = (number / GROUP_SIZE as u32, number % GROUP_SIZE as u32);
            assert_eq!(tree.get(&key(place * 211 + first)).unwrap(), Some(vec![first as u8; 300]));
        }
    }
}
