//! Whether a table that has handles is there, and what changes it.
//!
//! The catalog's record says whether a table exists; the first transaction to change the record wins. But changes of a table's
//! *records* leave the catalog alone. So each transaction that changes some is entered as a [writer](Writers) of the table, a transaction
//! that drops the table enters itself as its owner, and each refuses the other. Only its owner can change a table
//! that was created and is not committed yet, either. The owner first says that the table is special, and then looks at all writers. A writer looks
//! whether it is while its part of them is locked: so either the owner finds the writer, or the writer finds the owner.
//!
//! # Lock order
//! The life of a table, and then a part of the writers.
//!
//! A dropped table's pages are freed when no snapshot sees the table and there are no handles on it: see `Inner::sweep`.
//!
//! # Generations
//! Clearing or loading a table in a transaction gives it another tree: each that it has had is a *generation*, and the *current* one is that of the last commit. So a
//! handle stays right: a single operation goes to the current one, a transaction to the one that it sees, for which it asks the
//! catalog as long as there may be snapshots that see another one (the table is *divided* then). The tree of an earlier generation is truncated when no
//! snapshot sees it. Its root stays, because a single operation may have come to it before, until the table has no handles, or is
//! cleared again and takes it.

use crate::{
    Error, Result,
    catalog::TableRecord,
    driver::lock,
    writers::{Entry, Writers},
};
use std::{
    iter,
    sync::{Arc, OnceLock},
};
use vellum_access::TreeHints;
use vellum_base::primitive::{AtomicBool, AtomicU64, Mutex, Ordering};
use vellum_base::{Apart, PageId};

/// A table that has handles.
// What counts its owners is apart from what all operations read.
#[repr(align(64))]
pub(crate) struct OpenTable {
    /// Its name when it was opened first.
    pub(crate) name: Arc<str>,
    /// It keeps no versions: transactions cannot use it.
    pub(crate) is_plain: bool,
    /// The root of the current generation.
    current: AtomicU64,
    /// The generations that it has had since it was opened.
    first: Generation,
    /// Transactions may see another generation than the current one.
    is_divided: AtomicBool,
    /// Whether its life says that not every thread may change it: operations look at that only.
    is_special: AtomicBool,
    writers: Arc<Writers>,
    life: Apart<Mutex<Life>>,
}

/// A tree that the table has or had.
pub(crate) struct Generation {
    pub(crate) root: PageId,
    pub(crate) hints: TreeHints,
    next: OnceLock<Box<Self>>,
}

#[derive(Default)]
struct Life {
    /// The transaction that has created, cleared or dropped it, or loads it, and is not committed.
    owner: Option<u64>,
    /// It was dropped, or its creation was undone.
    is_gone: bool,
}

/// A transaction that has changed records of a table, or an operation that is about to, which keeps others from clearing and dropping it.
pub(crate) struct Writing {
    entry: Entry,
    /// The root of the generation that it changes.
    seen: PageId,
}

/// A tree that is to be freed, or a table with all its trees.
pub(crate) struct Doomed {
    pub(crate) open: Arc<OpenTable>,
    /// Snapshots that see this commit do not see it.
    pub(crate) time: u64,
    /// The root of an earlier generation; none if the table is gone.
    pub(crate) tree: Option<PageId>,
    pub(crate) contents: Contents,
}

/// What is left of a tree that is to be freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Everything.
    Whole,
    /// A thread is truncating it.
    Going,
    /// Its root.
    Nothing,
    /// It could not be truncated, and is freed when the table has no handles.
    Unreadable,
}

impl OpenTable {
    /// `writers` are those of all tables of the database.
    pub(crate) fn new(name: &str, record: &TableRecord, writers: &Arc<Writers>) -> Self {
        Self {
            name: name.into(),
            is_plain: record.is_plain,
            current: AtomicU64::new(record.root.0),
            first: Generation::new(record.root),
            is_divided: AtomicBool::new(false),
            is_special: AtomicBool::new(false),
            writers: writers.clone(),
            life: Apart::default(),
        }
    }

    /// The tree that single operations see.
    #[inline]
    pub(crate) fn current(&self) -> &Generation {
        // Acquire: pairs with `end_owning`, so that the generation is found.
        let root = PageId(self.current.load(Ordering::Acquire));
        if root == self.first.root { &self.first } else { self.generation(root).unwrap_or(&self.first) }
    }

    /// Where the root of the current tree is kept.
    #[inline]
    pub(crate) fn current_root(&self) -> &AtomicU64 {
        &self.current
    }

