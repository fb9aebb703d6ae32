//! The tables that a transaction has created and dropped, and what becomes of them when it ends.

use crate::{life::OpenTable, shared::Inner};
use std::sync::Arc;
use vellum_txn::Savepoint;

/// What a transaction has done to tables.
#[derive(Default)]
pub(crate) struct Owned(Vec<Change>);

struct Change {
    /// Where in the transaction.
    at: Savepoint,
    table: Arc<OpenTable>,
    is_drop: bool,
}

impl Owned {
    /// A table has been created or dropped.
    pub(crate) fn add(&mut self, at: Savepoint, table: Arc<OpenTable>, is_drop: bool) {
        self.0.push(Change { at, table, is_drop });
    }

    /// The transaction is committed.
    pub(crate) fn commit(&mut self, inner: &Inner) {
        let time = inner.durable.last_commit();
        for Change { table, is_drop, .. } in self.0.drain(..) {
            table.end_owning(is_drop);
            if is_drop {
                inner.doom(table, time);
            }
        }
    }

    /// What was done since a savepoint, or at all, is undone.
    pub(crate) fn undo(&mut self, inner: &Inner, since: Option<Savepoint>) {
        while let Some(change) = self.0.pop_if(|change| since.is_none_or(|since| change.at >= since)) {
            let is_still_owned = self.0.iter().any(|other| Arc::ptr_eq(&other.table, &change.table));
            if !is_still_owned {
                change.table.end_owning(!change.is_drop);
            }
            if !change.is_drop {
                // No snapshot has ever seen it.
                inner.doom(change.table, 0);
            }
        }
    }
}
