//! The encoding of the record of an atomic change: see *Records of changes* in FILE_FORMAT.md.
//!
//! Little-endian. The first byte is the [kind](RecordKind) of the record. For a record of a group or of a transaction
//! the number of the group or transaction follows in 8 bytes. Then comes, in 8 bytes, the LSN of the undone change if
//! the record undoes one, or the number of the group if it ends a group of a transaction. Then comes the root of the
//! tree in 8 bytes, and for each change the id of its page in 8 bytes, the kind of change in 1, and the fields of the
//! change in the order in which [`PageChange`] has them. A run of bytes is preceded by its length in 2 bytes. Before
//! the length of a value comes a byte that is 1 for a reference to a large value. Page ids and digests have 8 bytes,
//! counts of pages 4, offsets 2, kinds of page 1.

use super::page_change::{NodeImage, PageChange, ValueImage};
use crate::node::ValueKind;
use vellum_base::{Lsn, PageId, PageKind};

/// The bytes of a record are truncated or meaningless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record of a change is malformed, {left} bytes before its end")]
pub struct RecordFault {
    /// How many bytes were left from the malformed change on.
    pub left: usize,
}

/// The most bytes that precede the root of the tree.
pub(super) const HEAD_BYTES_MAX: usize = 17;

/// When a record counts. It is redone in any case, unless it is one of a group that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// By itself.
    Single,
    /// It belongs to the group of this number, and counts if the last record of the group is in the log.
    Member(u64),
    /// It is the last record of the group of this number.
    Last(u64),
    /// It belongs to the transaction of this number, and is undone unless that is committed.
    Transaction(u64),
    /// It is the last record of a group that fills a tree for a transaction. It is not undone: no other transaction
    /// sees the tree unless the transaction is committed.
    Loaded {
        /// The number of the transaction.
        transaction: u64,
        /// The number of the group.
        group: u64,
    },
    /// It undoes the change of a transaction that was recorded at `of`.
    Undo {
        /// The number of the transaction.
        transaction: u64,
        /// The LSN of what is undone.
        of: Lsn,
    },
}

impl RecordKind {
    /// The bytes before the root of the tree: they end at the end of the array, and begin at the returned index.
    pub(super) fn head(self) -> (usize, [u8; HEAD_BYTES_MAX]) {
        let mut head = [0; HEAD_BYTES_MAX];
        let (start, tag, last) = match self {
            Self::Single => (16, 1, 0),
            Self::Member(group) => (8, 2, group),
            Self::Last(group) => (8, 3, group),
            Self::Transaction(transaction) => (8, 4, transaction),
            Self::Undo { of, .. } => (0, 5, of.0),
            Self::Loaded { group, .. } => (0, 6, group),
        };
        if let Self::Undo { transaction, .. } | Self::Loaded { transaction, .. } = self
            && let Some(place) = head.get_mut(1..).and_then(<[u8]>::first_chunk_mut)
        {
            *place = transaction.to_le_bytes();
        }
        if let Some(place) = head.last_chunk_mut() {
            *place = u64::to_le_bytes(last);
        }
        if let Some(first) = head.get_mut(start) {
            *first = tag;
        }
        (start, head)
    }

    /// Takes the bytes before the root of the tree off a record.
    #[inline]
    pub(super) fn decode(rest: &mut &[u8]) -> Option<Self> {
        match u8::decode(rest)? {
            1 => Some(Self::Single),
            2 => u64::decode(rest).map(Self::Member),
            3 => u64::decode(rest).map(Self::Last),
            4 => u64::decode(rest).map(Self::Transaction),
            5 => Some(Self::Undo { transaction: u64::decode(rest)?, of: Lsn(u64::decode(rest)?) }),
            6 => Some(Self::Loaded { transaction: u64::decode(rest)?, group: u64::decode(rest)? }),
            _ => None,
        }
    }
}

