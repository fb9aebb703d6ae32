//! The tables that a transaction has created, loaded, cleared and dropped, and what becomes of them when it ends.

use crate::{life::OpenTable, shared::Inner};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_txn::Savepoint;

/// What a transaction has done to tables.
#[derive(Default)]
pub(crate) struct Owned(Vec<Change>);

struct Change {
    /// Where in the transaction.
    at: Savepoint,
    table: Arc<OpenTable>,
    fate: Fate,
}

/// What was done to a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Created,
    /// It is this transaction's, and as it was.
    Reserved,
    /// It got another generation: their roots.
    Replaced {
        old: PageId,
        new: PageId,
    },
    Dropped,
}

impl Owned {
    /// Something has been done to a table.
    pub(crate) fn add(&mut self, at: Savepoint, table: Arc<OpenTable>, fate: Fate) {
        self.0.push(Change { at, table, fate });
    }

    /// The transaction is committed.
    pub(crate) fn commit(&mut self, inner: &Inner) {
        if self.0.is_empty() {
            return;
        }
        let time = inner.durable.last_commit();
        let changes = std::mem::take(&mut self.0);
        for (index, Change { table, .. }) in changes.iter().enumerate() {
            let is_same = |other: &&Change| Arc::ptr_eq(&other.table, table);
            // All that was done to a table shows at once.
            if !changes.iter().take(index).any(|other| is_same(&other)) {
                let is_gone = changes.iter().filter(is_same).any(|change| change.fate == Fate::Dropped);
                let replaced = changes.iter().rev().filter(is_same).find_map(|change| match change.fate {
                    Fate::Replaced { new, .. } => Some(new),
                    Fate::Created | Fate::Reserved | Fate::Dropped => None,
                });
                table.end_owning(is_gone, replaced);
            }
        }
        for Change { table, fate, .. } in changes {
            match fate {
                Fate::Created | Fate::Reserved => {}
                Fate::Replaced { old, .. } => inner.doom(table, time, Some(old)),
                Fate::Dropped => inner.doom(table, time, None),
            }
        }
    }

    /// What was done since a savepoint, or at all, is undone.
    pub(crate) fn undo(&mut self, inner: &Inner, since: Option<Savepoint>) {
        while let Some(change) = self.0.pop_if(|change| since.is_none_or(|since| change.at >= since)) {
            let is_still_owned = self.0.iter().any(|other| Arc::ptr_eq(&other.table, &change.table));
            if !is_still_owned {
                change.table.end_owning(change.fate == Fate::Created, None);
            }
            // No other snapshot has ever seen it.
            match change.fate {
                Fate::Created => inner.doom(change.table, 0, None),
                Fate::Replaced { new, .. } => inner.doom(change.table, 0, Some(new)),
                Fate::Reserved | Fate::Dropped => {}
            }
        }
    }
}
