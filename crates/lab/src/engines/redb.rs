//! redb: copied B-trees in one file, one writer at a time, and readers beside it on snapshots.
//!
//! - A commit is durable when it returns (`Immediate`, its default), or is kept in its memory (`None`) if nothing is to be
//!   waited for. It has nothing between the two, so a run that asks for `buffered` gets the former.
//! - Its cache has the size of the pool. Tables are opened once a transaction, when they are first used.

use super::store::{Access, Session, Store, Transaction};
use super::{EngineOptions, Instance};
use crate::Result;
use crate::config;
use bytesize::ByteSize;
use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, Table,
    TableDefinition, WriteTransaction,
};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;

/// The type of keys and values.
pub type Bytes = &'static [u8];

/// A database.
pub struct Redb {
    pub(super) database: Database,
    path: PathBuf,
    names: Vec<String>,
    pub(super) durability: Durability,
    pool_bytes: u64,
}

/// The database, and room for a value that is changed.
pub struct RedbSession<'a> {
    store: &'a Redb,
    value: Vec<u8>,
}

/// A transaction, with the tables that it has used.
pub enum RedbTransaction<'t> {
    /// On a snapshot.
    Read(Reading<'t>),
    /// The only one that writes.
    Write(Writing<'t>),
}

/// See [`RedbTransaction`].
pub struct Reading<'t> {
    names: &'t [String],
    tables: Vec<Option<ReadOnlyTable<Bytes, Bytes>>>,
    transaction: ReadTransaction,
}

/// See [`RedbTransaction`].
pub struct Writing<'t> {
    names: &'t [String],
    value: &'t mut Vec<u8>,
    tables: Vec<Option<OpenTable>>,
    transaction: Rc<WriteTransaction>,
}

/// A table that is open for writing, and the transaction that it belongs to.
pub struct OpenTable {
    /// Before the transaction, which it borrows.
    table: Table<'static, Bytes, Bytes>,
    _transaction: Rc<WriteTransaction>,
}

impl OpenTable {
    /// Opens a table. All must be dropped before the transaction is committed.
    ///
    /// # Errors
    /// What redb says.
    pub fn new(transaction: &Rc<WriteTransaction>, name: &str) -> Result<Self> {
        // SAFETY: what the `Rc` holds stays where it is for as long as this has it, and the table, which leaves this in no
        // way, is dropped before by the order of the fields.
        let borrowed: &'static WriteTransaction = unsafe { &*Rc::as_ptr(transaction) };
        let table = borrowed.open_table(TableDefinition::new(name))?;
        Ok(Self { table, _transaction: transaction.clone() })
    }

    /// The table, for as long as this is borrowed.
    #[inline]
    pub fn table(&mut self) -> &mut Table<'static, Bytes, Bytes> {
        &mut self.table
    }
}

/// Commits a transaction, of which no table is open any more.
///
/// # Errors
/// What redb says, or that a table is open.
pub fn commit(transaction: Rc<WriteTransaction>) -> Result<()> {
    Ok(Rc::into_inner(transaction).ok_or("a transaction that is still in use")?.commit()?)
}

impl Store for Redb {
    type Session<'a> = RedbSession<'a>;

    const HAS_TRANSACTIONS: bool = true;

    fn create(options: &EngineOptions, tables: &[&str]) -> Result<Self> {
        let path = options.directory.join("tables.redb");
        let database =
            Database::builder().set_cache_size(usize::try_from(options.pool_bytes)?).create(&path)?;
        let transaction = database.begin_write()?;
        for name in tables {
            transaction.open_table(TableDefinition::<Bytes, Bytes>::new(name))?;
        }
        transaction.commit()?;
        let durability = match options.transactions.durability {
            config::Durability::NoLog | config::Durability::Deferred => Durability::None,
            config::Durability::Buffered | config::Durability::Synced => Durability::Immediate,
        };
        let names = tables.iter().map(|name| (*name).to_owned()).collect();
        Ok(Self { database, path, names, durability, pool_bytes: options.pool_bytes })
    }

