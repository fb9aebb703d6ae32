//! The undo buffers of a few transactions, which are searched where they are.
//!
//! What a transaction has changed is in its undo buffer anyway, with the values before. As long as few transactions are open, that is where
//! others look for earlier versions, and nothing is entered in the [table](crate::versions) (Neumann, Mühlbauer, Kemper: *Fast Serializable
//! Multi-Version Concurrency Control*, SIGMOD 2015, section 2.1). So a change costs the thread that makes it no more than two bits of a filter, and
//! what it writes stays in its processor's cache.
//!
//! Each of these transactions has a *slot*: a filter of the records that it has changed or claimed, and where these are. The slot
//! stays after the commit until every snapshot sees that. A transaction that comes when many are open, or that changes much, is
//! *entered* in the table, and all others with it: see [`Versions::enter_all`](crate::versions::Versions::enter_all).
//!
//! # Order
//! If a version of a record is in the table, or in the file, all older ones that a snapshot needs are, too. So those in undo
//! buffers are the newest. Who looks for versions searches the buffers first: what is not there any more was entered before.

use crate::{
    before::Before,
    exposure::Exposure,
    leftovers::{Leftovers, Undo},
    lock_order::{OrderedGuard, OrderedMutex, rank},
    plant::{Bug, planted},
    write_set::WriteSet,
    writer::State,
};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicU64, Ordering};

/// How many transactions are searched at most, those included that are committed and that not every snapshot sees.
const SLOTS: usize = 32;

/// The undo buffers that are searched.
#[derive(Default)]
pub(crate) struct UndoBuffers {
    slots: [Slot; SLOTS],
    masks: Masks,
}

/// Bits of slots.
// Who looks for versions reads them; they change when a transaction comes or goes.
#[repr(align(64))]
#[derive(Default)]
struct Masks {
    /// Those that have a transaction.
    used: AtomicU64,
    /// Those whose transaction has removed records.
    removals: AtomicU64,
}

#[derive(Default)]
struct Slot {
    filter: Filter,
    contents: OrderedMutex<Contents, { rank::SLOT }>,
}

/// A Bloom filter of records, of which each has its bits in one cache line (Putze, Sanders, Singler: *Cache-, Hash- and Space-Efficient Bloom
/// Filters*, 2007, section 3). With 30 records one in 1,000 others seems to be there, with 130 one in 60.
#[derive(Default)]
struct Filter([FilterLine; 4]);

#[repr(align(64))]
#[derive(Default)]
struct FilterLine([AtomicU64; 8]);

#[derive(Default)]
enum Contents {
    #[default]
    Free,
    /// A transaction that is open, or being committed.
    Open(Arc<WriteSet>),
    /// One that has been committed: its number, when, and what it has left behind.
    // Not its `Writer`: the thread that forgets it would free the memory of another thread, for which the allocator has a lock.
    Committed { id: u64, time: u64, left: Arc<Leftovers> },
}

impl Filter {
    /// The bits of a hash, each in its word.
    #[inline]
    fn bits(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        // The tables and their shards use the lowest and the highest bits, and the middle.
        let bits = hash >> 8;
        let line = self.0.get(bits as usize % 4);
        [bits >> 2, bits >> 11].into_iter().filter_map(move |bit| {
            let word = line?.0.get((bit >> 6) as usize % 8)?;
            Some((word, 1 << (bit % 64)))
        })
    }

