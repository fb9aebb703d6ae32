//! SQLite: a table for each type, with the indices that the operations want.

use super::plan::{COMPLEX, FANOUT, Plan};
use super::{Assembly, Children, Composite, Graph, Part};
use crate::Result;
use rusqlite::{CachedStatement, Connection, params};
use std::path::Path;

/// An OO7 database in SQLite. Objects are referred to by their numbers; a connection by that of the part to which it leads.
pub struct SqliteGraph {
    connection: Connection,
    /// Whether a transaction is open for changes.
    changes: bool,
}

const SCHEMA: &str = "
CREATE TABLE assembly (id INTEGER PRIMARY KEY, date INTEGER, base INTEGER, a INTEGER, b INTEGER, c INTEGER);
CREATE TABLE composite (id INTEGER PRIMARY KEY, date INTEGER, root INTEGER, users INTEGER);
CREATE TABLE document (id INTEGER PRIMARY KEY, title TEXT UNIQUE, text TEXT);
CREATE TABLE part (id INTEGER PRIMARY KEY, date INTEGER, x INTEGER, y INTEGER, document INTEGER, kind BLOB, composite INTEGER);
CREATE TABLE connection (source INTEGER, number INTEGER, kind BLOB, length INTEGER, target INTEGER,
    PRIMARY KEY (source, number)) WITHOUT ROWID;";

impl SqliteGraph {
    /// Opens a database, with a cache of so many bytes.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn open(path: &Path, pool: u64) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.set_prepared_statement_cache_capacity(32);
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update(None, "cache_size", -(pool as i64 / 1024))?;
        Ok(Self { connection, changes: false })
    }

    /// Builds a database in a file.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn create(plan: &Plan, path: &Path) -> Result<()> {
        /// The cache while it is built.
        const CACHE_BYTES: u64 = 128 << 20;
        let mut connection = Self::open(path, CACHE_BYTES)?.connection;
        connection.execute_batch(SCHEMA)?;
        let transaction = connection.transaction()?;
        for (number, date) in (0u32..).zip(&plan.assembly_dates) {
            let [a, b, c] = match number.checked_sub(COMPLEX) {
                None => Plan::children(number),
                Some(base) => plan.base_parts[base as usize],
            };
            let mut insert = transaction.prepare_cached("INSERT INTO assembly VALUES (?, ?, ?, ?, ?, ?)")?;
            insert.execute(params![number, date, number >= COMPLEX, a, b, c])?;
        }
        let users = plan.users();
        for (number, date) in (0u32..).zip(&plan.composite_dates) {
            let users = users[number as usize].len() as u32;
            let mut insert = transaction.prepare_cached("INSERT INTO composite VALUES (?, ?, ?, ?)")?;
            insert.execute(params![number, date, number * plan.parts, users])?;
            let mut insert = transaction.prepare_cached("INSERT INTO document VALUES (?, ?, ?)")?;
            insert.execute(params![number, Plan::title(number), plan.text(number)])?;
        }
        for (number, date) in (0u32..).zip(&plan.part_dates) {
            let document = plan.part_documents[number as usize];
            let mut insert = transaction.prepare_cached("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?, ?)")?;
            insert.execute(params![
                number,
                date,
                number,
                number / 2,
                document,
                [0u8; 12],
                number / plan.parts
            ])?;
            for (index, target) in (0u32..).zip(plan.connections[number as usize]) {
                let mut insert =
                    transaction.prepare_cached("INSERT INTO connection VALUES (?, ?, ?, ?, ?)")?;
                insert.execute(params![number, index, [0u8; 12], number, target])?;
            }
        }
        transaction.execute_batch("CREATE INDEX dates ON part (date)")?;
        transaction.commit()?;
        Ok(connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?)
    }

    fn statement(&self, text: &str) -> Result<CachedStatement<'_>> {
        Ok(self.connection.prepare_cached(text)?)
    }

    /// Begins a transaction, unless one is open.
    fn begin(&mut self) -> Result<()> {
        if !self.changes {
            self.connection.execute_batch("BEGIN")?;
            self.changes = true;
        }
        Ok(())
    }

    fn to(&self, part: u32) -> Result<[u32; FANOUT]> {
        let mut select = self.statement("SELECT target FROM connection WHERE source = ? ORDER BY number")?;
        let mut rows = select.query([part])?;
        let mut to = [0; FANOUT];
        for target in &mut to {
            *target = rows.next()?.ok_or("a connection is missing")?.get(0)?;
        }
        Ok(to)
    }

    fn show(&self, filter: &str, date: u32, show: &mut dyn FnMut(Part<u32>)) -> Result<()> {
        let mut select = self.statement(&format!("SELECT id, x, document FROM part WHERE {filter}"))?;
        let mut rows = select.query([date])?;
        while let Some(row) = rows.next()? {
            show(Part { number: row.get(0)?, x: row.get(1)?, document: row.get(2)?, to: [0; FANOUT] });
        }
        Ok(())
    }
}

