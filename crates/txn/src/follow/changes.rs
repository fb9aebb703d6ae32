//! What the log records say about the records of trees.

use super::contents::{Contents, LoggedPages, PagesReader};
use crate::TxnError;
use std::sync::Arc;
use vellum_access::{
    BlobReference, ChangeRecord, NodeImage, PageChange, RecordFault, ValueImage,
    node::{NODE_BYTES, NodeView, ValueKind},
};
use vellum_base::{Bytes, Extent, HEADER_BYTES, Lsn, PageHeader, PageId, PageKind, verify_header};
use vellum_pool::Pool;
use vellum_vm::AlignedBuffer;
use vellum_wal::FollowedLog;

/// A change of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeChange {
    /// The root of the tree.
    pub tree: PageId,
    /// The key; empty if the change is of the entire tree.
    pub key: Vec<u8>,
    /// What happened.
    pub kind: TreeChangeKind,
    /// The value that the key had before, in the catalog.
    pub before: Option<Vec<u8>>,
}

/// What happened to a record of a tree, or to the entire tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeChangeKind {
    /// The key had no value before.
    Insert(LoggedValue),
    /// The key had another value before.
    Replace(LoggedValue),
    /// The record was removed.
    Remove,
    /// From this offset on, the value has these bytes.
    Patch(u16, Vec<u8>),
    /// The tree was empty, and a bulk load filled it.
    Load(LoadedTree),
}

/// A value as the log has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoggedValue {
    /// The entire value.
    Inline(Vec<u8>),
    /// The value has an extent of its own.
    Large(LargeValue),
}

/// A large value, which the log may have too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeValue {
    reference: BlobReference,
    pages: Arc<LoggedPages>,
}

/// A tree as a bulk load has left it, which the log may have too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedTree {
    /// The page of the root, without its header.
    root: Vec<u8>,
    pages: Arc<LoggedPages>,
}

impl LargeValue {
    /// Its length, in bytes.
    pub fn length(&self) -> u64 {
        self.reference.length
    }

    /// Reads the value: from the file, if it is still there, otherwise from the log, if the log has it. `None` if
    /// neither has it.
    ///
    /// # Errors
    /// If the file or the log cannot be read.
    pub fn read(&self, pool: &Pool, source: &FollowedLog) -> Result<Option<Vec<u8>>, TxnError> {
        let extent = self.reference.extent();
        let mut bytes = AlignedBuffer::new(extent.bytes());
        let mut stored = Ok(());
        if pool.is_extent(extent) {
            // The place may be cut off, or hold something else, by now.
            stored = pool.read_stored(extent.head, &mut bytes);
            if let (Ok(()), Some(value)) = (&stored, self.reference.value_in(&bytes)) {
                return Ok(Some(value.to_vec()));
            }
        }
        if PagesReader::new(source, &self.pages).read(extent, &mut bytes)? {
            return Ok(self.reference.value_in(&bytes).map(<[u8]>::to_vec));
        }
        stored?;
        Ok(None)
    }
}

impl LoadedTree {
    /// Shows the records in key order until `show` returns false. Returns whether the log has all of them, as far as is
    /// known by then.
    ///
    /// # Errors
    /// If the log cannot be read, and those of `show`.
    pub fn for_each<E: From<TxnError>>(
        &self,
        source: &FollowedLog,
        mut show: impl FnMut(Vec<u8>, LoggedValue) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut reader = PagesReader::new(source, &self.pages);
        let (mut page, mut next) = (self.root.clone(), Vec::new());
        loop {
            let node = NodeView::new(&page[..]);
            if node.is_leaf() {
                for index in 0..node.count() {
                    let mut value = Vec::new();
                    let kind = node.append_value(index, &mut value);
                    let value = logged(ValueImage { kind, bytes: &value }, &self.pages);
                    if !show(node.key(index), value)? {
                        return Ok(true);
                    }
                }
            } else {
                let begin = next.len();
                next.extend(node.children().map(|child| (child, node.level())));
                next.get_mut(begin..).unwrap_or_default().reverse();
            }
            let Some(child) = next.pop() else { return Ok(true) };
            let Some(child) = self.node(&mut reader, child)? else { return Ok(false) };
            page = child;
        }
    }

