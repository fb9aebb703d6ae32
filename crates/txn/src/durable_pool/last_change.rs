//! What a thread has changed last, and waiting for it.

use super::{Arrival, Durability, DurablePool, TxnError, wal_durability};
use vellum_base::Lsn;

impl DurablePool {
    /// The record of the last change by this thread since the last call of this or of [`commit`](Self::commit).
    pub fn take_last_change(&self) -> Option<Lsn> {
        self.logged.as_ref()?.changes.take_last_change()
    }

    /// Does something that this thread need not wait for: see [`take_last_change`](Self::take_last_change).
    pub fn keep_last_change<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.logged {
            Some(logged) => logged.changes.keep_last_change(work),
            None => work(),
        }
    }

    /// Returns once a record, and all records before it, are as durable as requested.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub fn wait(&self, lsn: Lsn, durability: Durability) -> Result<(), TxnError> {
        self.logged.as_ref().map_or(Ok(()), |logged| logged.wait(lsn, durability))
    }

    /// As [`commit`](Self::commit), without waiting; `None` if there is nothing to wait for.
    pub fn commit_later(&self, durability: Durability) -> Option<Arrival> {
        let logged = self.logged.as_ref()?;
        let lsn = logged.changes.take_last_change()?;
        match wal_durability(durability) {
            Some(wanted) => Some(logged.changes.flusher.arrival(lsn, wanted)),
            // It would never be written: the arrival says so.
            None if logged.changes.log.has_failed() => {
                Some(logged.changes.flusher.arrival(lsn, vellum_wal::Durability::Synced))
            }
            None => {
                logged.flush_later();
                None
            }
        }
    }
}