    fn session(&self) -> Result<RedbSession<'_>> {
        Ok(RedbSession { store: self, value: Vec::new() })
    }
}

impl Instance for Redb {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "redb: {} of cache, one writer at a time, durability {:?}",
            ByteSize(self.pool_bytes),
            self.durability
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    fn cache_bytes_max(&self) -> u64 {
        self.pool_bytes
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(json!({ "cache_evictions": self.database.cache_stats().evictions() }))
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Session for RedbSession<'_> {
    type Transaction<'t>
        = RedbTransaction<'t>
    where
        Self: 't;

    fn begin(&mut self, access: Access) -> Result<RedbTransaction<'_>> {
        let Redb { database, names, durability, .. } = self.store;
        Ok(match access {
            Access::Read => RedbTransaction::Read(Reading {
                names,
                tables: names.iter().map(|_| None).collect(),
                transaction: database.begin_read()?,
            }),
            Access::Write => {
                let mut transaction = database.begin_write()?;
                transaction.set_durability(*durability)?;
                RedbTransaction::Write(Writing {
                    names,
                    value: &mut self.value,
                    tables: names.iter().map(|_| None).collect(),
                    transaction: Rc::new(transaction),
                })
            }
        })
    }
}

impl Reading<'_> {
    fn table(&mut self, number: usize) -> Result<&ReadOnlyTable<Bytes, Bytes>> {
        Ok(match &mut self.tables[number] {
            Some(table) => table,
            none => none.insert(self.transaction.open_table(TableDefinition::new(&self.names[number]))?),
        })
    }
}

impl Writing<'_> {
    fn table(&mut self, number: usize) -> Result<&mut Table<'static, Bytes, Bytes>> {
        let open = match &mut self.tables[number] {
            Some(open) => open,
            none => none.insert(OpenTable::new(&self.transaction, &self.names[number])?),
        };
        Ok(open.table())
    }
}

impl RedbTransaction<'_> {
    fn writing(&mut self, table: usize) -> Result<&mut Table<'static, Bytes, Bytes>> {
        match self {
            Self::Read(_) => Err("a transaction that may only read was to change something".into()),
            Self::Write(writing) => writing.table(table),
        }
    }
}

/// Shows the records of a table from `first` on.
pub fn scan(
    table: &impl ReadableTable<Bytes, Bytes>,
    first: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    for entry in table.range(first..)? {
        let (key, value) = entry?;
        if visit(key.value(), value.value()).is_break() {
            break;
        }
    }
    Ok(())
}

impl Transaction for RedbTransaction<'_> {
    fn get<T>(&mut self, table: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = match self {
            Self::Read(reading) => reading.table(table)?.get(key)?,
            Self::Write(writing) => writing.table(table)?.get(key)?,
        };
        Ok(found.map(|value| read(value.value())))
    }

    fn insert(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.writing(table)?.insert(key, value)?;
        Ok(())
    }

    fn modify<T>(
        &mut self,
        table: usize,
        key: &[u8],
        mut change: impl FnMut(&mut [u8]) -> T,
    ) -> Result<Option<T>> {
        self.writing(table)?;
        let Self::Write(writing) = self else { return Ok(None) };
        let mut value = std::mem::take(writing.value);
        value.clear();
        let table = writing.table(table)?;
        let result = table.get(key)?.map(|found| {
            value.extend_from_slice(found.value());
            change(&mut value)
        });
        if result.is_some() {
            table.insert(key, &*value)?;
        }
        *writing.value = value;
        Ok(result)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        Ok(self.writing(table)?.remove(key)?.is_some())
    }

    fn scan(
        &mut self,
        table: usize,
        first: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        match self {
            Self::Read(reading) => scan(reading.table(table)?, first, visit),
            Self::Write(writing) => scan(writing.table(table)?, first, visit),
        }
    }

    fn commit(self) -> Result<()> {
        if let Self::Write(Writing { tables, transaction, .. }) = self {
            drop(tables);
            commit(transaction)?;
        }
        Ok(())
    }
}
