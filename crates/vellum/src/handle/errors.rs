//! Errors of a table: they say which one it is, by the name that it has now.

use super::Handle;
use crate::{
    Error,
    catalog::{self, TableRecord},
    life::conflict,
};
use vellum_access::AccessError;
use vellum_pool::PoolError;

impl Handle {
    /// The table's name now, by which others find what the error is about. It may have been renamed since the handle was
    /// made.
    #[cold]
    pub(crate) fn name_now(&self) -> String {
        let catalog = catalog::tree(self.inner.pool()).with_view(self.inner.durable.view());
        let is_this = |record: &TableRecord| self.open.generation(record.root).is_some();
        let handled = || self.name.as_ref().to_owned();
        match catalog::find(catalog, &self.name) {
            Ok(Some(record)) if is_this(&record) => handled(),
            // A transaction that is not committed has created it, or it is gone, unless it has another name.
            _ => catalog::list(catalog)
                .ok()
                .and_then(|tables| tables.into_iter().find(|(_, record)| is_this(record)))
                .map_or_else(handled, |(name, _)| name),
        }
    }

    /// Adds the table's name to an error.
    pub(crate) fn named(&self, error: AccessError) -> Error {
        match error {
            AccessError::Conflict { key, committed, .. } => {
                Error::Conflict { table: self.name_now(), key, committed }
            }
            AccessError::NeedsTransaction { key, .. } => {
                Error::Conflict { table: self.name_now(), key, committed: false }
            }
            error => error.into(),
        }
    }

    /// The error of a single operation that cannot be retried.
    pub(crate) fn refused(&self, error: AccessError) -> Error {
        match error {
            // The table has been cleared.
            AccessError::Pool(PoolError::Cancelled) => conflict(&self.name_now(), true),
            error => self.named(error),
        }
    }
}
