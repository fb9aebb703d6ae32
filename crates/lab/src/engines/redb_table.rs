//! redb with a single table: a reader is one read transaction for its thread's whole life, all inserts of a load and all
//! changes of a round are one write transaction.

use super::redb::{Bytes, OpenTable, Redb, commit, scan};
use super::store::Store;
use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use redb::{ReadOnlyTable, ReadTransaction, ReadableDatabase, TableDefinition, WriteTransaction};
use std::ops::ControlFlow;
use std::rc::Rc;

/// A database of one table.
pub struct RedbTable(Redb);

/// A read transaction.
pub struct RedbReader {
    table: ReadOnlyTable<Bytes, Bytes>,
    _transaction: ReadTransaction,
}

/// A write transaction.
pub struct RedbWriter {
    table: OpenTable,
    transaction: Rc<WriteTransaction>,
}

const NAME: &str = "tuples";

impl Engine for RedbTable {
    type Reader<'a> = RedbReader;
    type Writer<'a> = RedbWriter;
    type Loader<'a> = RedbWriter;

    const CONCURRENT_WRITERS: bool = false;

    fn create(options: &EngineOptions) -> Result<Self> {
        Ok(Self(<Redb as Store>::create(options, &[NAME])?))
    }

    fn reader(&self) -> Result<RedbReader> {
        let transaction = self.0.database.begin_read()?;
        Ok(RedbReader {
            table: transaction.open_table(TableDefinition::new(NAME))?,
            _transaction: transaction,
        })
    }

    fn writer(&self) -> Result<RedbWriter> {
        let mut transaction = self.0.database.begin_write()?;
        transaction.set_durability(self.0.durability)?;
        let transaction = Rc::new(transaction);
        Ok(RedbWriter { table: OpenTable::new(&transaction, NAME)?, transaction })
    }

    fn loader(&self) -> Result<RedbWriter> {
        Engine::writer(self)
    }
}

impl Instance for RedbTable {
    fn notes(&self) -> Vec<String> {
        let mut notes = self.0.notes();
        notes.push(
            "redb: all changes of a round are one transaction, of one thread, whatever was asked".to_owned(),
        );
        notes
    }

    fn data_bytes(&self) -> Result<u64> {
        self.0.data_bytes()
    }

    fn cache_bytes_max(&self) -> u64 {
        self.0.cache_bytes_max()
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        self.0.statistics()
    }

    fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl Reader for RedbReader {
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.table.get(key)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(found.value());
        Ok(true)
    }

    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        scan(&self.table, first, visit)
    }
}

impl Writer for RedbWriter {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.table.table().insert(key, value)?;
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.table.table().remove(key)?.is_some())
    }

    fn finish(self) -> Result<()> {
        drop(self.table);
        commit(self.transaction)
    }
}
