//! The Bf-Tree of Microsoft Research (Hao, Chandramouli: "Bf-Tree: A Modern Read-Write-Optimized Concurrent
//! Larger-Than-Memory Range Index", VLDB 2024): a B-tree whose leaves lie in a file, before which a circular buffer caches
//! single records, and collects changes, in pages as large as they must be.
//!
//! - The buffer has the size of the pool, or the power of two below it, for it must be one. Inner nodes are always in memory,
//!   beside it.
//! - Its documentation says to leave the settings as they are, but to name the sizes of keys and records, and to read the file
//!   through io_uring. If all data fits into the buffer, whole pages are cached at their first use, as in its own benchmarks
//!   of data in memory, and the file is written through the page cache: see [`BfTreeTable::create`].
//! - A page has 4 KiB, or, where a record would be larger than half of that, up to 32 KiB. Larger records are refused.
//! - It does not say whether there was something to be deleted, so a key is looked up before.
//! - There are no transactions and no tables but one. It is run without its log.

use super::{Engine, EngineOptions, Instance, Reader, Writer};
use crate::Result;
use crate::config::Durability;
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use bytesize::ByteSize;
use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A tree and its file.
pub struct BfTreeTable {
    tree: BfTree,
    path: PathBuf,
    backend: StorageBackend,
    buffer_bytes: u64,
    record_bytes_max: usize,
    caches_pages: bool,
}

/// Reads and writes the tree.
pub struct BfTreeHandle<'a> {
    tree: &'a BfTree,
    record: Vec<u8>,
}

/// The pages that it can have, in bytes.
const PAGES: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];

/// A page has no more records than this.
const RECORDS_A_PAGE_MAX: usize = 4096;

/// Whether a page holds keys and records of up to so many bytes: the buffer collects a record at least, which then goes to the
/// page, beside another one and two keys that bound it.
fn holds(page: usize, key_bytes_max: usize, record_bytes_max: usize) -> bool {
    /// More than its headers take.
    const HEADERS: usize = 64;
    2 * (record_bytes_max + key_bytes_max + HEADERS) + HEADERS <= page
}

/// The settings for keys and records of up to so many bytes, except where they are kept.
fn config(buffer_bytes: u64, key_bytes_max: usize, record_bytes_max: usize) -> Result<Config> {
    let mut config = Config::default();
    config.cb_size_byte(usize::try_from(buffer_bytes)?);
    config.cb_max_key_len(key_bytes_max);
    config.cb_max_record_size(record_bytes_max);
    let page = PAGES.into_iter().find(|page| holds(*page, key_bytes_max, record_bytes_max)).ok_or_else(|| {
        format!(
            "records of up to {record_bytes_max} bytes are larger than half of its largest pages, which have 32 KiB; \
             choose smaller --values"
        )
    })?;
    config.leaf_page_size(page);
    // Its default, unless a page would have too many.
    config.cb_min_record_size((page / RECORDS_A_PAGE_MAX).max(4));
    match config.validate() {
        Ok(()) => Ok(config),
        Err(error) => Err(format!(
            "it refuses pages of {} in a buffer of {}; choose a larger --pool ({error:?})",
            ByteSize(page as u64),
            ByteSize(buffer_bytes)
        )
        .into()),
    }
}

/// How a file that is larger than the buffer is read and written: as its documentation recommends, if the machine can.
fn backend(path: &Path) -> StorageBackend {
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    match (direct.open(path).is_ok(), io_uring::IoUring::new(8).is_ok()) {
        (true, true) => StorageBackend::IoUringBlocking,
        (true, false) => StorageBackend::StdDirect,
        (false, _) => StorageBackend::Std,
    }
}

impl Engine for BfTreeTable {
    type Reader<'a> = BfTreeHandle<'a>;
    type Writer<'a> = BfTreeHandle<'a>;
    type Loader<'a> = BfTreeHandle<'a>;

    const CONCURRENT_WRITERS: bool = true;

