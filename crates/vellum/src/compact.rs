//! Compaction: moves pages from the end of the file to free places nearer to its beginning, and cuts the file.

use crate::{
    Database, Error, ErrorKind, Result, catalog,
    handle::Handle,
    nested::{Mark, Work},
    shared::Inner,
};
use std::sync::{Arc, PoisonError, atomic::Ordering};
use vellum_access::Relocation;
use vellum_base::{PAGE_SIZE, PageId};

/// The progress and the result of [`Database::compact`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Compaction {
    /// How many nodes of all tables have been examined; a node may count several times.
    pub nodes_seen: u64,
    /// How many nodes have been moved.
    pub nodes_moved: u64,
    /// How many large values have been moved.
    pub values_moved: u64,
    /// How many pages could not be moved in the last pass: roots; large values for which there is no contiguous free
    /// place, or that another transaction is changing; and large values of more than an eighth of the pool.
    pub pages_left: u64,
    /// The size of the file in bytes before the compaction.
    pub file_bytes_before: u64,
    /// The current size of the file in bytes.
    pub file_bytes: u64,
    /// Whether a large value could not be moved in the last pass. There may be a place for it in a longer file.
    is_value_left: bool,
}

/// How a pass of a compaction ended.
enum Outcome {
    /// The callback stopped it.
    Ended,
    /// Everything has been examined.
    Whole,
}

impl Database {
    /// Returns space to the file system that the database no longer needs after much of it was removed, while other
    /// threads and transactions keep working. Nodes and large values at the end of the file are moved to free places
    /// nearer to its beginning, nodes that are nearly empty are merged, and the file is cut. All of this is logged; a
    /// crash loses nothing, and what has been moved stays moved.
    ///
    /// Each pass examines every node of the tables, and only one thread compacts at a time. Open snapshots keep what
    /// they need, wherever it lies. Roots of tables are not moved, so a table that was created last, in a large file,
    /// may keep the file from becoming shorter. Neither are pages of heaps, because references say where objects are. A large value that is moved counts as stored again by its own
    /// transaction: another transaction that changes the value may conflict, and a feed of changes reports it as
    /// replaced.
    ///
    /// `go_on` is called now and then with the progress. If it returns false, the compaction ends, and the file is cut
    /// as far as possible by then. `go_on` may use the database, but not compact it: that would wait for this
    /// compaction. It may make a backup, unless the progress of one that another thread makes waits for this compaction.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let table = database.create_table("t")?;
    /// table.bulk_load((0..20_000_u32).map(|key| (key.to_be_bytes(), [7_u8; 200])))?;
    /// database.run(|transaction| transaction.remove_range(&table, 100_u32.to_be_bytes()..))?;
    /// let done = database.compact(|_| true)?;
    /// assert!(done.file_bytes * 4 < done.file_bytes_before);
    /// assert_eq!(table.count(..)?, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a page cannot be read or written. What has been done stays, and the call may be repeated.
    /// [`Error::NestedCompaction`] if called inside `go_on` of the same database.
    pub fn compact(&self, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        self.compact_while(&mut go_on)
    }

