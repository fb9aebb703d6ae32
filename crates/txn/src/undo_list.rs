//! The undo of a transaction for which memory has no room.

use crate::{
    before::{Before, BeforeImage},
    spill::{SpillFile, SpillTree, damaged, put_value, take_value},
};
use std::ops::{Bound, Range};
use vellum_access::{Direction, ValueImage};
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// The changes that a transaction would undo, and the records that it has changed.
pub(crate) struct UndoList {
    tree: SpillTree,
    /// The numbers of the changes that can be undone, in order.
    live: Vec<Range<u64>>,
    /// How many changes were entered. Those that were taken out stay, for their records.
    entries: u64,
    /// How many other records were entered.
    records: u64,
}

/// The first bytes of the keys of an undo list.
const CHANGE: u8 = 0;
const RECORD: u8 = 1;

impl UndoList {
    pub fn create(file: &SpillFile) -> Result<Self, PoolError> {
        Ok(Self { tree: SpillTree::create(file)?, live: Vec::new(), entries: 0, records: 0 })
    }

    /// How many changes it has.
    pub fn changes(&self) -> u64 {
        self.live.iter().map(|range| range.end - range.start).sum()
    }

    /// Appends a change whose log record is at `lsn`.
    pub fn push(&mut self, before: BeforeImage<'_>, lsn: Lsn) -> Result<(), PoolError> {
        let number = self.entries;
        self.tree.put(&numbered(CHANGE, number), &entry_of(before, lsn))?;
        self.entries += 1;
        match self.live.last_mut().filter(|last| last.end == number) {
            Some(last) => last.end += 1,
            None => self.live.push(number..number + 1),
        }
        Ok(())
    }

    /// Enters a record that was changed, but has no change to be undone.
    pub fn push_record(&mut self, record: BeforeImage<'_>) -> Result<(), PoolError> {
        self.tree.put(
            &numbered(RECORD, self.records),
            &entry_of(BeforeImage::new((record.tree, record.key()), 0, None), Lsn(0)),
        )?;
        self.records += 1;
        Ok(())
    }

    /// Takes out all changes but the first `count`; the latest comes last. Their records stay entered. Nothing is
    /// written, so undoing works even if the file cannot grow any more.
    pub fn take_after(&mut self, count: u64) -> Result<Vec<(Before, Lsn)>, PoolError> {
        let mut taken = Vec::new();
        let numbers = self.live.iter().cloned().flatten();
        for number in numbers.skip(usize::try_from(count).unwrap_or(usize::MAX)) {
            let entry = self.tree.get(&numbered(CHANGE, number))?;
            taken.push(entry.as_deref().and_then(decode_entry).ok_or_else(damaged)?);
        }
        let mut left = count;
        self.live.retain_mut(|range| {
            range.end = range.end.min(range.start + left);
            left -= range.end - range.start;
            !range.is_empty()
        });
        Ok(taken)
    }

    /// Shows all records that were changed or claimed, some of them several times, until `show` returns `None`.
    pub fn for_each_record(&self, show: impl FnMut(BeforeImage<'_>) -> Option<()>) -> Result<(), PoolError> {
        self.for_each([(CHANGE, 0..self.entries), (RECORD, 0..self.records)], show)
    }

    /// Shows the records that have a change which can be undone, some of them several times, until `show` returns
    /// `None`.
    pub fn for_each_changed(&self, show: impl FnMut(BeforeImage<'_>) -> Option<()>) -> Result<(), PoolError> {
        self.for_each(self.live.iter().map(|numbers| (CHANGE, numbers.clone())), show)
    }

    /// Shows the records of the entries with these numbers, until `show` returns `None`.
    fn for_each(
        &self,
        entries: impl IntoIterator<Item = (u8, Range<u64>)>,
        mut show: impl FnMut(BeforeImage<'_>) -> Option<()>,
    ) -> Result<(), PoolError> {
        let mut is_over = false;
        for (kind, numbers) in entries {
            let (lower, upper) = (numbered(kind, numbers.start), numbered(kind, numbers.end));
            let bounds = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
            self.tree.scan(bounds, Direction::Forward, |_, entry| {
                let (before, _) = decode_entry(entry).ok_or_else(damaged)?;
                is_over = show(before.image()).is_none();
                Ok(!is_over)
            })?;
            if is_over {
                break;
            }
        }
        Ok(())
    }
}

fn numbered(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

/// A change: its place in the log, the tree, the key with its length in two bytes, and the value before it.
fn entry_of(before: BeforeImage<'_>, lsn: Lsn) -> Vec<u8> {
    let mut entry = lsn.0.to_le_bytes().to_vec();
    entry.extend_from_slice(&before.tree.0.to_le_bytes());
    entry.extend_from_slice(&(before.key().len() as u16).to_le_bytes());
    entry.extend_from_slice(before.key());
    put_value(&mut entry, before.value());
    entry
}

fn decode_entry(entry: &[u8]) -> Option<(Before, Lsn)> {
    let (lsn, entry) = entry.split_first_chunk()?;
    let (tree, entry) = entry.split_first_chunk()?;
    let (length, entry) = entry.split_first_chunk()?;
    let (key, entry) = entry.split_at_checked(u16::from_le_bytes(*length).into())?;
    let (kind, bytes, _) = take_value(entry)?;
    let tree = PageId(u64::from_le_bytes(*tree));
    let value = kind.map(|kind| ValueImage { kind, bytes });
    Some((Before::of((tree, key), value), Lsn(u64::from_le_bytes(*lsn))))
}
