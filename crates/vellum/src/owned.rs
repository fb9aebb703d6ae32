//! The tables that a transaction has created, loaded, cleared and dropped, and what happens to them when it ends.
//!
//! # What it takes back
//! A rollback to a savepoint empties the trees that were made after it, and keeps their roots. As long as the
//! transaction is open, it keeps others from the doomed records of these trees, so the roots must not be freed: the root
//! of another tree would have the same record. The transaction itself uses them again: that of a table that is still there
//! when it clears the table (`Inner::take_empty`), and those of tables that are gone and have no handles for any other
//! table. So a transaction that makes tables and takes them back again and again needs no more than the most that it had
//! at once, and a page for each table whose handles are kept.

use crate::{
    catalog::TableRecord, doomed_trees::address_of, life::OpenTable, plant::Plant, savepoints::Savepoint,
    shared::Inner,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};
use vellum_base::{PageId, plant::is_planted};

/// The changes of a transaction to tables as a whole.
#[derive(Default)]
pub(crate) struct Owned {
    changes: Vec<Change>,
    /// The places in that list of the changes of each table, by its address. There may be thousands of tables.
    by_table: BTreeMap<usize, Vec<usize>>,
    /// What it has taken back, which few transactions do.
    rest: Option<Box<TakenBack>>,
}