impl Graph for SqliteGraph {
    type Assembly = u32;
    type Composite = u32;
    type Part = u32;
    type Connection = u32;

    fn root(&mut self) -> Result<u32> {
        Ok(0)
    }

    fn assembly(&mut self, id: u32) -> Result<Assembly<u32, u32>> {
        let mut select = self.statement("SELECT date, base, a, b, c FROM assembly WHERE id = ?")?;
        Ok(select.query_row([id], |row| {
            let children = [row.get(2)?, row.get(3)?, row.get(4)?];
            let is_base: bool = row.get(1)?;
            let children = if is_base { Children::Parts(children) } else { Children::Assemblies(children) };
            Ok(Assembly { date: row.get(0)?, children })
        })?)
    }

    fn composite(&mut self, id: u32) -> Result<Composite<u32>> {
        let mut select = self.statement("SELECT date, root FROM composite WHERE id = ?")?;
        Ok(select.query_row([id], |row| Ok(Composite { date: row.get(0)?, root: row.get(1)? }))?)
    }

    fn part(&mut self, id: u32) -> Result<Part<u32>> {
        let mut select = self.statement("SELECT x, document FROM part WHERE id = ?")?;
        let (x, document) = select.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Part { number: id, x, document, to: self.to(id)? })
    }

    fn connection(&mut self, id: u32) -> Result<u32> {
        Ok(id)
    }

    fn swap(&mut self, part: u32) -> Result<()> {
        self.begin()?;
        self.statement("UPDATE part SET x = y, y = x WHERE id = ?")?.execute([part])?;
        Ok(())
    }

    fn toggle_date(&mut self, part: u32) -> Result<()> {
        self.begin()?;
        self.statement("UPDATE part SET date = date + 1 - 2 * (date % 2) WHERE id = ?")?.execute([part])?;
        Ok(())
    }

    fn part_numbered(&mut self, number: u32) -> Result<u32> {
        Ok(number)
    }

    fn parts_since(&mut self, date: u32, show: &mut dyn FnMut(Part<u32>)) -> Result<()> {
        self.show("date >= ?", date, show)
    }

    fn all_parts(&mut self, show: &mut dyn FnMut(Part<u32>)) -> Result<()> {
        self.show("id >= ?", 0, show)
    }

    fn composite_numbered(&mut self, number: u32) -> Result<u32> {
        Ok(number)
    }

    fn users_of_document(&mut self, title: &str) -> Result<u64> {
        let text = "SELECT users FROM document JOIN composite ON composite.id = document.id WHERE title = ?";
        let users: u32 = self.statement(text)?.query_row([title], |row| row.get(0))?;
        Ok(users.into())
    }

    fn has_document(&mut self, number: u32) -> Result<bool> {
        Ok(self.statement("SELECT id FROM document WHERE id = ?")?.exists([number])?)
    }

    fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.changes) {
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(())
    }
}
