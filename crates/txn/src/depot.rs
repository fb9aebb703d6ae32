//! What threads keep to use again, and hand over to each other in batches.
//!
//! What one thread has allocated for a transaction is often given up by another: the one that finds that no snapshot
//! needs it. To free it takes the lock of the first thread's allocator arena, and if one of the two is descheduled with
//! it, the other waits for a time slice. So each thread keeps some of what it gives up. The excess it hands over as a
//! batch to a *depot*, from which a thread that runs short takes it (Bonwick, Adams: *Magazines and Vmem*, USENIX
//! 2001). No thread waits for a depot: one that finds it locked goes to the allocator.

// No thread waits for it, so the thread models need not include it.
use std::sync::Mutex;

/// Batches that threads have handed over.
pub(crate) struct Depot<T> {
    batches: Mutex<Batches<T>>,
    /// At most this many are full.
    batches_max: usize,
}

struct Batches<T> {
    full: Vec<Vec<T>>,
    /// Room for further batches.
    empty: Vec<Vec<T>>,
}

impl<T> Depot<T> {
    pub const fn new(batches_max: usize) -> Self {
        Self { batches: Mutex::new(Batches { full: Vec::new(), empty: Vec::new() }), batches_max }
    }

    /// Exchanges an empty list for a batch, if there is one.
    #[cold]
    fn refill(&self, items: &mut Vec<T>) {
        if let Ok(mut batches) = self.batches.try_lock()
            && let Some(full) = batches.full.pop()
        {
            batches.empty.push(std::mem::replace(items, full));
        }
    }

    /// Takes over the first `count` items, if there is room.
    #[cold]
    fn take_over(&self, items: &mut Vec<T>, count: usize) {
        if let Ok(mut batches) = self.batches.try_lock()
            && batches.full.len() < self.batches_max
        {
            let mut batch = batches.empty.pop().unwrap_or_default();
            batch.extend(items.drain(..count));
            batches.full.push(batch);
        }
    }
}

/// What a thread keeps of one kind of item.
pub(crate) struct Kept<T> {
    items: Vec<T>,
}

impl<T> Kept<T> {
    pub const fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// Takes the item that was kept last.
    #[inline]
    pub fn take(&mut self, depot: &Depot<T>) -> Option<T> {
        if self.items.is_empty() {
            depot.refill(&mut self.items);
        }
        self.items.pop()
    }

    /// Keeps an item, up to two batches of them. Items for which neither the thread nor the depot has room are dropped.
    #[inline]
    pub fn keep(&mut self, item: T, depot: &Depot<T>, batch: usize) {
        if self.items.len() >= batch * 2 {
            depot.take_over(&mut self.items, batch);
        }
        if self.items.len() < batch * 2 {
            self.items.push(item);
        }
    }

    #[cfg(test)]
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, sync::mpsc, thread};

    #[test]
    fn what_one_thread_gives_up_another_uses_again() {
        const BATCH: usize = 4;
        let depot = Depot::new(100);
        let (sender, receiver) = mpsc::sync_channel::<Box<u32>>(32);
        let made = thread::scope(|scope| {
            scope.spawn(|| {
                let mut kept = Kept::new();
                for item in receiver {
                    kept.keep(item, &depot, BATCH);
                    assert!(kept.items().len() <= BATCH * 2);
                }
            });
            let mut kept = Kept::new();
            let mut made = 0;
            for _ in 0..10_000 {
                let item = kept.take(&depot).unwrap_or_else(|| {
                    made += 1;
                    Box::new(made)
                });
                sender.send(item).unwrap();
            }
            drop(sender);
            made
        });
        // What is on its way, what the other keeps, and what was made while the depot was locked.
        assert!(made < 5_000, "{made} of 10000 were made");
    }

    #[test]
    fn nothing_is_there_twice_and_no_more_is_kept_than_may_be() {
        const BATCH: usize = 4;
        let depot = Depot::new(3);
        let (mut one, mut other) = (Kept::new(), Kept::new());
        (0..100).for_each(|item| one.keep(item, &depot, BATCH));
        assert_eq!(one.items().len(), BATCH * 2);
        let taken: Vec<i32> = std::iter::from_fn(|| other.take(&depot)).collect();
        assert_eq!(taken.len(), BATCH * 3);
        let rest: Vec<i32> = std::iter::from_fn(|| one.take(&depot)).collect();
        assert_eq!(rest.len(), BATCH * 2);
        assert_eq!(taken.iter().chain(&rest).collect::<BTreeSet<_>>().len(), BATCH * 5);
        // There is room again.
        (0..100).for_each(|item| one.keep(item, &depot, BATCH));
        assert_eq!(std::iter::from_fn(|| other.take(&depot)).count(), BATCH * 3);
    }
}
