//! The catalog: a tree that maps the names of tables to their places and types.
//!
//! A record consists of the kind of the table (1: a B+tree from bytes to bytes; 2: the directory of a heap of objects,
//! which is such a tree), zeroes, and the page of the tree's root, each as a little-endian number of 64 bits. Fields
//! follow, of which a table from bytes to bytes has none: a one-byte tag, a two-byte length, and that many bytes. An
//! unknown field is skipped if its tag is 128 or more; otherwise the table cannot be used without understanding it, and
//! the record is refused. The catalog's own root is in the file's first root slot.

use crate::{Error, NamesTable, Result, ValueType};
use std::ops::Bound;
use vellum_access::{RecordGroup, Tree};
use vellum_base::{Bytes, PageId};
use vellum_pool::{Pool, PoolError};

/// The maximum length of a table's name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The root slot that holds the catalog's root.
pub(crate) const CATALOG_SLOT: usize = 0;
const KIND_TREE: u64 = 1;
const KIND_HEAP: u64 = 2;
const RECORD_BYTES: usize = 16;
/// The field with the name of the type of the keys.
const KEY_TYPE: u8 = 1;
/// The field with the name of the type of the values.
const VALUE_TYPE: u8 = 2;
/// The field of a table that keeps no versions; it is empty.
const PLAIN: u8 = 3;
/// Tags from here on may be skipped.
const OPTIONAL: u8 = 128;
/// The maximum length of a type's name, in bytes.
const TYPE_BYTES_MAX: usize = 400;

/// The first byte of the keys of trees that may have to be freed, with which no name begins; the page of the root
/// follows, big-endian.
pub(crate) const DOOMED: [u8; 1] = [0xff];

/// The catalog's record of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TableRecord {
    pub root: PageId,
    /// The types of keys and values.
    pub types: (String, String),
    /// Whether it keeps no versions.
    pub is_plain: bool,
    /// Whether it is the directory of a heap of objects, and not a table for programs.
    pub is_heap: bool,
}

/// The types in the name of a table.
pub(crate) fn types_of<N: NamesTable>() -> (String, String) {
    (<N::Key as ValueType>::type_name(), <N::Value as ValueType>::type_name())
}

/// Makes sure that a table may have this name and these types.
pub(crate) fn check(name: &str, types: &(String, String)) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::TableName { name: name.to_owned(), limit: NAME_BYTES_MAX });
    }
    match [&types.0, &types.1].into_iter().find(|type_name| type_name.len() > TYPE_BYTES_MAX) {
        Some(long) => Err(Error::TypeName { type_name: long.clone(), limit: TYPE_BYTES_MAX }),
        None => Ok(()),
    }
}

impl TableRecord {
    /// The record of a tree that no table has yet.
    pub(crate) fn doomed(root: PageId) -> Self {
        Self { root, types: (bytes(), bytes()), is_plain: false, is_heap: false }
    }

    /// Makes sure that a table has these types.
    pub(crate) fn expect(&self, name: &str, types: (String, String)) -> Result<()> {
        self.expect_table(name)?;
        if self.types == types {
            return Ok(());
        }
        Err(Error::TableTypes { name: name.to_owned(), stored: self.types.clone(), wanted: types })
    }

    /// Makes sure that it is a table of any types, and not a heap.
    pub(crate) fn expect_table(&self, name: &str) -> Result<()> {
        if self.is_heap { Err(Error::IsHeap { name: name.to_owned() }) } else { Ok(()) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD_BYTES);
        record.extend_from_slice(&if self.is_heap { KIND_HEAP } else { KIND_TREE }.to_le_bytes());
        record.extend_from_slice(&self.root.0.to_le_bytes());
        for (tag, type_name) in [(KEY_TYPE, &self.types.0), (VALUE_TYPE, &self.types.1)] {
            if *type_name != bytes() {
                record.push(tag);
                record.extend_from_slice(&(type_name.len() as u16).to_le_bytes());
                record.extend_from_slice(type_name.as_bytes());
            }
        }
        if self.is_plain {
            record.extend_from_slice(&[PLAIN, 0, 0]);
        }
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (head, mut fields) = record.split_first_chunk::<RECORD_BYTES>()?;
        let is_heap = match head.u64_at(0) {
            KIND_TREE => false,
            KIND_HEAP => true,
            _ => return None,
        };
        let mut decoded =
            Self { root: PageId(head.u64_at(8)), types: (bytes(), bytes()), is_plain: false, is_heap };
        while let Some(([tag, low, high], rest)) = fields.split_first_chunk() {
            let (field, rest) = rest.split_at_checked(u16::from_le_bytes([*low, *high]).into())?;
            let text = || String::from_utf8(field.to_vec()).ok();
            match *tag {
                KEY_TYPE => decoded.types.0 = text()?,
                VALUE_TYPE => decoded.types.1 = text()?,
                PLAIN if field.is_empty() => decoded.is_plain = true,
                OPTIONAL.. => {}
                _ => return None,
            }
            fields = rest;
        }
        fields.is_empty().then_some(decoded)
    }
}

/// The name of the type of keys and values that are bytes.
pub(crate) fn bytes() -> String {
    <[u8] as ValueType>::type_name()
}

/// Makes the catalog of a new file.
pub(crate) fn create(pool: &Pool) -> Result<()> {
    let tree = Tree::create(pool)?;
    Ok(pool.set_root_slot(CATALOG_SLOT, tree.root().0)?)
}

/// Makes sure that there is a catalog: its creation may have been interrupted after its first page was logged and
/// before the root was stored. The file contains nothing else then. Returns whether something had to be done.
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