    #[inline]
    fn add(&self, hash: u64) {
        for (word, bit) in self.bits(hash) {
            // Relaxed, and in two steps: the write set of the slot is locked, and its leaf latched, whose release shows it to others.
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        // Acquire: pairs with `clear`. Who finds the bit gone finds what was entered before.
        self.bits(hash).all(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn clear(&self) {
        self.0.iter().flat_map(|line| &line.0).for_each(|word| word.store(0, Ordering::Release));
    }
}

impl Slot {
    fn lock(&self) -> OrderedGuard<'_, Contents> {
        self.contents.lock()
    }

    /// Shows what there is in the slot of this number.
    #[cold]
    fn show(&self, number: usize, show: impl FnOnce(&Undone<'_>)) {
        loop {
            let contents = self.lock();
            let writes = match &*contents {
                Contents::Free => return,
                Contents::Committed { id, time, left } => {
                    let by = (*id, State::Committed(*time));
                    return show(&Undone { by, changed: &left.changed, touched: left.touched() });
                }
                Contents::Open(writes) => writes.clone(),
            };
            // The write set is locked before the slot.
            drop(contents);
            let state = writes.lock_of_other();
            if state.exposure == Exposure::Searched(number) {
                let (changed, touched) = state.records();
                let by = (writes.id(), writes.writer().state());
                return show(&Undone { by, changed, touched });
            }
            // It has been committed or entered meanwhile.
        }
    }
}

impl UndoBuffers {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    fn used(&self) -> u64 {
        // Acquire: pairs with `release`. Who finds a slot free finds what was entered before. That a slot is used shows the latch of a leaf.
        self.masks.used.load(Ordering::Acquire)
    }

    /// The slots of a mask, with their numbers.
    fn slots(&self, mask: u64) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(move |(number, _)| mask >> number & 1 == 1)
    }

    /// Gives a transaction a slot, if one is free. Its write set is locked, and has to know the slot before that ends.
    pub fn take(&self, writes: &Arc<WriteSet>) -> Option<usize> {
        loop {
            let number = self.used().trailing_ones() as usize;
            let slot = self.slots.get(number)?;
            let mut contents = slot.lock();
            // Acquire: what the one before had is gone.
            if self.masks.used.fetch_or(1 << number, Ordering::AcqRel) >> number & 1 == 0 {
                // Not by the thread that has made it free, which would fetch it from the one that has filled it.
                slot.filter.clear();
                *contents = Contents::Open(writes.clone());
                return Some(number);
            }
        }
    }

    /// Notes that the transaction of a slot is about to change a record. Its write set is locked.
    #[inline]
    pub fn note(&self, number: usize, hash: u64, is_removal: bool) {
        if let Some(slot) = self.slots.get(number)
            && !planted(Bug::BufferOverlooked)
        {
            slot.filter.add(hash);
        }
        if is_removal {
            // Relaxed: as for the filter.
            self.masks.removals.fetch_or(1 << number, Ordering::Relaxed);
        }
    }

    /// The transaction of a slot, of this number, has been committed at this time, and has left this behind. Its write set is locked.
    pub fn commit(&self, number: usize, (id, time): (u64, u64), left: Arc<Leftovers>) {
        if let Some(slot) = self.slots.get(number) {
            *slot.lock() = Contents::Committed { id, time, left };
        }
    }

    /// The write sets of those that are open.
    pub fn open(&self) -> SmallVec<[Arc<WriteSet>; 4]> {
        let contents = self.slots(self.used()).map(|(_, slot)| slot.lock());
        let open = |contents: OrderedGuard<'_, Contents>| match &*contents {
            Contents::Open(writes) => Some(writes.clone()),
            _ => None,
        };
        contents.filter_map(open).collect()
    }

    /// Has all entered that were committed up to this time, in the order of their commits: `enter` is given the number of each, when it was committed, and what it has left behind. Their slots are free after that.
    pub fn enter_committed(&self, now: u64, mut enter: impl FnMut(u64, u64, &Leftovers)) {
        let mut committed: SmallVec<[(u64, usize); SLOTS]> = SmallVec::new();
        for (number, slot) in self.slots(self.used()) {
            if let Contents::Committed { time, .. } = &*slot.lock()
                && *time <= now
            {
                committed.push((*time, number));
            }
        }
        committed.sort_unstable();
        for (time, number) in committed {
            self.give_up(number, time, &mut enter);
        }
    }

    /// Every snapshot sees the commit of this time, whose transaction had a slot.
    pub fn forget(&self, number: usize, time: u64) {
        self.give_up(number, time, |_, _, _| ());
    }

    /// Makes the slot of a committed transaction free, if it has that still: another one may have entered it.
    fn give_up(&self, number: usize, time: u64, enter: impl FnOnce(u64, u64, &Leftovers)) {
        if let Some(slot) = self.slots.get(number) {
            let mut contents = slot.lock();
            if let Contents::Committed { id, time: of, left } = &*contents
                && *of == time
            {
                enter(*id, time, left);
                self.release(number, &mut contents);
            }
        }
    }

    /// What the open transaction of a slot has is in the table. Its write set is locked.
    pub fn leave(&self, number: usize) {
        if let Some(slot) = self.slots.get(number) {
            self.release(number, &mut slot.lock());
        }
    }

    /// Makes a slot free. What is needed of its transaction has been entered.
    fn release(&self, number: usize, contents: &mut Contents) {
        *contents = Contents::Free;
        // Release: pairs with `has_removals`. What was removed is kept by the table.
        self.masks.removals.fetch_and(!(1 << number), Ordering::Release);
        // Release: pairs with `used`. Acquire: what is cleared above is so before the next transaction takes the slot.
        self.masks.used.fetch_and(!(1 << number), Ordering::AcqRel);
    }

    /// Shows the versions of a record, at most one of each transaction: whose it is, how that stands, and what it has changed.
    #[inline]
    pub fn search(&self, record: (PageId, &[u8]), hash: u64, mut show: impl FnMut(u64, State, &Before)) {
        let mut used = self.used();
        while used != 0 {
            let number = used.trailing_zeros() as usize;
            used &= used - 1;
            if let Some(slot) = self.slots.get(number).filter(|slot| slot.filter.may_have(hash)) {
                slot.show(number, |undone| {
                    let mut versions = undone.records();
                    if let Some(before) = versions.find(|before| before.is_of(record, hash)) {
                        show(undone.by.0, undone.by.1, before);
                    }
                });
            }
        }
    }

    /// Shows the keys of a tree whose records have been removed.
    pub fn for_each_removed(&self, tree: PageId, mut show: impl FnMut(&[u8])) {
        for (number, slot) in self.slots(self.masks.removals.load(Ordering::Acquire)) {
            slot.show(number, |undone| {
                let removed =
                    undone.changed.iter().filter(|undo| undo.is_removal && undo.before.tree == tree);
                removed.for_each(|undo| show(undo.before.key()));
            });
        }
    }

    /// Whether a transaction has removed records.
    pub fn has_removals(&self) -> bool {
        // Acquire: what the slots say is not older.
        self.masks.removals.load(Ordering::Acquire) != 0
    }
}

/// What a transaction has in its undo buffer.
struct Undone<'s> {
    /// Whose it is, and how that stands.
    by: (u64, State),
    changed: &'s [Undo],
    touched: &'s [Before],
}

impl<'s> Undone<'s> {
    /// The records that it has changed or claimed. The first that is shown of a record is what others see of it.
    fn records(&self) -> impl Iterator<Item = &'s Before> {
        self.changed.iter().map(|undo| &undo.before).chain(self.touched)
    }
}