    /// Whether transactions may see another generation than the current one.
    #[inline]
    pub(crate) fn is_divided(&self) -> bool {
        // Acquire: pairs with `begin_owning`. An operation that misses that has begun before the transaction that clears the table ends, and sees the
        // current generation.
        self.is_divided.load(Ordering::Acquire)
    }

    pub(crate) fn generations(&self) -> impl Iterator<Item = &Generation> {
        iter::successors(Some(&self.first), |generation| generation.next.get().map(AsRef::as_ref))
    }

    #[cold]
    pub(crate) fn generation(&self, root: PageId) -> Option<&Generation> {
        self.generations().find(|generation| generation.root == root)
    }

    /// Adds a generation that it will have.
    pub(crate) fn add_generation(&self, root: PageId) {
        let mut last = &self.first;
        while last.root != root {
            last = last.next.get_or_init(|| Box::new(Generation::new(root)));
        }
    }

    /// All snapshots see the current generation, unless it is being cleared.
    pub(crate) fn unite(&self) {
        if self.is_divided() {
            self.update(|life| {
                if life.owner.is_none() {
                    self.is_divided.store(false, Ordering::Release);
                }
            });
        }
    }

    /// Makes sure that a single operation may change the table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`] if it was dropped, [`Error::Conflict`] if an open transaction has created, loaded, cleared or dropped it.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        // Acquire: pairs with `update`. An operation that comes a moment earlier comes before the drop.
        if self.is_special.load(Ordering::Acquire) { self.check_life() } else { Ok(()) }
    }

    #[cold]
    fn check_life(&self) -> Result<()> {
        lock(&self.life.0).check(&self.name, None)
    }

    /// Enters a transaction that is about to change records of the generation that it sees. `number` is its own; that of a single
    /// operation is none.
    ///
    /// # Errors
    /// As for [`check`](Self::check), and if the table was cleared since.
    pub(crate) fn begin_writing(&self, number: Option<u64>, seen: PageId) -> Result<Writing> {
        // Acquire: see `check`. What an owner that has ended has left as the current generation is found as well.
        let is_allowed =
            || !self.is_special.load(Ordering::Acquire) && self.current.load(Ordering::Relaxed) == seen.0;
        match self.writers.enter(seen, number.unwrap_or_default(), is_allowed) {
            Some(entry) => Ok(Writing { entry, seen }),
            None => self.begin_writing_beside_owner(number, seen),
        }
    }

    #[cold]
    fn begin_writing_beside_owner(&self, number: Option<u64>, seen: PageId) -> Result<Writing> {
        let life = lock(&self.life.0);
        life.check(&self.name, number)?;
        self.check_seen(&life, seen)?;
        // As long as there is the entry no other transaction gives it another one.
        let current = self.current().root;
        let entry = self.writers.enter(current, number.unwrap_or_default(), || true);
        // It is always allowed.
        entry.map(|entry| Writing { entry, seen }).ok_or_else(|| conflict(&self.name, false))
    }

    /// Enters the owner of the table, which is about to create, load, clear or drop it, and sees this generation. Whether it gives the table
    /// another generation is told as well.
    ///
    /// # Errors
    /// As for [`begin_writing`](Self::begin_writing), and if another transaction has changed records of it.
    pub(crate) fn begin_owning(&self, owner: u64, (seen, replaces): (PageId, bool)) -> Result<()> {
        self.update(|life| {
            life.check(&self.name, Some(owner))?;
            self.check_seen(life, seen)?;
            // Release: pairs with `check`. A writer that is entered after its part was looked at finds this by way of the part's lock.
            self.is_special.store(true, Ordering::Release);
            if self.writers.any(self.current().root, |number| number != owner) {
                return Err(conflict(&self.name, false));
            }
            life.owner = Some(owner);
            if replaces {
                self.is_divided.store(true, Ordering::Release);
            }
            Ok(())
        })
    }

    /// Whether a transaction has created, loaded, cleared, dropped or changed it, and is open.
    pub(crate) fn is_used_by(&self, transaction: u64) -> bool {
        let life = lock(&self.life.0);
        life.owner == Some(transaction)
            || self.writers.any(self.current().root, |number| number == transaction)
    }

    /// Makes sure that the table was not cleared since a snapshot was taken. What its owner sees is its own.
    fn check_seen(&self, life: &Life, seen: PageId) -> Result<()> {
        // Relaxed: it is changed while the life is locked.
        let is_current = self.current.load(Ordering::Relaxed) == seen.0;
        if is_current || life.owner.is_some() { Ok(()) } else { Err(conflict(&self.name, true)) }
    }

    /// Its owner has ended, and has left it this generation if it has given it another one.
    pub(crate) fn end_owning(&self, is_gone: bool, replaced: Option<PageId>) {
        self.update(|life| {
            if let Some(root) = replaced {
                // Release: pairs with `current`.
                self.current.store(root.0, Ordering::Release);
            }
            life.owner = None;
            life.is_gone |= is_gone;
        });
    }

    fn update<T>(&self, update: impl FnOnce(&mut Life) -> T) -> T {
        let mut life = lock(&self.life.0);
        let done = update(&mut life);
        self.is_special.store(life.owner.is_some() || life.is_gone, Ordering::Release);
        done
    }
}

