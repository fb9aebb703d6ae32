//! What is known of the open snapshots when it is found out which generations they need.

use smallvec::SmallVec;

/// What all open snapshots see, and which they are.
#[derive(Clone, Debug)]
pub(crate) struct Oldest {
    /// All open snapshots see the commits up to this one.
    pub of_all: u64,
    /// All snapshots that are not covered see the commits up to this one.
    pub of_others: u64,
    /// The open snapshots, if there are generations.
    pub open: Option<OpenSnapshots>,
}

/// The open snapshots.
#[derive(Clone, Debug)]
pub(crate) struct OpenSnapshots {
    /// Their transactions and times, in the order in which they were taken.
    pub all: SmallVec<[(u64, u64); 8]>,
    /// The next transaction, and what its snapshot sees at least. So a thread that comes late with this keeps what later
    /// snapshots need.
    pub next: (u64, u64),
}

impl OpenSnapshots {
    /// The first one after a transaction, and its time.
    pub(super) fn first_after(&self, transaction: u64) -> (u64, u64) {
        let index = self.all.partition_point(|(id, _)| *id <= transaction);
        self.all.get(index).copied().unwrap_or(self.next)
    }
}