/// Encodes and decodes the kinds of change, each given with its tag and its fields in order.
macro_rules! encoding {
    ($($tag:literal $kind:ident { $($field:ident),* })*) => {
        impl<'a> PageChange<'a> {
            /// Appends the change of a page to a record.
            pub(super) fn encode(&self, page: PageId, record: &mut Vec<u8>) {
                page.encode(record);
                match *self {
                    $(Self::$kind { $($field),* } => {
                        record.push($tag);
                        $($field.encode(record);)*
                    })*
                }
            }

            /// Takes the change of a page off a record.
            // Inlined where a caller looks at little of the change: the rest is only skipped then.
            #[inline(always)]
            pub(super) fn decode(rest: &mut &'a [u8]) -> Option<(PageId, Self)> {
                let page = PageId::decode(rest)?;
                let change = match u8::decode(rest)? {
                    $($tag => Self::$kind { $($field: Field::decode(rest)?),* },)*
                    _ => return None,
                };
                Some((page, change))
            }
        }
    };
}

encoding! {
    1 Insert { key, value }
    2 Replace { key, value, before }
    3 Remove { key, before }
    4 Patch { key, offset, bytes, before }
    5 InsertSeparator { separator, right }
    6 RemoveSeparator { separator }
    7 EndAt { separator }
    8 SplitOff { separator }
    9 Absorb { separator, right }
    10 RaiseRoot { left, separator, right }
    11 ReplaceRoot { image }
    12 Format { image }
    13 Write { kind, pages, digest }
    14 Free { pages }
    15 Image { image }
    16 Nodes { count }
    17 Redirect { from, to }
    18 Overwrite { edits }
    19 FormatObjects { contents }
    20 ObjectsImage { contents }
    21 Rearrange { image }
}

/// A part of a record.
pub(super) trait Field<'a>: Sized {
    /// Appends the field to a record.
    fn encode(self, record: &mut Vec<u8>);
    /// Takes the field off a record; `None` if it is truncated or meaningless.
    fn decode(rest: &mut &'a [u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Field<'_> for $number {
            fn encode(self, record: &mut Vec<u8>) {
                record.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn decode(rest: &mut &[u8]) -> Option<Self> {
                let bytes = rest.split_off(..size_of::<Self>())?;
                bytes.first_chunk().map(|bytes| Self::from_le_bytes(*bytes))
            }
        })*
    };
}

numbers! { u8 u16 u32 u64 }

/// Fields that consist of others, in this order.
macro_rules! composed {
    ($($field:ty { $($part:tt),* })*) => {
        $(impl<'a> Field<'a> for $field {
            fn encode(self, record: &mut Vec<u8>) {
                $(self.$part.encode(record);)*
            }

            #[inline]
            fn decode(rest: &mut &'a [u8]) -> Option<Self> {
                Some(Self { $($part: Field::decode(rest)?),* })
            }
        })*
    };
}

composed! {
    PageId { 0 }
    PageKind { 0 }
    ValueImage<'a> { kind, bytes }
    NodeImage<'a> { front, heap }
}

impl<'a> Field<'a> for &'a [u8] {
    /// The bytes are those of one page, so their length fits into 16 bits.
    fn encode(self, record: &mut Vec<u8>) {
        (self.len() as u16).encode(record);
        record.extend_from_slice(self);
    }

    #[inline]
    fn decode(rest: &mut &'a [u8]) -> Option<Self> {
        let length = u16::decode(rest)?;
        rest.split_off(..length as usize)
    }
}

