//! Locks of keys: a thread that changes what the index says about a key holds the lock of the key's stripe.
//!
//! So of the records of one key only one change is under way at a time: a crash finds at most the record that was
//! acknowledged last and one that was not acknowledged yet, and no deleted record returns.
//!
//! Lock order: stripes come before everything else. A thread that needs several takes them in ascending order; a thread
//! that holds any waits for no other stripe.

use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 4096;

/// The locks.
#[derive(Debug)]
pub struct Stripes(Box<[Mutex<()>]>);

impl Stripes {
    /// As many as there are.
    pub fn new() -> Self {
        Self((0..STRIPES).map(|_| Mutex::new(())).collect())
    }

    fn number(hash: u64) -> usize {
        (hash >> 20) as usize % STRIPES
    }

    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "numbers are remainders by the count"))]
    fn stripe(&self, number: usize) -> MutexGuard<'_, ()> {
        // What the locks guard lies elsewhere and is right at every point where a panic can come: closures of users.
        self.0[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the stripe of a key by its hash.
    #[inline]
    pub fn lock(&self, hash: u64) -> MutexGuard<'_, ()> {
        self.stripe(Self::number(hash))
    }

    /// Locks the stripes of several keys.
    pub fn lock_all(&self, hashes: impl IntoIterator<Item = u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut numbers: Vec<usize> = hashes.into_iter().map(Self::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.stripe(number)).collect()
    }
}
