//! The key next to which a cursor stands.
//!
//! All keys of a leaf begin with its prefix. That is written once for a leaf, and then only the rest of each key.

use crate::node::NodeView;
use std::ops::Deref;

/// Room that a key gets at first.
const BYTES: usize = 120;

/// The bytes of a key, in memory that is kept.
#[derive(Default)]
pub(super) struct CursorKey {
    bytes: Vec<u8>,
    /// The length of the prefix of the leaf of which the last key was, if that was written and still stands there.
    prefix: Option<usize>,
}

impl CursorKey {
    /// The cursor leaves the leaf: the next key may be one of another.
    #[inline]
    pub fn leave(&mut self) {
        self.prefix = None;
    }

    /// Takes any key.
    pub fn set(&mut self, key: &[u8]) {
        let bytes = self.cleared();
        bytes.extend_from_slice(key);
    }

    /// Empty bytes for any key.
    pub fn cleared(&mut self) -> &mut Vec<u8> {
        self.prefix = None;
        self.bytes.clear();
        &mut self.bytes
    }

    /// Takes the key of a slot of the leaf, which is the same one since the last [`leave`](Self::leave).
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
        // One for all mostly.
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
