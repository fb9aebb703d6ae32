//! The condition on a record for a change of it.

use crate::blob::BlobReference;
use crate::node::NodeView;
use crate::tree::read::record::{StoredValue, value_in};

/// The value that a leaf must hold under a key for the record to be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Expected<'h> {
    Inline(&'h [u8]),
    Large(BlobReference),
}

impl Expected<'_> {
    /// Whether a latched leaf holds the expected value.
    pub fn is_held(self, leaf: NodeView<&[u8]>, index: usize) -> bool {
        match (self, value_in(leaf, index)) {
            (Self::Inline(expected), Some(StoredValue::Inline(held))) => expected == held,
            (Self::Large(expected), Some(StoredValue::Blob(held))) => expected == held,
            _ => false,
        }
    }
}
