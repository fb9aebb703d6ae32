//! Locks that keep changes of the same key apart, for engines that read and write a value in two steps.

use crate::Result;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard};

/// How many locks there are; a key has one by its hash.
const LOCKS: usize = 1024;

/// The locks.
pub struct KeyLocks {
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Default for KeyLocks {
    fn default() -> Self {
        Self { locks: (0..LOCKS).map(|_| Mutex::new(())).collect(), hasher: RandomState::new() }
    }
}

impl KeyLocks {
    /// Locks the key, and others that have the same lock.
    ///
    /// # Errors
    /// If a thread panicked while it held the lock.
    pub fn lock(&self, key: &impl Hash) -> Result<MutexGuard<'_, ()>> {
        let place = self.hasher.hash_one(key) as usize % LOCKS;
        self.locks[place].lock().map_err(|_| "another thread that held the lock of this key panicked".into())
    }
}
