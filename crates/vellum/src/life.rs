//! Whether an open table still exists, and which transactions change it.
//!
//! The catalog's record says whether a table exists; the first transaction to change the record wins. But changes of a
//! table's *records* do not touch the catalog. So each transaction that changes records is registered as a
//! [writer](Writers) of the table, a transaction that drops the table registers itself as its owner, and each excludes
//! the other. A table that was created and is not committed yet can also be changed only by its owner. The owner first
//! marks the table as special, and then looks at all writers. A writer checks the mark while it holds the lock of its
//! part of the writers: so either the owner finds the writer, or the writer finds the owner.
//!
//! # Lock order
//! The life of a table, then a part of the writers.
//!
//! A dropped table's pages are freed when no snapshot sees the table and there are no handles on it: see `Inner::sweep`.
//! If older snapshots are open, its root stays until they have ended: to them the doomed record counts as changed, so
//! that they could not make another table there.
//!
//! # Generations
//! Clearing or loading a table in a transaction gives it another tree: each tree that it has had is a *generation*, and
//! the *current* generation is that of the last commit. So a handle stays valid: a single operation uses the current
//! generation, a transaction the one that it sees. While snapshots may see a generation other than the current one (the
//! table is *divided*), a transaction asks the catalog which one it sees. The tree of an earlier generation is
//! truncated when no snapshot sees it: none that was taken while it was the current one, even if older ones are open.
//! Its root stays, because a single operation may have reached it before, until the
//! table has no handles, or is cleared or loaded again and reuses the root. An operation looks afterwards whether its tree is
//! still the current one; how often the tree was replaced counts, so a root that is the current one again is another
//! ([`CurrentRoot`]). Between the moment at which a commit is visible and the one at which its table has its new tree, such
//! operations wait: in the former tree they would see what the transaction has stored there before.

use crate::{
    Error, Result,
    catalog::TableRecord,
    driver::lock,
    generations::{Generation, Generations},
    plant::Plant,
    shown::WHOLE_TABLE,
    writers::{Entry, Writers},
};
use std::sync::{Arc, OnceLock};
use vellum_access::{CurrentRoot, NumberedRoot};
use vellum_base::primitive::{AtomicBool, AtomicUsize, Instant, Mutex, Ordering, spin_loop};
use vellum_base::{Apart, PageId, plant::is_planted};
use vellum_objects::HeapState;

/// A table that has handles.
// The reference counts are on a separate cache line from what all operations read.
#[repr(align(64))]
pub(crate) struct OpenTable {
    /// Its name when it was first opened.
    pub(crate) name: Arc<str>,
    /// The name by which it was found last, if not by that of a handle. A hint: snapshots may see other names.
    found_as: Mutex<Option<Arc<str>>>,
    /// Whether it keeps no versions: transactions cannot use it.
    pub(crate) is_plain: bool,
    /// The root of the current generation.
    pub(crate) current: CurrentRoot,
    /// Its number.
    current_number: AtomicUsize,
    /// The generations that it has had since it was opened.
    generations: Generations,
    /// Whether transactions may see a generation other than the current one.
    is_divided: AtomicBool,
    /// Whether `life` restricts which threads may change it: operations look only at this flag.
    is_special: AtomicBool,
    /// Whether its owner has dropped it, or has taken its creation back.
    is_dropped: AtomicBool,
    writers: Arc<Writers>,
    life: Apart<Mutex<Life>>,
    /// What all handles of a heap know of it.
    pub(crate) heap: OnceLock<Arc<HeapState>>,
    /// Whether the pages of a heap are being freed: it has no handles then, and nobody may open it.
    is_emptied: AtomicBool,
}

#[derive(Default)]
struct Life {
    /// The transaction that has created, cleared or dropped it, or is loading it, until this has taken effect; or the
    /// load outside of transactions whose records are being put into the tree.
    owner: Option<u64>,
    /// Whether it was dropped, or its creation was undone.
    is_gone: bool,
    /// Snapshots that see this commit see the current generation.
    replaced: u64,
}

/// A transaction that has changed records of a table, or an operation that is about to. It keeps others from clearing
/// and dropping the table.
pub(crate) struct Writing {
    entry: Entry,
    /// The root of the generation that it changes.
    seen: PageId,
}

/// A tree that is to be freed, or a table with all its trees.
pub(crate) struct Doomed {
    pub(crate) open: Arc<OpenTable>,
    /// Snapshots that see this commit do not see the tree.
    pub(crate) time: u64,
    /// Nor do those that see no later commit than this one.
    pub(crate) since: u64,
    /// The root of an earlier generation; none if the table is gone.
    pub(crate) tree: Option<PageId>,
    pub(crate) contents: Contents,
}

impl Doomed {
    /// The root of the tree; if the table is gone, of its last one.
    pub(crate) fn root(&self) -> PageId {
        self.tree.unwrap_or_else(|| self.open.current.last())
    }
}

