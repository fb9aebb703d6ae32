//! How the chains of a generation are stored in its tree.
//!
//! The key is that of [`place_of`]. The value is: a byte that says whether the record was removed; the whole key, if
//! there is no room in the other, after its length of two bytes; the versions, latest last.

use crate::{
    before::Before,
    spill::{damaged, put_value, take_value},
};
use smallvec::SmallVec;
use std::cmp::Ordering as Order;
use vellum_access::{BlobReference, Seen, SharedBytes, ValueImage, node::ValueKind};
use vellum_base::PageId;
use vellum_pool::PoolError;

/// The longest key of a tree.
pub(super) const KEY_BYTES_MAX: usize = vellum_access::node::MAX_KEY_BYTES;
/// Of a longer key of a record, the key of its chain has only this many bytes, and the hash.
pub(super) const PREFIX_BYTES: usize = KEY_BYTES_MAX - 16;

/// The order of records in the trees of generations.
pub(crate) fn order(one: Option<&Before>, other: Option<&Before>) -> Order {
    let place = |record: &Before| {
        let (key, is_long) = (record.key(), record.key().len() >= PREFIX_BYTES);
        (
            record.tree,
            key.get(..PREFIX_BYTES).unwrap_or(key).to_owned(),
            if is_long { record.hash() } else { 0 },
        )
    };
    match (one, other) {
        (Some(one), Some(other)) if one.key().len() < PREFIX_BYTES && other.key().len() < PREFIX_BYTES => {
            (one.tree, one.key()).cmp(&(other.tree, other.key()))
        }
        (Some(one), Some(other)) => place(one).cmp(&place(other)),
        _ => Order::Equal,
    }
}

/// A version as it is stored in the file.
pub(super) struct Version<'v> {
    pub writer: u64,
    /// Zero if the writer must be asked.
    pub committed: u64,
    pub kind: Option<ValueKind>,
    pub value: &'v [u8],
}

/// The key of a chain in a generation's tree: the tree's root, then the record's key, or a long key's prefix and hash.
pub(super) fn place_of(tree: PageId, key: &[u8], hash: u64) -> Vec<u8> {
    let mut place = place_of_prefix(tree, key);
    if key.len() >= PREFIX_BYTES {
        place.extend_from_slice(&hash.to_be_bytes());
    }
    place
}

pub(super) fn place_of_prefix(tree: PageId, key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(16 + key.len());
    place.extend_from_slice(&tree.0.to_be_bytes());
    place.extend_from_slice(key.get(..PREFIX_BYTES).unwrap_or(key));
    place
}

/// The whole key of a chain's record; empty if the key of the chain has it.
pub(super) fn whole_key(chain: &[u8]) -> Option<&[u8]> {
    let (length, rest) = chain.get(1..)?.split_first_chunk()?;
    rest.get(..u16::from_le_bytes(*length).into())
}

/// The versions of a chain.
pub(super) fn versions(chain: &[u8]) -> Result<SmallVec<[Version<'_>; 4]>, PoolError> {
    let decode = || {
        let mut rest = chain.get(3 + whole_key(chain)?.len()..)?;
        let mut versions = SmallVec::new();
        while !rest.is_empty() {
            let (writer, after) = rest.split_first_chunk()?;
            let (committed, after) = after.split_first_chunk()?;
            let (kind, value, after) = take_value(after)?;
            let (writer, committed) = (u64::from_le_bytes(*writer), u64::from_le_bytes(*committed));
            versions.push(Version { writer, committed, kind, value });
            rest = after;
        }
        Some(versions)
    };
    decode().ok_or_else(damaged)
}

impl Version<'_> {
    pub fn encode(&self, entry: &mut Vec<u8>) {
        entry.extend_from_slice(&self.writer.to_le_bytes());
        entry.extend_from_slice(&self.committed.to_le_bytes());
        put_value(entry, self.kind.map(|kind| ValueImage { kind, bytes: self.value }));
    }

    pub fn seen(&self) -> Result<Seen, PoolError> {
        Ok(match self.kind {
            None => Seen::Absent,
            Some(ValueKind::Inline) => Seen::Value(SharedBytes::new(self.value.into(), 0..self.value.len())),
            Some(ValueKind::Blob) => Seen::Large(BlobReference::decode(self.value).ok_or_else(damaged)?),
        })
    }
}
