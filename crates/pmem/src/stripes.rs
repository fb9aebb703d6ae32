//! Locks of keys: a thread that changes the index entry of a key holds the lock of the key's stripe.
//!
//! So only one change of the records of a key is under way at a time: after a crash there are at most the record that
//! was acknowledged last and one that was not acknowledged yet, and no deleted record returns.
//!
//! A stripe also remembers one changed word that is not known to be durable, because the thread that changed it leaves
//! it to its next fence: the word of a retracted record, or a word of a value. Until then the record that replaced the
//! retracted one must not itself be retracted for good, or the older one would return; and the value must not be
//! changed again. So a thread that does either looks here first. A client that sleeps never comes to its next fence: then
//! reclaiming makes the retraction durable and frees the record in its place.
//!
//! And a stripe counts the changes of single words of its values: what a reader copies of a value must be of one moment,
//! and such a change leaves no other trace that lasts (`lock.rs`). The counters lie apart from the locks, so that puts do
//! not take them out of the caches of readers; together they are 32 KiB.
//!
//! Lock order: stripes come before everything else. A thread that needs several takes them in ascending order; a thread
//! that holds any waits for no other stripe.

use crate::{
    cpu,
    lock::{self, Counted},
};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

const STRIPES: usize = 4096;

/// In place of the word of a retracted record which reclaiming has freed.
const TAKEN: u64 = 1;
/// Added to the word of a retracted record; words lie at multiples of eight.
const RETRACTED: u64 = 2;
const FLAGS: u64 = TAKEN | RETRACTED;

/// The locks.
#[derive(Debug)]
pub struct Stripes {
    stripes: Box<[Stripe]>,
    changes: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct Stripe {
    lock: Mutex<()>,
    /// Where the word lies, in bytes, with flags, or zero. Set under the lock, cleared by the thread that set it.
    unsettled: AtomicU64,
}

impl Stripe {
    /// The word of the retracted record that it remembers, if it is one.
    fn retracted(&self) -> Option<u64> {
        let word = self.unsettled.load(Ordering::Acquire);
        (word & FLAGS == RETRACTED).then_some(word & !FLAGS)
    }
}

impl Stripes {
    /// Makes all stripes.
    pub fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            changes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn number(hash: u64) -> usize {
        (hash >> 20) as usize % STRIPES
    }

    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "numbers are remainders by the count"))]
    fn stripe(&self, number: usize) -> &Stripe {
        &self.stripes[number]
    }

    /// The counter of the changes of single words of values in the stripe of a key.
    #[inline]
    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "numbers are remainders by the count"))]
    pub fn changes(&self, hash: u64) -> &AtomicU64 {
        &self.changes[Self::number(hash)]
    }

    /// Prefetches the counter of a key of whose value a word may be about to be changed.
    #[inline]
    pub fn prefetch_to_change(&self, hash: u64) {
        cpu::prefetch_to_write(self.changes(hash).as_ptr().cast());
    }

    /// Begins to store a word of the value of a key, whose lock the caller holds.
    pub fn begin_change(&self, hash: u64) -> Counted<'_, AtomicU64> {
        lock::begin_change(self.changes(hash))
    }

    fn lock_number(&self, number: usize) -> MutexGuard<'_, ()> {
        // The data that the locks guard lies elsewhere, and is consistent wherever a panic can occur: in closures of
        // users.
        self.stripe(number).lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the stripe of a key by its hash.
    #[inline]
    pub fn lock(&self, hash: u64) -> MutexGuard<'_, ()> {
        self.lock_number(Self::number(hash))
    }

    /// Locks the stripes of several keys.
    pub fn lock_all(&self, hashes: impl IntoIterator<Item = u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut numbers: Vec<usize> = hashes.into_iter().map(Self::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.lock_number(number)).collect()
    }

    /// Remembers a word that is not durable yet, that of a retracted record or another one, unless the stripe, whose lock
    /// the caller holds, remembers one already; returns whether it does.
    #[must_use]
    pub fn remember(&self, hash: u64, at: u64, is_retracted: bool) -> bool {
        let unsettled = &self.stripe(Self::number(hash)).unsettled;
        // Relaxed: the lock orders it. A thread that misses that the old word was just settled only does not get the
        // new one remembered.
        let is_free = unsettled.load(Ordering::Relaxed) == 0;
        if is_free {
            unsettled.store(at | if is_retracted { RETRACTED } else { 0 }, Ordering::Relaxed);
        }
        is_free
    }

    /// The numbers of the stripes that remember a retracted record whose word `is_wanted`. A hint.
    pub fn with_retracted(&self, is_wanted: impl Fn(u64) -> bool) -> Vec<usize> {
        let stripes = self.stripes.iter().enumerate();
        let found = stripes.filter(|(_, stripe)| stripe.retracted().is_some_and(&is_wanted));
        found.map(|(number, _)| number).collect()
    }

    /// Locks a stripe by its number, and shows the word of the retracted record that it remembers. A thread that locks
    /// several takes them in ascending order.
    pub fn lock_retracted(&self, number: usize) -> (MutexGuard<'_, ()>, Option<u64>) {
        let held = self.lock_number(number);
        (held, self.stripe(number).retracted())
    }

    /// Takes this word of a retracted record, which is durable, from the thread that set it; returns whether that has not
    /// settled it itself meanwhile. The caller holds the lock, and frees the record. Until the other thread notices, the
    /// stripe remembers nothing else.
    #[must_use]
    pub fn take(&self, number: usize, at: u64) -> bool {
        let unsettled = &self.stripe(number).unsettled;
        // Acquire and release: see `settled_retracted`.
        unsettled.compare_exchange(at | RETRACTED, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The remembered word, if any. The caller holds the lock.
    #[inline]
    pub fn unsettled(&self, hash: u64) -> Option<u64> {
        // Acquire: pairs with the release in `settled`, after which the word is durable.
        Some(self.stripe(Self::number(hash)).unsettled.load(Ordering::Acquire) & !FLAGS).filter(|at| *at != 0)
    }

    /// Called by the thread that left the word, once the word is durable.
    #[inline]
    pub fn settled(&self, hash: u64) {
        // Release: see `unsettled`.
        self.stripe(Self::number(hash)).unsettled.store(0, Ordering::Release);
    }

    /// The same for the word of a retracted record; returns whether reclaiming has freed the record meanwhile.
    #[must_use]
    pub fn settled_retracted(&self, hash: u64) -> bool {
        // Release as above, and an exchange, so that one of the two threads frees the record.
        self.stripe(Self::number(hash)).unsettled.swap(0, Ordering::AcqRel) == TAKEN
    }

    /// How many words are remembered.
    #[cfg(test)]
    pub fn unsettled_count(&self) -> u64 {
        self.stripes.iter().filter(|stripe| stripe.unsettled.load(Ordering::Relaxed) != 0).count() as u64
    }
}
