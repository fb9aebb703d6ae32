//! The catalog: a tree from the names of tables to where they are.
//!
//! A record has 16 bytes: the kind of the table (1: a B+tree from bytes to bytes), zeroes, and the page of the
//! tree's root, each as a little-endian number of 64 bits. The catalog's own root is in the file's first
//! root slot.

use crate::{Error, Result};
use vellum_access::{RecordGroup, Tree};
use vellum_base::{Bytes, PageId};
use vellum_pool::{Pool, PoolError};

/// The longest name of a table, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The root slot that holds the catalog's root.
const CATALOG_SLOT: usize = 0;
const KIND_TREE: u64 = 1;
const RECORD_BYTES: usize = 16;

/// Makes the catalog of a new file.
pub(crate) fn create(pool: &Pool) -> Result<()> {
    let tree = Tree::create(pool)?;
    Ok(pool.set_root_slot(CATALOG_SLOT, tree.root().0)?)
}

/// Makes sure that there is a catalog: its creation may have been interrupted after its first page was logged and before the
/// root was kept. Nothing else is in the file then. Returns whether something had to be done.
pub(crate) fn complete(pool: &Pool) -> Result<bool> {
    if pool.root_slot(CATALOG_SLOT) != 0 {
        return Ok(false);
    }
    let (mut extents, own) = (Vec::new(), pool.own_extents());
    pool.for_each_extent(|extent| extents.push(extent));
    extents.retain(|extent| !own.contains(extent));
    match &extents[..] {
        [root] => pool.set_root_slot(CATALOG_SLOT, root.head.0)?,
        _ => create(pool)?,
    }
    Ok(true)
}

/// The catalog of a file.
pub(crate) fn tree(pool: &Pool) -> Tree<'_, Pool> {
    Tree::open(pool, PageId(pool.root_slot(CATALOG_SLOT)))
}

/// The root of a table.
pub(crate) fn find(pool: &Pool, name: &str) -> Result<Option<PageId>> {
    let catalog = tree(pool);
    match catalog.get(name.as_bytes())? {
        Some(record) => decode(&record).map(Some).ok_or_else(|| damaged(catalog.root(), name)),
        None => Ok(None),
    }
}

/// Makes an empty table and its record, together; gives its root, or none if there is a table of that name.
pub(crate) fn create_table(pool: &Pool, name: &str) -> Result<Option<PageId>> {
    let mut group = RecordGroup::begin(pool);
    let root = Tree::create_in(&mut group)?.root();
    let mut record = [0; RECORD_BYTES];
    let (kind, place) = record.split_at_mut(8);
    kind.copy_from_slice(&KIND_TREE.to_le_bytes());
    place.copy_from_slice(&root.0.to_le_bytes());
    Ok(tree(pool).insert_last(group, name.as_bytes(), &record)?.then_some(root))
}

/// Removes the record of a table and frees its tree, together.
pub(crate) fn drop_table(pool: &Pool, name: &str, root: PageId) -> Result<bool> {
    let mut group = RecordGroup::begin(pool);
    Tree::open(pool, root).destroy_in(&mut group)?;
    Ok(tree(pool).remove_last(group, name.as_bytes())?)
}

/// All tables, in the order of their names' bytes.
pub(crate) fn list(pool: &Pool) -> Result<Vec<(String, PageId)>> {
    let catalog = tree(pool);
    let mut cursor = catalog.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)?;
    let mut tables = Vec::new();
    while let Some(entry) = cursor.next()? {
        let name = String::from_utf8_lossy(entry.key()).into_owned();
        let root = entry.inline_value().and_then(decode);
        let root = root.ok_or_else(|| damaged(catalog.root(), &name))?;
        tables.push((name, root));
    }
    Ok(tables)
}

fn decode(record: &[u8]) -> Option<PageId> {
    let valid = record.len() == RECORD_BYTES && record.u64_at(0) == KIND_TREE;
    valid.then(|| PageId(record.u64_at(8)))
}

fn damaged(root: PageId, name: &str) -> Error {
    let what = format!("the catalog's record of table {name:?} is damaged, or of a kind that is not known");
    PoolError::contents(root, what).into()
}
