//! Locks of keys: a thread that changes what the index says about a key holds the lock of the key's stripe.
//!
//! So of the records of one key only one change is under way at a time: a crash finds at most the record that was
//! acknowledged last and one that was not acknowledged yet, and no deleted record returns.
//!
//! A stripe also remembers one word that was changed and is not known to be durable, because the thread that changed it leaves
//! that to its next fence: that of a record that was retracted, or a word of a value. Until then the record that took its place
//! must not be retracted for good, or the older one would return, and the value must not be changed again. So a thread that
//! does either looks here first.
//!
//! Lock order: stripes come before everything else. A thread that needs several takes them in ascending order; a thread
//! that holds any waits for no other stripe.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

const STRIPES: usize = 4096;

/// The locks.
#[derive(Debug)]
pub struct Stripes(Box<[Stripe]>);

#[derive(Debug, Default)]
struct Stripe {
    lock: Mutex<()>,
    /// Where the word lies, in bytes, or zero. Set under the lock, cleared by the thread that set it.
    unsettled: AtomicU64,
}

impl Stripes {
    /// As many as there are.
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    fn number(hash: u64) -> usize {
        (hash >> 20) as usize % STRIPES
    }

    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "numbers are remainders by the count"))]
    fn stripe(&self, number: usize) -> &Stripe {
        &self.0[number]
    }

    fn lock_number(&self, number: usize) -> MutexGuard<'_, ()> {
        // What the locks guard lies elsewhere and is right at every point where a panic can come: closures of users.
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

    /// Remembers a word that is not durable yet. Not if the stripe, whose lock the caller holds, remembers another one.
    #[must_use]
    pub fn remember(&self, hash: u64, at: u64) -> bool {
        let unsettled = &self.stripe(Self::number(hash)).unsettled;
        // Relaxed: the lock orders it, and a word that was settled meanwhile is one that need not have been remembered.
        let is_free = unsettled.load(Ordering::Relaxed) == 0;
        if is_free {
            unsettled.store(at, Ordering::Relaxed);
        }
        is_free
    }

    /// The word that is remembered, if any. The caller holds the lock.
    #[inline]
    pub fn unsettled(&self, hash: u64) -> Option<u64> {
        // Acquire: pairs with the release in `settled`, after which the word is durable.
        Some(self.stripe(Self::number(hash)).unsettled.load(Ordering::Acquire)).filter(|at| *at != 0)
    }

    /// The thread that had a word remembered knows that it is durable.
    #[inline]
    pub fn settled(&self, hash: u64) {
        // Release: see `unsettled`.
        self.stripe(Self::number(hash)).unsettled.store(0, Ordering::Release);
    }

    /// How many words are remembered.
    #[cfg(test)]
    pub fn unsettled_count(&self) -> u64 {
        self.0.iter().filter(|stripe| stripe.unsettled.load(Ordering::Relaxed) != 0).count() as u64
    }
}
