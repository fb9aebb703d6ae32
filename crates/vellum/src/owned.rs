//! The tables that a transaction has created, loaded, cleared and dropped, and what happens to them when it ends.

use crate::{life::OpenTable, plant::Plant, savepoints::Savepoint, shared::Inner};
use std::sync::Arc;
use vellum_base::{PageId, plant::is_planted};

/// The changes of a transaction to tables as a whole.
#[derive(Default)]
pub(crate) struct Owned {
    changes: Vec<Change>,
    /// Tables of which it has made a tree and taken that back. As long as it is open, it keeps others from the doomed records
    /// of these trees, so their roots must not be freed: the root of another tree would have the same record.
    taken_back: Vec<Arc<OpenTable>>,
}

struct Change {
    /// When in the transaction.
    at: vellum_txn::Savepoint,
    table: Arc<OpenTable>,
    fate: Fate,
}

/// The kind of a change of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Created,
    /// The transaction owns the table, which is unchanged.
    Reserved,
    /// It got another generation: the roots of the old and the new one.
    Replaced {
        old: PageId,
        new: PageId,
    },
    Dropped,
}

impl Owned {
    /// Notes a change of a table.
    pub(crate) fn add(&mut self, at: vellum_txn::Savepoint, table: Arc<OpenTable>, fate: Fate) {
        if fate == Fate::Dropped {
            table.set_dropped(true);
        }
        self.changes.push(Change { at, table, fate });
    }

    /// How many changes there are.
    pub(crate) fn count(&self) -> usize {
        self.changes.len()
    }

    /// How many of the changes came before a savepoint.
    fn count_before(&self, savepoint: Savepoint) -> usize {
        let is_before = |(index, change): &(usize, &Change)| match change.fate {
            // It changes nothing in the catalog by which the places would differ.
            Fate::Reserved if change.at == savepoint.at => *index < savepoint.owned_count,
            _ => change.at < savepoint.at,
        };
        self.changes.iter().enumerate().take_while(is_before).count()
    }

    /// Whether the transaction has created a table.
    pub(crate) fn has_created(&self, table: &Arc<OpenTable>) -> bool {
        self.has(Fate::Created, table)
    }

    /// Whether the transaction has dropped a table.
    pub(crate) fn has_dropped(&self, table: &Arc<OpenTable>) -> bool {
        self.has(Fate::Dropped, table)
    }

    fn has(&self, fate: Fate, table: &Arc<OpenTable>) -> bool {
        self.changes.iter().any(|change| change.fate == fate && Arc::ptr_eq(&change.table, table))
    }

    /// The transaction is committed.
    pub(crate) fn commit(&mut self, inner: &Inner) {
        if self.changes.is_empty() && self.taken_back.is_empty() {
            return;
        }
        let time = inner.durable.last_commit();
        // To earlier snapshots the doomed records count as changed.
        self.taken_back.drain(..).for_each(|table| inner.doom_from(&table, time));
        let changes = std::mem::take(&mut self.changes);
        for (index, Change { table, .. }) in changes.iter().enumerate() {
            let is_same = |other: &&Change| Arc::ptr_eq(&other.table, table);
            // All changes of a table become visible at once.
            if !changes.iter().take(index).any(|other| is_same(&other)) {
                let is_gone = changes.iter().filter(is_same).any(|change| change.fate == Fate::Dropped);
                let replaced = changes.iter().rev().filter(is_same).find_map(|change| match change.fate {
                    Fate::Replaced { new, .. } => Some(new),
                    Fate::Created | Fate::Reserved | Fate::Dropped => None,
                });
                table.end_owning(is_gone, replaced.map(|root| (root, time)));
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

    /// Undoes the changes since a savepoint, or all of them.
    pub(crate) fn undo(&mut self, inner: &Inner, since: Option<Savepoint>) {
        let first = since.map_or(0, |since| self.count_before(since));
        while self.changes.len() > first
            && let Some(change) = self.changes.pop()
        {
            let is_still_owned = self.changes.iter().any(|other| Arc::ptr_eq(&other.table, &change.table));
            let is_forgotten = change.fate == Fate::Dropped && is_planted("vellum", Plant::DropNotTakenBack);
            if !is_still_owned && !is_forgotten {
                change.table.end_owning(change.fate == Fate::Created, None);
            }
            if since.is_some() && matches!(change.fate, Fate::Created | Fate::Replaced { .. }) {
                self.taken_back.push(change.table.clone());
            }
            // No other snapshot has ever seen the table or tree.
            match change.fate {
                Fate::Created => inner.doom(change.table, 0, None),
                Fate::Replaced { new, .. } => inner.doom(change.table, 0, Some(new)),
                Fate::Dropped => change.table.set_dropped(false),
                Fate::Reserved => {}
            }
        }
        if since.is_none() {
            self.taken_back.clear();
        }
    }
}
