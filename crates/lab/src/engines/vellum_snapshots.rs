//! Vellum with one table, as its snapshots show it: each thread that reads begins one transaction for all that it reads in a round,
//! and never commits it. Beside [`Vellum`], which reads outside of transactions, it shows what that costs.
//!
//! The table is loaded as by [`Vellum`]; nothing else is written.

use super::vellum::{Vellum, VellumLoader, VellumWriter};
use super::{Engine, EngineOptions, Instance, Operation, Reader};
use crate::Result;
use std::ops::{Bound, ControlFlow};
use vellum::{Table, Transaction};

/// An open database and its table.
pub struct VellumSnapshots(Vellum);

/// Reads the table by a transaction.
pub struct SnapshotReader<'a> {
    transaction: Transaction,
    table: &'a Table,
}

impl Engine for VellumSnapshots {
    type Reader<'a> = SnapshotReader<'a>;
    type Writer<'a> = VellumWriter<'a>;
    type Loader<'a> = VellumLoader<'a>;

    const CONCURRENT_WRITERS: bool = Vellum::CONCURRENT_WRITERS;

    fn create(options: &EngineOptions) -> Result<Self> {
        Vellum::create(options).map(Self)
    }

    fn reader(&self) -> Result<SnapshotReader<'_>> {
        Ok(SnapshotReader { transaction: self.0.database.begin()?, table: &self.0.table })
    }

    fn writer(&self) -> Result<VellumWriter<'_>> {
        self.0.writer()
    }

    fn loader(&self) -> Result<VellumLoader<'_>> {
        self.0.loader()
    }
}

impl Instance for VellumSnapshots {
    fn notes(&self) -> Vec<String> {
        let mut notes = self.0.notes();
        notes.push("vellum-tx: each thread reads by one transaction, begun before the round".to_owned());
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

impl Reader for SnapshotReader<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.transaction.get_into(self.table, key, value)?)
    }

    fn batch<K, F>(&mut self, operations: &[Operation<K>], mut visit: F) -> Result<()>
    where
        K: AsRef<[u8]>,
        F: FnMut(usize, Option<&[u8]>) -> Result<()>,
    {
        if operations.iter().any(|(_, update)| update.is_some()) {
            return Err("vellum-tx only reads in batches: take --updates away, or the engine vellum".into());
        }
        let keys: Vec<&[u8]> = operations.iter().map(|(key, _)| key.as_ref()).collect();
        let mut outcome = Ok(());
        self.transaction.multi_get_with(self.table, &keys, |place, value| {
            let seen = value.map_err(Into::into).and_then(|value| visit(place, value));
            if outcome.is_ok() {
                outcome = seen;
            }
        })?;
        outcome
    }

    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(first), Bound::Unbounded);
        let mut cursor = self.transaction.cursor(self.table, range)?;
        super::vellum::scan(&mut cursor, visit, |entry| {
            match self.transaction.get(self.table, entry.key())? {
                None => Err("an entry vanished from a snapshot".into()),
                value => Ok(value),
            }
        })
    }
}
