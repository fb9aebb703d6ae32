//! Whether a table that has handles is there, and who changes it.
//!
//! The catalog's record says whether a table exists; the first transaction to change the record wins. But changes of a table's
//! *records* leave the catalog alone. So each transaction that changes some is entered here as a writer of the table, a transaction
//! that drops the table enters itself as its owner, and each refuses the other. Nobody else than its owner can change a table
//! that was created and is not committed yet, either.
//!
//! A dropped table's pages are freed when no snapshot sees the table and nobody has a handle on it: see `Inner::sweep`.

use crate::{Error, Result, catalog::TableRecord, driver::lock};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicBool, Mutex, Ordering};
use vellum_pool::AppendHints;

/// A table that has handles.
pub(crate) struct OpenTable {
    /// Its name when it was opened first.
    pub(crate) name: Arc<str>,
    pub(crate) root: PageId,
    /// It keeps no versions: transactions cannot use it.
    pub(crate) is_plain: bool,
    /// Where its last leaf is, while records are appended.
    pub(crate) ends: AppendHints,
    /// Whether its life says that not everybody may change it: operations look at that only.
    is_special: AtomicBool,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    /// The transaction that has created or dropped it and is not committed.
    owner: Option<u64>,
    /// It was dropped, or its creation was undone.
    is_gone: bool,
    /// How many transactions that are open have changed its records.
    writers: usize,
}

/// A transaction that has changed records of a table, which keeps others from dropping it.
pub(crate) struct Writing(Arc<OpenTable>);

/// A table whose pages are to be freed.
pub(crate) struct Doomed {
    pub(crate) open: Arc<OpenTable>,
    /// Snapshots that see this commit do not see the table.
    pub(crate) time: u64,
}

impl OpenTable {
    pub(crate) fn new(name: &str, record: &TableRecord) -> Self {
        Self {
            name: name.into(),
            root: record.root,
            is_plain: record.is_plain,
            ends: AppendHints::default(),
            is_special: AtomicBool::new(false),
            life: Mutex::default(),
        }
    }

    /// Makes sure that a single operation may change the table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`] if it was dropped, [`Error::Conflict`] if an open transaction has created or dropped it.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        // Acquire: pairs with `update`. An operation that comes a moment earlier comes before the drop.
        if self.is_special.load(Ordering::Acquire) {
            lock(&self.life).check(&self.name, None)
        } else {
            Ok(())
        }
    }

    /// Enters a transaction that is about to change records of the table. `number` is its own.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub(crate) fn begin_writing(self: &Arc<Self>, number: u64) -> Result<Writing> {
        let mut life = lock(&self.life);
        life.check(&self.name, Some(number))?;
        life.writers += 1;
        Ok(Writing(self.clone()))
    }

    /// Enters the owner of the table, which is about to create or drop it, and is itself this often among its writers.
    ///
    /// # Errors
    /// As for [`check`](Self::check), and if another transaction has changed records of it.
    pub(crate) fn begin_owning(&self, owner: u64, own_writers: usize) -> Result<()> {
        self.update(|life| {
            life.check(&self.name, Some(owner))?;
            if life.writers > own_writers {
                return Err(conflict(&self.name, false));
            }
            life.owner = Some(owner);
            Ok(())
        })
    }

    /// Its owner has ended.
    pub(crate) fn end_owning(&self, is_gone: bool) {
        self.update(|life| {
            life.owner = None;
            life.is_gone |= is_gone;
        });
    }

    fn update<T>(&self, update: impl FnOnce(&mut Life) -> T) -> T {
        let mut life = lock(&self.life);
        let done = update(&mut life);
        self.is_special.store(life.owner.is_some() || life.is_gone, Ordering::Release);
        done
    }
}

impl Life {
    fn check(&self, name: &str, owner: Option<u64>) -> Result<()> {
        if self.is_gone {
            return Err(Error::NoSuchTable { name: name.to_owned() });
        }
        if self.owner.is_some() && self.owner != owner { Err(conflict(name, false)) } else { Ok(()) }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        lock(&self.0.life).writers -= 1;
    }
}

impl Writing {
    pub(crate) fn is_of(&self, open: &Arc<OpenTable>) -> bool {
        Arc::ptr_eq(&self.0, open)
    }
}

/// The conflict about the catalog's record of a table.
pub(crate) fn conflict(name: &str, committed: bool) -> Error {
    Error::Conflict { table: "(catalog)".to_owned(), key: name.as_bytes().to_vec(), committed }
}
