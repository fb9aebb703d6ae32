//! What an open transaction has changed, and what is needed to undo its changes.

use crate::{
    before::{Before, BeforeImage},
    exposure::Exposure,
    leftovers::{Large, Leftovers},
    lock_order::{OrderedGuard, OrderedMutex, rank},
    spill::SpillFile,
    undo_buffer::{Undo, UndoBuffer},
    undo_list::UndoList,
    writer::Writer,
};
use std::sync::Arc;
use vellum_access::BlobReference;
use vellum_base::Lsn;
use vellum_pool::PoolError;

/// What a transaction has changed; private while the transaction is alone: see [`transactions`](crate::transactions).
pub(crate) struct WriteSet {
    writer: Arc<Writer>,
    state: OrderedMutex<State, { rank::WRITES }>,
}

impl WriteSet {
    /// The empty write set of the transaction with this number.
    pub fn new(id: u64) -> Self {
        Self { writer: Arc::new(Writer::new(id)), state: OrderedMutex::default() }
    }

    /// The number of the transaction.
    pub fn id(&self) -> u64 {
        self.writer.id
    }

    /// The transaction, as versions refer to it.
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Locks it, for the thread that has the transaction.
    pub fn lock(&self) -> OrderedGuard<'_, State> {
        self.state.lock_as(|state| match state.exposure {
            Exposure::Searched(_) => rank::WRITES,
            Exposure::Private | Exposure::Entered => rank::OWN_WRITES,
        })
    }

    /// Locks it, for a thread that looks at what the transaction has changed.
    pub fn lock_of_other(&self) -> OrderedGuard<'_, State> {
        self.state.lock()
    }
}

/// What is known of the last claim in a write set.
#[derive(Clone, Copy)]
struct Claim {
    is_first: bool,
}

#[derive(Default)]
pub(crate) struct State {
    /// Its number in the log, and the place before its first record, once it has begun to change something.
    pub number: Option<(u64, Lsn)>,
    /// Whether the log has a record of it.
    pub is_logged: bool,
    /// Where others find its changes.
    pub exposure: Exposure,
    /// The oldest changes to be undone, in order, for which memory had no room. Those in memory come after them.
    pub spilled: Option<UndoList>,
    /// The changes in memory. If there is a `claim`, the last one has only been claimed: it has no LSN yet.
    pub undo: UndoBuffer,
    claim: Option<Claim>,
    /// Records that were claimed and have no change to be undone; with their values until they are entered. If one is
    /// there several times, the last entry has the oldest value: changes are undone from the last to the first.
    touched: Vec<Before>,
    /// The large values that the changes in the file replaced, each with the number of its change.
    spilled_large: Vec<(u64, Large)>,
    /// How many bytes of keys and values the changes in the file have.
    spilled_bytes: u64,
    /// About how many bytes of memory all this takes.
    pub bytes: usize,
    pub undo_room: UndoRoom,
}

/// How much room is needed to undo a transaction: of log, and of pages.
#[derive(Default)]
pub(crate) struct UndoRoom {
    /// About how many bytes of log.
    pub needed: u64,
    /// How many bytes of that the log keeps for the transaction.
    pub kept: u64,
    /// How many pages the file keeps for it.
    pub pages: u64,
    /// How many bytes its changes have taken out of leaves beyond those for which a page is counted.
    freed_bytes: u64,
    /// The LSN that its last change has left in its leaf.
    last: Lsn,
    /// The LSN of the leaf that is about to be changed, and by how many bytes its contents grow.
    leaf: Lsn,
    growth: i64,
}

impl UndoRoom {
    /// Notes that a leaf with this LSN is about to be changed, and by how many bytes its contents grow.
    #[inline]
    pub fn note_leaf(&mut self, leaf: Lsn, growth: i64) {
        (self.leaf, self.growth) = (leaf, growth);
    }

    /// Notes that the leaf has been changed, by the record at `lsn` of a log that ends at `end`. To undo this takes
    /// about as much log, and an image of the leaf if a checkpoint comes in between. Returns how many more pages the
    /// file is to keep.
    #[inline]
    fn note_change(&mut self, lsn: Lsn, end: Lsn) -> u64 {
        /// A page and what is around it.
        const IMAGE_BYTES: u64 = 4096 + 128;
        let is_other = self.leaf != self.last;
        self.needed += end.0.saturating_sub(lsn.0) + if is_other { IMAGE_BYTES } else { 0 };
        self.last = lsn;
        if self.growth < 0 { self.count_pages(is_other) } else { 0 }
    }

    /// The pages that may be needed to put back what a change has taken out of a leaf, if others use the room: two if
    /// the leaf is split and then its parent, and one for each half of a page that is put back, because a leaf that is
    /// split has its halves.
    fn count_pages(&mut self, is_other: bool) -> u64 {
        const HALF: u64 = vellum_base::PAGE_SIZE as u64 / 2;
        self.freed_bytes += self.growth.unsigned_abs();
        let more = if is_other { 2 } else { 0 } + self.freed_bytes / HALF;
        self.freed_bytes %= HALF;
        self.pages += more;
        more
    }

