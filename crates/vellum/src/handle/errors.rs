//! Errors of a table: they say which one it is, by the name that it has now.

use super::Handle;
use crate::{
    Error,
    catalog::{self, TableRecord},
    life::{OpenTable, conflict},
    shared::Inner,
};
use vellum_access::AccessError;
use vellum_pool::PoolError;

impl Handle {
    /// The table's name now: see [`name_now`].
    #[cold]
    pub(crate) fn name_now(&self) -> String {
        name_now(&self.inner, &self.open, &self.name)
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

/// A table's name now, by which others find what an error is about. It may have been renamed since it had the `former` one.
#[cold]
pub(crate) fn name_now(inner: &Inner, open: &OpenTable, former: &str) -> String {
    let catalog = catalog::tree(inner.pool()).with_view(inner.durable.view());
    let is_this = |record: &TableRecord| open.generation(record.root).is_some();
    let has =
        |name: &str| catalog::find(catalog, name).is_ok_and(|record| record.as_ref().is_some_and(is_this));
    if has(former) {
        return former.to_owned();
    }
    // There may be thousands of tables, and many errors.
    if let Some(name) = open.found_as().filter(|name| has(name)) {
        return name.as_ref().to_owned();
    }
    // A transaction that is not committed has created it, or it is gone, unless it has another name.
    catalog::list(catalog)
        .ok()
        .and_then(|tables| tables.into_iter().find(|(_, record)| is_this(record)))
        .inspect(|(name, _)| open.note_found_as(name))
        .map_or_else(|| former.to_owned(), |(name, _)| name)
}
