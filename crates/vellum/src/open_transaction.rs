//! A transaction that is rolled back when it is dropped.

use crate::{Error, Result, shared::Inner};
use std::{panic::Location, sync::Arc};
use vellum_txn::CommitError;

/// An open transaction, and the database to which it belongs.
pub(crate) struct OpenTransaction {
    pub(crate) inner: Arc<Inner>,
    pub(crate) transaction: vellum_txn::Transaction,
    is_ended: bool,
}

impl OpenTransaction {
    /// # Errors
    /// [`Error::WithoutLog`] if the database has no log.
    #[track_caller]
    pub(crate) fn begin(inner: &Arc<Inner>, is_serializable: bool) -> Result<Self> {
        let place = Location::caller();
        let transaction = inner.durable.begin(is_serializable, place).ok_or(Error::WithoutLog)?;
        Ok(Self { inner: inner.clone(), transaction, is_ended: false })
    }

    /// Makes what was changed visible. It is durable when the last record of this thread is.
    ///
    /// # Errors
    /// If its snapshot has been ended, or it is serializable and what it has read was changed.
    pub(crate) fn commit(mut self) -> std::result::Result<Arc<Inner>, CommitError> {
        self.transaction.commit(self.inner.pool())?;
        self.is_ended = true;
        Ok(self.inner.clone())
    }

    pub(crate) fn rollback(mut self) -> Result<()> {
        self.is_ended = true;
        Ok(self.transaction.rollback(self.inner.pool())?)
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        if !self.is_ended {
            // What cannot be undone now, the next opening of the database undoes.
            let _ = self.transaction.rollback(self.inner.durable.pool());
        }
    }
}
