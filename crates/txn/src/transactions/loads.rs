//! Loads outside of transactions. They commit nothing, but a serializable transaction that has read their tree before did
//! not happen after them.

use super::{Refused, State, Transactions};
use crate::reads::ReadSet;
use vellum_base::PageId;

/// A load that puts records into a tree, or has done so.
pub(super) struct Load {
    tree: PageId,
    /// Transactions from this number on see all that was loaded; `None` while it is being put into the tree.
    seen_from: Option<u64>,
}

impl State {
    /// Whether a transaction that has read this may still be committed.
    ///
    /// # Errors
    /// If something was loaded into one of the trees since it was begun.
    pub(super) fn check_loads(&self, id: u64, reads: &ReadSet) -> Result<(), Refused> {
        let is_later =
            |load: &&Load| load.seen_from.is_none_or(|from| id < from) && reads.has_tree(load.tree);
        self.loads.iter().find(is_later).map_or(Ok(()), |load| Err(Refused::Loaded(load.tree)))
    }
}

impl Transactions {
    /// A load is about to put records into this tree, which nobody else changes before it [ends](Self::end_load).
    pub fn begin_load(&self, tree: PageId) {
        self.lock().loads.push(Load { tree, seen_from: None });
    }

    /// The load of this tree has put its records there, or has failed.
    pub fn end_load(&self, tree: PageId) {
        let mut state = self.lock();
        let State { loads, snapshots, ended, next_id, .. } = &mut *state;
        let is_this = |load: &&mut Load| load.tree == tree && load.seen_from.is_none();
        if let Some(load) = loads.iter_mut().find(is_this) {
            load.seen_from = Some(*next_id);
        }
        let oldest =
            snapshots.iter().chain(&*ended).filter(|begun| begun.is_serializable).map(|begun| begun.id).min();
        loads.retain(|load| load.seen_from.is_none_or(|from| oldest.is_some_and(|oldest| oldest < from)));
    }
}