impl Generation {
    fn new(root: PageId) -> Self {
        Self { root, hints: TreeHints::default(), next: OnceLock::new() }
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

impl Writing {
    /// Whether it is of a table, and this generation of it.
    pub(crate) fn is_of(&self, open: &OpenTable, seen: PageId) -> bool {
        self.seen == seen && self.entry.root() == open.current().root
    }
}

/// What a conflict about the catalog's record of a table names as its table.
pub(crate) const CATALOG: &str = "(catalog)";

/// The conflict about the catalog's record of a table.
pub(crate) fn conflict(name: &str, committed: bool) -> Error {
    Error::Conflict { table: CATALOG.to_owned(), key: name.as_bytes().to_vec(), committed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_base::primitive::{AtomicUsize, thread};

    fn table_at(root: PageId) -> OpenTable {
        let types = (String::new(), String::new());
        let record = TableRecord { root, types, is_plain: false, is_heap: false };
        OpenTable::new("table", &record, &Arc::default())
    }

    /// Two threads write records of a table, and others own it for a moment, each so many times. Returns how many times they could.
    fn meet(owners: u64, rounds: usize) -> usize {
        let root = PageId(5);
        let table = table_at(root);
        // One for a writer, and many for an owner.
        let users = AtomicUsize::new(0);
        let run = |number: u64, user: usize| {
            let mut times = 0;
            for _ in 0..rounds {
                let writing = (user == 1).then(|| table.begin_writing(Some(number), root));
                let is_in = match &writing {
                    Some(writing) => writing.is_ok(),
                    None => table.begin_owning(number, (root, false)).is_ok(),
                };
                if is_in {
                    let others = users.fetch_add(user, Ordering::SeqCst);
                    assert!(if user == 1 { others < 100 } else { others == 0 }, "{others} beside {user}");
                    users.fetch_sub(user, Ordering::SeqCst);
                    times += 1;
                }
                match writing {
                    Some(writing) => drop(writing),
                    None if is_in => table.end_owning(false, None),
                    None => {}
                }
            }
            times
        };
        thread::scope(|scope| {
            let run = &run;
            let all = (0..2).map(|number| (number, 1)).chain((2..2 + owners).map(|number| (number, 100)));
            let threads: Vec<_> =
                all.map(|(number, user)| scope.spawn(move || run(number + 1, user))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    }

    #[cfg(not(shuttle))]
    #[test]
    fn no_table_has_an_owner_and_a_writer_at_once() {
        assert!(meet(2, 30_000) > 0);
    }

    #[cfg(shuttle)]
    #[test]
    fn no_table_has_an_owner_and_a_writer_at_once_however_threads_meet() {
        shuttle::check_random(|| assert!(meet(1, 2) <= 6), 3000);
        shuttle::check_pct(|| assert!(meet(2, 2) <= 8), 3000, 3);
    }

    #[cfg(not(shuttle))]
    #[test]
    fn an_owner_writes_and_others_find_it() {
        let root = PageId(5);
        let table = table_at(root);
        let first = table.begin_writing(Some(1), root).unwrap();
        assert!(first.is_of(&table, root) && !first.is_of(&table, PageId(6)));
        assert!(table.is_used_by(1) && !table.is_used_by(2));
        let second = table.begin_writing(Some(2), root).unwrap();
        assert!(table.begin_owning(1, (root, true)).is_err());
        drop(second);
        // Nobody need look any more.
        assert!(table.check().is_ok());
        table.begin_owning(1, (root, true)).unwrap();
        assert!(table.begin_writing(Some(2), root).is_err() && table.begin_writing(None, root).is_err());
        table.add_generation(PageId(6));
        let again = table.begin_writing(Some(1), PageId(6)).unwrap();
        assert!(again.is_of(&table, PageId(6)) && !again.is_of(&table, root));
        table.end_owning(false, Some(PageId(6)));
        // It is entered as one of the generation that was.
        drop((first, again));
        assert!(table.begin_writing(Some(3), root).is_err(), "it was cleared since");
        assert!(table.begin_writing(Some(3), PageId(6)).is_ok() && !table.is_used_by(3));
    }
}