impl Field<'_> for ValueKind {
    fn encode(self, record: &mut Vec<u8>) {
        record.push(u8::from(self == Self::Blob));
    }

    #[inline]
    fn decode(rest: &mut &[u8]) -> Option<Self> {
        match u8::decode(rest)? {
            0 => Some(Self::Inline),
            1 => Some(Self::Blob),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gateway::{ChangeRecord, redo},
        node::{NODE_BYTES, NodeMut},
    };
    use vellum_base::{Extent, Lsn, PageHeader};

    /// A change of the kind `tag`, made of some bytes.
    fn change(tag: u8, bytes: &[u8], number: u64) -> Option<PageChange<'_>> {
        let (first, second) = bytes.split_at(number as usize % (bytes.len() + 1));
        let kind = if number.is_multiple_of(2) { ValueKind::Inline } else { ValueKind::Blob };
        let value = |bytes| ValueImage { kind, bytes };
        let image = NodeImage { front: first, heap: second };
        Some(match tag {
            1 => PageChange::Insert { key: first, value: value(second) },
            2 => PageChange::Replace { key: first, value: value(second), before: value(first) },
            3 => PageChange::Remove { key: first, before: value(second) },
            4 => PageChange::Patch { key: first, offset: number as u16, bytes: second, before: second },
            5 => PageChange::InsertSeparator { separator: first, right: PageId(number) },
            6 => PageChange::RemoveSeparator { separator: bytes },
            7 => PageChange::EndAt { separator: bytes },
            8 => PageChange::SplitOff { separator: bytes },
            9 => PageChange::Absorb { separator: first, right: image },
            10 => PageChange::RaiseRoot { left: PageId(number), separator: bytes, right: PageId(!number) },
            11 => PageChange::ReplaceRoot { image },
            12 => PageChange::Format { image },
            13 => PageChange::Write { kind: PageKind(number as u8), pages: number as u32, digest: !number },
            14 => PageChange::Free { pages: number as u32 },
            15 => PageChange::Image { image },
            16 => PageChange::Nodes { count: number as u32 },
            17 => PageChange::Redirect { from: PageId(number % 100), to: PageId(!number) },
            18 => PageChange::Overwrite { edits: bytes },
            19 => PageChange::FormatObjects { contents: bytes },
            20 => PageChange::ObjectsImage { contents: bytes },
            21 => PageChange::Rearrange { image },
            _ => return None,
        })
    }

    const KINDS: [RecordKind; 6] = [
        RecordKind::Single,
        RecordKind::Member(7),
        RecordKind::Last(u64::MAX - 1),
        RecordKind::Transaction(1 << 40),
        RecordKind::Undo { transaction: 0, of: Lsn(77) },
        RecordKind::Loaded { transaction: 1 << 50, group: 3 },
    ];

    /// The beginning of a record.
    fn record(kind: RecordKind) -> Vec<u8> {
        let (start, head) = kind.head();
        let mut record = head[start..].to_vec();
        record.extend_from_slice(&77u64.to_le_bytes());
        record
    }

    fn decoded(record: &[u8]) -> Result<Vec<(PageId, PageChange<'_>)>, RecordFault> {
        ChangeRecord::decode(record)?.changes().collect()
    }

    #[test]
    fn changes_come_back_as_they_were() {
        bolero::check!().with_type::<Vec<(u8, Vec<u8>, u64)>>().for_each(|parts| {
            let parts = parts.iter().map(|(tag, bytes, number)| {
                (PageId(number.rotate_left(7)), change(tag % 21 + 1, bytes, *number).unwrap())
            });
            let changes: Vec<_> = parts.collect();
            let kind = KINDS[changes.len() % 6];
            let mut record = record(kind);
            changes.iter().for_each(|(page, change)| change.encode(*page, &mut record));
            let whole = ChangeRecord::decode(&record).unwrap();
            assert_eq!((whole.tree, whole.kind), (PageId(77), kind));
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
            let mut record = record(RecordKind::Single);
            change.encode(PageId(1), &mut record);
            assert_eq!(record[17], tag);
        }
    }

    fn pages() -> [Vec<u8>; 4] {
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
        let mut objects = vec![0; NODE_BYTES];
        PageHeader { extent: Extent::page(PageId(3)), lsn: Lsn(0), kind: PageKind::OBJECTS }
            .write(&mut objects);
        [leaf, inner, vec![0x5a; NODE_BYTES], objects]
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
            let mut record = record(RecordKind::Single);
            let all: Vec<_> = (1..).map_while(|tag| change(tag, bytes, *number)).collect();
            all[usize::from(*tag) % all.len()].encode(PageId(3), &mut record);
            survives(&record);
        });
    }
}