/// How much is left of a tree that is to be freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Everything.
    Whole,
    /// A thread is truncating it.
    Going,
    /// Only its root.
    Nothing,
    /// Everything: truncation has failed, and is tried again from this time on.
    Failed(Instant),
}

impl OpenTable {
    /// `writers` contains the writers of all tables of the database.
    pub(crate) fn new(name: &str, record: &TableRecord, writers: &Arc<Writers>) -> Self {
        Self {
            name: name.into(),
            found_as: Mutex::default(),
            is_plain: record.is_plain,
            current: CurrentRoot::new(record.root),
            current_number: AtomicUsize::new(0),
            generations: Generations::new(record.root),
            is_divided: AtomicBool::new(false),
            is_special: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            writers: writers.clone(),
            life: Apart::default(),
            heap: OnceLock::new(),
            is_emptied: AtomicBool::new(false),
        }
    }

    /// The tree that single operations see.
    #[inline]
    pub(crate) fn current(&self) -> (&Generation, NumberedRoot) {
        let first = &self.generations.first;
        match self.current.load() {
            Some(seen) if seen.root() == first.root => (first, seen),
            _ => self.current_of_many(),
        }
    }

    /// [`current`](Self::current) of a table whose tree was replaced.
    fn current_of_many(&self) -> (&Generation, NumberedRoot) {
        loop {
            let seen = self.current.load().unwrap_or_else(|| self.current.wait());
            // Acquire: pairs with `end_owning`, so that the generation is visible. The number is stored before the root, so it
            // may be that of a later one.
            let generation = self.generations.get(self.current_number.load(Ordering::Acquire));
            if generation.root == seen.root() {
                return (generation, seen);
            }
            spin_loop();
        }
    }

    /// The current generation, if every transaction sees that one.
    #[inline]
    pub(crate) fn seen_by_all(&self) -> Option<&Generation> {
        // In this order: the table is divided before it gets another generation, and stays so until every snapshot sees
        // that. If it was replaced before the flag was loaded, either the flag is set, or it is found to be replaced.
        let (current, seen) = self.current();
        let is_seen = !self.is_divided() && self.current.is(seen);
        is_seen.then_some(current)
    }

    /// The name by which it was found last, if not by that of a handle.
    pub(crate) fn found_as(&self) -> Option<Arc<str>> {
        lock(&self.found_as).clone()
    }

    pub(crate) fn note_found_as(&self, name: &str) {
        *lock(&self.found_as) = Some(name.into());
    }

    /// Whether transactions may see a generation other than the current one.
    #[inline]
    pub(crate) fn is_divided(&self) -> bool {
        // Acquire: pairs with `begin_owning`, and with `unite`.
        self.is_divided.load(Ordering::Acquire)
    }

