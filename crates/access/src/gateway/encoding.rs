//! The encoding of the record of an atomic change.
//!
//! Little-endian. The first 8 bytes are the root of the tree. Then come for each page its id in 8 bytes, the kind of
//! change in 1, and the fields of the change in the order in which [`PageChange`] has them. Runs of bytes are preceded
//! by their length in 2 bytes, values first by a byte that is 1 for a reference to a large value. Page ids and digests
//! have 8 bytes, counts of pages 4, offsets 2, kinds of page 1.

use super::page_change::{NodeImage, PageChange, ValueImage};
use crate::node::ValueKind;
use vellum_base::{PageId, PageKind};

/// The bytes of a record are cut off or have no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record of a change is malformed, {left} bytes before its end")]
pub struct RecordFault {
    /// How many bytes were left from the malformed change on.
    pub left: usize,
}

/// The record of an atomic change.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRecord<'a> {
    /// The root of the tree that was changed.
    pub tree: PageId,
    rest: &'a [u8],
}

impl<'a> ChangeRecord<'a> {
    /// Takes bytes for a record.
    ///
    /// # Errors
    /// If there are too few bytes. All other faults show when the changes are read.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let mut reader = Reader { rest: bytes };
        let tree = reader.page().ok_or(RecordFault { left: bytes.len() })?;
        Ok(Self { tree, rest: reader.rest })
    }

    /// The changes, each with its page, up to the first fault.
    pub fn changes(self) -> impl Iterator<Item = Result<(PageId, PageChange<'a>), RecordFault>> {
        let mut reader = Reader { rest: self.rest };
        std::iter::from_fn(move || {
            let left = reader.rest.len();
            let change = (left > 0).then(|| reader.change().ok_or(RecordFault { left }));
            if matches!(change, Some(Err(_))) {
                reader.rest = &[];
            }
            change
        })
    }
}

mod tag {
    pub const INSERT: u8 = 1;
    pub const REPLACE: u8 = 2;
    pub const REMOVE: u8 = 3;
    pub const PATCH: u8 = 4;
    pub const INSERT_SEPARATOR: u8 = 5;
    pub const REMOVE_SEPARATOR: u8 = 6;
    pub const END_AT: u8 = 7;
    pub const SPLIT_OFF: u8 = 8;
    pub const ABSORB: u8 = 9;
    pub const RAISE_ROOT: u8 = 10;
    pub const REPLACE_ROOT: u8 = 11;
    pub const FORMAT: u8 = 12;
    pub const WRITE: u8 = 13;
    pub const FREE: u8 = 14;
}

impl PageChange<'_> {
    /// Appends the change of a page to a record.
    pub(super) fn encode(&self, page: PageId, record: &mut Vec<u8>) {
        let mut writer = Writer { record };
        writer.page(page);
        match *self {
            Self::Insert { key, value } => writer.tag(tag::INSERT).bytes(key).value(value),
            Self::Replace { key, value, before } => {
                writer.tag(tag::REPLACE).bytes(key).value(value).value(before)
            }
            Self::Remove { key, before } => writer.tag(tag::REMOVE).bytes(key).value(before),
            Self::Patch { key, offset, bytes, before } => {
                writer.tag(tag::PATCH).bytes(key).put(&offset.to_le_bytes()).bytes(bytes).bytes(before)
            }
            Self::InsertSeparator { separator, right } => {
                writer.tag(tag::INSERT_SEPARATOR).bytes(separator).page(right)
            }
            Self::RemoveSeparator { separator } => writer.tag(tag::REMOVE_SEPARATOR).bytes(separator),
            Self::EndAt { separator } => writer.tag(tag::END_AT).bytes(separator),
            Self::SplitOff { separator } => writer.tag(tag::SPLIT_OFF).bytes(separator),
            Self::Absorb { separator, right } => writer.tag(tag::ABSORB).bytes(separator).image(right),
            Self::RaiseRoot { left, separator, right } => {
                writer.tag(tag::RAISE_ROOT).page(left).bytes(separator).page(right)
            }
            Self::ReplaceRoot { image } => writer.tag(tag::REPLACE_ROOT).image(image),
            Self::Format { image } => writer.tag(tag::FORMAT).image(image),
            Self::Write { kind, pages, digest } => {
                let writer = writer.tag(tag::WRITE).put(&[kind.0]).put(&pages.to_le_bytes());
                writer.put(&digest.to_le_bytes())
            }
            Self::Free { pages } => writer.tag(tag::FREE).put(&pages.to_le_bytes()),
        };
    }
}

