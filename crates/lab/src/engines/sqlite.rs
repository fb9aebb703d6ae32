//! SQLite: tables of keys and values.
//!
//! - Tables are clustered by the key (`WITHOUT ROWID`), unless all values are larger than a twentieth of a page, for
//!   which its documentation advises against that; then the key has an index of its own.
//! - A write-ahead log, which its documentation calls faster than a rollback journal in most
//!   cases, and which lets readers go on beside the one writer. It is synced by each commit
//!   (`synchronous=FULL`), at checkpoints (`NORMAL`) or never (`OFF`), as the run asks for.
//! - Where the run has one thread, the file is locked once and for all (`locking_mode=EXCLUSIVE`), which spares
//!   system calls. With several, each has a connection to read, and they share one to write, for which they wait in
//!   the lab: SQLite's own waiting sleeps, and a connection forgets its cache when another one has written.
//! - One half of the page cache, which has the pool's size, is the writer's, the rest is divided among the readers.
//!   Connections live as long as the store.

use super::store::{Access, Session, Store, Transaction};
use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use crate::config::Durability;
use bytesize::ByteSize;
use rusqlite::{Connection, params};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// A database, and connections that are not in use at the moment.
pub struct Sqlite {
    path: PathBuf,
    tables: Vec<Statements>,
    idle: Mutex<Vec<Connection>>,
    writer: Mutex<Option<Connection>>,
    synchronous: &'static str,
    cache_bytes: u64,
    connections: u64,
    clustered: bool,
}

/// The texts of the statements on one table, by which a connection finds what it has prepared.
struct Statements {
    create: String,
    get: String,
    insert: String,
    update: String,
    remove: String,
    scan: String,
}

/// Values of more bytes than this, a twentieth of a page, are better not kept in the tree of the keys.
const CLUSTERED_BYTES_MAX: usize = 4096 / 20;

impl Statements {
    fn new(table: &str, clustered: bool) -> Self {
        let clustered = if clustered { " WITHOUT ROWID" } else { "" };
        Self {
            create: format!(
                "CREATE TABLE \"{table}\" (k BLOB PRIMARY KEY NOT NULL, v BLOB NOT NULL){clustered}"
            ),
            get: format!("SELECT v FROM \"{table}\" WHERE k = ?1"),
            insert: format!("INSERT INTO \"{table}\" (k, v) VALUES (?1, ?2)"),
            update: format!("UPDATE \"{table}\" SET v = ?2 WHERE k = ?1"),
            remove: format!("DELETE FROM \"{table}\" WHERE k = ?1"),
            scan: format!("SELECT k, v FROM \"{table}\" WHERE k >= ?1 ORDER BY k"),
        }
    }
}

/// A connection, for as long as it is in use.
pub struct SqliteSession<'a> {
    store: &'a Sqlite,
    connection: Option<Connection>,
    value: Vec<u8>,
}

/// A transaction of a connection, rolled back unless it is committed.
pub struct SqliteTransaction<'t, 'a> {
    session: &'t mut SqliteSession<'a>,
    writer: Option<MutexGuard<'a, Option<Connection>>>,
    open: bool,
}

impl Sqlite {
    fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
        mutex.lock().map_err(|_| "another thread that used SQLite panicked".into())
    }

    fn connect(&self, cache_bytes: u64) -> Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        let cache_kib = i64::try_from(cache_bytes / 1024)?;
        connection.pragma_update(None, "cache_size", -cache_kib.max(64))?;
        let locking = if self.connections == 1 { "EXCLUSIVE" } else { "NORMAL" };
        connection.pragma_update(None, "locking_mode", locking)?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        connection.set_prepared_statement_cache_capacity(8 * self.tables.len() + 8);
        Ok(connection)
    }

    fn take(&self) -> Result<SqliteSession<'_>> {
        let idle = Self::lock(&self.idle)?.pop();
        let connection = idle.map_or_else(|| self.connect(self.reader_bytes()), Ok)?;
        Ok(SqliteSession { store: self, connection: Some(connection), value: Vec::new() })
    }

    /// The cache of a connection that reads, and writes if it is the only one.
    fn reader_bytes(&self) -> u64 {
        if self.connections == 1 { self.cache_bytes } else { self.cache_bytes / 2 / self.connections }
    }

    fn number(&self, pragma: &str) -> Result<u64> {
        let session = self.take()?;
        let number: i64 = session.connection()?.pragma_query_value(None, pragma, |row| row.get(0))?;
        Ok(u64::try_from(number)?)
    }
}

