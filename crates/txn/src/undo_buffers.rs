//! The undo buffers of a few transactions, which others search in place.
//!
//! While few transactions are open, others look for earlier versions in their undo buffers, which have them anyway, and
//! nothing is entered in the [table](crate::versions) (Neumann, Mühlbauer, Kemper: *Fast Serializable Multi-Version
//! Concurrency Control*, SIGMOD 2015, section 2.1). So a change costs its thread no more than setting two bits of a
//! filter, and what the thread writes stays in its processor's cache.
//!
//! Each of these transactions has a *slot*: a filter of the records that it has changed or claimed, and where these
//! are. It stays after the commit until every snapshot sees the commit. A transaction that begins while many are open,
//! or that changes much, is *entered* in the table with all others
//! ([`Versions::enter_all`](crate::versions::Versions::enter_all)).
//!
//! # Order
//! If a version of a record is in the table, or in the file, so are all older versions that a snapshot needs. So those
//! in undo buffers are the newest. A search begins with the buffers: what is no longer there was entered before.

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
use vellum_base::primitive::{AtomicU64, Ordering, thread_number};

/// How many transactions are searched at most, including committed ones that not every snapshot sees.
const SLOTS: usize = u64::BITS as usize;
/// How many slots a thread takes in turn, if they are free.
const SLOTS_EACH: u64 = 4;

/// The undo buffers that are searched.
pub(crate) struct UndoBuffers {
    slots: Box<[Slot]>,
    masks: Masks,
}

impl Default for UndoBuffers {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| Slot::default()).collect(), masks: Masks::default() }
    }
}

/// Bit masks of slots.
// Every search for versions reads them; they change when a transaction comes or goes.
#[repr(align(64))]
#[derive(Default)]
struct Masks {
    /// Slots that have a transaction.
    used: AtomicU64,
    /// Slots whose transaction has removed records.
    removals: AtomicU64,
}

#[derive(Default)]
struct Slot {
    filter: Filter,
    contents: OrderedMutex<Contents, { rank::SLOT }>,
}

/// A blocked Bloom filter: each record has its bits in one cache line (Putze, Sanders, Singler: *Cache-, Hash- and
/// Space-Efficient Bloom Filters*, 2007, section 3). One in 1,000 others matches with 30 records, one in 60 with 130.
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
    /// A committed transaction: its number, the time of its commit, and what it has left behind.
    // Not its `Writer`: to free another thread's memory when this is forgotten, the allocator would take a lock.
    Committed { id: u64, time: u64, left: Arc<Leftovers> },
}

impl Filter {
    /// The bits of a hash, each with its word.
    #[inline]
    fn bits(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        // The hash table and the shards use the lowest and highest bits, and the middle.
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
            // Relaxed, in two steps: the write set is locked, and the leaf is latched, whose release shows the bit.
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
    }

    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        // Acquire: pairs with `clear`. A thread that finds the bit gone finds what was entered before.
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

