//! Vellum through its published crate: one table, a pool of the size that the run was given, and the
//! defaults otherwise.
//!
//! Each operation is atomic by itself; there is no transaction around a load. What was written is in the
//! pool or, when it does not fit, in the file; nothing is synced before the database is closed.

use super::{Engine, EngineOptions, Instance, Operation, Reader, Writer};
use crate::Result;
use bytesize::ByteSize;
use serde_json::json;
use std::ops::{Bound, ControlFlow};
use vellum::{Answer, BulkLoader, Cursor, Database, Entry, Table, Task, Written};

/// An open database and its table.
pub struct Vellum {
    pub(super) database: Database,
    pub(super) table: Table,
    pool_bytes: u64,
}

/// Reads the table.
pub struct VellumReader<'a>(&'a Table);

/// Writes the table.
pub struct VellumWriter<'a>(&'a Table);

/// Loads the table from its leaves up.
pub struct VellumLoader<'a>(BulkLoader<'a>);

impl Engine for Vellum {
    type Reader<'a> = VellumReader<'a>;
    type Writer<'a> = VellumWriter<'a>;
    type Loader<'a> = VellumLoader<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        let settings = options.vellum();
        let database = Database::create(options.directory.join("table.vellum"), &settings)?;
        let table = database.create_table("tuples")?;
        Ok(Self { database, table, pool_bytes: options.pool_bytes })
    }

    fn reader(&self) -> Result<VellumReader<'_>> {
        Ok(VellumReader(&self.table))
    }

    fn writer(&self) -> Result<VellumWriter<'_>> {
        Ok(VellumWriter(&self.table))
    }

    fn loader(&self) -> Result<VellumLoader<'_>> {
        Ok(VellumLoader(self.table.bulk_loader()?))
    }
}

impl Instance for Vellum {
    fn notes(&self) -> Vec<String> {
        vec![note(&self.database, self.pool_bytes)]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(data_bytes(&self.database))
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(statistics(&self.database))
    }

    fn close(self) -> Result<()> {
        drop(self.table);
        Ok(self.database.close()?)
    }
}

/// The name of the file of a database of several tables.
const FILE: &str = "tables.vellum";

/// Creates a database, and tables of these names in it.
pub fn create_tables(options: &EngineOptions, names: &[&str]) -> Result<(Database, Vec<Table>)> {
    let database = Database::create(options.directory.join(FILE), &options.vellum())?;
    let tables = names.iter().map(|name| database.create_table(name));
    let tables = tables.collect::<std::result::Result<_, _>>()?;
    Ok((database, tables))
}

/// Opens what [`create_tables`] has created.
pub fn open_tables(options: &EngineOptions, names: &[&str]) -> Result<(Database, Vec<Table>)> {
    let database = Database::open(options.directory.join(FILE), &options.vellum())?;
    let tables = names.iter().map(|name| database.table(name));
    let tables = tables.collect::<std::result::Result<_, _>>()?;
    Ok((database, tables))
}

/// The size of the file of a database, in bytes.
pub fn data_bytes(database: &Database) -> u64 {
    database.statistics().pages_in_file * vellum_base::PAGE_SIZE as u64
}

/// How a database is run.
pub fn note(database: &Database, pool_bytes: u64) -> String {
    let statistics = database.statistics();
    format!(
        "vellum: a pool of {}, memory given back by {}, {}",
        ByteSize(pool_bytes),
        statistics.release_method,
        statistics.file
    )
}

/// Shows the entries after a cursor, small values where they lie; `large` reads a large one, if it is still there.
pub fn scan<'t>(
    cursor: &mut Cursor<'t>,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    mut large: impl FnMut(&Entry<'_, 't>) -> Result<Option<Vec<u8>>>,
) -> Result<()> {
    let flow = cursor.scan(|entry| {
        let flow = match entry.inline_value() {
            Some(value) => visit(entry.key(), value),
            None => match large(&entry) {
                Ok(Some(value)) => visit(entry.key(), &value),
                Ok(None) => ControlFlow::Continue(()),
                Err(error) => return ControlFlow::Break(Err(error)),
            },
        };
        if flow.is_break() { ControlFlow::Break(Ok(())) } else { ControlFlow::Continue(()) }
    })?;
    flow.break_value().unwrap_or(Ok(()))
}

