//! The results of a cursor: its position, and the entry that it has stepped over.

use crate::error::AccessError;
use crate::tree::{Tree, read::record::StoredValue};
use crate::value::{Held, Value};
use vellum_pool::Pager;

/// Where a cursor stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CursorPosition<'c> {
    /// At the beginning of its range.
    Start,
    /// At the end of its range.
    End,
    /// Right before this key, which need not exist.
    Before(&'c [u8]),
    /// Right after this key.
    After(&'c [u8]),
}

/// An entry. It lives until the cursor moves.
pub struct Entry<'c, 'p, P> {
    pub(super) tree: &'c Tree<'p, P>,
    pub(super) key: &'c [u8],
    pub(super) value: StoredValue<'c>,
}

impl<'c, 'p, P: Pager> Entry<'c, 'p, P> {
    /// The key.
    pub fn key(&self) -> &'c [u8] {
        self.key
    }

    /// The length of the value, which is known without reading it.
    pub fn value_length(&self) -> u64 {
        match self.value {
            StoredValue::Inline(bytes) => bytes.len() as u64,
            StoredValue::Blob(reference) => reference.length,
        }
    }

    /// The value, if it is a small one, which the cursor has copied.
    pub fn inline_value(&self) -> Option<&'c [u8]> {
        match self.value {
            StoredValue::Inline(bytes) => Some(bytes),
            StoredValue::Blob(_) => None,
        }
    }

    /// The value. A large value is looked up again, so this is the present one; `None` if the key has been removed.
    ///
    /// # Errors
    /// As for [`Tree::value`].
    pub fn value(&self) -> Result<Option<Value<'p, P>>, AccessError> {
        match self.value {
            StoredValue::Inline(bytes) => Ok(Some(Value(Held::Copy(bytes.to_vec())))),
            StoredValue::Blob(_) => {
                let mut tree = *self.tree;
                loop {
                    let value = tree.value(self.key)?;
                    // The key may be in the tree that has replaced this one; and this one may hold what was never committed.
                    if !tree.follow() {
                        return Ok(value);
                    }
                }
            }
        }
    }
}