    /// Shows the contents of the slot, whose number is `number`.
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
            // Lock order: the write set before the slot.
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
    /// Whether no slot is used.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    fn used(&self) -> u64 {
        // Acquire: pairs with `release`. A thread that finds a slot free finds what was entered before. The latch of a
        // leaf makes it visible that a slot is used.
        self.masks.used.load(Ordering::Acquire)
    }

    /// The slots in a mask, with their numbers.
    fn slots(&self, mask: u64) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(move |(number, _)| mask >> number & 1 == 1)
    }

    /// Gives a transaction a slot, if one is free. Its write set is locked until it knows the slot.
    pub fn take(&self, writes: &Arc<WriteSet>) -> Option<usize> {
        // Threads begin at different slots: the lines of one are mostly in the cache of the processor that used it last.
        let first = (thread_number() * SLOTS_EACH % SLOTS as u64) as usize;
        loop {
            let taken = self.used().rotate_right(first as u32).trailing_ones() as usize;
            let number = (first + taken) % SLOTS;
            let slot = self.slots.get(number).filter(|_| taken < SLOTS)?;
            let mut contents = slot.lock();
            // Acquire: what the previous transaction had in the slot is gone.
            if self.masks.used.fetch_or(1 << number, Ordering::AcqRel) >> number & 1 == 0 {
                // Not cleared when it was freed: that thread would fetch the lines from the one that filled them.
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
            // Relaxed: as in the filter.
            self.masks.removals.fetch_or(1 << number, Ordering::Relaxed);
        }
    }

    /// Notes that transaction `id` of a slot was committed at `time`, and left `left` behind. Its write set is locked.
    pub fn commit(&self, number: usize, (id, time): (u64, u64), left: Arc<Leftovers>) {
        if let Some(slot) = self.slots.get(number) {
            *slot.lock() = Contents::Committed { id, time, left };
        }
    }

    /// The write sets of the open transactions.
    pub fn open(&self) -> SmallVec<[Arc<WriteSet>; 4]> {
        let contents = self.slots(self.used()).map(|(_, slot)| slot.lock());
        let open = |contents: OrderedGuard<'_, Contents>| match &*contents {
            Contents::Open(writes) => Some(writes.clone()),
            _ => None,
        };
        contents.filter_map(open).collect()
    }

    /// Enters all transactions that were committed up to the time `now`, in commit order, and frees their slots.
    /// `enter` is given the number of each, the time of its commit, and what it has left behind.
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

    /// Frees the slot of a transaction whose commit, at this time, every snapshot sees.
    pub fn forget(&self, number: usize, time: u64) {
        self.give_up(number, time, |_, _, _| ());
    }

    /// Frees the slot of a committed transaction, if it still has it: another thread may have entered it. `enter` is
    /// given the number of the transaction, the time of its commit, and what it has left behind.
    pub fn give_up(&self, number: usize, time: u64, enter: impl FnOnce(u64, u64, &Leftovers)) {
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

    /// Frees the slot of an open transaction that has been entered in the table. Its write set is locked.
    pub fn leave(&self, number: usize) {
        if let Some(slot) = self.slots.get(number) {
            self.release(number, &mut slot.lock());
        }
    }

    /// Frees a slot. What is needed of its transaction has been entered.
    fn release(&self, number: usize, contents: &mut Contents) {
        *contents = Contents::Free;
        // Release: pairs with `has_removals`. The table has the removed keys.
        self.masks.removals.fetch_and(!(1 << number), Ordering::Release);
        // Release: pairs with `used`. Acquire: the clearing above happens before the next transaction takes the slot.
        self.masks.used.fetch_and(!(1 << number), Ordering::AcqRel);
    }

    /// Shows the versions of a record, at most one of each transaction: the writer, its state, and the before-image.
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

    /// Shows the keys of removed records of a tree.
    pub fn for_each_removed(&self, tree: PageId, mut show: impl FnMut(&[u8])) {
        for (number, slot) in self.slots(self.masks.removals.load(Ordering::Acquire)) {
            slot.show(number, |undone| {
                let removed =
                    undone.changed.iter().filter(|undo| undo.is_removal && undo.before.tree == tree);
                removed.for_each(|undo| show(undo.before.key()));
            });
        }
    }

    /// Whether a transaction with a slot has removed records.
    pub fn has_removals(&self) -> bool {
        // Acquire: the slots are at least as new.
        self.masks.removals.load(Ordering::Acquire) != 0
    }
}

/// The undo buffer of a transaction.
struct Undone<'s> {
    /// The transaction's number and its state.
    by: (u64, State),
    changed: &'s [Undo],
    touched: &'s [Before],
}

impl<'s> Undone<'s> {
    /// The records that it has changed or claimed. The first entry of a record is what others see of it.
    fn records(&self) -> impl Iterator<Item = &'s Before> {
        self.changed.iter().map(|undo| &undo.before).chain(self.touched.iter().rev())
    }
}
