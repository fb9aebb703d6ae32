//! The contents of a leaf at some moment, kept for snapshots.

use crate::blob::BlobReference;
use crate::isolation::{Seen, SharedBytes};
use crate::node::{NODE_BYTES, NodeView, ValueKind};
use vellum_base::HEADER_BYTES;

/// The contents of a leaf at some moment: its whole page except the header.
pub struct LeafImage(Box<[u8; NODE_BYTES]>);

impl LeafImage {
    /// The number of bytes in which an image is stored.
    pub const BYTES: usize = NODE_BYTES - HEADER_BYTES;

    /// The part of a tree page that is stored; `None` if the page is not a leaf.
    pub fn of(page: &[u8]) -> Option<&[u8]> {
        let body = page.get(HEADER_BYTES..NODE_BYTES)?;
        NodeView::new(page).is_leaf().then_some(body)
    }

    /// The lower fence of a leaf; `None` if it has none.
    pub fn lower_fence(page: &[u8]) -> Option<Vec<u8>> {
        let mut fence = Vec::new();
        NodeView::new(page).lower_fence(&mut fence).then_some(fence)
    }

    /// Reads a stored image; `None` if the bytes cannot be one.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let mut page = Box::new([0; NODE_BYTES]);
        let body = page.get_mut(HEADER_BYTES..).filter(|body| body.len() == stored.len())?;
        body.copy_from_slice(stored);
        Some(Self(page))
    }

    fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(&self.0[..])
    }

    /// Whether the leaf covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.view().covers(key)
    }

    /// The value of a key that the leaf covers; `None` if the image is damaged.
    pub fn seen(&self, key: &[u8]) -> Option<Seen> {
        let Some(value) = self.view().get(key) else { return Some(Seen::Absent) };
        let bytes = self.0.get(value.at..value.at + value.length)?;
        Some(match value.kind {
            ValueKind::Inline => Seen::Value(SharedBytes::new(bytes.into(), 0..bytes.len())),
            ValueKind::Blob => Seen::Large(BlobReference::decode(bytes)?),
        })
    }

    /// The keys, in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.view().count()).map(|index| self.view().key(index))
    }
}