    pub(crate) fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.generations.iter()
    }

    #[cold]
    pub(crate) fn generation(&self, root: PageId) -> Option<&Generation> {
        self.generations.find(root)
    }

    /// Adds a future generation; `time` is the last commit.
    pub(crate) fn add_generation(&self, root: PageId, time: u64) {
        self.generations.get(self.generations.add(root)).begin(time);
    }

    /// Notes that all snapshots see the current generation if all see the commits up to `oldest`, unless the table is
    /// being cleared.
    pub(crate) fn unite(&self, oldest: u64) {
        if self.is_divided() {
            self.update(|life| {
                if life.owner.is_none() && life.replaced <= oldest {
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
        // Acquire: pairs with `update`. An operation that comes a moment earlier is ordered before the drop.
        if self.is_special.load(Ordering::Acquire) { self.check_life() } else { Ok(()) }
    }

    #[cold]
    fn check_life(&self) -> Result<()> {
        if self.is_plain && is_planted("vellum", Plant::OwnerOverlooked) {
            return Ok(());
        }
        lock(&self.life.0).check(&self.name, None)
    }

    /// Registers a transaction that is about to change records of the generation that it sees. `number` is that of the
    /// transaction; none for a single operation.
    ///
    /// # Errors
    /// As for [`check`](Self::check), and if the table was cleared since the snapshot was taken.
    pub(crate) fn begin_writing(&self, number: Option<u64>, seen: PageId) -> Result<Writing> {
        // Acquire: see `check`. This also makes the current generation visible that an owner has left.
        let is_allowed = || !self.is_special.load(Ordering::Acquire) && self.current.last() == seen;
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
        // As long as the entry exists, no other transaction replaces the current generation.
        let entry = self.writers.enter(self.current.last(), number.unwrap_or_default(), || true);
        // The entry is always allowed.
        entry.map(|entry| Writing { entry, seen }).ok_or_else(|| conflict(&self.name, false))
    }

    /// Registers a transaction as the owner of the table, which it is about to create, load, clear or drop, and of
    /// which it sees this generation. `replaces` says whether it gives the table another generation.
    ///
    /// # Errors
    /// As for [`begin_writing`](Self::begin_writing), and if another transaction has changed records of the table.
    pub(crate) fn begin_owning(&self, owner: u64, (seen, replaces): (PageId, bool)) -> Result<()> {
        self.update(|life| {
            life.check(&self.name, Some(owner))?;
            self.check_seen(life, seen)?;
            // Release: pairs with `check`. A writer that enters a part after the owner has looked at that part sees the
            // flag because of the part's lock.
            self.is_special.store(true, Ordering::Release);
            let is_changed = self.writers.any(self.current.last(), |number| number != owner);
            if is_changed && !is_planted("vellum", Plant::WritersOverlooked) {
                return Err(conflict(&self.name, false));
            }
            life.owner = Some(owner);
            if replaces {
                self.is_divided.store(true, Ordering::Release);
            }
            Ok(())
        })
    }

    /// The transaction that has created, loaded, cleared or dropped it, until this has taken effect or is undone.
    pub(crate) fn owner(&self) -> Option<u64> {
        lock(&self.life.0).owner
    }

    /// Whether this open transaction has created, loaded, cleared, dropped or changed the table.
    pub(crate) fn is_used_by(&self, transaction: u64) -> bool {
        let life = lock(&self.life.0);
        life.owner == Some(transaction)
            || self.writers.any(self.current.last(), |number| number == transaction)
    }

    /// Makes sure that the table was not cleared since a snapshot was taken. An owner sees its own generation.
    fn check_seen(&self, life: &Life, seen: PageId) -> Result<()> {
        let is_current = self.current.last() == seen;
        if is_current || life.owner.is_some() { Ok(()) } else { Err(conflict(&self.name, true)) }
    }

    /// The owner has ended; `replaced` is the new current generation if the owner has replaced it, with a commit that
    /// is not before the owner's.
    pub(crate) fn end_owning(&self, is_gone: bool, replaced: Option<(PageId, u64)>) {
        self.update(|life| {
            if let Some((root, time)) = replaced {
                life.replaced = time;
                // Release: pairs with `current`. A thread that finds a number finds its generation.
                self.current_number.store(self.generations.add(root), Ordering::Release);
                self.current.replace(root);
            }
            life.owner = None;
            life.is_gone |= is_gone;
        });
    }

    /// Whether a transaction has dropped it, or taken its creation back, which may still be open.
    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        // Relaxed, here and below: only the owner depends on the flag, and it makes one change at a time, under a lock.
        self.is_dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dropped(&self, is_dropped: bool) {
        self.is_dropped.store(is_dropped, Ordering::Relaxed);
    }

    /// Whether the pages of a heap are being freed. The caller has a handle on the heap.
    pub(crate) fn is_emptied(&self) -> bool {
        // Relaxed, here and below: the flag is set while the open tables are locked and the heap has no other handle,
        // and handles are made under the same lock.
        self.is_emptied.load(Ordering::Relaxed)
    }

    pub(crate) fn set_emptied(&self, is_emptied: bool) {
        self.is_emptied.store(is_emptied, Ordering::Relaxed);
    }

    fn update<T>(&self, update: impl FnOnce(&mut Life) -> T) -> T {
        let mut life = lock(&self.life.0);
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

impl Writing {
    /// Where a sorted list has the entry of this table for this generation, or else should have it.
    #[inline]
    pub(crate) fn find(list: &[Self], open: &OpenTable, seen: PageId) -> std::result::Result<usize, usize> {
        let wanted = (open.current.last(), seen);
        // There may be thousands.
        list.binary_search_by_key(&wanted, |writing| (writing.entry.root(), writing.seen))
    }
}

/// A conflict about a table as a whole.
pub(crate) fn conflict(name: &str, committed: bool) -> Error {
    Error::Conflict { table: WHOLE_TABLE.to_owned(), key: name.as_bytes().to_vec(), committed }
}

/// An error about a table that may have another name now than when it was first opened.
#[inline]
pub(crate) fn with_name<T>(done: Result<T>, name: impl FnOnce() -> String) -> Result<T> {
    done.map_err(|error| error_with_name(error, name))
}

#[cold]
fn error_with_name(error: Error, name: impl FnOnce() -> String) -> Error {
    match error {
        Error::Conflict { table, committed, .. } if table == WHOLE_TABLE => conflict(&name(), committed),
        Error::NoSuchTable { .. } => Error::NoSuchTable { name: name() },
        error => error,
    }
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

    /// Two threads write records of a table, and others own it for a moment, `rounds` times each. Returns how often
    /// they succeeded.
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

    /// A reader with a snapshot, and a transaction that clears the table, with a commit that the snapshot sees or not. The
    /// reader must use the generation that it sees. Returns whether it saw the new one.
    fn read_beside_owner() -> bool {
        let (old, new) = (PageId(5), PageId(6));
        let table = table_at(old);
        // The last commit, and the snapshot, which is registered when it is taken.
        let clock = Mutex::new((1, None));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let snapshot = {
                    let mut clock = lock(&clock);
                    clock.1 = Some(clock.0);
                    clock.0
                };
                let seen = table.seen_by_all().map(|generation| generation.root);
                let expected = if snapshot == 2 { new } else { old };
                assert!(seen.is_none_or(|seen| seen == expected), "{seen:?} with snapshot {snapshot}");
                lock(&clock).1 = Some(u64::MAX);
                snapshot == 2
            });
            scope.spawn(|| {
                table.begin_owning(9, (old, true)).unwrap();
                table.add_generation(new, 1);
                lock(&clock).0 = 2;
                table.end_owning(false, Some((new, 2)));
                // A snapshot that is taken later sees the commit.
                table.unite(lock(&clock).1.unwrap_or(2));
            });
            reader.join().unwrap()
        })
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_reader_uses_the_generation_that_it_sees() {
        let new = (0..2000).filter(|_| read_beside_owner()).count();
        assert!(new < 2000, "some snapshots are old");
    }

    #[cfg(shuttle)]
    #[test]
    fn a_reader_uses_the_generation_that_it_sees_however_threads_meet() {
        let read = || {
            read_beside_owner();
        };
        shuttle::check_random(read, 3000);
        shuttle::check_pct(read, 3000, 3);
    }

    /// A read outside of transactions. One transaction has stored something in the tree, and replaces it; the next one loads into
    /// the first root. Returns what the read finds: what was committed first, second or last.
    fn read_beside_replacements() -> u64 {
        /// What is never to be seen.
        const NEVER: u64 = 99;
        let (first, other) = (PageId(5), PageId(6));
        let table = table_at(first);
        let (in_first, is_committed) = (AtomicUsize::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    let (generation, seen) = table.current();
                    let found = match in_first.load(Ordering::Acquire) as u64 {
                        _ if generation.root == other => 2,
                        1 if is_committed.load(Ordering::Acquire) => NEVER,
                        found => found,
                    };
                    if table.current.is(seen) {
                        return found;
                    }
                }
            });
            scope.spawn(|| {
                table.begin_owning(8, (first, true)).unwrap();
                table.add_generation(other, 1);
                table.current.begin_replacing();
                is_committed.store(true, Ordering::Release);
                table.end_owning(false, Some((other, 1)));
                in_first.store(0, Ordering::Release);
                table.begin_owning(9, (other, true)).unwrap();
                in_first.store(3, Ordering::Release);
                table.current.begin_replacing();
                table.end_owning(false, Some((first, 2)));
            });
            let found = reader.join().unwrap();
            assert!((1..=3).contains(&found), "{found}");
            found
        })
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_read_finds_what_was_committed() {
        let found: u64 = (0..2000).map(|_| read_beside_replacements()).sum();
        assert!(found < 6000, "not always the last");
    }

    #[cfg(shuttle)]
    #[test]
    fn a_read_finds_what_was_committed_however_threads_meet() {
        let read = || {
            read_beside_replacements();
        };
        shuttle::check_random(read, 5000);
        shuttle::check_pct(read, 5000, 3);
    }

    #[cfg(not(shuttle))]
    #[test]
    fn an_owner_writes_and_others_find_it() {
        let root = PageId(5);
        let table = table_at(root);
        let first = table.begin_writing(Some(1), root).unwrap();
        let is_of =
            |writing: &Writing, seen| Writing::find(std::slice::from_ref(writing), &table, seen).is_ok();
        assert!(is_of(&first, root) && !is_of(&first, PageId(6)));
        assert!(table.is_used_by(1) && !table.is_used_by(2));
        let second = table.begin_writing(Some(2), root).unwrap();
        assert!(table.begin_owning(1, (root, true)).is_err());
        drop(second);
        // No operation needs the slow path any more.
        assert!(table.check().is_ok());
        table.begin_owning(1, (root, true)).unwrap();
        assert!(table.begin_writing(Some(2), root).is_err() && table.begin_writing(None, root).is_err());
        table.add_generation(PageId(6), 0);
        let again = table.begin_writing(Some(1), PageId(6)).unwrap();
        assert!(is_of(&again, PageId(6)) && !is_of(&again, root));
        table.end_owning(false, Some((PageId(6), 1)));
        // The second entry was made under the previous generation.
        drop((first, again));
        assert!(table.begin_writing(Some(3), root).is_err(), "it was cleared since");
        assert!(table.begin_writing(Some(3), PageId(6)).is_ok() && !table.is_used_by(3));
    }
}