impl Store for Sqlite {
    type Session<'a> = SqliteSession<'a>;

    const HAS_TRANSACTIONS: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let clustered = options.value_bytes <= CLUSTERED_BYTES_MAX;
        let store = Self {
            path: options.directory.join("tables.sqlite"),
            tables: tables.iter().map(|name| Statements::new(name, clustered)).collect(),
            clustered,
            idle: Mutex::default(),
            writer: Mutex::default(),
            synchronous: match options.transactions.durability {
                Durability::NoLog | Durability::Deferred => "OFF",
                Durability::Buffered => "NORMAL",
                Durability::Synced => "FULL",
            },
            cache_bytes: options.pool_bytes,
            connections: options.threads_max as u64,
        };
        let session = store.take()?;
        for table in &store.tables {
            session.connection()?.execute(&table.create, [])?;
        }
        drop(session);
        Ok(store)
    }

    fn session(&self) -> Result<SqliteSession<'_>> {
        self.take()
    }
}

impl Instance for Sqlite {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "sqlite: {}, a write-ahead log with synchronous={}, {} of cache for {} connection(s), locks {}, tables {} rowids",
            rusqlite::version(),
            self.synchronous,
            ByteSize(self.cache_bytes),
            self.connections,
            if self.connections == 1 { "held throughout" } else { "taken by each transaction" },
            if self.clustered { "without" } else { "with" },
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.number("page_count")? * self.number("page_size")?)
    }

    fn cache_bytes_max(&self) -> u64 {
        self.reader_bytes()
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(
            json!({ "page_count": self.number("page_count")?, "freelist_count": self.number("freelist_count")? }),
        )
    }

    fn close(self) -> Result<()> {
        let idle = self.idle.into_inner().map_err(|_| "another thread that used SQLite panicked")?;
        let writer = self.writer.into_inner().map_err(|_| "another thread that used SQLite panicked")?;
        idle.into_iter()
            .chain(writer)
            .try_for_each(|connection| connection.close().map_err(|(_, error)| error.into()))
    }
}

