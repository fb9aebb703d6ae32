//! Which transactions have changed records of which tables.
//!
//! A transaction that changes records of a table is registered here, so that others do not clear or drop the table
//! meanwhile. Nearly every transaction is registered, but the list is almost never queried. So each thread registers
//! its transactions in a *part* that it shares with few others and whose cache lines stay with its processor, and a
//! query examines all parts.

use crate::driver::lock;
use std::sync::Arc;
use vellum_base::primitive::{Mutex, thread_number};
use vellum_base::{Apart, PageId};

/// How many parts there are.
const PARTS: usize = 16;
/// How many chains each of them has at least once it has had an entry.
const CHAINS_KEPT: usize = 16;

/// The open transactions that have changed records, and operations that are about to, by the roots of the tables'
/// current trees.
pub(crate) struct Writers {
    parts: Vec<Arc<Part>>,
}

/// The entries of some threads.
struct Part(Apart<Mutex<Places>>);

/// Entries, each of which keeps its place, so that it ends at once however many there are. Those of one table are in one
/// chain, so that a query does not look at those of all tables.
#[derive(Default)]
struct Places {
    all: Vec<Place>,
    /// Those that are free.
    free: Vec<usize>,
    /// The first place of each chain: a power of two of them, and as many as places or more.
    chains: Vec<Option<usize>>,
}

/// An entry in its chain, or a free place.
struct Place {
    /// The root of the table.
    root: PageId,
    /// The transaction's number, or zero for an operation.
    number: u64,
    before: Option<usize>,
    after: Option<usize>,
}

impl Places {
    fn take(&mut self, root: PageId, number: u64) -> usize {
        let entry = Place { root, number, before: None, after: None };
        let place = match self.free.pop() {
            Some(place) if place < self.all.len() => place,
            _ => self.all.len(),
        };
        match self.all.get_mut(place) {
            Some(free) => *free = entry,
            None => self.all.push(entry),
        }
        if self.all.len() > self.chains.len() {
            self.lengthen();
        } else {
            self.link(place);
        }
        place
    }

    fn give_back(&mut self, place: usize) {
        if place < self.all.len() {
            self.unlink(place);
            self.free.push(place);
        }
        if self.free.len() == self.all.len() {
            self.all.clear();
            self.free.clear();
            // What many have needed few do not keep.
            self.chains.truncate(CHAINS_KEPT);
        }
    }

    /// The entries of the chain that has all of a table.
    fn chain(&self, root: PageId) -> impl Iterator<Item = &Place> {
        let first = self.chains.get(self.chain_of(root)).copied().flatten();
        let place = |place: usize| self.all.get(place);
        std::iter::successors(first.and_then(place), move |entry| entry.after.and_then(place))
    }

    #[inline]
    fn chain_of(&self, root: PageId) -> usize {
        // Roots are often at the same distance from each other.
        let spread = root.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & self.chains.len().wrapping_sub(1)
    }

    #[inline]
    fn link(&mut self, place: usize) {
        let Some(root) = self.all.get(place).map(|entry| entry.root) else { return };
        let chain = self.chain_of(root);
        let Some(first) = self.chains.get_mut(chain) else { return };
        let after = first.replace(place);
        if let Some(next) = after.and_then(|after| self.all.get_mut(after)) {
            next.before = Some(place);
        }
        if let Some(entry) = self.all.get_mut(place) {
            (entry.before, entry.after) = (None, after);
        }
    }

    #[inline]
    fn unlink(&mut self, place: usize) {
        let Some(Place { root, before, after, .. }) = self.all.get(place) else { return };
        let (root, before, after) = (*root, *before, *after);
        if let Some(next) = after.and_then(|after| self.all.get_mut(after)) {
            next.before = before;
        }
        if let Some(last) = before {
            if let Some(last) = self.all.get_mut(last) {
                last.after = after;
            }
            return;
        }
        let chain = self.chain_of(root);
        if let Some(first) = self.chains.get_mut(chain) {
            *first = after;
        }
    }

    /// Makes as many chains as there are places. All of these are taken.
    #[cold]
    fn lengthen(&mut self) {
        let count = self.all.len().next_power_of_two().max(CHAINS_KEPT);
        self.chains.clear();
        self.chains.resize(count, None);
        (0..self.all.len()).for_each(|place| self.link(place));
    }
}

/// An entry, which ends when this is dropped.
pub(crate) struct Entry {
    part: Arc<Part>,
    root: PageId,
    place: usize,
}

impl Default for Writers {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Arc::new(Part(Apart(Mutex::default())))).collect() }
    }
}

