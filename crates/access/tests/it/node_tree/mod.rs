//! A B+tree on nodes, without latches or storage, to test nodes against a model.
#![allow(dead_code)] // Each test uses its part.

use std::collections::BTreeMap;
use vellum_access::node::{
    BLOB_REFERENCE_BYTES, End, MAX_INLINE_RECORD_BYTES, MAX_INLINE_VALUE_BYTES, MAX_KEY_BYTES, NODE_BYTES,
    NodeError, NodeMut, NodeView, Split, ValueKind,
};
use vellum_base::PageId;

/// Where the page header ends; its bytes are filled with a pattern that must survive everything.
const HEADER: usize = 32;
const PATTERN: u8 = 0x5a;

pub type Value = (Vec<u8>, bool);

/// The tree, and the entries that it should hold.
pub struct Tree {
    pages: Vec<Vec<u8>>,
    root: usize,
    pub model: BTreeMap<Vec<u8>, Value>,
    pub splits: usize,
    /// How many of the splits ended a leaf after its last key, or nearly.
    pub ends: usize,
    pub merges: usize,
}

impl Tree {
    pub fn new() -> Self {
        let mut tree =
            Self { pages: Vec::new(), root: 0, model: BTreeMap::new(), splits: 0, ends: 0, merges: 0 };
        tree.root = tree.allocate();
        NodeMut::init(&mut tree.pages[0], 0, None, None, PageId(0)).unwrap();
        tree
    }

    fn allocate(&mut self) -> usize {
        let mut page = vec![0xcd; NODE_BYTES];
        page[..HEADER].fill(PATTERN);
        self.pages.push(page);
        self.pages.len() - 1
    }

    fn view(&self, page: usize) -> NodeView<&[u8]> {
        NodeView::new(&self.pages[page])
    }

