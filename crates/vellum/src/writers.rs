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

/// The open transactions that have changed records, and operations that are about to, by the roots of the tables'
/// current trees.
pub(crate) struct Writers {
    parts: Vec<Arc<Part>>,
}

/// The entries of some threads.
struct Part(Apart<Mutex<Places>>);

/// Entries, each of which keeps its place, so that it is found at once however many there are.
#[derive(Default)]
struct Places {
    /// The root of the table, and the transaction's number, or zero for an operation.
    all: Vec<Option<(PageId, u64)>>,
    /// Those that are free.
    free: Vec<usize>,
}

impl Places {
    fn take(&mut self, entry: (PageId, u64)) -> usize {
        if let Some(place) = self.free.pop()
            && let Some(free) = self.all.get_mut(place)
        {
            *free = Some(entry);
            return place;
        }
        self.all.push(Some(entry));
        self.all.len() - 1
    }

    fn give_back(&mut self, place: usize) {
        if let Some(taken) = self.all.get_mut(place) {
            *taken = None;
            self.free.push(place);
        }
        // Queries look at all places.
        if self.free.len() == self.all.len() {
            self.all.clear();
            self.free.clear();
        }
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
        let place = writers.take((root, number));
        drop(writers);
        Some(Entry { part: part.clone(), root, place })
    }

    /// Whether a table has an entry for whose number `is_it` is true.
    pub(crate) fn any(&self, root: PageId, is_it: impl Fn(u64) -> bool) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| {
            let writers = lock(&part.0.0);
            writers.all.iter().flatten().any(|(of, number)| *of == root && is_it(*number))
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
    fn threads_that_follow_each_other_have_parts_of_their_own() {
        let part = || std::thread::spawn(thread_number).join().unwrap() as usize % PARTS;
        let parts: std::collections::BTreeSet<_> = (0..PARTS * 4).map(|_| part()).collect();
        assert!(parts.len() > PARTS / 2, "{parts:?}");
    }
}
