//! The contents of a leaf at some moment, kept for snapshots.

use crate::blob::BlobReference;
use crate::isolation::{Seen, SharedBytes};
use crate::node::{NODE_BYTES, NodeView, ValueKind};
use std::ops::Range;
use vellum_base::HEADER_BYTES;

/// The contents of a leaf at some moment: its page except the header.
pub struct LeafImage(Box<[u8; NODE_BYTES]>);

impl LeafImage {
    /// What of a tree page is stored: all but the header and the room that is free between slots and records, so that most
    /// images take one page as large values. `None` if the page is not a leaf.
    pub fn of(page: &[u8]) -> Option<Vec<u8>> {
        let leaf = NodeView::new(page.get(..NODE_BYTES)?);
        if !leaf.is_leaf() {
            return None;
        }
        let mut stored = Vec::with_capacity(NODE_BYTES);
        for part in parts(leaf) {
            stored.extend_from_slice(page.get(part)?);
        }
        Some(stored)
    }

    /// The lower fence of a leaf; `None` if it has none.
    pub fn lower_fence(page: &[u8]) -> Option<Vec<u8>> {
        let mut fence = Vec::new();
        NodeView::new(page).lower_fence(&mut fence).then_some(fence)
    }

    /// Reads a stored image; `None` if the bytes cannot be one.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let mut page = Box::new([0; NODE_BYTES]);
        let guide = HEADER_BYTES..NodeView::<&[u8]>::GUIDE_BYTES;
        page.get_mut(guide.clone())?.copy_from_slice(stored.get(..guide.len())?);
        let leaf = NodeView::new(&page[..]);
        if !leaf.is_leaf() {
            return None;
        }
        let mut rest = stored;
        for part in parts(leaf) {
            let (bytes, others) = rest.split_at_checked(part.len())?;
            page.get_mut(part)?.copy_from_slice(bytes);
            rest = others;
        }
        rest.is_empty().then_some(Self(page))
    }

    fn view(&self) -> NodeView<&[u8]> {
        NodeView::new(&self.0[..])
    }

    /// Whether the leaf covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.view().covers(key)
    }

    /// Whether the leaf covers keys above this one.
    pub fn reaches_beyond(&self, key: &[u8]) -> bool {
        let mut upper = Vec::new();
        !self.view().upper_fence(&mut upper) || &upper[..] > key
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

/// The parts of a leaf that are in use, except the header. What they are stands in the first one.
fn parts(leaf: NodeView<&[u8]>) -> [Range<usize>; 2] {
    let [slots, records] = leaf.bytes_in_use();
    [HEADER_BYTES..slots.end, records]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeMut;
    use vellum_base::PageId;

    /// A record: key and value.
    type Record = (Vec<u8>, Vec<u8>);

    /// A leaf with as many records as fit, up to `most`, and its records.
    fn leaf(most: u32) -> (Vec<u8>, Vec<Record>) {
        let mut page = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut page, 0, Some(b"ka"), Some(b"kc"), PageId(0)).unwrap();
        let records = (0..most)
            .map(|number| (format!("kb{number:05}").into_bytes(), vec![number as u8; number as usize % 40]));
        let is_in = |(key, value): &Record| node.insert(key, value, ValueKind::Inline).is_ok();
        let records = records.take_while(is_in).collect();
        (page, records)
    }

    #[test]
    fn an_image_has_the_records_of_the_leaf_and_no_more_bytes_than_they_need() {
        for most in [0, 1, 50, 1000] {
            let (page, records) = leaf(most);
            assert!(most < 1000 || records.len() < 1000, "the last one is full");
            let stored = LeafImage::of(&page).unwrap();
            let bytes: usize = records.iter().map(|(_, value)| 8 + 4 + value.len() + 3).sum();
            assert!(stored.len() <= 128 + 8 + bytes, "{} bytes for {}", stored.len(), records.len());
            let image = LeafImage::read(&stored).unwrap();
            assert_eq!(
                image.keys().collect::<Vec<_>>(),
                records.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
            );
            for (key, value) in &records {
                assert!(image.covers(key));
                assert!(matches!(image.seen(key), Some(Seen::Value(seen)) if *seen == value[..]));
            }
            assert!(matches!(image.seen(b"kb"), Some(Seen::Absent)));
            assert!(!image.covers(b"kd"));
            for cut in [0, 10, stored.len() / 2, stored.len() - 1] {
                assert!(LeafImage::read(&stored[..cut]).is_none(), "{cut} of {}", stored.len());
            }
            assert!(LeafImage::read(&[&stored[..], &[0]].concat()).is_none());
        }
    }

    #[test]
    fn only_leaves_have_images() {
        let mut page = vec![0; NODE_BYTES];
        NodeMut::init(&mut page, 1, None, None, PageId(5)).unwrap();
        assert!(LeafImage::of(&page).is_none());
        assert!(LeafImage::of(&page[..100]).is_none());
        assert!(LeafImage::read(&page[HEADER_BYTES..]).is_none());
    }
}