struct Writer<'r> {
    record: &'r mut Vec<u8>,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.record.extend_from_slice(bytes);
        self
    }

    fn tag(&mut self, tag: u8) -> &mut Self {
        self.put(&[tag])
    }

    fn page(&mut self, page: PageId) -> &mut Self {
        self.put(&page.0.to_le_bytes())
    }

    /// Bytes of one page, so that their length fits into 16 bits.
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.put(&(bytes.len() as u16).to_le_bytes()).put(bytes)
    }

    fn value(&mut self, value: ValueImage<'_>) -> &mut Self {
        self.put(&[u8::from(value.kind == ValueKind::Blob)]).bytes(value.bytes)
    }

    fn image(&mut self, image: NodeImage<'_>) -> &mut Self {
        self.bytes(image.front).bytes(image.heap)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn change(&mut self) -> Option<(PageId, PageChange<'a>)> {
        let page = self.page()?;
        let [tag] = self.array()?;
        let change = match tag {
            tag::INSERT => PageChange::Insert { key: self.bytes()?, value: self.value()? },
            tag::REPLACE => {
                PageChange::Replace { key: self.bytes()?, value: self.value()?, before: self.value()? }
            }
            tag::REMOVE => PageChange::Remove { key: self.bytes()?, before: self.value()? },
            tag::PATCH => PageChange::Patch {
                key: self.bytes()?,
                offset: u16::from_le_bytes(self.array()?),
                bytes: self.bytes()?,
                before: self.bytes()?,
            },
            tag::INSERT_SEPARATOR => {
                PageChange::InsertSeparator { separator: self.bytes()?, right: self.page()? }
            }
            tag::REMOVE_SEPARATOR => PageChange::RemoveSeparator { separator: self.bytes()? },
            tag::END_AT => PageChange::EndAt { separator: self.bytes()? },
            tag::SPLIT_OFF => PageChange::SplitOff { separator: self.bytes()? },
            tag::ABSORB => PageChange::Absorb { separator: self.bytes()?, right: self.image()? },
            tag::RAISE_ROOT => {
                PageChange::RaiseRoot { left: self.page()?, separator: self.bytes()?, right: self.page()? }
            }
            tag::REPLACE_ROOT => PageChange::ReplaceRoot { image: self.image()? },
            tag::FORMAT => PageChange::Format { image: self.image()? },
            tag::WRITE => PageChange::Write {
                kind: PageKind(self.array::<1>()?[0]),
                pages: u32::from_le_bytes(self.array()?),
                digest: u64::from_le_bytes(self.array()?),
            },
            tag::FREE => PageChange::Free { pages: u32::from_le_bytes(self.array()?) },
            _ => return None,
        };
        Some((page, change))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn page(&mut self) -> Option<PageId> {
        self.array().map(|bytes| PageId(u64::from_le_bytes(bytes)))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_le_bytes(self.array()?);
        self.take(length as usize)
    }

    fn value(&mut self) -> Option<ValueImage<'a>> {
        let kind = match self.array()? {
            [0] => ValueKind::Inline,
            [1] => ValueKind::Blob,
            _ => return None,
        };
        Some(ValueImage { kind, bytes: self.bytes()? })
    }

    fn image(&mut self) -> Option<NodeImage<'a>> {
        Some(NodeImage { front: self.bytes()?, heap: self.bytes()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gateway::redo,
        node::{NODE_BYTES, NodeMut},
    };
    use vellum_base::Lsn;

    /// A change of the kind `tag`, made of some bytes.
    fn change(tag: u8, bytes: &[u8], number: u64) -> Option<PageChange<'_>> {
        let (first, second) = bytes.split_at(number as usize % (bytes.len() + 1));
        let kind = if number.is_multiple_of(2) { ValueKind::Inline } else { ValueKind::Blob };
        let value = |bytes| ValueImage { kind, bytes };
        let image = NodeImage { front: first, heap: second };
        Some(match tag {
            tag::INSERT => PageChange::Insert { key: first, value: value(second) },
            tag::REPLACE => PageChange::Replace { key: first, value: value(second), before: value(first) },
            tag::REMOVE => PageChange::Remove { key: first, before: value(second) },
            tag::PATCH => {
                PageChange::Patch { key: first, offset: number as u16, bytes: second, before: second }
            }
            tag::INSERT_SEPARATOR => PageChange::InsertSeparator { separator: first, right: PageId(number) },
            tag::REMOVE_SEPARATOR => PageChange::RemoveSeparator { separator: bytes },
            tag::END_AT => PageChange::EndAt { separator: bytes },
            tag::SPLIT_OFF => PageChange::SplitOff { separator: bytes },
            tag::ABSORB => PageChange::Absorb { separator: first, right: image },
            tag::RAISE_ROOT => {
                PageChange::RaiseRoot { left: PageId(number), separator: bytes, right: PageId(!number) }
            }
            tag::REPLACE_ROOT => PageChange::ReplaceRoot { image },
            tag::FORMAT => PageChange::Format { image },
            tag::WRITE => {
                PageChange::Write { kind: PageKind(number as u8), pages: number as u32, digest: !number }
            }
            tag::FREE => PageChange::Free { pages: number as u32 },
            _ => return None,
        })
    }

    fn decoded(record: &[u8]) -> Result<Vec<(PageId, PageChange<'_>)>, RecordFault> {
        ChangeRecord::decode(record)?.changes().collect()
    }

    #[test]
    fn changes_come_back_as_they_were() {
        bolero::check!().with_type::<Vec<(u8, Vec<u8>, u64)>>().for_each(|parts| {
            let parts = parts.iter().map(|(tag, bytes, number)| {
                (PageId(number.rotate_left(7)), change(tag % 14 + 1, bytes, *number).unwrap())
            });
            let changes: Vec<_> = parts.collect();
            let mut record = PageId(77).0.to_le_bytes().to_vec();
            changes.iter().for_each(|(page, change)| change.encode(*page, &mut record));
            assert_eq!(ChangeRecord::decode(&record).unwrap().tree, PageId(77));
            assert_eq!(decoded(&record).unwrap(), changes);
            // A record that is cut off is noticed, unless the cut is between two changes.
            for length in 0..record.len().min(500) {
                if let Ok(fewer) = decoded(&record[..length]) {
                    assert_eq!(fewer, changes[..fewer.len()]);
                }
            }
        });
    }

    #[test]
    fn every_kind_of_change_has_a_tag_of_its_own() {
        for tag in 0..=u8::MAX {
            let Some(change) = change(tag, b"some bytes", 5) else { continue };
            let mut record = vec![0; 8];
            change.encode(PageId(1), &mut record);
            assert_eq!(record[16], tag);
        }
    }

    fn pages() -> [Vec<u8>; 3] {
        let mut leaf = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut leaf, 0, Some(b"a"), Some(b"x"), PageId(0)).unwrap();
        for number in 0..100u8 {
            node.insert(&[b'b', number], &[number; 20], ValueKind::Inline).unwrap();
        }
        let mut inner = vec![0; NODE_BYTES];
        let mut node = NodeMut::init(&mut inner, 1, None, None, PageId(9)).unwrap();
        for number in 0..100u8 {
            node.insert_separator(&[b'b', number], PageId(number as u64)).unwrap();
        }
        [leaf, inner, vec![0x5a; NODE_BYTES]]
    }

    /// A change that cannot be redone leaves the page as it is, whatever the bytes are.
    fn survives(record: &[u8]) {
        let Ok(record) = ChangeRecord::decode(record) else { return };
        for (page, change) in record.changes().map_while(Result::ok) {
            for before in pages() {
                let mut bytes = before.clone();
                if redo(&mut bytes, page, Lsn(u64::MAX), &change) != Ok(true) {
                    assert_eq!(bytes, before, "{change:?}");
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        bolero::check!().for_each(survives);
    }

    #[test]
    fn changes_of_any_bytes_are_survived() {
        bolero::check!().with_type::<(u8, Vec<u8>, u64)>().for_each(|(tag, bytes, number)| {
            let mut record = vec![0; 8];
            change(tag % 14 + 1, bytes, *number).unwrap().encode(PageId(3), &mut record);
            survives(&record);
        });
    }
}
