//! Loads outside of transactions. They commit nothing, but a serializable transaction that has read their tree before did
//! not happen after them.

use crate::reads::ReadSet;
use vellum_base::PageId;

/// The loads because of which a transaction may be refused.
#[derive(Default)]
pub(crate) struct Loads(Vec<Load>);

/// A load that puts records into a tree, or has done so.
struct Load {
    tree: PageId,
    /// Transactions from this number on see all that was loaded; `None` while it is being put into the tree.
    seen_from: Option<u64>,
}

impl Loads {
    /// A load is about to put records into this tree, which nobody else changes before it [ends](Self::end).
    pub fn begin(&mut self, tree: PageId) {
        self.0.push(Load { tree, seen_from: None });
    }

    /// The load of this tree has put its records there, or has failed. `next` is the number of the next transaction, `oldest`
    /// that of the first open one that is serializable.
    pub fn end(&mut self, tree: PageId, next: u64, oldest: Option<u64>) {
        let is_this = |load: &&mut Load| load.tree == tree && load.seen_from.is_none();
        if let Some(load) = self.0.iter_mut().find(is_this) {
            load.seen_from = Some(next);
        }
        let is_needed = |from: u64| oldest.is_some_and(|oldest| oldest < from);
        self.0.retain(|load| load.seen_from.is_none_or(is_needed));
    }

    /// A tree into which something was loaded since this transaction was begun, and which has read this.
    pub fn find(&self, transaction: u64, reads: &ReadSet) -> Option<PageId> {
        let is_later = |load: &&Load| load.seen_from.is_none_or(|from| transaction < from);
        self.0.iter().filter(is_later).map(|load| load.tree).find(|tree| reads.has_tree(*tree))
    }
}