    /// [`compact`](Self::compact), which is compiled once for all callers.
    fn compact_while(&self, go_on: &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction> {
        /// By which fraction of the allocated space the file may exceed it: at first, and if that cannot be reached.
        const SLACK: [u64; 3] = [64, 8, 2];
        let inner = self.inner();
        let _mark = Mark::set(Work::Compaction, &inner.nesting)?;
        let _turn = inner.compaction.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |inner: &Inner| inner.pool().file_pages().0 * PAGE_SIZE as u64;
        // A file that is open for reading only must not be cut.
        inner.pool().mark_in_use()?;
        let mut done = Compaction { file_bytes_before: bytes(inner), ..Compaction::default() };
        // What cannot be freed now stays where it is.
        let mut is_ended = false;
        let _ = inner.freeing.finish(|| {
            is_ended = !go_on(&done);
            !is_ended
        });
        for part in SLACK.into_iter().filter(|_| !is_ended) {
            // Makes freed space usable, so that it does not count as allocated.
            inner.durable.cut()?;
            done.file_bytes = bytes(inner);
            let (file, allocated) = inner.pool().file_pages();
            let limit = allocated + allocated / part + 16;
            if file <= limit {
                break;
            }
            let moved = (done.nodes_moved, done.values_moved);
            (done.pages_left, done.is_value_left) = (0, false);
            let outcome = inner.move_before(PageId(limit), &mut done, go_on)?;
            // More slack gives other places to large values. Roots stay anyway.
            let is_vain = moved == (done.nodes_moved, done.values_moved) && !done.is_value_left;
            if matches!(outcome, Outcome::Ended) || is_vain {
                break;
            }
        }
        inner.durable.cut()?;
        done.file_bytes = bytes(inner);
        Ok(done)
    }
}

impl Inner {
    /// Moves everything that lies at or beyond `limit`.
    fn move_before(
        self: &Arc<Self>,
        limit: PageId,
        done: &mut Compaction,
        go_on: &mut dyn FnMut(&Compaction) -> bool,
    ) -> Result<Outcome> {
        let catalog = catalog::tree(self.pool());
        for (name, _) in catalog::list(catalog)? {
            let Some(table) = self.table_to_compact(&name)? else { continue };
            let outcome =
                table.0.as_ref().map_or(Ok(Outcome::Whole), |table| table.move_before(limit, done, go_on));
            drop(table);
            // The table may have been dropped meanwhile.
            self.sweep();
            if let Outcome::Ended = outcome? {
                return Ok(Outcome::Ended);
            }
        }
        // With a view, so that the catalog's leaves are kept for snapshots before they are moved.
        let whole = catalog.with_view(self.durable.view()).relocate(limit, |relocation| {
            done.count(&relocation, false);
            Ok::<_, Error>(go_on(done))
        })?;
        Ok(if whole { Outcome::Whole } else { Outcome::Ended })
    }

    /// Opens a table so that it may still be dropped meanwhile.
    fn table_to_compact(self: &Arc<Self>, name: &str) -> Result<Option<Compacted>> {
        let mut open = self.lock();
        let Some(record) = catalog::find(catalog::tree(self.pool()), name)? else { return Ok(None) };
        let table = Handle::of(self, &mut open, name, &record);
        // Relaxed: read and written while the tables are locked.
        self.compacting.store(Arc::as_ptr(&table.open).addr(), Ordering::Relaxed);
        Ok(Some(Compacted(Some(table))))
    }
}

/// The table that a compaction works on. Its handle, which is there until this is dropped, does not count as a program's.
struct Compacted(Option<Handle>);

impl Drop for Compacted {
    fn drop(&mut self) {
        let Some(table) = self.0.take() else { return };
        let inner = table.inner.clone();
        // Both at once: see `Inner::handles`.
        let _tables = inner.lock();
        inner.compacting.store(0, Ordering::Relaxed);
        drop(table);
    }
}

impl Handle {
    fn move_before(
        &self,
        limit: PageId,
        done: &mut Compaction,
        go_on: &mut dyn FnMut(&Compaction) -> bool,
    ) -> Result<Outcome> {
        let tree = self.tree();
        let whole = tree.relocate(limit, |relocation| {
            let moved = match &relocation {
                Relocation::Value(key, _) => match self.change(|tree| tree.move_value(key, limit)) {
                    // Another transaction is changing the value or the table.
                    Err(error) if error.kind() == ErrorKind::Conflict => false,
                    Err(Error::NoSuchTable { .. }) => false,
                    moved => moved?,
                },
                _ => false,
            };
            done.count(&relocation, moved);
            Ok::<_, Error>(go_on(done))
        });
        // The table may have been cleared meanwhile.
        let is_cleared = self.was_replaced(tree.numbered_root());
        Ok(if whole.or_else(|error| if is_cleared { Ok(true) } else { Err(error) })? {
            Outcome::Whole
        } else {
            Outcome::Ended
        })
    }
}

impl Compaction {
    fn count(&mut self, relocation: &Relocation, is_moved: bool) {
        match relocation {
            Relocation::Value(..) if is_moved => self.values_moved += 1,
            Relocation::Value(_, pages) => {
                self.pages_left += u64::from(*pages);
                self.is_value_left = true;
            }
            Relocation::Seen => self.nodes_seen += 1,
            Relocation::Moved => {
                self.nodes_seen += 1;
                self.nodes_moved += 1;
            }
            Relocation::Stays => {
                self.nodes_seen += 1;
                self.pages_left += 1;
            }
        }
    }
}
