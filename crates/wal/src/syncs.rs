//! How many wait for syncs, and how many of them a sync serves.

use std::sync::PoisonError;
use vellum_base::Lsn;
use vellum_base::primitive::{Mutex, MutexGuard};

/// How many syncs there have been since the log was opened, and for how many records that tasks or threads wait for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SyncCounts {
    /// How many syncs have made records durable.
    pub syncs: u64,
    /// How many records were waited for when a sync began, added up over the syncs.
    pub waiting: u64,
    /// How many of those the sync has made durable. The others came while it was written, or were not filled yet.
    pub acknowledged: u64,
}

/// The counts, and the threads that wait.
#[derive(Default)]
pub(crate) struct Syncs(Mutex<(SyncCounts, Vec<Lsn>)>);

/// A thread waits for a record.
pub(crate) struct Waits<'s> {
    syncs: &'s Syncs,
    lsn: Lsn,
}

impl Syncs {
    /// This thread waits until a record is durable.
    pub fn wait(&self, lsn: Lsn) -> Waits<'_> {
        self.lock().1.push(lsn);
        Waits { syncs: self, lsn }
    }

    /// What threads wait for.
    pub fn awaited(&self) -> Vec<Lsn> {
        self.lock().1.clone()
    }

    /// A sync has brought the log up to `end`; when it began, these were waited for.
    pub fn add(&self, end: Lsn, awaited: impl Iterator<Item = Lsn>) {
        let counts = &mut self.lock().0;
        counts.syncs += 1;
        for lsn in awaited {
            counts.waiting += 1;
            counts.acknowledged += u64::from(lsn < end);
        }
    }

    pub fn counts(&self) -> SyncCounts {
        self.lock().0
    }

    fn lock(&self) -> MutexGuard<'_, (SyncCounts, Vec<Lsn>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut syncs = self.syncs.lock();
        if let Some(place) = syncs.1.iter().position(|lsn| *lsn == self.lsn) {
            syncs.1.swap_remove(place);
        }
    }
}