    /// A node below one of level `above`; `None` if the log does not have it.
    fn node(
        &self,
        reader: &mut PagesReader<'_>,
        (page, above): (PageId, u8),
    ) -> Result<Option<Vec<u8>>, TxnError> {
        let mut bytes = vec![0; NODE_BYTES];
        let extent = Extent::page(page);
        let is_there = reader.read(extent, &mut bytes)?
            && verify_header(&bytes, extent).is_ok()
            && PageHeader::read(&bytes[..]).kind == PageKind::TREE_NODE
            // So every path down ends.
            && NodeView::new(&bytes[..]).level() < above;
        Ok(is_there.then_some(bytes))
    }
}

/// What a change record says about the records of its tree, and where the log has the first of the contents that it
/// refers to.
pub(super) fn tree_changes(
    record: ChangeRecord<'_>,
    catalog: PageId,
    contents: &mut Contents,
    loaded: &mut LoggedPages,
) -> Result<(Vec<TreeChange>, Option<Lsn>), RecordFault> {
    let tree = record.tree;
    let (mut root, mut frees) = (None, false);
    let mut pages = LoggedPages::default();
    for change in record.changes() {
        match change? {
            (page, PageChange::Write { pages: count, .. }) => contents.take(run(page, count), &mut pages),
            (page, PageChange::Nodes { count }) => contents.take(run(page, count), &mut pages),
            // If the root's only child takes the root's place, the child is freed.
            (_, PageChange::Free { .. }) => frees = true,
            (_, PageChange::ReplaceRoot { image }) => root = Some(image),
            _ => {}
        }
    }
    pages.sort();
    let oldest = pages.oldest();
    loaded.append(&pages);
    let pages = Arc::new(pages);
    let mut changes = Vec::new();
    for change in record.changes() {
        let (key, kind, before) = match change?.1 {
            PageChange::Insert { key, value } => (key, TreeChangeKind::Insert(logged(value, &pages)), None),
            PageChange::Replace { key, value, before } => {
                (key, TreeChangeKind::Replace(logged(value, &pages)), Some(before))
            }
            PageChange::Remove { key, before } => (key, TreeChangeKind::Remove, Some(before)),
            PageChange::Patch { key, offset, bytes, .. } => {
                (key, TreeChangeKind::Patch(offset, bytes.to_vec()), None)
            }
            _ => continue,
        };
        let before = before.filter(|_| tree == catalog).map(|before| before.bytes.to_vec());
        changes.push(TreeChange { tree, key: key.to_vec(), kind, before });
    }
    if let Some(image) = root.filter(|image| !frees && image.front.u16_at(0) > 0) {
        let mut pages = std::mem::take(loaded);
        pages.sort();
        let kind = TreeChangeKind::Load(LoadedTree { root: page_of(image), pages: Arc::new(pages) });
        changes.push(TreeChange { tree, key: Vec::new(), kind, before: None });
    }
    Ok((changes, oldest))
}

fn run(first: PageId, count: u32) -> std::ops::Range<u64> {
    first.0..first.0.saturating_add(u64::from(count))
}

/// A page with the contents of a node.
fn page_of(image: NodeImage<'_>) -> Vec<u8> {
    let mut page = vec![0; NODE_BYTES];
    if let Some(front) = page.get_mut(HEADER_BYTES..HEADER_BYTES + image.front.len()) {
        front.copy_from_slice(image.front);
    }
    if let Some(begin) = NODE_BYTES.checked_sub(image.heap.len())
        && let Some(heap) = page.get_mut(begin..)
    {
        heap.copy_from_slice(image.heap);
    }
    page
}

fn logged(value: ValueImage<'_>, pages: &Arc<LoggedPages>) -> LoggedValue {
    let reference = (value.kind == ValueKind::Blob).then(|| BlobReference::decode(value.bytes)).flatten();
    match reference {
        Some(reference) => LoggedValue::Large(LargeValue { reference, pages: pages.clone() }),
        None => LoggedValue::Inline(value.bytes.to_vec()),
    }
}
