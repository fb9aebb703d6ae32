//! Lookups of many keys one after the other, whose reads overlap: the caller takes the answers as it needs them.

use super::Batch;
use super::task::{Answer, Task};
use crate::error::AccessError;
use crate::tree::{Tree, descend::group::GROUP_SIZE};
use std::{collections::VecDeque, iter::Fuse, ops::Range};
use vellum_pool::Pager;

/// The place of a key's value among the values that were read, if it has one.
type Found = Result<Option<Range<usize>>, AccessError>;

/// Answers to lookups of the keys of an iterator, in order.
///
/// As long as all pages are in memory, keys are looked up in groups. From the first missing page on, each lookup is an
/// operation of a queue, and new ones begin whenever an answer is taken. So up to twice as many operations are open as
/// reads may be under way, and the device never runs out of work between two answers.
///
/// ```
/// use vellum_access::{Lookups, Tree};
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// tree.insert(b"lime", b"green")?;
/// let mut lookups = Lookups::new(&pool, ["pear", "lime"], 128);
/// let mut found = Vec::new();
/// while let Some((key, length)) = lookups.next_with(tree, |key, value| (key, value.unwrap().map(<[u8]>::len))) {
///     found.push((key, length));
/// }
/// assert_eq!(found, [("pear", None), ("lime", Some(5))]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lookups<'p, P: Pager + 'p, I: Iterator> {
    keys: Fuse<I>,
    batch: Batch<'p, P, I::Item, &'static [u8]>,
    /// The places in the batch of the operations whose answers have not been taken, in the order of their keys.
    order: VecDeque<usize>,
    /// The answers of a group that have not been taken.
    answers: VecDeque<(I::Item, Found)>,
    values: Vec<u8>,
    /// Whether a page was not in memory.
    waits: bool,
}

impl<'p, P: Pager, I: Iterator<Item: AsRef<[u8]>>> Lookups<'p, P, I> {
    /// Creates lookups of these keys, with up to `depth` reads under way at once.
    pub fn new(pager: &'p P, keys: impl IntoIterator<IntoIter = I>, depth: usize) -> Self {
        Self {
            keys: keys.into_iter().fuse(),
            batch: Batch::new(pager, depth),
            order: VecDeque::new(),
            answers: VecDeque::new(),
            values: Vec::new(),
            waits: false,
        }
    }

    /// How many lookups have begun whose answers have not been shown.
    pub fn begun(&self) -> usize {
        self.order.len() + self.answers.len()
    }

    /// Shows the next key and its value to `visit`, and returns the result of `visit`; `None` after the last key.
    /// Lookups that begin now use `tree`.
    pub fn next_with<T>(
        &mut self,
        tree: Tree<'p, P>,
        visit: impl FnOnce(I::Item, Result<Option<&[u8]>, AccessError>) -> T,
    ) -> Option<T> {
        if self.answers.is_empty() && !self.waits {
            self.look_up_group(tree);
        }
        if let Some((key, found)) = self.answers.pop_front() {
            let value = |range| self.values.get(range).unwrap_or_default();
            return Some(visit(key, found.map(|range| range.map(value))));
        }
        loop {
            while self.batch.has_room()
                && let Some(key) = self.keys.next()
            {
                self.order.push_back(self.batch.begin(tree, key, Task::Get, 0));
            }
            let first = *self.order.front()?;
            // Taking an answer also lets the next reads begin.
            let is_finished = self.batch.is_finished(first);
            if !is_finished || self.batch.ready.len() >= GROUP_SIZE / 2 {
                self.batch.advance_unflushed(!is_finished);
                self.batch.done.clear();
            }
            if is_finished {
                self.order.pop_front();
                return self.batch.take_from(first, |_, (key, _), answer| visit(key, answer.map(value_of)));
            }
        }
    }

