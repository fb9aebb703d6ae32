//! Cursors: walking a range of keys in either direction.
//!
//! A cursor copies a leaf as it is at one moment and hands out what is in the copy. At its end it goes down
//! the tree anew, to the leaf beyond the fence. So it holds no latch between two calls, whatever others do
//! meanwhile; what it shows of one leaf belongs to one moment, and different leaves to different ones.

use super::{
    Tree, check_key,
    descend::Towards,
    readahead::{Direction, ReadAhead},
};
use crate::{
    AccessError,
    blob::BlobReference,
    node::{NodeView, ValueKind},
    value::{Held, Value},
};
use std::ops::Bound;
use vellum_pool::{Pager, PoolError};

/// Walks the entries of a range in both directions.
///
/// A cursor stands *between* two entries: [`next`](Self::next) returns the one behind and steps over it,
/// [`previous`](Self::previous) the one before. A new cursor stands at the beginning of its range.
///
/// An entry that is in the range throughout is shown once in each pass, in order; one that comes or goes
/// meanwhile may be shown or not. A step that fails leaves the cursor where it was, to be tried again.
///
/// ```
/// use std::ops::Bound;
/// use vellum_access::Tree;
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// for (name, number) in [(b"one", b"1"), (b"two", b"2"), (b"six", b"6")] {
///     tree.insert(name, number)?;
/// }
/// let mut cursor = tree.range(Bound::Excluded(b"one"), Bound::Unbounded)?;
/// let entry = cursor.next()?.expect("there is one behind `one`");
/// assert_eq!((entry.key(), entry.inline_value()), (&b"six"[..], Some(&b"6"[..])));
/// cursor.seek_to_end();
/// assert_eq!(cursor.previous()?.map(|entry| entry.key().to_vec()), Some(b"two".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cursor<'p, P: Pager> {
    tree: Tree<'p, P>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// A copy of the leaf in which the cursor stands; empty before the first step.
    leaf: Vec<u8>,
    /// Room for the copy of the next one, so that a leaf that cannot be read leaves the cursor where it was.
    spare: Vec<u8>,
    /// The slot of the copy behind the cursor.
    index: usize,
    /// Where a cursor without a leaf stands.
    start: Start,
    key: Vec<u8>,
    ahead: ReadAhead<'p, P>,
}

#[derive(Clone)]
enum Start {
    Lower,
    Upper,
    At(Vec<u8>),
}

/// An entry, as long as the cursor stays where it is.
pub struct Entry<'c, 'p, P> {
    tree: Tree<'p, P>,
    key: &'c [u8],
    value: EntryValue<'c>,
}

#[derive(Clone, Copy)]
enum EntryValue<'c> {
    Inline(&'c [u8]),
    Blob(BlobReference),
}

impl<'c, 'p, P: Pager> Entry<'c, 'p, P> {
    /// The key.
    pub fn key(&self) -> &'c [u8] {
        self.key
    }

    /// The length of the value, which takes no reading.
    pub fn value_length(&self) -> u64 {
        match self.value {
            EntryValue::Inline(bytes) => bytes.len() as u64,
            EntryValue::Blob(reference) => reference.length,
        }
    }

    /// The value, if it is a small one that the cursor has at hand.
    pub fn inline_value(&self) -> Option<&'c [u8]> {
        match self.value {
            EntryValue::Inline(bytes) => Some(bytes),
            EntryValue::Blob(_) => None,
        }
    }

    /// The value. A large one is looked up anew, and is the one that the key has now; `None` if the key was
    /// removed meanwhile.
    ///
    /// # Errors
    /// As for [`Tree::value`].
    pub fn value(&self) -> Result<Option<Value<'p, P>>, AccessError> {
        match self.value {
            EntryValue::Inline(bytes) => Ok(Some(Value(Held::Copy(bytes.to_vec())))),
            EntryValue::Blob(_) => self.tree.value(self.key),
        }
    }
}

impl<'p, P: Pager> Tree<'p, P> {
    /// A cursor over the entries whose keys lie between the bounds, which stands at the beginning.
    ///
    /// # Errors
    /// If a bound is longer than a key can be.
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Result<Cursor<'p, P>, AccessError> {
        for bound in [lower, upper] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                check_key(key)?;
            }
        }
        Ok(Cursor {
            tree: *self,
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            leaf: Vec::new(),
            spare: Vec::new(),
            index: 0,
            start: Start::Lower,
            key: Vec::new(),
            ahead: ReadAhead::new(),
        })
    }
}

impl<'p, P: Pager> Cursor<'p, P> {
    /// Goes to the beginning of the range.
    pub fn seek_to_start(&mut self) {
        self.leaf.clear();
        self.start = Start::Lower;
    }

    /// Goes to the end of the range, for walking backwards.
    pub fn seek_to_end(&mut self) {
        self.leaf.clear();
        self.start = Start::Upper;
    }

