//! A transaction that is rolled back when it is dropped.

use crate::{
    Result,
    driver::lock,
    owned::Owned,
    savepoints::Savepoint,
    shared::{Inner, NotUndone},
};
use std::{panic::Location, sync::Arc};
use vellum_base::{Extent, primitive::Mutex};
use vellum_pool::Pool;
use vellum_txn::CommitError;

/// An open transaction, and the database to which it belongs.
pub(crate) struct OpenTransaction {
    pub(crate) inner: Arc<Inner>,
    pub(crate) transaction: Arc<vellum_txn::Transaction>,
    /// The tables that it has created, replaced and dropped.
    pub(crate) owned: Mutex<Owned>,
    is_ended: bool,
}

impl OpenTransaction {
    #[track_caller]
    pub(crate) fn begin(inner: &Arc<Inner>, is_serializable: bool) -> Self {
        let place = Location::caller();
        // If this fails, an operation that meets a remaining change gets the error.
        let _ = inner.undo_rest();
        let transaction = Arc::new(inner.durable.begin(is_serializable, place));
        Self { inner: inner.clone(), transaction, owned: Mutex::default(), is_ended: false }
    }

    /// Makes the changes visible. They are durable when the last log record of this thread is.
    ///
    /// # Errors
    /// If its snapshot has been ended, or it is serializable and something it has read was changed.
    pub(crate) fn commit(mut self) -> std::result::Result<Arc<Inner>, CommitError> {
        self.transaction.commit(self.inner.pool())?;
        self.is_ended = true;
        lock(&self.owned).commit(&self.inner);
        Ok(self.inner.clone())
    }

    pub(crate) fn rollback(mut self) -> Result<()> {
        let inner = self.inner.clone();
        self.undo(inner.pool())
    }

    /// Undoes everything. A later transaction, or the next opening of the database, undoes what cannot be undone now.
    fn undo(&mut self, pool: &Pool) -> Result<()> {
        self.is_ended = true;
        let undone = self.transaction.rollback(pool);
        if undone.is_ok() {
            self.undo_owned(None);
        } else {
            let owned = std::mem::take(&mut *lock(&self.owned));
            self.inner.undo_later(Box::new(Failed { transaction: self.transaction.clone(), owned }));
        }
        Ok(undone?)
    }

    /// Undoes the changes of whole tables since a savepoint, or all of them.
    pub(crate) fn undo_owned(&self, since: Option<Savepoint>) {
        lock(&self.owned).undo(&self.inner, since);
    }
}

/// One that has ended and could not be rolled back.
struct Failed {
    transaction: Arc<vellum_txn::Transaction>,
    owned: Owned,
}

impl NotUndone for Failed {
    fn undo(&mut self, inner: &Inner) -> Result<()> {
        self.transaction.rollback(inner.durable.pool())?;
        self.owned.undo(inner, None);
        Ok(())
    }

    fn extents(&self) -> Vec<Extent> {
        self.transaction.replaced_extents()
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        if !self.is_ended {
            let inner = self.inner.clone();
            let _ = self.undo(inner.durable.pool());
        }
    }
}
