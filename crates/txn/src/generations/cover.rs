//! What covers old snapshots, beside versions: see [`covers`](super::covers).

use super::images::Images;
use crate::shard::Changed;
// No thread waits for these numbers.
use std::sync::{Arc, atomic::AtomicU64};

/// The snapshots that a generation covers: those of transactions with numbers up to `id`, which see commits up to `time`.
#[derive(Clone, Copy)]
pub(crate) struct Covered {
    pub id: u64,
    pub time: u64,
}

/// What covers snapshots, beside versions.
#[derive(Default)]
pub(super) struct Cover {
    /// Leaves as they were before their first changes.
    pub images: Images,
    /// Which records have been changed.
    pub changed: Arc<Changed>,
    /// It covers the snapshots of transactions up to this number; zero if it does not, or not yet.
    pub covered: AtomicU64,
    /// Leaves with lesser LSNs have not changed since it was made.
    pub place: AtomicU64,
    /// How many covers had begun with it.
    pub number: AtomicU64,
}
