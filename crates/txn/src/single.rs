//! Operations outside transactions.

use crate::{
    plant::{Bug, planted},
    transactions::Transactions,
    writer::Sight,
};
use std::{ops::Bound, sync::Arc};
use vellum_access::{Claim, Direction, Intent, Isolation, Removed, Seen, ValueImage};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// How operations outside transactions see records: as the last commits left them.
pub(crate) struct Single {
    pub transactions: Arc<Transactions>,
}

impl Isolation for Single {
    fn seen(&self, tree: PageId, key: &[u8]) -> Result<Seen, PoolError> {
        if planted(Bug::UncommittedRead) {
            return Ok(Seen::Leaf);
        }
        self.transactions.publish_private();
        self.transactions.versions.seen(tree, key, Sight::ALL_COMMITS)
    }

    fn claim(&self, _: PageId, _: &[u8], _: Lsn, _: Option<ValueImage<'_>>, _: Intent) -> Result<(), Claim> {
        // If no transaction is open, the view knows that and does not ask.
        Err(Claim::NeedsTransaction)
    }

    fn check(&self, tree: PageId, key: &[u8], leaf: Lsn) -> Result<(), Claim> {
        self.transactions.publish_private();
        let versions = &self.transactions.versions;
        let target = versions.target((tree, key), leaf, Sight::ALL_COMMITS.time);
        let checked = versions.check(target, Sight::ALL_COMMITS)?;
        checked.map_err(|_| Claim::NeedsTransaction)
    }

    fn has_removed(&self) -> bool {
        self.transactions.publish_private();
        self.transactions.versions.has_removed(Sight::ALL_COMMITS)
    }

    fn removed(
        &self,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        portion: (Direction, usize),
    ) -> Result<Removed, PoolError> {
        self.transactions.publish_private();
        self.transactions.versions.removed(Sight::ALL_COMMITS, tree, bounds, portion)
    }

    fn recorded(&self, _: Lsn) {}
}