impl Writers {
    /// Registers a writer, unless `is_allowed` returns false. It is called while no other thread examines this part.
    pub(crate) fn enter(
        &self,
        root: PageId,
        number: u64,
        is_allowed: impl FnOnce() -> bool,
    ) -> Option<Entry> {
        #[expect(clippy::indexing_slicing, reason = "there are as many")]
        let part = &self.parts[thread_number() as usize % PARTS];
        let mut writers = lock(&part.0.0);
        if !is_allowed() {
            return None;
        }
        let place = writers.take(root, number);
        drop(writers);
        Some(Entry { part: part.clone(), root, place })
    }

    /// Whether a table has an entry for whose number `is_it` is true.
    pub(crate) fn any(&self, root: PageId, is_it: impl Fn(u64) -> bool) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| {
            let writers = lock(&part.0.0);
            writers.chain(root).any(|entry| entry.root == root && is_it(entry.number))
        })
    }
}

impl Entry {
    /// The root under which the table is registered.
    pub(crate) fn root(&self) -> PageId {
        self.root
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.part.0.0).give_back(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_all_threads_are_found_until_they_end() {
        let writers = Writers::default();
        let (table, other) = (PageId(7), PageId(8));
        let enter = |root, number| writers.enter(root, number, || true).unwrap();
        let entries: Vec<_> = std::thread::scope(|scope| {
            let threads = (1..40).map(|number| scope.spawn(move || enter(table, number)));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let _other = enter(other, 1);
        let again = enter(table, 3);
        assert!((1..40).all(|number| writers.any(table, |of| of == number)));
        assert!(!writers.any(other, |of| of != 1) && writers.enter(other, 2, || false).is_none());
        assert!(!writers.any(other, |of| of == 2));
        // They are dropped by a thread other than the one that registered them.
        drop(entries);
        assert!(writers.any(table, |of| of == 3) && !writers.any(table, |of| of != 3));
        drop(again);
        assert!(!writers.any(table, |_| true));
    }

    #[test]
    fn entries_end_in_any_order_and_leave_no_places() {
        let writers = Writers::default();
        let table = PageId(7);
        let enter = |number| writers.enter(table, number, || true).unwrap();
        for first in [0, 1, 7, 99] {
            let mut entries: Vec<_> = (0..100).map(|number| (number, enter(number))).collect();
            entries.rotate_left(first);
            let (gone, stay) = (entries.drain(..50).collect::<Vec<_>>(), entries);
            let ended: Vec<_> = gone.into_iter().map(|(number, _)| number).collect();
            assert!((0..100).all(|number| writers.any(table, |of| of == number) != ended.contains(&number)));
            // They get the places of those that have ended.
            let again: Vec<_> = (100..150).map(&enter).collect();
            let places = || writers.parts.iter().map(|part| lock(&part.0.0).all.len()).sum::<usize>();
            assert_eq!(places(), 100);
            drop(stay);
            assert!((0..150).all(|number| writers.any(table, |of| of == number) == (number >= 100)));
            drop(again);
            assert_eq!(places(), 0);
        }
    }

    #[test]
    fn a_query_looks_at_few_entries_of_other_tables() {
        let mut places = Places::default();
        for stride in [1, 3, 64, 1024] {
            let root = |number: u64| PageId(number * stride);
            let mut taken: Vec<_> = (1..=4096).map(|number| places.take(root(number), number)).collect();
            // Half of them end, and others come, so that chains lose entries at each place.
            for number in (1..=4096).step_by(2) {
                places.give_back(std::mem::replace(&mut taken[number as usize - 1], usize::MAX));
            }
            for (number, place) in (4097..).zip(taken.iter_mut().step_by(2)) {
                *place = places.take(root(number), number);
            }
            for number in 1..=6144 {
                let (looked_at, found) =
                    places.chain(root(number)).fold((0, false), |(count, found), entry| {
                        (count + 1, found || (entry.root, entry.number) == (root(number), number))
                    });
                assert_eq!(found, number > 4096 || number % 2 == 0, "{number} of stride {stride}");
                assert!(looked_at <= 16, "{looked_at} for {number} of stride {stride}");
            }
            taken.into_iter().for_each(|place| places.give_back(place));
            assert!(places.all.is_empty() && places.chains.iter().all(Option::is_none));
        }
    }

    #[test]
    fn threads_that_follow_each_other_have_parts_of_their_own() {
        let part = || std::thread::spawn(thread_number).join().unwrap() as usize % PARTS;
        let parts: std::collections::BTreeSet<_> = (0..PARTS * 4).map(|_| part()).collect();
        assert!(parts.len() > PARTS / 2, "{parts:?}");
    }
}
