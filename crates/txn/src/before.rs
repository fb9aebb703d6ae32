//! A record as it was before a change.

use std::{iter, sync::Arc};
use vellum_access::{BlobReference, Seen, SharedBytes, ValueImage, node::ValueKind};
use vellum_base::{PageId, checksum};

/// The before-image of a record: its tree, its key, and the value under the key, if there was one. The chain, the
/// transaction and readers share its memory.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub tree: PageId,
    /// Zero if it has not been computed.
    hash: u64,
    /// The key, then the value.
    bytes: Bytes,
    key_bytes: u16,
    value_bytes: u32,
    kind: Option<ValueKind>,
}

/// Bytes that may be shared.
#[derive(Clone, Debug)]
enum Bytes {
    /// A few bytes, which each copy has for itself: mostly the key of a record that was not there.
    Few([u8; FEW_BYTES]),
    Shared(Arc<[u8]>),
}

/// A key of at most this many bytes needs no memory of its own.
const FEW_BYTES: usize = 31;

// ARCHITECTURE.md says what is kept of each record under an old snapshot.
const _: () = assert!(size_of::<Before>() == 56);

impl Before {
    /// A before-image whose hash is computed when it is needed.
    #[inline(always)]
    pub fn of((tree, key): (PageId, &[u8]), value: Option<ValueImage<'_>>) -> Self {
        Self::new((tree, key), 0, value)
    }

    #[inline(always)]
    pub fn new((tree, key): (PageId, &[u8]), hash: u64, value: Option<ValueImage<'_>>) -> Self {
        let key_bytes = key.len() as u16;
        let Some(ValueImage { kind, bytes: value }) = value else {
            let mut few = [0; FEW_BYTES];
            let bytes = match few.get_mut(..key.len()) {
                Some(place) => {
                    place.copy_from_slice(key);
                    Bytes::Few(few)
                }
                None => Bytes::Shared(key.into()),
            };
            return Self { tree, hash, bytes, key_bytes, value_bytes: 0, kind: None };
        };
        let (bytes, value_bytes) = (Bytes::Shared(joined(key, value)), value.len() as u32);
        Self { tree, hash, bytes, key_bytes, value_bytes, kind: Some(kind) }
    }

    /// It, borrowed.
    #[inline]
    pub fn image(&self) -> BeforeImage<'_> {
        let bytes = match &self.bytes {
            Bytes::Few(bytes) => &bytes[..],
            Bytes::Shared(bytes) => bytes,
        };
        let (key, rest) = bytes.split_at_checked(self.key_bytes.into()).unwrap_or_default();
        let value = rest.get(..self.value_bytes as usize).unwrap_or_default();
        BeforeImage {
            tree: self.tree,
            hash: self.hash,
            key,
            value: self.kind.map(|kind| ValueImage { kind, bytes: value }),
        }
    }

    pub fn key(&self) -> &[u8] {
        self.image().key
    }

    /// How many bytes the key and the value have.
    pub fn bytes(&self) -> u64 {
        u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }

    /// As `bytes`, with the bytes that a large value has in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.image().stored_bytes()
    }

    /// The value, if there was one.
    pub fn value(&self) -> Option<ValueImage<'_>> {
        self.image().value
    }

    pub fn seen(&self) -> Seen {
        match (self.kind, &self.bytes) {
            (Some(ValueKind::Inline), Bytes::Shared(bytes)) => {
                let from = usize::from(self.key_bytes);
                Seen::Value(SharedBytes::new(bytes.clone(), from..from + self.value_bytes as usize))
            }
            _ => self.image().seen(),
        }
    }

    /// Computes and stores its hash.
    pub fn set_hash(&mut self) {
        self.hash = self.hash();
    }

    /// The hash of the record.
    pub fn hash(&self) -> u64 {
        self.image().hash()
    }

    /// Whether both are of one record.
    pub fn is_same(&self, other: BeforeImage<'_>) -> bool {
        self.is_of((other.tree, other.key), other.hash())
    }

    /// A copy that only says which record it is.
    pub fn without_value(&self) -> Self {
        self.image().without_value()
    }

    pub fn is_of(&self, record: (PageId, &[u8]), hash: u64) -> bool {
        self.image().is_of(record, hash)
    }
}

/// A before-image that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeforeImage<'b> {
    pub tree: PageId,
    /// Zero if it has not been computed.
    hash: u64,
    key: &'b [u8],
    value: Option<ValueImage<'b>>,
}

impl<'b> BeforeImage<'b> {
    /// That of a record with this hash; zero if that is computed when it is needed.
    #[inline(always)]
    pub fn new((tree, key): (PageId, &'b [u8]), hash: u64, value: Option<ValueImage<'b>>) -> Self {
        Self { tree, hash, key, value }
    }

    pub fn key(&self) -> &'b [u8] {
        self.key
    }

    /// The value, if there was one.
    pub fn value(&self) -> Option<ValueImage<'b>> {
        self.value
    }

    /// A copy with memory of its own, which has its hash.
    pub fn copy(&self) -> Before {
        Before::new((self.tree, self.key), self.hash(), self.value)
    }

    /// A copy that only says which record it is.
    pub fn without_value(&self) -> Before {
        Before::new((self.tree, self.key), self.hash, None)
    }

    /// The hash of the record.
    pub fn hash(&self) -> u64 {
        if self.hash == 0 { hash_of(self.tree, self.key) } else { self.hash }
    }

    /// The hash of the record; zero if it has not been computed.
    pub fn known_hash(&self) -> u64 {
        self.hash
    }

    pub fn is_of(&self, (tree, key): (PageId, &[u8]), hash: u64) -> bool {
        (self.hash == hash || self.hash == 0) && self.tree == tree && self.key == key
    }

    /// How many bytes the key and the value have.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.value.map_or(0, |value| value.bytes.len())) as u64
    }

    /// As `bytes`, with the bytes that a large value has in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes() + self.large().map_or(0, |large| large.length)
    }

    /// The large value that was there, if it was one.
    pub fn large(&self) -> Option<BlobReference> {
        let value = self.value.filter(|value| value.kind == ValueKind::Blob)?;
        BlobReference::decode(value.bytes)
    }

    pub fn seen(&self) -> Seen {
        match self.value {
            Some(ValueImage { kind: ValueKind::Inline, bytes }) => {
                Seen::Value(SharedBytes::new(bytes.into(), 0..bytes.len()))
            }
            // Only references that were found sound are kept.
            Some(_) => self.large().map_or(Seen::Absent, Seen::Large),
            None => Seen::Absent,
        }
    }
}

/// A key followed by a value.
fn joined(key: &[u8], value: &[u8]) -> Arc<[u8]> {
    let mut bytes: Arc<[u8]> = iter::repeat_n(0, key.len() + value.len()).collect();
    if let Some((first, second)) =
        Arc::get_mut(&mut bytes).and_then(|all| all.split_at_mut_checked(key.len()))
    {
        first.copy_from_slice(key);
        second.copy_from_slice(value);
    }
    bytes
}

/// The hash of a record's key.
pub(crate) fn hash_of(tree: PageId, key: &[u8]) -> u64 {
    checksum(key) ^ tree.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