/// Trees that a transaction has made and taken back.
#[derive(Default)]
struct TakenBack {
    /// Tables of which it has taken back a tree that is in the list of what is to be freed, by their addresses.
    tables: BTreeMap<usize, Arc<OpenTable>>,
    /// Tables that it has created and taken back, and their trees, if these are empty.
    emptied: Vec<(Arc<OpenTable>, Vec<PageId>)>,
    /// The roots of such trees that nothing else can reach any more.
    roots: Vec<PageId>,
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
        self.by_table.entry(address_of(&table)).or_default().push(self.changes.len());
        self.changes.push(Change { at, table, fate });
    }

    /// Takes the last change out. Tells whether it was the only one of its table.
    fn pop(&mut self) -> Option<(Change, bool)> {
        let change = self.changes.pop()?;
        let is_only = match self.by_table.entry(address_of(&change.table)) {
            Entry::Vacant(_) => true,
            Entry::Occupied(mut places) => {
                places.get_mut().pop();
                let is_only = places.get().is_empty();
                if is_only {
                    places.remove();
                }
                is_only
            }
        };
        Some((change, is_only))
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

    /// Whether the transaction has dropped a table, or created it and taken that back.
    pub(crate) fn has_dropped(&self, table: &Arc<OpenTable>) -> bool {
        let is_taken_back =
            |rest: &TakenBack| rest.emptied.iter().any(|(other, _)| Arc::ptr_eq(other, table));
        self.has(Fate::Dropped, table) || self.rest.as_deref().is_some_and(is_taken_back)
    }

    fn has(&self, fate: Fate, table: &Arc<OpenTable>) -> bool {
        let places = self.by_table.get(&address_of(table)).into_iter().flatten();
        places.filter_map(|place| self.changes.get(*place)).any(|change| change.fate == fate)
    }

    /// The transaction is about to be committed, and nothing can be in the way: threads that read a tree that it replaces
    /// wait for the other one.
    pub(crate) fn begin_replacing(&self) {
        let is_replaced = |change: &&Change| matches!(change.fate, Fate::Replaced { .. });
        self.changes.iter().filter(is_replaced).for_each(|change| change.table.current.begin_replacing());
    }

    /// The transaction has just been committed: its tables get their trees, and no owner.
    pub(crate) fn end_owning(&self, inner: &Inner) {
        if self.is_empty() {
            return;
        }
        let time = inner.durable.last_commit();
        // To earlier snapshots the doomed records count as changed.
        let held = self.rest.iter().flat_map(|rest| rest.tables.values());
        held.for_each(|table| inner.doom_from(table, time));
        // All changes of a table become visible at once: whether it is gone, and the last tree that it has got. There may be
        // thousands.
        let (mut places, mut ends) = (BTreeMap::new(), Vec::with_capacity(self.changes.len()));
        for Change { table, fate, .. } in &self.changes {
            let place = *places.entry(address_of(table)).or_insert(ends.len());
            if place == ends.len() {
                ends.push((table, false, None));
            }
            let Some((_, is_gone, replaced)) = ends.get_mut(place) else { continue };
            match fate {
                Fate::Dropped => *is_gone = true,
                Fate::Replaced { new, .. } => *replaced = Some((*new, time)),
                Fate::Created | Fate::Reserved => {}
            }
        }
        for (table, is_gone, replaced) in ends {
            table.end_owning(is_gone, replaced);
        }
    }

    /// Has freed what the committed transaction has dropped, replaced and taken back.
    pub(crate) fn doom(mut self, inner: &Inner) {
        if self.is_empty() {
            return;
        }
        let time = inner.durable.last_commit();
        self.let_go(inner, time);
        for Change { table, fate, .. } in self.changes {
            match fate {
                Fate::Created | Fate::Reserved => {}
                Fate::Replaced { old, .. } => inner.doom(table, time, Some(old)),
                Fate::Dropped => inner.doom(table, time, None),
            }
        }
        inner.sweep_later();
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.rest.is_none()
    }

    /// Undoes the changes since a savepoint, or all of them.
    pub(crate) fn undo(&mut self, inner: &Inner, since: Option<Savepoint>) {
        let first = since.map_or(0, |since| self.count_before(since));
        let has_any = self.changes.len() > first || self.rest.is_some();
        while self.changes.len() > first
            && let Some((change, is_only)) = self.pop()
        {
            let is_forgotten = change.fate == Fate::Dropped && is_planted("vellum", Plant::DropNotTakenBack);
            if is_only && !is_forgotten {
                change.table.end_owning(change.fate == Fate::Created, None);
            }
            // No other snapshot has ever seen the table or tree.
            match (change.fate, since) {
                (Fate::Created, None) => inner.doom(change.table, 0, None),
                (Fate::Created, Some(_)) => self.take_back(inner, change.table),
                (Fate::Replaced { new, .. }, None) => inner.doom(change.table, 0, Some(new)),
                (Fate::Replaced { new, .. }, Some(_)) => {
                    inner.doom_and_empty(&change.table, new);
                    self.hold(change.table);
                }
                (Fate::Dropped, _) => change.table.set_dropped(false),
                (Fate::Reserved, _) => {}
            }
        }
        if since.is_none() {
            self.let_go(inner, 0);
        }
        if has_any {
            inner.sweep_later();
        }
    }

    /// A root that nothing else can reach, of an empty tree with a doomed record that only this transaction may change. If
    /// it is for a table that is not new, the caller [holds](Self::hold) the table.
    pub(crate) fn take_root(&mut self) -> Option<PageId> {
        /// A transaction that keeps handles on many tables does not look at all of them each time.
        const LOOKED_AT: usize = 16;
        let TakenBack { emptied, roots, .. } = &mut **self.rest.as_mut()?;
        if roots.is_empty() {
            // Handles are made only through snapshots that see the table, and none does.
            let first = emptied.len().saturating_sub(LOOKED_AT);
            let unused = emptied.extract_if(first.., |(table, _)| Arc::strong_count(table) == 1);
            roots.extend(unused.flat_map(|(_, roots)| roots));
        }
        roots.pop()
    }

    /// The trees of a table that are to be freed have doomed records that others cannot change before the transaction ends:
    /// until then they are not freed.
    pub(crate) fn hold(&mut self, table: Arc<OpenTable>) {
        self.rest.get_or_insert_default().tables.insert(address_of(&table), table);
    }

    /// Empties the trees of a table whose creation was undone.
    fn take_back(&mut self, inner: &Inner, table: Arc<OpenTable>) {
        // The transaction is still entered as a writer of the table.
        table.set_dropped(true);
        let first = table.current.last();
        let rest = inner.take_all_empty(&table);
        match rest.filter(|_| inner.empty(first).is_ok()) {
            Some(mut roots) => {
                roots.push(first);
                let rest = self.rest.get_or_insert_default();
                rest.tables.remove(&address_of(&table));
                rest.emptied.push((table, roots));
            }
            // It is freed when the transaction has ended.
            None => {
                inner.doom(table.clone(), 0, None);
                self.hold(table.clone());
                self.rest.get_or_insert_default().emptied.push((table, Vec::new()));
            }
        }
    }

    /// Has everything freed that was taken back, once all snapshots see this commit.
    fn let_go(&mut self, inner: &Inner, time: u64) {
        let Some(rest) = self.rest.take() else { return };
        rest.tables.values().for_each(|table| inner.doom_from(table, time));
        for (table, roots) in rest.emptied {
            roots.into_iter().for_each(|root| inner.doom_empty(table.clone(), time, root));
        }
        for root in rest.roots {
            let table = OpenTable::new("", &TableRecord::doomed(root), &inner.writers);
            inner.doom_empty(Arc::new(table), time, root);
        }
    }
}
