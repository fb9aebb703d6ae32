//! The undo buffer of a transaction: what it has changed, with the before-images, in one piece of memory.
//!
//! It is filled while leaves are latched, and given up as a whole. So a change costs no memory of its own, which would
//! have to be found and given back, mostly by another thread.

use crate::before::BeforeImage;
use vellum_access::{ValueImage, node::ValueKind};
use vellum_base::{Lsn, PageId};

/// What a transaction has changed, in order.
#[derive(Default)]
pub(crate) struct UndoBuffer {
    entries: Vec<Entry>,
    /// The keys and values, in the same order.
    bytes: Vec<u8>,
}

/// A change that may have to be undone.
#[derive(Clone, Copy)]
pub(crate) struct Undo<'u> {
    pub before: BeforeImage<'u>,
    /// The LSN of its log record; zero while the record has only been claimed.
    pub lsn: Lsn,
    /// Whether the record need not be noted as touched once this has been undone.
    pub is_touched: bool,
    /// Whether the change has removed the record.
    pub is_removal: bool,
    /// How many pages the file keeps for undoing it.
    pub pages: u8,
}

struct Entry {
    tree: PageId,
    /// Zero if it has not been computed.
    hash: u64,
    lsn: Lsn,
    /// Where its key begins; the value follows.
    from: usize,
    value_bytes: u32,
    key_bytes: u16,
    kind: Option<ValueKind>,
    is_touched: bool,
    is_removal: bool,
    pages: u8,
}

impl Entry {
    #[inline]
    fn shown<'u>(&self, bytes: &'u [u8]) -> Undo<'u> {
        let bytes = bytes.get(self.from..).unwrap_or_default();
        let (key, rest) = bytes.split_at_checked(self.key_bytes.into()).unwrap_or_default();
        let value = self.kind.map(|kind| ValueImage {
            kind,
            bytes: rest.get(..self.value_bytes as usize).unwrap_or_default(),
        });
        Undo {
            before: BeforeImage::new((self.tree, key), self.hash, value),
            lsn: self.lsn,
            is_touched: self.is_touched,
            is_removal: self.is_removal,
            pages: self.pages,
        }
    }
}

impl UndoBuffer {
    /// How many bytes of memory a change takes beside its key and value.
    pub const CHANGE_BYTES: usize = size_of::<Entry>();

    /// An empty one with room for so many changes of usual size.
    pub fn with_room_for(changes: usize) -> Self {
        /// Most keys and values together have fewer.
        const BYTES_EACH: usize = 256;
        Self { entries: Vec::with_capacity(changes), bytes: Vec::with_capacity(changes * BYTES_EACH) }
    }

    /// For how many changes there is room, and for how many bytes of keys and values.
    pub fn room(&self) -> (usize, usize) {
        (self.entries.capacity(), self.bytes.capacity())
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a change.
    #[inline]
    pub fn push(&mut self, Undo { before, lsn, is_touched, is_removal, pages }: Undo<'_>) {
        let (key, value) = (before.key(), before.value());
        let from = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.map_or(&[], |value| value.bytes));
        self.entries.push(Entry {
            tree: before.tree,
            hash: before.known_hash(),
            lsn,
            from,
            // A record fits into a page.
            value_bytes: value.map_or(0, |value| value.bytes.len() as u32),
            key_bytes: key.len() as u16,
            kind: value.map(|value| value.kind),
            is_touched,
            is_removal,
            pages,
        });
    }