    /// Looks up the next keys in one group, as far as their pages are in memory, and begins operations for the others.
    fn look_up_group(&mut self, tree: Tree<'p, P>) {
        let group: Vec<_> = self.keys.by_ref().take(GROUP_SIZE).collect();
        self.values.clear();
        let (mut found, mut value) = (Vec::with_capacity(group.len()), Vec::new());
        let values = &mut self.values;
        let done = tree.run_group(
            &group,
            |key| (key.as_ref(), Task::<&[u8]>::Get),
            &mut value,
            |answer| {
                found.push(answer.map(|answer| {
                    value_of(answer).map(|value| {
                        let start = values.len();
                        values.extend_from_slice(value);
                        start..values.len()
                    })
                }));
            },
        );
        self.waits = done < group.len();
        let mut group = group.into_iter();
        self.answers.extend(group.by_ref().take(done).zip(found));
        for key in group {
            self.order.push_back(self.batch.begin(tree, key, Task::Get, 0));
        }
    }
}

fn value_of(answer: Answer<'_>) -> Option<&[u8]> {
    if let Answer::Value(value) = answer { value } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use vellum_pool::{Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// All answers come in order, whether or not the tree fits into memory, whether the lookups end early or not, and
    /// however much the caller changes meanwhile.
    #[test]
    fn lookups_give_each_key_its_value_in_order() {
        for pages in [40, 4000] {
            let options = PoolOptions::default().pool_bytes(pages * 4096).capacity_bytes(1 << 28);
            let pool = Pool::create_on(Arc::new(SimulatedFile::new(pages)), &options).unwrap();
            let tree = Tree::create(&pool).unwrap();
            let value = |number: u32| {
                vec![number as u8; number as usize % 900 + if number.is_multiple_of(97) { 3000 } else { 0 }]
            };
            for number in (0..2000u32).filter(|number| number % 3 > 0) {
                tree.insert(&number.to_be_bytes(), &value(number)).unwrap();
            }
            let numbers = || (0..5000u32).map(|step| step.wrapping_mul(7919) % 2100);
            let mut keys = numbers().map(u32::to_be_bytes).map(Vec::from).collect::<Vec<_>>();
            keys[1234] = vec![b'x'; 1025];
            let mut lookups = Lookups::new(&pool, keys.iter(), 16);
            for (place, number) in numbers().enumerate() {
                let expected = (number < 2000 && number % 3 > 0).then(|| value(number));
                let shown = lookups.next_with(tree, |key, found| {
                    assert_eq!(key, &keys[place]);
                    match found {
                        Ok(found) => assert!(place != 1234 && found == expected.as_deref(), "{number}"),
                        Err(error) => assert!(place == 1234, "{error}"),
                    }
                });
                assert!(shown.is_some());
                if place % 10 == 0 {
                    tree.upsert(b"another", &vec![7; place % 1000]).unwrap();
                }
            }
            assert!(
                lookups.next_with(tree, |_, _| ()).is_none() && lookups.next_with(tree, |_, _| ()).is_none()
            );
            // Dropped with reads under way.
            let mut lookups = Lookups::new(&pool, keys.iter(), 16);
            assert!(lookups.next_with(tree, |_, found| found.is_ok()).unwrap());
            drop(lookups);
            assert_eq!(tree.get(&1u32.to_be_bytes()).unwrap(), Some(value(1)));
        }
    }

    /// No key is taken from the iterator before there is room for it, and no more keys than have room.
    #[test]
    fn keys_are_taken_as_they_are_needed() {
        let options = PoolOptions::default().pool_bytes(1 << 20).capacity_bytes(1 << 28);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let tree = Tree::create(&pool).unwrap();
        let asked = std::cell::Cell::new(0);
        let keys = (0..10_000u32).map(|number| {
            asked.set(number + 1);
            number.to_be_bytes()
        });
        let mut lookups = Lookups::new(&pool, keys, 16);
        assert_eq!(asked.get(), 0);
        for place in 0..1000 {
            assert!(lookups.next_with(tree, |_, found| found.unwrap().is_none()).unwrap());
            assert!(asked.get() <= place + GROUP_SIZE as u32, "{} at {place}", asked.get());
        }
    }
}
