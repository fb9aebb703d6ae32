//! What a leaf held at some moment, kept for snapshots.

use crate::blob::BlobReference;
use crate::isolation::{Seen, SharedBytes};
use crate::node::{NODE_BYTES, NodeView, ValueKind};
use vellum_base::HEADER_BYTES;

/// What a leaf held at some moment: all of its page but the header.
pub struct LeafImage(Box<[u8; NODE_BYTES]>);

impl LeafImage {
    /// How many bytes it is stored in.
    pub const BYTES: usize = NODE_BYTES - HEADER_BYTES;

    /// What is stored of a page of a tree: none if it is not a leaf.
    pub fn of(page: &[u8]) -> Option<&[u8]> {
        let body = page.get(HEADER_BYTES..NODE_BYTES)?;
        NodeView::new(page).is_leaf().then_some(body)
    }

    /// The fence below the keys that a leaf covers; `None` if there is none.
    pub fn lower_fence(page: &[u8]) -> Option<Vec<u8>> {
        let mut fence = Vec::new();
        NodeView::new(page).lower_fence(&mut fence).then_some(fence)
    }

    /// The leaf of which this was stored; `None` if that cannot be.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let mut page = Box::new([0; NODE_BYTES]);
        let body = page.get_mut(HEADER_BYTES..).filter(|body| body.len() == stored.len())?;
        body.copy_from_slice(stored);
        Some(Self(page))
    }

    fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(&self.0[..])
    }

    /// Whether a key is one of those that it covers.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.view().covers(key)
    }

    /// What it holds under a key that it covers; `None` if it is damaged.
    pub fn seen(&self, key: &[u8]) -> Option<Seen> {
        let Some(value) = self.view().get(key) else { return Some(Seen::Absent) };
        let bytes = self.0.get(value.at..value.at + value.length)?;
        Some(match value.kind {
            ValueKind::Inline => Seen::Value(SharedBytes::new(bytes.into(), 0..bytes.len())),
            ValueKind::Blob => Seen::Large(BlobReference::decode(bytes)?),
        })
    }

    /// Its keys, in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.view().count()).map(|index| self.view().key(index))
    }
}