    /// The changes, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Undo<'_>> + DoubleEndedIterator {
        self.entries.iter().map(|entry| entry.shown(&self.bytes))
    }

    /// The last change.
    pub fn last(&self) -> Option<Undo<'_>> {
        self.entries.last().map(|entry| entry.shown(&self.bytes))
    }

    /// The first change of a record.
    #[inline]
    pub fn find(&self, record: (PageId, &[u8]), hash: u64) -> Option<BeforeImage<'_>> {
        let may_be = self.entries.iter().filter(|entry| entry.hash == hash || entry.hash == 0);
        may_be.map(|entry| entry.shown(&self.bytes).before).find(|before| before.is_of(record, hash))
    }

    /// Notes where the log record of the last change is, and how many pages the file keeps for undoing it.
    #[inline]
    pub fn note_last(&mut self, lsn: Lsn, pages: u8) {
        if let Some(last) = self.entries.last_mut() {
            (last.lsn, last.pages) = (lsn, pages);
        }
    }

    /// Removes the last change.
    pub fn pop(&mut self) {
        if let Some(last) = self.entries.pop() {
            self.bytes.truncate(last.from);
        }
    }

    /// Computes the hashes that are not known.
    pub fn set_hashes(&mut self) {
        let Self { entries, bytes } = self;
        entries.iter_mut().for_each(|entry| entry.hash = entry.shown(bytes).before.hash());
    }

    /// Removes the first `count` changes, and gives up most of the room.
    pub fn remove_first(&mut self, count: usize) {
        self.entries.drain(..count.min(self.entries.len()));
        let from = self.entries.first().map_or(self.bytes.len(), |first| first.from);
        self.bytes.drain(..from);
        self.entries.iter_mut().for_each(|entry| entry.from -= from);
        self.entries.shrink_to(0);
        self.bytes.shrink_to(0);
    }

    /// Removes all changes. The room stays.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::hash_of;
    use std::collections::VecDeque;

    type Model = VecDeque<(u64, Vec<u8>, Option<Vec<u8>>, Lsn, u8)>;

    fn push(buffer: &mut UndoBuffer, model: &mut Model, number: u64) {
        let key = vec![number as u8; number as usize * 7 % 1024];
        let value = (!number.is_multiple_of(3)).then(|| vec![!(number as u8); number as usize * 13 % 3000]);
        let image = value.as_ref().map(|bytes| ValueImage { kind: ValueKind::Inline, bytes });
        let hash = if number.is_multiple_of(2) { hash_of(PageId(number), &key) } else { 0 };
        buffer.push(Undo {
            before: BeforeImage::new((PageId(number), &key), hash, image),
            lsn: Lsn(number),
            is_touched: number.is_multiple_of(5),
            is_removal: number.is_multiple_of(7),
            pages: 0,
        });
        model.push_back((number, key, value, Lsn(number), 0));
    }

    fn check(buffer: &UndoBuffer, model: &Model) {
        assert_eq!((buffer.len(), buffer.is_empty()), (model.len(), model.is_empty()));
        for (undo, (number, key, value, lsn, pages)) in buffer.iter().zip(model) {
            let before = undo.before;
            assert_eq!((before.tree, before.key()), (PageId(*number), &key[..]));
            assert_eq!(before.value().map(|value| value.bytes), value.as_deref());
            assert_eq!(before.hash(), hash_of(PageId(*number), key));
            assert_eq!((undo.lsn, undo.pages), (*lsn, *pages));
            assert_eq!((undo.is_touched, undo.is_removal), (number % 5 == 0, number % 7 == 0));
        }
        let number = model.back().map_or(1, |last| last.0);
        let key = &model.back().map_or_else(Vec::new, |last| last.1.clone());
        let found = buffer.find((PageId(number), key), hash_of(PageId(number), key));
        assert_eq!(found.map(|before| before.bytes()), buffer.last().map(|last| last.before.bytes()));
        assert!(buffer.find((PageId(0), key), hash_of(PageId(0), key)).is_none());
        assert_eq!(buffer.last().map(|undo| undo.before.tree.0), model.back().map(|last| last.0));
    }

    #[test]
    fn changes_are_what_they_were_wherever_others_are_removed() {
        let (mut buffer, mut model) = (UndoBuffer::default(), Model::new());
        for number in 1..2000 {
            push(&mut buffer, &mut model, number);
            match number % 11 {
                0 | 4 => {
                    buffer.pop();
                    model.pop_back();
                }
                5 => {
                    buffer.note_last(Lsn(7), 2);
                    let last = model.back_mut().unwrap();
                    (last.3, last.4) = (Lsn(7), 2);
                }
                6 => buffer.set_hashes(),
                _ if number % 97 == 0 => {
                    let count = model.len() * 2 / 3;
                    buffer.remove_first(count);
                    model.drain(..count);
                }
                _ => {}
            }
            check(&buffer, &model);
        }
        buffer.remove_first(usize::MAX);
        check(&buffer, &Model::new());
        assert_eq!(buffer.room(), (0, 0));
        buffer.pop();
        push(&mut buffer, &mut model, 3);
        buffer.clear();
        check(&buffer, &Model::new());
    }
}