/// Whether a catalog can contain this record.
pub(crate) fn is_record(key: &[u8], value: &[u8]) -> bool {
    let is_name = (1..=NAME_BYTES_MAX).contains(&key.len()) && str::from_utf8(key).is_ok();
    let is_doomed = key.starts_with(&DOOMED) && key.len() == DOOMED.len() + size_of::<u64>();
    (is_name || is_doomed) && TableRecord::decode(value).is_some()
}

/// The record of a table.
pub(crate) fn find(catalog: Tree<'_, Pool>, name: &str) -> Result<Option<TableRecord>> {
    // It would be refused as a key that is too long, of which the caller knows nothing.
    if name.len() > NAME_BYTES_MAX {
        return Ok(None);
    }
    match catalog.get(name.as_bytes())? {
        Some(record) => TableRecord::decode(&record).map(Some).ok_or_else(|| damaged(catalog.root(), name)),
        None => Ok(None),
    }
}

/// The key of the doomed record of a tree.
pub(crate) fn doomed_key(root: PageId) -> Vec<u8> {
    [&DOOMED[..], &root.0.to_be_bytes()].concat()
}

/// The root of the tree of which this is the key of the doomed record.
pub(crate) fn doomed_root(key: &[u8]) -> Option<PageId> {
    let root = key.strip_prefix(&DOOMED)?;
    Some(PageId(u64::from_be_bytes(root.try_into().ok()?)))
}

/// Makes an empty tree together with a record that dooms it: see [`schema`](crate::schema).
pub(crate) fn create_doomed(pool: &Pool) -> Result<PageId> {
    let mut group = RecordGroup::begin(pool);
    let root = Tree::create_in(&mut group)?.root();
    let record = TableRecord::doomed(root);
    if tree(pool).insert_last(group, &doomed_key(record.root), &record.encode())? {
        Ok(record.root)
    } else {
        Err(damaged(tree(pool).root(), &format!("of page {}, which was free", record.root.0)))
    }
}

/// Frees a part of a doomed tree, the last one together with its doomed record; returns whether nothing is left. The
/// tree must not be in use any more.
pub(crate) fn free_part(pool: &Pool, root: PageId) -> Result<bool> {
    let key = doomed_key(root);
    if tree(pool).get(&key)?.is_none() {
        return Ok(true);
    }
    if Tree::open(pool, root).free_end()? {
        return Ok(false);
    }
    let mut group = RecordGroup::begin(pool);
    Tree::open(pool, root).destroy_in(&mut group)?;
    tree(pool).remove_last(group, &key)?;
    Ok(true)
}

/// The roots of the trees that may have to be freed.
pub(crate) fn doomed(catalog: Tree<'_, Pool>) -> Result<Vec<PageId>> {
    let records = records(catalog, Bound::Included(&DOOMED), Bound::Unbounded)?;
    Ok(records.into_iter().map(|(_, record)| record.root).collect())
}

/// All tables, in the order of their names' bytes.
pub(crate) fn list(catalog: Tree<'_, Pool>) -> Result<Vec<(String, TableRecord)>> {
    records(catalog, Bound::Unbounded, Bound::Excluded(&DOOMED))
}

fn records(
    catalog: Tree<'_, Pool>,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
) -> Result<Vec<(String, TableRecord)>> {
    let mut cursor = catalog.range(lower, upper)?;
    let mut tables = Vec::new();
    while let Some(entry) = cursor.next()? {
        let name = String::from_utf8_lossy(entry.key()).into_owned();
        let record = entry.inline_value().and_then(TableRecord::decode);
        let record = record.ok_or_else(|| damaged(catalog.root(), &name))?;
        tables.push((name, record));
    }
    Ok(tables)
}

fn damaged(root: PageId, name: &str) -> Error {
    let what = format!("the catalog's record of table {name:?} is damaged, or of a kind that is not known");
    PoolError::contents(root, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_one_of_bytes_is_as_it_always_was() {
        let of = |key: &str, value: &str| TableRecord {
            root: PageId(0x0102_0304),
            types: (key.to_owned(), value.to_owned()),
            is_plain: false,
            is_heap: false,
        };
        let simple = of("bytes", "bytes").encode();
        assert_eq!(simple, [1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        let plain = TableRecord { is_plain: true, ..of("bytes", "bytes") };
        assert_eq!(plain.encode(), [&simple[..], &[3, 0, 0]].concat());
        for record in [
            of("bytes", "bytes"),
            of("u64", "bytes"),
            of("bytes", "str"),
            of("(u8, str)", "postcard"),
            TableRecord { is_plain: true, ..of("u8", "bytes") },
            TableRecord { is_plain: true, is_heap: true, ..of("bytes", "bytes") },
            plain,
        ] {
            let encoded = record.encode();
            assert_eq!(TableRecord::decode(&encoded), Some(record));
            for length in (0..encoded.len()).filter(|length| *length != RECORD_BYTES) {
                let cut = TableRecord::decode(&encoded[..length]);
                assert!(cut.is_none_or(|cut| cut.encode() == encoded[..length]), "{length} of {encoded:?}");
            }
        }
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over_if_they_may_be() {
        let types = ("u8".to_owned(), "bytes".to_owned());
        let record = TableRecord { root: PageId(7), types, is_plain: false, is_heap: false };
        let with = |tag: u8| [record.encode(), vec![tag, 2, 0, 9, 9]].concat();
        assert_eq!(TableRecord::decode(&with(OPTIONAL)), Some(record.clone()));
        assert_eq!(TableRecord::decode(&with(u8::MAX)), Some(record.clone()));
        assert_eq!(TableRecord::decode(&with(OPTIONAL - 1)), None);
    }
}