/// What a database counts about itself.
pub fn statistics(database: &Database) -> serde_json::Value {
    let (statistics, log, history) = (database.statistics(), database.log_state(), database.history());
    json!({
        "misses": statistics.misses,
        "pages_read": statistics.pages_read,
        "pages_written": statistics.pages_written,
        "pages_evicted": statistics.pages_evicted,
        "eviction_batches": statistics.eviction_batches,
        "waits": statistics.waits,
        "restarts": statistics.restarts,
        "write_errors": statistics.write_errors,
        "pages_resident": statistics.pages_resident,
        "pages_limit": statistics.pages_limit,
        "pages_huge": statistics.pages_huge,
        "pages_allocated": statistics.pages_allocated,
        "pages_in_file": statistics.pages_in_file,
        "checkpoints": statistics.checkpoints,
        "checkpoint_pages_written": statistics.checkpoint_pages_written,
        "versions": history.versions,
        "version_bytes": history.version_bytes,
        "log_bytes": log.as_ref().map(|state| state.log_bytes),
        "log_appended_bytes": log.as_ref().map(|state| state.appended_bytes),
        "log_archived_to": log.as_ref().and_then(|state| Some(state.archive.as_ref()?.end?.0)),
        "log_syncs": log.as_ref().map(|state| state.syncs.syncs),
        "log_sync_waiting": log.as_ref().map(|state| state.syncs.waiting),
        "log_sync_acknowledged": log.as_ref().map(|state| state.syncs.acknowledged),
        "release_method": statistics.release_method.to_string(),
    })
}

impl Reader for VellumReader<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.0.get_into(key, value)?)
    }

    fn batch<K, F>(&mut self, operations: &[Operation<K>], mut visit: F) -> Result<()>
    where
        K: AsRef<[u8]>,
        F: FnMut(usize, Option<&[u8]>) -> Result<()>,
    {
        let tasks = operations.iter().map(|(key, update)| {
            (key, update.as_ref().map_or(Task::Get, |value| Task::Update(value.as_slice())))
        });
        let mut outcome = Ok(());
        self.0.multi_run(tasks, |index, answer| {
            let seen = match answer {
                Ok(Answer::Value(value)) => visit(index, value),
                Ok(Answer::Written(Written::Replaced)) => Ok(()),
                Ok(_) => Err("a tuple that was to be updated is missing".into()),
                Err(error) => Err(error.into()),
            };
            if outcome.is_ok() {
                outcome = seen;
            }
        })?;
        outcome
    }

    #[inline]
    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        self.scan_some(first, u64::MAX, visit)
    }

    fn scan_some<F>(&mut self, first: &[u8], tuples: u64, visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(first), Bound::Unbounded);
        let mut cursor = self.0.cursor(range)?;
        cursor.expect(usize::try_from(tuples).unwrap_or(usize::MAX));
        scan(&mut cursor, visit, |entry| match entry.value()? {
            Some(value) => Ok(Some(value.into_vec())),
            None => Err("an entry vanished during a scan".into()),
        })
    }
}

impl Writer for VellumWriter<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)?;
        Ok(())
    }

    #[inline]
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.0.update(key, value)? {
            Ok(())
        } else {
            Err("a tuple that was to be updated is missing".into())
        }
    }

    #[inline]
    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.0.remove(key)?)
    }
}

impl Writer for VellumLoader<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.push(key, value)?)
    }

    fn remove(&mut self, _key: &[u8]) -> Result<bool> {
        Err("a bulk load removes nothing".into())
    }

    fn finish(self) -> Result<()> {
        self.0.finish()?;
        Ok(())
    }
}
