//! The tables that a serializable transaction has read, and what it lets go of last.

use crate::{driver::lock, handle::name_now, life::OpenTable, shared::Inner};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::Mutex;

/// The tables that a transaction has read, if it is serializable, which cannot be freed meanwhile. Once the transaction has
/// let go of everything else, this frees what is no longer used.
pub(crate) struct TablesRead {
    inner: Arc<Inner>,
    tables: Mutex<Vec<Arc<OpenTable>>>,
}

impl TablesRead {
    /// None yet.
    pub(crate) fn new(inner: &Arc<Inner>) -> Self {
        Self { inner: inner.clone(), tables: Mutex::default() }
    }

    pub(crate) fn add(&self, table: &Arc<OpenTable>) {
        lock(&self.tables).push(table.clone());
    }

    /// Adds a table that may have been added.
    pub(crate) fn add_once(&self, table: &Arc<OpenTable>) {
        let mut tables = lock(&self.tables);
        if !tables.iter().any(|other| Arc::ptr_eq(other, table)) {
            tables.push(table.clone());
        }
    }

    /// The name that the table has now which has or had the tree with this root.
    pub(crate) fn name_of(&self, root: PageId) -> Option<String> {
        let table = lock(&self.tables).iter().find(|table| table.generation(root).is_some())?.clone();
        Some(name_now(&self.inner, &table, &table.name))
    }
}

impl Drop for TablesRead {
    fn drop(&mut self) {
        let tables = self.tables.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for table in std::mem::take(tables) {
            // Its last handle may have gone meanwhile: then nothing else refers to it but its trees that are to be freed.
            let may_be_last = Arc::strong_count(&table) <= table.generations().count();
            if table.is_dropped() {
                self.inner.note_news(&table);
            }
            drop(table);
            if may_be_last {
                self.inner.sweep_later();
            }
        }
        self.inner.sweep();
    }
}