    /// Goes to just before `key`, whether or not it is there. Outside of the range, it goes to the end of the
    /// range that is nearer.
    ///
    /// # Errors
    /// If the key is too long.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), AccessError> {
        check_key(key)?;
        self.leaf.clear();
        self.start = if self.is_before_range(key) {
            Start::Lower
        } else if self.is_behind_range(key) {
            Start::Upper
        } else {
            Start::At(key.to_vec())
        };
        Ok(())
    }

    /// Steps over the next entry and returns it; `None` at the end of the range.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    #[expect(clippy::should_implement_trait, reason = "the entry borrows from the cursor")]
    pub fn next(&mut self) -> Result<Option<Entry<'_, 'p, P>>, AccessError> {
        self.arrive()?;
        while self.index >= self.view().count() {
            let mut fence = Vec::new();
            if !self.view().upper_fence(&mut fence) || self.ends_at(&fence) {
                return Ok(None);
            }
            self.go_on(Direction::Forward, &fence)?;
        }
        self.load_key(self.index);
        if self.is_behind_range(&self.key) {
            return Ok(None);
        }
        let index = self.index;
        self.index += 1;
        self.entry(index).map(Some)
    }

    /// Steps back over the entry before and returns it; `None` at the beginning of the range.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn previous(&mut self) -> Result<Option<Entry<'_, 'p, P>>, AccessError> {
        self.arrive()?;
        while self.index == 0 {
            let mut fence = Vec::new();
            if !self.view().lower_fence(&mut fence) || self.is_before_range(&fence) {
                return Ok(None);
            }
            self.go_on(Direction::Backward, &fence)?;
        }
        self.load_key(self.index - 1);
        if self.is_before_range(&self.key) {
            return Ok(None);
        }
        self.index -= 1;
        self.entry(self.index).map(Some)
    }

    /// Copies the first leaf, if there is none yet, and finds the cursor's place in it.
    fn arrive(&mut self) -> Result<(), AccessError> {
        if !self.leaf.is_empty() {
            return Ok(());
        }
        self.ahead.reset(Direction::Forward);
        let (key, behind) = match (&self.start, &self.lower, &self.upper) {
            (Start::At(key), _, _) => (Some(key.clone()), false),
            (Start::Lower, Bound::Included(key), _) => (Some(key.clone()), false),
            (Start::Lower, Bound::Excluded(key), _) => (Some(key.clone()), true),
            (Start::Upper, _, Bound::Included(key)) => (Some(key.clone()), true),
            (Start::Upper, _, Bound::Excluded(key)) => (Some(key.clone()), false),
            (Start::Lower | Start::Upper, _, _) => (None, false),
        };
        match key {
            Some(key) => {
                self.copy_leaf(Towards::Key(&key))?;
                let find = self.view().find(&key);
                self.index = find.index + usize::from(behind && find.found);
            }
            None if matches!(self.start, Start::Lower) => {
                self.copy_leaf(Towards::First)?;
                self.index = 0;
            }
            None => {
                self.copy_leaf(Towards::Last)?;
                self.index = self.view().count();
            }
        }
        Ok(())
    }

    /// Goes from a leaf's fence to the leaf on its other side, which lies in the direction given.
    fn go_on(&mut self, direction: Direction, fence: &[u8]) -> Result<(), AccessError> {
        let (towards, bound) = match direction {
            Direction::Forward => (Towards::Behind(fence), &self.upper),
            Direction::Backward => (Towards::Key(fence), &self.lower),
        };
        let bound = match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(&key[..]),
            Bound::Unbounded => None,
        };
        self.ahead.advance(&self.tree, direction, fence, bound);
        self.copy_leaf(towards)?;
        // Meanwhile the leaf may have been merged with the one that the cursor comes from.
        let find = self.view().find(fence);
        self.index = find.index + usize::from(find.found);
        Ok(())
    }

    /// Copies a leaf. If that fails, the cursor stays where it is.
    fn copy_leaf(&mut self, towards: Towards<'_>) -> Result<(), AccessError> {
        self.tree.copy_node(towards, 0, self.ahead.is_scan(), &mut self.spare)?;
        std::mem::swap(&mut self.leaf, &mut self.spare);
        Ok(())
    }

    fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(&self.leaf)
    }

    fn load_key(&mut self, index: usize) {
        self.key.clear();
        NodeView::new(&self.leaf[..]).append_key(index, &mut self.key);
    }

    /// Whether no key of the range is `key` or lies before it.
    fn is_before_range(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Included(lower) => key < &lower[..],
            Bound::Excluded(lower) => key <= &lower[..],
            Bound::Unbounded => false,
        }
    }

    /// Whether no key of the range is `key` or lies behind it.
    fn is_behind_range(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) => key > &upper[..],
            Bound::Excluded(upper) => key >= &upper[..],
            Bound::Unbounded => false,
        }
    }

    /// Whether no key of the range lies behind `fence`.
    fn ends_at(&self, fence: &[u8]) -> bool {
        match &self.upper {
            Bound::Included(upper) | Bound::Excluded(upper) => fence >= &upper[..],
            Bound::Unbounded => false,
        }
    }

    /// The entry in slot `index`, whose key has been loaded.
    fn entry(&self, index: usize) -> Result<Entry<'_, 'p, P>, AccessError> {
        let at = self.view().value_location(index);
        let bytes = self.leaf.get(at.at..at.at + at.length);
        let value = match (at.kind, bytes) {
            (ValueKind::Inline, Some(bytes)) => Some(EntryValue::Inline(bytes)),
            (ValueKind::Blob, Some(bytes)) => BlobReference::decode(bytes).map(EntryValue::Blob),
            (_, None) => None,
        };
        let value = value.ok_or_else(|| {
            let page = vellum_base::PageHeader::read(&self.leaf).extent.head;
            PoolError::contents(page, "a record of this leaf lies outside of it")
        })?;
        Ok(Entry { tree: self.tree, key: &self.key, value })
    }
}
