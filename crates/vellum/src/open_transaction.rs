//! A transaction that is rolled back when it is dropped.

use crate::{
    Result,
    driver::lock,
    life::Writing,
    owned::Owned,
    savepoints::Savepoint,
    shared::{Inner, NotUndone},
};
use std::{ops::Deref, panic::Location, sync::Arc};
use vellum_base::Extent;
use vellum_base::primitive::{Mutex, MutexGuard};
use vellum_pool::Pool;
use vellum_txn::CommitError;

/// An open transaction, and the database to which it belongs.
pub(crate) struct OpenTransaction {
    pub(crate) inner: Arc<Inner>,
    pub(crate) transaction: Arc<Begun>,
    /// The tables that it has created, replaced and dropped.
    pub(crate) owned: Mutex<Owned>,
    is_ended: bool,
}

/// A transaction with the tables that it has changed. If it cannot be rolled back, it is kept as a whole.
pub(crate) struct Begun {
    transaction: vellum_txn::Transaction,
    /// The tables whose records it has changed: others can neither clear nor drop them as long as this exists. Each
    /// change locks this list, so that the transaction makes one change at a time.
    changed: Mutex<Vec<Writing>>,
}

impl Begun {
    /// Locks it for a change. What prepares the change comes after this: no other change may be under way then.
    #[inline]
    pub(crate) fn changing(&self) -> MutexGuard<'_, Vec<Writing>> {
        // A closure of the caller may panic under this lock.
        self.changed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Deref for Begun {
    type Target = vellum_txn::Transaction;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

impl OpenTransaction {
    #[track_caller]
    pub(crate) fn begin(inner: &Arc<Inner>, is_serializable: bool) -> Self {
        let place = Location::caller();
        inner.undo_rest_if_due();
        let transaction = inner.durable.begin(is_serializable, place);
        let transaction = Arc::new(Begun { transaction, changed: Mutex::default() });
        Self { inner: inner.clone(), transaction, owned: Mutex::default(), is_ended: false }
    }

    /// Makes the changes visible. They are durable when the last log record of this thread is.
    ///
    /// # Errors
    /// If its snapshot has been ended, or it is serializable and something it has read was changed.
    pub(crate) fn commit(mut self) -> std::result::Result<Arc<Inner>, CommitError> {
        let owned = std::mem::take(&mut *lock(&self.owned));
        let around = (|| owned.begin_replacing(), || owned.end_owning(&self.inner));
        if let Err(refused) = self.transaction.commit_around(self.inner.pool(), around) {
            *lock(&self.owned) = owned;
            return Err(refused);
        }
        self.is_ended = true;
        self.inner.durable.keep_last_change(|| owned.doom(&self.inner));
        Ok(self.inner.clone())
    }

    pub(crate) fn rollback(mut self) -> Result<()> {
        let inner = self.inner.clone();
        self.undo(inner.pool())
    }

    /// Undoes everything. A later transaction, or the next opening of the database, undoes what cannot be undone now.
    fn undo(&mut self, pool: &Pool) -> Result<()> {
        self.is_ended = true;
        let owned = self.owned.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let undone = self.transaction.rollback_before(pool, || owned.undo(&self.inner, None));
        if undone.is_err() {
            let owned = std::mem::take(owned);
            self.inner.undo_later(Box::new(Failed { transaction: self.transaction.clone(), owned }));
        }
        Ok(undone?)
    }

    /// Undoes the changes of whole tables since a savepoint, or all of them.
    pub(crate) fn undo_owned(&self, since: Option<Savepoint>) {
        lock(&self.owned).undo(&self.inner, since);
    }
}

/// One that has ended and could not be rolled back. Until it is, others cannot clear or drop the tables that it has
/// changed: they would free what is to be put back.
struct Failed {
    transaction: Arc<Begun>,
    owned: Owned,
}

impl NotUndone for Failed {
    fn undo(&mut self, inner: &Inner) -> Result<()> {
        Ok(self.transaction.rollback_before(inner.durable.pool(), || self.owned.undo(inner, None))?)
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
