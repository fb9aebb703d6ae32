//! The list of the trees that are to be freed.
//!
//! They are found by their tables. So what concerns one table, its clearing or its drop, does not look at the trees of all
//! tables: there may be thousands.

use crate::life::{Doomed, OpenTable};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The trees, by the addresses of their tables.
#[derive(Default)]
pub(crate) struct DoomedTrees(BTreeMap<usize, Vec<Doomed>>);

impl DoomedTrees {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Doomed> {
        self.0.values().flatten()
    }

    /// The tables that have any; if `among` is given, only of these.
    pub(crate) fn tables(&self, among: Option<BTreeSet<usize>>) -> Vec<usize> {
        match among {
            Some(among) => among.into_iter().filter(|table| self.0.contains_key(table)).collect(),
            None => self.0.keys().copied().collect(),
        }
    }

    pub(crate) fn of(&self, table: usize) -> &[Doomed] {
        self.0.get(&table).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn of_mut(&mut self, table: usize) -> &mut [Doomed] {
        self.0.get_mut(&table).map_or(&mut [], Vec::as_mut_slice)
    }

    /// Takes all of a table out.
    pub(crate) fn take(&mut self, table: usize) -> Vec<Doomed> {
        self.0.remove(&table).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, new: Doomed) {
        self.0.entry(address_of(&new.open)).or_default().push(new);
    }

    /// Takes one of a table out, if there is one like that.
    pub(crate) fn take_one(&mut self, table: usize, is_wanted: impl Fn(&Doomed) -> bool) -> Option<Doomed> {
        let own = self.0.get_mut(&table)?;
        let taken = own.swap_remove(own.iter().position(is_wanted)?);
        if own.is_empty() {
            self.0.remove(&table);
        }
        Some(taken)
    }
}

/// By which the trees of a table are found.
pub(crate) fn address_of(table: &Arc<OpenTable>) -> usize {
    Arc::as_ptr(table).addr()
}