    /// Notes that one of this many changes has been undone, for which the file has kept so many pages.
    pub fn note_undone(&mut self, changes: u64, pages: u8) {
        self.needed -= self.needed / changes.max(1);
        self.pages -= u64::from(pages);
    }

    /// The bytes that the log keeps, and the pages that the file keeps.
    pub fn held(&self) -> (u64, u64) {
        (self.kept, self.pages)
    }

    /// The bytes that the log is to keep from now on, and those that it need no longer keep, if they differ by much.
    #[inline]
    pub fn adjust(&mut self) -> Option<(u64, u64)> {
        let needed = self.needed;
        self.is_to_be_adjusted().then(|| (needed, std::mem::replace(&mut self.kept, needed)))
    }

    /// Whether the two differ by much.
    #[inline]
    pub fn is_to_be_adjusted(&self) -> bool {
        /// The room that small transactions need is there anyway.
        const MORE: u64 = 64 << 10;
        const FEWER: u64 = 1 << 20;
        self.needed > self.kept + MORE || self.kept > self.needed + FEWER
    }
}

impl State {
    /// How many changes can be undone.
    pub fn changes(&self) -> u64 {
        let in_memory = self.undo.len() - usize::from(self.claim.is_some());
        self.spilled.as_ref().map_or(0, UndoList::changes) + in_memory as u64
    }

    /// The record claimed last stays as it is, and stays claimed.
    pub fn keep_claim(&mut self) {
        if let Some((before, true)) = self.take_claim() {
            self.touch(before);
        }
    }

    /// Forgets the last claim, whose record is not changed. Returns the record, and whether it was the first claim of it.
    pub fn take_claim(&mut self) -> Option<(Before, bool)> {
        let Claim { is_first } = self.claim.take()?;
        let before = self.undo.last()?.before.copy();
        self.undo.pop();
        Some((before, is_first))
    }

