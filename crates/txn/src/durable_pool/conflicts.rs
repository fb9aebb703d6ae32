//! What is asked and done about transactions that conflict.

use super::DurablePool;
use crate::transactions::Transactions;
use crate::waiting::Wait;
use std::{panic::Location, time::Duration};
use vellum_base::{PageId, Preceding};

impl DurablePool {
    /// Gives the transactions of this thread precedence over all others for at most `longest`: see [`Preceding`].
    pub fn precede(&self, longest: Duration) -> Preceding<'_> {
        let transactions = &self.single.transactions;
        transactions.precedence.take(longest, || transactions.has_no_writers())
    }

    /// Where this thread began the open transaction that keeps others from changing a record; `None` if another thread
    /// began it, or there is none. Another thread may have that transaction now.
    pub fn begun_here(&self, tree: PageId, key: &[u8]) -> Option<&'static Location<'static>> {
        self.single.transactions.begun_here(tree, key)
    }

    /// Notes that records are put into a tree outside of transactions, until what this returns is dropped. A serializable
    /// transaction that was begun before then and has read something of the tree is refused at its commit.
    pub fn begin_load(&self, root: PageId) -> Loading<'_> {
        let transactions = &self.single.transactions;
        transactions.begin_load(root);
        Loading { transactions, tree: root }
    }

    /// Begins to wait for the open transaction that keeps others from changing a record, if there is one.
    pub fn wait_for_keeper(&self, tree: PageId, key: &[u8]) -> Option<Wait> {
        self.single.transactions.wait_for(tree, key)
    }

    /// The numbers of the open transactions that this thread began, and where it began them.
    pub fn begun_by_this_thread(&self) -> Vec<(u64, &'static Location<'static>)> {
        self.single.transactions.begun_by_this_thread()
    }
}

/// The transactions that were open at a moment, and what they and those before have left behind.
pub struct Earlier {
    /// The first transaction after them.
    next: u64,
    /// The last commit when all of them had ended.
    commit: Option<u64>,
    /// What was being freed when nothing was left of the commits up to that one.
    freeing: Option<u64>,
}

impl Earlier {
    /// Those of now.
    pub fn than_now(pool: &DurablePool) -> Self {
        Self { next: pool.single.transactions.next_id(), commit: None, freeing: None }
    }

    /// Whether all of them have ended, no snapshot needs what they have replaced, and that has been freed. Ask again if
    /// not.
    pub fn are_over(&mut self, pool: &DurablePool) -> bool {
        pool.single.transactions.are_over(self.next, (&mut self.commit, &mut self.freeing))
    }
}

/// A load outside of transactions that puts records into its tree.
pub struct Loading<'t> {
    transactions: &'t Transactions,
    tree: PageId,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.transactions.end_load(self.tree);
    }
}
