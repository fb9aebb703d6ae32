//! Trees in a separate file, for earlier versions and undo for which memory has no room.
//!
//! The file has a small pool and no log. Nothing in it outlives the process, so its name is removed once it is open:
//! whatever happens to the process, the system frees the file. It is made when it is first needed, and goes when
//! nothing is left in it.

use crate::lock_order::{OrderedMutex, rank};
use std::{
    io,
    ops::Bound,
    sync::{Arc, Weak},
};
use vellum_access::{AccessError, BulkLoad, Direction, Tree, ValueImage, node::ValueKind};
use vellum_base::PageId;
use vellum_pool::{Pool, PoolError, PoolOptions};
use vellum_vm::{CreateMode, Directory, FileOptions, VmError};

/// The name that the file has until it is open.
const NAME: &str = "spill";
/// How much address space it gets, in bytes.
const CAPACITY_BYTES: u64 = 1 << 40;
/// The file for what memory has no room for.
pub(crate) struct SpillFile {
    /// `None` if there is nowhere to put it.
    directory: Option<Arc<dyn Directory>>,
    pool_bytes: u64,
    pool: OrderedMutex<Weak<Pool>, { rank::SPILL }>,
}

impl SpillFile {
    /// A file in this directory, with a pool of `pool_bytes`.
    pub fn new(directory: Option<Arc<dyn Directory>>, pool_bytes: u64) -> Self {
        Self { directory, pool_bytes, pool: OrderedMutex::default() }
    }

    /// Removes the name of a file that was left behind.
    pub fn remove_name(&self) {
        let _ = self.directory.as_ref().map(|directory| directory.remove(NAME));
    }

    /// The file's pool. The file goes when the pool has no owner any more.
    fn pool(&self) -> Result<Arc<Pool>, PoolError> {
        let mut present = self.pool.lock();
        if let Some(pool) = present.upgrade() {
            return Ok(pool);
        }
        let no_place = || VmError::Open {
            path: NAME.into(),
            action: "create",
            source: io::Error::other("the database has no directory for what memory has no room for"),
        };
        let directory = self.directory.as_ref().ok_or_else(no_place)?;
        // Without a log the directory may not exist yet.
        directory.make()?;
        // A process may have ended before it removed the name. If that fails now, that is the error: the file would be
        // said to exist.
        match directory.remove(NAME) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(VmError::Open { path: NAME.into(), action: "remove", source }.into());
            }
            _ => {}
        }
        let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
        let file = directory.open(NAME, &options)?;
        // If that fails, the next opening or the close removes it.
        self.remove_name();
        let options = PoolOptions::default()
            .pool_bytes(self.pool_bytes)
            .capacity_bytes(CAPACITY_BYTES)
            .background_eviction(false)
            .huge_pages(false);
        let pool = Arc::new(Pool::create_on(file, &options)?);
        *present = Arc::downgrade(&pool);
        Ok(pool)
    }
}

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// A tree in the file; dropping this frees the tree.
pub(crate) struct SpillTree {
    pool: Arc<Pool>,
    root: PageId,
}

impl SpillTree {
    pub fn create(file: &SpillFile) -> Result<Self, PoolError> {
        let pool = file.pool().map_err(failed)?;
        let root = Tree::create(&*pool).map_err(failed)?.root();
        Ok(Self { pool, root })
    }

    fn tree(&self) -> Tree<'_, Pool> {
        Tree::open(&*self.pool, self.root)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, PoolError> {
        self.tree().get(key).map_err(failed)
    }

    /// Another tree in the same file.
    pub fn another(&self) -> Result<Self, PoolError> {
        let root = Tree::create(&*self.pool).map_err(failed)?.root();
        Ok(Self { pool: self.pool.clone(), root })
    }

    /// Inserts an entry unless the key has one; returns whether it had none.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, PoolError> {
        self.tree().insert(key, value).map_err(failed)
    }

    /// The last entry below a key.
    pub fn last_before(&self, key: &[u8]) -> Result<Option<Entry>, PoolError> {
        self.last_within(Bound::Excluded(key))
    }

    /// The last entry within a bound.
    pub fn last_within(&self, upper: Bound<&[u8]>) -> Result<Option<Entry>, PoolError> {
        let mut cursor = self.tree().range(Bound::Unbounded, upper).map_err(failed)?;
        cursor.seek_to_end();
        let Some(entry) = cursor.previous().map_err(failed)? else { return Ok(None) };
        let value = entry.value().map_err(failed)?;
        Ok(value.map(|value| (entry.key().to_vec(), value.to_vec())))
    }

    /// Begins to fill the tree, which is empty.
    pub fn load(&self) -> Result<SpillLoad<'_>, PoolError> {
        self.tree().bulk_load(100).map(SpillLoad).map_err(failed)
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), PoolError> {
        self.tree().upsert(key, value).map(drop).map_err(failed)
    }

    /// Shows the entries within bounds, in this direction, until `show` returns false.
    pub fn scan(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<bool, PoolError>,
    ) -> Result<(), PoolError> {
        let mut cursor = self.tree().range(lower, upper).map_err(failed)?;
        if direction == Direction::Backward {
            cursor.seek_to_end();
        }
        loop {
            let entry = match direction {
                Direction::Forward => cursor.next(),
                Direction::Backward => cursor.previous(),
            };
            let Some(entry) = entry.map_err(failed)? else { return Ok(()) };
            let value = entry.value().map_err(failed)?;
            if let Some(value) = value
                && !show(entry.key(), &value)?
            {
                return Ok(());
            }
        }
    }
}

/// Loads entries into a tree, in key order.
pub(crate) struct SpillLoad<'t>(BulkLoad<'t, Pool>);

impl SpillLoad<'_> {
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), PoolError> {
        self.0.push(key, value).map_err(failed)
    }

    /// Returns how many entries were loaded.
    pub fn finish(self) -> Result<u64, PoolError> {
        self.0.finish().map_err(failed)
    }
}

impl Drop for SpillTree {
    fn drop(&mut self) {
        // What cannot be freed goes with the file.
        let _ = self.tree().destroy();
    }
}

/// The error of an operation on the file.
fn failed(error: impl Into<AccessError>) -> PoolError {
    PoolError::Versions(Box::new(match error.into() {
        AccessError::Pool(error) => error,
        other => PoolError::contents(PageId(0), other.to_string()),
    }))
}

/// Appends a value or its absence: the kind, the length in four bytes, the bytes.
pub(crate) fn put_value(entry: &mut Vec<u8>, value: Option<ValueImage<'_>>) {
    entry.push(match value.map(|value| value.kind) {
        None => 0,
        Some(ValueKind::Inline) => 1,
        Some(ValueKind::Blob) => 2,
    });
    let bytes = value.map_or(&[][..], |value| value.bytes);
    entry.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    entry.extend_from_slice(bytes);
}

/// The value that `put_value` appended, and what follows it.
pub(crate) fn take_value(bytes: &[u8]) -> Option<(Option<ValueKind>, &[u8], &[u8])> {
    let (kind, bytes) = bytes.split_first()?;
    let kind = match kind {
        0 => None,
        1 => Some(ValueKind::Inline),
        2 => Some(ValueKind::Blob),
        _ => return None,
    };
    let (length, bytes) = bytes.split_first_chunk()?;
    let (value, bytes) = bytes.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((kind, value, bytes))
}

pub(crate) fn damaged() -> PoolError {
    failed(PoolError::contents(PageId(0), "an entry is damaged"))
}