    /// Enters the changes. `enter` is given each record and whether it was removed, or is claimed and absent, and says
    /// whether it had no version yet.
    pub fn enter(&mut self, mut enter: impl FnMut(BeforeImage<'_>, bool) -> bool) {
        self.exposure = Exposure::Entered;
        let Self { undo, touched, claim, .. } = self;
        let mut changed = undo.iter();
        let claimed = if claim.is_some() { changed.next_back() } else { None };
        // Others see a record as it was before its first change. One that was only claimed is as it was, or comes
        // later.
        for undo in changed {
            enter(undo.before, undo.is_removal);
        }
        for record in touched.iter().rev() {
            enter(record.image(), record.value().is_none());
        }
        if let (Some(claim), Some(claimed)) = (claim, claimed) {
            claim.is_first = enter(claimed.before, claimed.is_removal);
        }
    }

    /// Lets others search it in place: `note` is given the hash of each record, and whether it was removed, or is claimed
    /// and absent.
    pub fn show(&mut self, slot: usize, mut note: impl FnMut(u64, bool)) {
        self.exposure = Exposure::Searched(slot);
        self.undo.set_hashes();
        self.undo.iter().for_each(|undo| note(undo.before.hash(), undo.is_removal));
        for record in &mut self.touched {
            record.set_hash();
            note(record.hash(), record.value().is_none());
        }
    }

    /// The records that it has changed, and those that it has only claimed.
    pub fn records(&self) -> (&UndoBuffer, &[Before]) {
        (&self.undo, &self.touched)
    }

    /// Whether it is too large to be searched in place. All changes may take `bytes_each` bytes in memory.
    #[inline]
    pub fn is_large(&self, bytes_each: usize) -> bool {
        self.undo.len() + self.touched.len() >= SEARCHED_MAX || self.bytes > bytes_each / 4
    }

    /// Notes that a record is about to be changed, and whether this is its first claim by the writer. Its hash may be
    /// unknown if no thread searches.
    #[inline]
    pub fn claim(&mut self, before: BeforeImage<'_>, is_first: bool, is_removal: bool) {
        debug_assert!(self.claim.is_none(), "the last claim has come to nothing");
        // If it is not the first claim, the first one is a change that is undone later, or is in the list.
        self.undo.push(Undo { before, lsn: Lsn(0), is_touched: !is_first, is_removal, pages: 0 });
        self.claim = Some(Claim { is_first });
    }

    /// Notes that the claimed record has been changed by the record at `lsn` of the log, which ends at `end`. Returns how
    /// many more pages the file is to keep.
    pub fn note_change(&mut self, lsn: Lsn, end: Lsn) -> u64 {
        let pages = self.undo_room.note_change(lsn, end);
        self.is_logged = true;
        if self.claim.take().is_some()
            && let Some(changed) = self.undo.last()
        {
            self.bytes += UndoBuffer::CHANGE_BYTES + changed.before.bytes() as usize;
            // A change takes at most a page out of a leaf.
            self.undo.note_last(lsn, pages as u8);
        }
        pages
    }

    /// Notes that the last change has been undone. Its record stays claimed. Returns how many pages the file has kept
    /// for undoing it.
    pub fn note_undone(&mut self) -> u64 {
        let changes = self.changes();
        let Some(Undo { before, is_touched, pages, .. }) = self.undo.last() else { return 0 };
        let touched = (!is_touched).then(|| before.copy());
        self.undo.pop();
        self.undo_room.note_undone(changes, pages);
        touched.into_iter().for_each(|record| self.touch(record));
        pages.into()
    }

    /// Keeps a record claimed that has no change to be undone.
    pub fn touch(&mut self, record: Before) {
        let is_entered = self.exposure == Exposure::Entered;
        let record = if is_entered { record.without_value() } else { record };
        self.bytes += size_of::<Before>() + record.bytes() as usize;
        self.touched.push(record);
    }

    /// What stays after the commit; it is needed again if the commit is refused.
    pub fn leave(&mut self) -> Leftovers {
        debug_assert!(self.claim.is_none(), "what has only been claimed is no change");
        let spilled_large = self.spilled_large.iter().map(|(_, large)| large.copy());
        let large = self.undo.iter().filter_map(|undo| Large::of(undo.before)).chain(spilled_large).collect();
        let bytes = self.undo.iter().map(|undo| undo.before.stored_bytes()).sum::<u64>();
        let (changed, touched) = (std::mem::take(&mut self.undo), std::mem::take(&mut self.touched));
        Leftovers::new(
            (changed, touched, self.spilled.take()),
            large,
            bytes + self.spilled_bytes,
            self.exposure,
        )
    }

    /// The large values that it would put back if it were undone.
    pub fn replaced_large(&self) -> impl Iterator<Item = BlobReference> {
        let in_memory = self.undo.iter().filter_map(|undo| undo.before.large());
        in_memory.chain(self.spilled_large.iter().map(|(_, large)| large.reference))
    }

    pub fn take_back(&mut self, left: Leftovers) {
        (self.undo, self.touched, self.spilled) = left.into_taken();
    }

    /// Moves the changes to be undone to a file.
    #[cold]
    pub fn spill(&mut self, file: &SpillFile) -> Result<(), PoolError> {
        debug_assert!(self.claim.is_none(), "no leaf is latched");
        let list = match &mut self.spilled {
            Some(list) => list,
            spilled => spilled.insert(UndoList::create(file)?),
        };
        // If a later one fails, those that were written are not moved again.
        let mut moved = 0;
        let outcome = self.undo.iter().try_for_each(|Undo { before, lsn, .. }| {
            let number = list.changes();
            list.push(before, lsn)?;
            self.spilled_large.extend(Large::of(before).map(|large| (number, large)));
            self.spilled_bytes += before.stored_bytes();
            moved += 1;
            Ok::<_, PoolError>(())
        });
        self.undo.remove_first(moved);
        outcome?;
        while let Some(record) = self.touched.last() {
            list.push_record(record.image())?;
            self.touched.pop();
        }
        self.touched.shrink_to(FEW_CHANGES);
        self.bytes = 0;
        Ok(())
    }

    /// Brings back the last of the changes after `savepoint` that are in the file.
    #[cold]
    pub fn bring_back(&mut self, savepoint: Savepoint) -> Result<(), PoolError> {
        /// How many at a time.
        const MANY: u64 = 256;
        let Some(list) = &mut self.spilled else { return Ok(()) };
        let first = list.changes().saturating_sub(MANY).max(savepoint.0);
        for (before, lsn) in list.take_after(first)? {
            self.spilled_bytes -= before.stored_bytes();
            let before = before.image();
            self.undo.push(Undo { before, lsn, is_touched: true, is_removal: false, pages: 0 });
        }
        let large = self.spilled_large.partition_point(|(number, _)| *number < first);
        self.spilled_large.truncate(large);
        Ok(())
    }
}

/// A transaction with more changes is not searched in place.
const SEARCHED_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// How many changes most transactions have.
pub(crate) const FEW_CHANGES: usize = 16;

/// A place in a transaction to which it can be rolled back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Savepoint(pub(crate) u64);

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_base::PageId;

    #[test]
    fn a_record_that_is_changed_and_undone_again_and_again_is_noted_once() {
        let mut state = State { exposure: Exposure::Entered, ..State::default() };
        let mut change = |is_first| {
            state.claim(BeforeImage::new((PageId(7), b"key"), 0, None), is_first, false);
            state.note_change(Lsn(200), Lsn(210));
        };
        // The first change is undone last.
        change(true);
        change(false);
        state.note_undone();
        state.note_undone();
        assert_eq!((state.undo.len(), state.touched.len()), (0, 1));
        for _ in 0..100 {
            state.claim(BeforeImage::new((PageId(7), b"key"), 0, None), false, false);
            state.note_change(Lsn(200), Lsn(210));
            state.note_undone();
        }
        assert_eq!(state.touched.len(), 1);
    }
}
