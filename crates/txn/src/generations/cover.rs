//! What covers old snapshots, apart from versions: see [`covers`](super::covers).

use super::images::Images;
use crate::shard::Changed;
// No thread waits for these numbers.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The snapshots that a generation covers: those of transactions with numbers up to `id`, which see commits up to `time`.
#[derive(Clone, Copy)]
pub(crate) struct Covered {
    pub id: u64,
    pub time: u64,
}

/// What covers snapshots, apart from versions.
pub(super) struct Cover {
    /// Leaves as they were before their first changes.
    pub images: Images,
    /// Which records have been changed.
    pub changed: Arc<Changed>,
    /// It covers the snapshots of transactions up to this number; zero if it does not, or not yet.
    pub covered: AtomicU64,
    /// Leaves with lower LSNs have not changed since the cover was made.
    pub place: AtomicU64,
    /// Whether no snapshot is open any more that it covers.
    pub is_retired: AtomicBool,
    /// How many covers had begun, including this one; zero before it is armed.
    pub number: AtomicU64,
}

impl Cover {
    /// For a table of versions that may take so many bytes.
    pub fn new(version_bytes: usize) -> Self {
        Self {
            images: Images::default(),
            changed: Arc::new(Changed::new(version_bytes)),
            covered: AtomicU64::new(0),
            place: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            number: AtomicU64::new(0),
        }
    }

    /// Whether pages have been kept for it from some moment on.
    pub fn is_armed(&self) -> bool {
        // Acquire: pairs with `Generations::arm`.
        self.number.load(Ordering::Acquire) > 0
    }
}
