//! The classic design behind Vellum's own tree: a buffer pool whose frames are found by a concurrent hash table from pages
//! to frames.
//!
//! Everything but the translation is as good as in Vellum's pool, as far as the design allows, so that a comparison says what
//! the translation costs: readers take no locks, neither in the table nor at the frame; dirty pages are written in batches,
//! by a thread of their own as long as it keeps up; reads of batches and scans overlap; nodes are searched by the same
//! instructions, threads that append find their leaf without going down. The frames may be backed by huge pages from the
//! beginning, which Vellum's pages may not. The same number of bytes holds frames, their states and the table.
//!
//! What the design does not allow: a page has no address of its own, so each step down the tree looks into the table, and
//! neighbours on storage are no neighbours in memory, so they are read and written one by one. Extents of several pages
//! have no frames: they are written and read past them, anew each time. Nothing is kept: the file is not opened again.

mod frame;
mod guards;
mod misses;
mod page_table;
mod pager;
mod pool;
mod space;
#[cfg(test)]
mod tests;
mod writers;

use super::{Engine, EngineOptions, Instance, Operation, Reader, Writer};
use crate::Result;
use bytesize::ByteSize;
use pool::HashPool;
use std::ops::{Bound, ControlFlow};
use vellum_access::{Answer, Batch, BulkLoad, Task, Tree, TreeHints, Written};
use vellum_base::{PAGE_SIZE, PageId};

/// A pool and the root of the one tree in it.
pub struct HashTable {
    pool: HashPool,
    root: PageId,
    hints: TreeHints,
    pool_bytes: u64,
    read_depth: usize,
}

/// Reads the table.
pub struct HashTableReader<'a>(&'a HashTable);

/// Writes the table.
pub struct HashTableWriter<'a>(Tree<'a, HashPool>);

/// Loads the table from its leaves up.
pub struct HashTableLoader<'a>(BulkLoad<'a, HashPool>);

impl HashTable {
    #[inline]
    fn tree(&self) -> Tree<'_, HashPool> {
        Tree::open(&self.pool, self.root).with_hints(&self.hints)
    }
}

impl Engine for HashTable {
    type Reader<'a> = HashTableReader<'a>;
    type Writer<'a> = HashTableWriter<'a>;
    type Loader<'a> = HashTableLoader<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        let pool = HashPool::create(&options.directory.join("table.frames"), options.pool_bytes)?;
        let root = Tree::create(&pool)?.root();
        let (pool_bytes, read_depth) = (options.pool_bytes, options.read_depth);
        Ok(Self { pool, root, hints: TreeHints::default(), pool_bytes, read_depth })
    }

    fn reader(&self) -> Result<HashTableReader<'_>> {
        Ok(HashTableReader(self))
    }

    fn writer(&self) -> Result<HashTableWriter<'_>> {
        Ok(HashTableWriter(self.tree()))
    }

    fn loader(&self) -> Result<HashTableLoader<'_>> {
        Ok(HashTableLoader(self.tree().bulk_load(100)?))
    }
}

impl Instance for HashTable {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "hash-table: Vellum's tree on {} frames, found by a hash table; {} with it; {}",
            self.pool.frames.count(),
            ByteSize(self.pool_bytes),
            self.pool.file.description()
        )]
    }

    fn data_bytes(&self) -> Result<u64> {
        Ok(self.pool.space.pages() * PAGE_SIZE as u64)
    }

    fn cache_bytes_max(&self) -> u64 {
        (self.pool.frames.count() * PAGE_SIZE) as u64
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(self.pool.statistics())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Reader for HashTableReader<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.0.tree().get_into(key, value)?)
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
        let mut batch: Batch<'_, HashPool, &K, &[u8]> = Batch::new(&self.0.pool, self.0.read_depth);
        batch.run(self.0.tree(), tasks, |place, _, answer| {
            let seen = match answer {
                Ok(Answer::Value(value)) => visit(place, value),
                Ok(Answer::Written(Written::Replaced)) => Ok(()),
                Ok(_) => Err("a tuple that was to be updated is missing".into()),
                Err(error) => Err(error.into()),
            };
            if outcome.is_ok() {
                outcome = seen;
            }
        });
        outcome
    }

    #[inline]
    fn scan<F>(&mut self, first: &[u8], mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let mut cursor = self.0.tree().range(Bound::Included(first), Bound::Unbounded)?;
        while let Some(entry) = cursor.next()? {
            let flow = match entry.inline_value() {
                Some(value) => visit(entry.key(), value),
                None => match entry.value()? {
                    Some(value) => visit(entry.key(), &value),
                    None => return Err("an entry vanished during a scan".into()),
                },
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Writer for HashTableWriter<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.upsert(key, value)?;
        Ok(())
    }

    #[inline]
    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.0.remove(key)?)
    }
}

impl Writer for HashTableLoader<'_> {
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