    fn create(options: &EngineOptions) -> Result<Self> {
        if options.transactions.durability != Durability::NoLog {
            return Err("the lab runs it without a log: --durability no-log".into());
        }
        let (key_bytes_max, value_bytes_max) = options.bytes_max;
        let record_bytes_max = key_bytes_max + value_bytes_max;
        let buffer_bytes = 1 << options.pool_bytes.max(1).ilog2();
        let mut config = config(buffer_bytes, key_bytes_max, record_bytes_max)?;
        let path = options.directory.join("table.bftree");
        // Pages are two thirds full after random inserts.
        let caches_pages = options.payload_bytes / 2 * 3 <= buffer_bytes;
        // Measured with 300k addresses and values of 20 to 400 bytes in memory: 675k lookups/s with whole pages and 393k with
        // records, which are read from the file until chance brings them into the buffer. Each split of a page writes two and
        // waits for them: 333k inserts/s through the page cache, 28k through io_uring, and 407k where pages are kept in
        // memory twice and in no file.
        let backend = if caches_pages { StorageBackend::Std } else { backend(&path) };
        if caches_pages {
            config.read_record_cache(false).read_promotion_rate(100).scan_promotion_rate(100);
        }
        config.storage_backend(backend.clone()).file_path(&path);
        let tree = BfTree::with_config(config, None).map_err(|error| format!("{error:?}"))?;
        Ok(Self { tree, path, backend, buffer_bytes, record_bytes_max, caches_pages })
    }

    fn reader(&self) -> Result<BfTreeHandle<'_>> {
        Ok(BfTreeHandle { tree: &self.tree, record: vec![0; self.record_bytes_max] })
    }

    fn writer(&self) -> Result<BfTreeHandle<'_>> {
        self.reader()
    }

    fn loader(&self) -> Result<BfTreeHandle<'_>> {
        self.reader()
    }
}

impl Instance for BfTreeTable {
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "bf-tree: a buffer of {}, which caches {}, beside inner nodes; pages of {}, records of up to {} bytes; its file \
             by {:?}; no log, a key is looked up before it is removed",
            ByteSize(self.buffer_bytes),
            if self.caches_pages { "whole pages" } else { "records" },
            ByteSize(self.tree.config().get_leaf_page_size() as u64),
            self.record_bytes_max,
            self.backend,
        )]
    }

    /// What is in the buffer may not be in the file yet, and there is no telling how much of it.
    fn data_bytes(&self) -> Result<u64> {
        let buffered = self.tree.get_buffer_metrics().head_tail_distance as u64;
        Ok(fs::metadata(&self.path)?.len().max(buffered))
    }

    fn cache_bytes_max(&self) -> u64 {
        self.buffer_bytes
    }

    fn statistics(&self) -> Result<serde_json::Value> {
        Ok(serde_json::to_value(self.tree.get_buffer_metrics())?)
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl BfTreeHandle<'_> {
    /// Reads a value to the beginning of `record`; gives its size.
    #[inline]
    fn read(&mut self, key: &[u8]) -> Result<Option<usize>> {
        match self.tree.read(key, &mut self.record) {
            LeafReadResult::Found(bytes) => Ok(Some(bytes as usize)),
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(None),
            LeafReadResult::InvalidKey => Err(format!("bf-tree takes no key of {} bytes", key.len()).into()),
        }
    }
}

impl Reader for BfTreeHandle<'_> {
    #[inline]
    fn lookup(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(bytes) = self.read(key)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&self.record[..bytes]);
        Ok(true)
    }

    fn scan<F>(&mut self, first: &[u8], visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        self.scan_some(first, u64::MAX, visit)
    }

    fn scan_some<F>(&mut self, first: &[u8], tuples: u64, mut visit: F) -> Result<()>
    where
        F: FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    {
        let count = usize::try_from(tuples).unwrap_or(usize::MAX);
        let mut entries = self
            .tree
            .scan_with_count(first, count, ScanReturnField::KeyAndValue)
            .map_err(|error| format!("bf-tree refuses a scan: {error:?}"))?;
        while let Some((key_bytes, value_bytes)) = entries.next(&mut self.record) {
            let (key, rest) = self.record.split_at(key_bytes);
            if visit(key, &rest[..value_bytes]).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Writer for BfTreeHandle<'_> {
    #[inline]
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(what) => Err(format!("bf-tree refuses a record: {what}").into()),
        }
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        let is_there = self.read(key)?.is_some();
        if is_there {
            self.tree.delete(key);
        }
        Ok(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_large_as_records_need_them() {
        let page = |key, record| config(1 << 20, key, record).map(|config| config.get_leaf_page_size());
        for (key, record, expected) in
            [(8, 128, 4096), (200, 600, 4096), (8, 1900, 4096), (8, 3900, 8 << 10), (200, 14_000, 32 << 10)]
        {
            assert_eq!(page(key, record).unwrap(), expected, "{key} {record}");
        }
        let refused = page(8, 20_000).unwrap_err().to_string();
        assert!(refused.contains("20000") && refused.contains("--values"), "{refused}");
        assert!(config(4096, 8, 128).unwrap_err().to_string().contains("--pool"));
    }
}
