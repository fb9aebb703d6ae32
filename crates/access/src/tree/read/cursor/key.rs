//! The key next to which a cursor stands.
//!
//! All keys of a leaf begin with its prefix. The prefix is written once for a leaf, and then only the rest of each key.

use crate::node::NodeView;
use std::ops::Deref;

/// The room that a key gets at first.
const BYTES: usize = 120;

/// The bytes of a key, in memory that is reused.
#[derive(Default)]
pub(super) struct CursorKey {
    bytes: Vec<u8>,
    /// The length of the prefix of the last key's leaf, if the prefix is still at the beginning of the bytes.
    prefix: Option<usize>,
}

impl CursorKey {
    /// Notes that the cursor leaves the leaf: the next key may belong to another leaf.
    #[inline]
    pub fn leave(&mut self) {
        self.prefix = None;
    }

    /// Takes any key.
    pub fn set(&mut self, key: &[u8]) {
        let bytes = self.cleared();
        bytes.extend_from_slice(key);
    }

    /// Empty bytes, for any key.
    pub fn cleared(&mut self) -> &mut Vec<u8> {
        self.prefix = None;
        self.bytes.clear();
        &mut self.bytes
    }

    /// Takes the key of a slot of the leaf, which must be the same leaf since the last [`leave`](Self::leave).
    #[inline(always)]
    pub fn load(&mut self, leaf: NodeView<&[u8]>, index: usize) {
        match self.prefix {
            Some(length) => self.bytes.truncate(length),
            None => self.load_prefix(leaf),
        }
        leaf.append_rest(index, &mut self.bytes);
    }

    #[inline(never)]
    fn load_prefix(&mut self, leaf: NodeView<&[u8]>) {
        self.bytes.clear();
        // Usually enough for all keys.
        self.bytes.reserve(BYTES);
        leaf.append_prefix(&mut self.bytes);
        self.prefix = Some(self.bytes.len());
    }
}

impl Deref for CursorKey {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