    fn node(&mut self, page: usize) -> NodeMut<'_> {
        NodeMut::new(&mut self.pages[page])
    }

    /// The pages from the root to the leaf for `key`, each with the number of the child taken.
    fn path(&self, key: &[u8]) -> Vec<(usize, usize)> {
        let mut path = Vec::new();
        let mut page = self.root;
        while !self.view(page).is_leaf() {
            let place = self.view(page).child_for(key);
            assert_eq!(place % 8, 0);
            let index = self.view(page).child_index(place);
            assert_eq!(self.view(page).child_place(index), place);
            path.push((page, index));
            page = self.view(page).child_at(place).0 as usize;
        }
        path.push((page, 0));
        path
    }

    fn leaf(&self, key: &[u8]) -> usize {
        self.path(key).last().unwrap().0
    }

    pub fn get(&self, key: &[u8]) -> Option<Value> {
        let leaf = self.view(self.leaf(key));
        assert!(leaf.covers(key) || key.len() > MAX_KEY_BYTES);
        let found = leaf.get(key);
        let find = leaf.find(key);
        assert_eq!(find.found, found.is_some());
        found.map(|value| {
            assert_eq!(leaf.value_location(find.index), value);
            let mut out = Vec::new();
            let kind = leaf.append_value(find.index, &mut out);
            assert_eq!(kind, value.kind);
            (out, kind == ValueKind::Blob)
        })
    }

    /// Inserts or replaces.
    pub fn put(&mut self, key: &[u8], value: &[u8], blob: bool) {
        let kind = if blob { ValueKind::Blob } else { ValueKind::Inline };
        let too_large = key.len() > MAX_KEY_BYTES
            || key.len() + value.len() > MAX_INLINE_RECORD_BYTES
            || !blob && value.len() > MAX_INLINE_VALUE_BYTES
            || blob && value.len() != BLOB_REFERENCE_BYTES;
        for _ in 0..64 {
            let leaf = self.leaf(key);
            let find = self.view(leaf).find(key);
            let had_room = self.view(leaf).has_room_for(key, value.len());
            let mut node = self.node(leaf);
            let result = if find.found {
                node.replace(find.index, value, kind)
            } else {
                node.insert_at(find.index, key, value, kind)
            };
            if too_large {
                assert_eq!(result, Err(NodeError::TooLarge));
                return;
            }
            match result {
                Ok(()) => {
                    assert!(find.found || had_room);
                    assert_eq!(self.model.insert(key.to_vec(), (value.to_vec(), blob)).is_some(), find.found);
                    self.check(leaf);
                    return;
                }
                Err(NodeError::Full) => {
                    assert!(find.found || !had_room);
                    self.check(leaf);
                    let path: Vec<usize> = self.path(key).iter().map(|step| step.0).collect();
                    self.split(&path, key);
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("splitting made no progress");
    }

    /// Splits the last page of the path or, if its parent has no room, the parent.
    fn split(&mut self, path: &[usize], key: &[u8]) {
        let (&page, above) = path.split_last().unwrap();
        // Every other time a leaf ends after its last key, if it can.
        let ends = self.splits.is_multiple_of(2) && !above.is_empty() && self.view(page).is_leaf();
        if ends && let Some(end) = self.view(page).plan_end(key).unwrap() {
            return self.end(page, above, &end);
        }
        let split = self.view(page).choose_separator(Some(key)).unwrap();
        let level = self.view(page).level();
        if let Some(&parent) = above.last() {
            if !self.view(parent).has_room_for(&split.separator, 0) {
                return self.split(above, &split.separator);
            }
        } else {
            let root = self.allocate();
            NodeMut::init(&mut self.pages[root], level + 1, None, None, PageId(page as u64)).unwrap();
            self.root = root;
        }
        self.splits += 1;
        let right = self.allocate();
        let mut right_page = std::mem::take(&mut self.pages[right]);
        split_into(&mut self.node(page), &mut right_page, &split).unwrap();
        self.pages[right] = right_page;
        let parent = above.last().copied().unwrap_or(self.root);
        let index = self.node(parent).insert_separator(&split.separator, PageId(right as u64)).unwrap();
        let children: Vec<PageId> = self.view(parent).children().collect();
        assert_eq!(children[index..index + 2], [PageId(page as u64), PageId(right as u64)]);
        for changed in [page, right, parent] {
            self.check(changed);
        }
    }

    fn end(&mut self, page: usize, above: &[usize], end: &End) {
        let parent = *above.last().unwrap();
        if !self.view(parent).has_room_for(&end.separator, 0) {
            return self.split(above, &end.separator);
        }
        self.splits += 1;
        self.ends += 1;
        let right = self.allocate();
        let mut right_page = std::mem::take(&mut self.pages[right]);
        NodeMut::begin_at(&mut right_page, self.view(page), end).unwrap();
        self.pages[right] = right_page;
        self.node(page).end_at(end);
        self.node(parent).insert_separator(&end.separator, PageId(right as u64)).unwrap();
        for changed in [page, right, parent] {
            self.check(changed);
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        let path = self.path(key);
        let leaf = path.last().unwrap().0;
        let find = self.view(leaf).find(key);
        assert_eq!(self.model.remove(key).is_some(), find.found);
        if find.found {
            self.node(leaf).remove(find.index).unwrap();
            self.check(leaf);
            self.merge(&path[..path.len() - 1]);
        }
    }

    /// Merges the child that the path ends at with a neighbour where that fits, and so on upwards.
    fn merge(&mut self, path: &[(usize, usize)]) {
        let Some((&(parent, index), above)) = path.split_last() else { return };
        for left_index in [index, index.wrapping_sub(1)] {
            let parent_view = self.view(parent);
            if left_index >= parent_view.count() {
                continue;
            }
            let children: Vec<usize> = parent_view.children().map(|child| child.0 as usize).collect();
            let (left, right) = (children[left_index], children[left_index + 1]);
            let mut separator = Vec::new();
            parent_view.append_key(left_index, &mut separator);
            let right_page = self.pages[right].clone();
            let right_view = NodeView::new(&right_page[..]);
            let before = self.pages[left].clone();
            match self.node(left).merge_from_right(right_view, &separator) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, NodeError::Full);
                    assert!(before == self.pages[left]);
                    continue;
                }
            }
            self.merges += 1;
            self.node(parent).remove_separator(left_index).unwrap();
            self.check(left);
            self.check(parent);
            if self.view(parent).count() == 0 && parent == self.root {
                self.root = left;
            }
            return self.merge(above);
        }
    }

    fn check(&self, page: usize) {
        let view = self.view(page);
        if let Err(fault) = view.validate() {
            panic!("page {page}: {fault}");
        }
        assert!(self.pages[page][..HEADER].iter().all(|&byte| byte == PATTERN));
        assert_eq!(view.used_bytes() + view.free_bytes(), NODE_BYTES - 128);
    }

    /// Checks the tree as a whole: fences meet, and the contents are those of the model, in order.
    pub fn check_all(&self) {
        let mut entries = Vec::new();
        let levels = self.view(self.root).level();
        self.check_below(self.root, levels, (None, None), &mut entries);
        assert_eq!(entries.len(), self.model.len());
        for ((key, value), (model_key, model_value)) in entries.iter().zip(&self.model) {
            assert_eq!((key, value), (model_key, model_value));
            assert_eq!(self.get(key).as_ref(), Some(value));
        }
    }

    fn check_below(
        &self,
        page: usize,
        level: u8,
        fences: (Option<&[u8]>, Option<&[u8]>),
        entries: &mut Vec<(Vec<u8>, Value)>,
    ) {
        self.check(page);
        let view = self.view(page);
        assert_eq!(view.level(), level);
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        assert_eq!(view.lower_fence(&mut lower).then_some(&lower[..]), fences.0);
        assert_eq!(view.upper_fence(&mut upper).then_some(&upper[..]), fences.1);
        let mut keys = Vec::new();
        for index in 0..view.count() {
            let mut key = Vec::new();
            view.append_key(index, &mut key);
            assert_eq!(view.find(&key).index, index);
            assert!(view.find(&key).found);
            assert!(view.compare_key(index, &key).is_eq());
            keys.push(key);
        }
        if view.is_leaf() {
            for (index, key) in keys.into_iter().enumerate() {
                let mut value = Vec::new();
                let kind = view.append_value(index, &mut value);
                entries.push((key, (value, kind == ValueKind::Blob)));
            }
            return;
        }
        for (index, child) in view.children().enumerate() {
            let below = if index == 0 { fences.0 } else { Some(&keys[index - 1][..]) };
            let above = keys.get(index).map_or(fences.1, |key| Some(&key[..]));
            self.check_below(child.0 as usize, level - 1, (below, above), entries);
        }
    }

    pub fn height(&self) -> u8 {
        self.view(self.root).level() + 1
    }

    /// The mean part of a leaf that is in use.
    pub fn leaf_fill(&self) -> f64 {
        let mut leaves = vec![self.root];
        while !self.view(leaves[0]).is_leaf() {
            leaves = leaves
                .iter()
                .flat_map(|&page| {
                    self.view(page).children().map(|child| child.0 as usize).collect::<Vec<_>>()
                })
                .collect();
        }
        let used: usize = leaves.iter().map(|&leaf| self.view(leaf).used_bytes()).sum();
        used as f64 / (leaves.len() * (NODE_BYTES - 128)) as f64
    }
}

/// Splits a node: it becomes the left half, and `right` the right one.
fn split_into(node: &mut NodeMut<'_>, right: &mut [u8], split: &Split) -> Result<(), NodeError> {
    NodeMut::begin_right(right, node.view(), split)?;
    node.split_off(&split.separator)
}
