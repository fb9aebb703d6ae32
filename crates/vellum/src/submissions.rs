//! Operations for your own event loop: submit, poll, reap.

use crate::{Answer, Result, Table, Task, nested, shared::Owned};
use vellum_access::{Batch, NumberedRoot};
use vellum_base::Lsn;
use vellum_pool::{Pool, PoolError};

/// Operations on a table that are under way while their owner does something else. Made by
/// [`Table::submissions`].
///
/// It belongs to one thread at a time. Between two calls nothing happens except reads of the device;
/// [`poll`](Self::poll) processes the completed reads. Other threads that want a page that is being read for this loop
/// need not wait for the loop to poll: they complete the read themselves.
///
/// ```
/// use vellum::Task;
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// # let table = database.create_table("t")?;
/// let mut submissions = table.submissions();
/// submissions.submit("lime", Task::Upsert("green".into()), 7);
/// submissions.submit_get("pear", 8);
/// while !submissions.is_empty() {
///     submissions.poll(); // and then whatever else the loop has to do
///     submissions.reap(|tag, _key, answer| println!("{tag}: {answer:?}"));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Submissions<'t> {
    table: &'t Table,
    batch: Batch<'t, Pool, Vec<u8>, Vec<u8>>,
    /// The table's tree when the first operation was submitted.
    began: NumberedRoot,
    /// The log record of the last change.
    last_change: Option<Lsn>,
    /// The operations that were done as transactions, because transactions were open.
    done: Vec<(u64, Vec<u8>, Result<Owned>)>,
}

impl Table {
    /// Operations on this table for your own event loop.
    pub fn submissions(&self) -> Submissions<'_> {
        Submissions {
            table: self,
            began: self.handle.open.current().1,
            batch: Batch::new(self.handle.pool(), self.handle.read_depth()),
            last_change: None,
            done: Vec::new(),
        }
    }
}

impl Submissions<'_> {
    /// Accepts a lookup. `tag` comes back with the answer.
    pub fn submit_get(&mut self, key: impl AsRef<[u8]>, tag: u64) {
        self.submit(key, Task::Get, tag);
    }

    /// Accepts any operation. Operations on the same key may happen in any order.
    pub fn submit(&mut self, key: impl AsRef<[u8]>, task: Task<Vec<u8>>, tag: u64) {
        let is_write = !matches!(task, Task::Get | Task::GetPart { .. });
        if is_write && self.table.handle.is_apart() {
            let done = self.table.handle.perform(key.as_ref(), &task);
            self.done.push((tag, key.as_ref().to_vec(), done));
            return;
        }
        let tree = self.table.handle.tree();
        if self.batch.is_empty() {
            self.began = tree.numbered_root();
        }
        self.batch.begin(tree, key.as_ref().to_vec(), task, tag);
    }

    /// The number of operations that were submitted and have not been reaped.
    pub fn len(&self) -> usize {
        self.batch.len() + self.done.len()
    }

    /// Whether everything that was submitted has been reaped.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.done.is_empty()
    }

    /// Advances each operation that can proceed, and begins the reads that they need. It does not wait, unless a write
    /// has to split a leaf or store a large value.
    pub fn poll(&mut self) {
        nested::check(self.table.handle.pool());
        self.advance(false);
    }

    /// As [`poll`](Self::poll), but if no operation can proceed, it waits until one can.
    pub fn wait(&mut self) {
        nested::check(self.table.handle.pool());
        self.advance(true);
    }

    /// Calls `visit` with the tag, the key and the answer of each completed operation, and returns how many there were.
    /// First waits until their changes are as durable as [`Options::durability`](crate::Options::durability) says.
    pub fn reap(&mut self, mut visit: impl FnMut(u64, &[u8], Result<Answer<'_>>)) -> usize {
        let mut count = 0;
        let committed = self.commit();
        for (tag, key, done) in self.done.drain(..) {
            match done {
                Ok(done) => visit(tag, &key, Ok(done.answer())),
                Err(error) => visit(tag, &key, Err(error)),
            }
            count += 1;
        }
        let handle = &self.table.handle;
        let began = self.began;
        let mut show = |tag, (key, task): (Vec<u8>, Task<Vec<u8>>), answer: Result<Answer<'_>, _>| {
            // Its tree may have been replaced before it was read.
            let answer = match answer {
                Ok(Answer::Value(_)) if handle.was_replaced(began) => Err(PoolError::Cancelled.into()),
                answer => answer,
            };
            handle.settle((&key, &task), answer, |answer| match (answer, &committed) {
                (Ok(Answer::Written(_) | Answer::Removed(_)), Err(error)) => {
                    visit(tag, &key, Err(error.repeated()));
                }
                (answer, _) => visit(tag, &key, answer),
            });
        };
        while self.batch.take(&mut show).is_some() {
            count += 1;
        }
        count
    }

    fn advance(&mut self, wait: bool) {
        self.batch.advance(wait);
        // The later one: another thread may have made changes for this before, and this one may have left an earlier place.
        self.last_change = self.last_change.max(self.table.handle.inner.durable.take_last_change());
    }

    /// Waits until all changes are as durable as they should be.
    fn commit(&mut self) -> Result<()> {
        let inner = &self.table.handle.inner;
        self.last_change.take().map_or(Ok(()), |lsn| Ok(inner.durable.wait(lsn, inner.durability)?))
    }
}

impl std::fmt::Debug for Submissions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submissions")
            .field("table", &self.table.name())
            .field("pending", &self.len())
            .finish_non_exhaustive()
    }
}
