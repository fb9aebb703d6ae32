//! The trees that are to be freed, once nobody needs them any more, and those of them that are used again.

use crate::{
    doomed_trees::address_of,
    driver::lock,
    generations::Generation,
    life::{Contents, Doomed, OpenTable},
    shared::Inner,
};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::Ordering;

impl Inner {
    /// The root of an earlier generation of the table that is empty and no longer needed, if there is one.
    pub(crate) fn take_empty(&self, table: &Arc<OpenTable>) -> Option<PageId> {
        let is_empty = |doomed: &Doomed| doomed.contents == Contents::Nothing && doomed.tree.is_some();
        lock(&self.doomed).take_one(address_of(table), is_empty)?.tree
    }

    /// The roots of all earlier generations of the table, which are not freed then, unless one of them is not empty.
    pub(crate) fn take_all_empty(&self, table: &Arc<OpenTable>) -> Option<Vec<PageId>> {
        let mut doomed = lock(&self.doomed);
        let table = address_of(table);
        if doomed.of(table).iter().any(|doomed| doomed.contents != Contents::Nothing) {
            return None;
        }
        Some(doomed.take(table).into_iter().filter_map(|doomed| doomed.tree).collect())
    }

    /// Has a tree of a table, or the table with all its trees, freed once no snapshot sees it.
    pub(crate) fn doom(&self, open: Arc<OpenTable>, time: u64, tree: Option<PageId>) {
        let root = tree.unwrap_or_else(|| open.current.last());
        let since = open.generation(root).map_or(0, Generation::since);
        self.add_doomed(Doomed { open, time, since, tree, contents: Contents::Whole });
    }

    /// As [`doom`](Self::doom), of a tree that is empty.
    pub(crate) fn doom_empty(&self, open: Arc<OpenTable>, time: u64, root: PageId) {
        self.add_doomed(Doomed { open, time, since: 0, tree: Some(root), contents: Contents::Nothing });
    }

    /// As [`doom`](Self::doom), of a tree that no snapshot sees. Its contents are freed at once.
    pub(crate) fn doom_and_empty(&self, open: &Arc<OpenTable>, root: PageId) {
        let (table, open, tree) = (address_of(open), open.clone(), Some(root));
        self.add_doomed(Doomed { open, time: 0, since: 0, tree, contents: Contents::Going });
        self.truncate(root, table);
    }

    fn add_doomed(&self, new: Doomed) {
        let mut doomed = lock(&self.doomed);
        self.has_doomed.store(true, Ordering::Release);
        self.note_news(&new.open);
        doomed.push(new);
    }

    /// What of a table is to be freed is freed once all snapshots see this commit.
    pub(crate) fn doom_from(&self, table: &Arc<OpenTable>, time: u64) {
        let mut doomed = lock(&self.doomed);
        let own = doomed.of_mut(address_of(table)).iter_mut();
        own.for_each(|doomed| doomed.time = doomed.time.max(time));
        self.has_doomed.store(true, Ordering::Release);
        self.note_news(table);
    }
}