impl SqliteSession<'_> {
    fn connection(&self) -> Result<&Connection> {
        self.connection.as_ref().ok_or_else(|| "a session without its connection".into())
    }

    fn run(&self, statement: &str) -> Result<()> {
        self.connection()?.prepare_cached(statement)?.execute([])?;
        Ok(())
    }

    fn get<T>(&self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let mut statement = self.connection()?.prepare_cached(&self.store.tables[table].get)?;
        let mut rows = statement.query(params![key])?;
        match rows.next()? {
            Some(row) => Ok(Some(read(row.get_ref(0)?.as_blob()?))),
            None => Ok(None),
        }
    }

    fn change(&self, statement: &str, key: &[u8], value: &[u8]) -> Result<usize> {
        Ok(self.connection()?.prepare_cached(statement)?.execute(params![key, value])?)
    }

    fn remove(&self, table: usize, key: &[u8]) -> Result<bool> {
        let statement = &self.store.tables[table].remove;
        Ok(self.connection()?.prepare_cached(statement)?.execute(params![key])? > 0)
    }

    fn scan(
        &self,
        table: usize,
        first: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut statement = self.connection()?.prepare_cached(&self.store.tables[table].scan)?;
        let mut rows = statement.query(params![first])?;
        while let Some(row) = rows.next()? {
            if visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for SqliteSession<'_> {
    fn drop(&mut self) {
        if let (Some(connection), Ok(mut idle)) = (self.connection.take(), self.store.idle.lock())
            && connection.is_autocommit()
        {
            idle.push(connection);
        }
    }
}

impl<'a> Session for SqliteSession<'a> {
    type Transaction<'t>
        = SqliteTransaction<'t, 'a>
    where
        Self: 't;

    fn begin(&mut self, access: Access) -> Result<SqliteTransaction<'_, 'a>> {
        let store = self.store;
        let mut transaction = SqliteTransaction { session: self, writer: None, open: false };
        if access == Access::Write && store.connections > 1 {
            let mut writer = Sqlite::lock(&store.writer)?;
            if writer.is_none() {
                *writer = Some(store.connect(store.cache_bytes / 2)?);
            }
            std::mem::swap(&mut *writer, &mut transaction.session.connection);
            transaction.writer = Some(writer);
        }
        transaction.session.run(if access == Access::Write { "BEGIN IMMEDIATE" } else { "BEGIN" })?;
        transaction.open = true;
        Ok(transaction)
    }
}

impl Transaction for SqliteTransaction<'_, '_> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.session.get(table, key, read)
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.change(&self.session.store.tables[table].insert, key, value).map(|_| ())
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        let mut value = std::mem::take(&mut self.session.value);
        value.clear();
        let found = self.session.get(table, key, |found| value.extend_from_slice(found))?;
        let result = found.map(|()| change(&mut value));
        if result.is_some() {
            self.session.change(&self.session.store.tables[table].update, key, &value)?;
        }
        self.session.value = value;
        Ok(result)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        self.session.remove(table, key)
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.session.scan(table, first, visit)
    }

    fn commit(mut self) -> Result<()> {
        self.session.run("COMMIT")?;
        self.open = false;
        Ok(())
    }
}

impl Drop for SqliteTransaction<'_, '_> {
    fn drop(&mut self) {
        if self.open {
            // If this fails too, the connection is not used again.
            let _ = self.session.run("ROLLBACK");
        }
        if let Some(writer) = &mut self.writer {
            std::mem::swap(&mut **writer, &mut self.session.connection);
            if writer.as_ref().is_some_and(|writer| !writer.is_autocommit()) {
                **writer = None;
            }
        }
    }
}

/// One transaction on the only table, which reads for as long as it lives.
pub struct SqliteReader<'a>(SqliteSession<'a>);

/// One transaction on the only table, committed at the end.
pub struct SqliteWriter<'a> {
    session: SqliteSession<'a>,
    _writer: MutexGuard<'a, Option<Connection>>,
}

impl Engine for Sqlite {
    type Reader<'a> = SqliteReader<'a>;
    type Writer<'a> = SqliteWriter<'a>;
    type Loader<'a> = SqliteWriter<'a>;

    const CONCURRENT_WRITERS: bool = false;

    fn create(options: &EngineOptions) -> Result<Self> {
        <Self as Store>::create(options, &["tuples"])
    }

    fn reader(&self) -> Result<SqliteReader<'_>> {
        let session = self.take()?;
        session.run("BEGIN")?;
        Ok(SqliteReader(session))
    }

    fn writer(&self) -> Result<SqliteWriter<'_>> {
        let writer = Self::lock(&self.writer)?;
        let session = self.take()?;
        session.run("BEGIN IMMEDIATE")?;
        Ok(SqliteWriter { session, _writer: writer })
    }

    fn loader(&self) -> Result<SqliteWriter<'_>> {
        Engine::writer(self)
    }
}

impl Drop for SqliteReader<'_> {
    fn drop(&mut self) {
        // It has changed nothing; if this fails, the connection is not used again.
        let _ = self.0.run("COMMIT");
    }
}

impl Reader for SqliteReader<'_> {
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get(0, key, |found| {
            value.clear();
            value.extend_from_slice(found);
        })?;
        Ok(found.is_some())
    }

    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        self.0.scan(0, first, visit)
    }
}

impl Writer for SqliteWriter<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.change(&self.session.store.tables[0].insert, key, value).map(|_| ())
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.change(&self.session.store.tables[0].update, key, value).map(|_| ())
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.session.remove(0, key)
    }

    fn finish(self) -> Result<()> {
        self.session.run("COMMIT")
    }
}
