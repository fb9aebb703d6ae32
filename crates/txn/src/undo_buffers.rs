//! The undo buffers of recent transactions, which others search in place.
//!
//! While few transactions change something, others look for earlier versions in their undo buffers, which have them
//! anyway, and nothing is entered in the [table](crate::versions) (Neumann, Mühlbauer, Kemper: *Fast Serializable
//! Multi-Version Concurrency Control*, SIGMOD 2015, section 2.1). So a change costs its thread no more than setting two
//! bits of a filter, and what the thread writes stays in its processor's cache.
//!
//! Each of these transactions has a *slot*: a filter of the records that it has changed or claimed, and where these
//! are. It stays after the commit until every snapshot sees the commit. A snapshot searches the slots of open
//! transactions, and of the commits that it does not see. So what an old snapshot holds back costs only that one.
//! Beyond some hundreds of commits the oldest are *entered* in the table
//! ([`Versions::enter_oldest`](crate::versions::Versions::enter_oldest)). A transaction that begins while many are
//! open, or that changes much, is entered with all others
//! ([`Versions::enter_all`](crate::versions::Versions::enter_all)).
//!
//! # Order
//! If a version of a record is in the table, or in the file, so are all older versions that a snapshot needs. So those
//! in undo buffers are the newest. A search begins with the buffers: what is no longer there was entered before.

mod mask;
mod recent;

use crate::{
    before::{Before, BeforeImage},
    exposure::Exposure,
    leftovers::Leftovers,
    lock_order::{OrderedGuard, OrderedMutex, rank},
    plant::{Bug, planted},
    undo_buffer::UndoBuffer,
    write_set::WriteSet,
    writer::{Sight, State},
};
use mask::Mask;
use recent::{Recent, RecentCommits};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_base::PageId;
use vellum_base::primitive::{AtomicU64, Ordering, thread_number};

/// How many transactions have slots at most, including committed ones that not every snapshot sees. The slots of a
/// database take about 320 KiB.
const SLOTS: usize = if cfg!(test) { 128 } else { 1024 };
/// Threads begin to look for free slots so far apart.
const SLOTS_EACH: u64 = if cfg!(test) { 4 } else { 32 };

/// The undo buffers that are searched.
pub(crate) struct UndoBuffers {
    slots: Box<[Slot]>,
    /// Slots that have a transaction.
    used: Mask,
    /// Slots whose transaction is not committed yet.
    open: Mask,
    /// Slots whose transaction has removed records.
    removals: Mask,
    recent: RecentCommits,
}

impl Default for UndoBuffers {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            used: Mask::default(),
            open: Mask::default(),
            removals: Mask::default(),
            recent: RecentCommits::default(),
        }
    }
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
        // Acquire: pairs with `release`. A thread that finds a slot free finds what was entered before. The latch of a
        // leaf makes it visible that a slot is used.
        self.used.is_empty(Ordering::Acquire)
    }

    /// The slots in a mask, with their numbers.
    #[inline]
    fn slots(&self, mask: &Mask) -> impl Iterator<Item = (usize, &Slot)> {
        // Acquire: as in `is_empty`, and pairs with `commit`.
        mask.numbers(Ordering::Acquire).filter_map(|number| Some((number, self.slots.get(number)?)))
    }

    /// Shows the slots of open transactions and of commits after the time `since`, perhaps others too, and perhaps one
    /// several times.
    #[inline]
    fn for_each_since(&self, since: u64, mut show: impl FnMut(usize, &Slot)) {
        // First the open ones: what is committed meanwhile is among the commits.
        self.slots(&self.open).for_each(|(number, slot)| show(number, slot));
        let mut time = since;
        while let Some(next) = time.checked_add(1) {
            time = next;
            match self.recent.at(time) {
                Recent::None => return,
                Recent::Slot(number) => {
                    if let Some(slot) = self.slots.get(number) {
                        show(number, slot);
                    }
                }
                Recent::WithoutSlot => {}
                Recent::Unknown => {
                    return self.slots(&self.used).for_each(|(number, slot)| show(number, slot));
                }
            }
        }
    }

    /// Gives a transaction a slot, if one is free. Its write set is locked until it knows the slot.
    pub fn take(&self, writes: &Arc<WriteSet>) -> Option<usize> {
        // Threads begin at different slots: the lines of one are mostly in the cache of the processor that used it last.
        let first = (thread_number() * SLOTS_EACH % SLOTS as u64) as usize;
        loop {
            let number = self.used.first_clear(first)?;
            let slot = self.slots.get(number)?;
            let mut contents = slot.lock();
            // Acquire: what the previous transaction had in the slot is gone.
            if !self.used.set(number, Ordering::AcqRel) {
                // Not cleared when it was freed: that thread would fetch the lines from the one that filled them.
                slot.filter.clear();
                *contents = Contents::Open(writes.clone());
                // Relaxed: the latch of a leaf makes it visible.
                self.open.set(number, Ordering::Relaxed);
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
            self.removals.set(number, Ordering::Relaxed);
        }
    }

    /// Notes that transaction `id` was committed at `time`, and left `left` behind. The transactions are locked, so
    /// commits are noted in order. If the transaction has a slot, its write set is locked, too.
    pub fn commit(&self, (id, time): (u64, u64), left: &Arc<Leftovers>) {
        let with_slot = left.slot.and_then(|number| Some((number, self.slots.get(number)?)));
        if let Some((_, slot)) = with_slot {
            *slot.lock() = Contents::Committed { id, time, left: left.clone() };
        }
        self.recent.note(time, with_slot.map(|(number, _)| number));
        if let Some((number, _)) = with_slot {
            // Release: a thread that finds it no longer open finds the commit.
            self.open.clear(number, Ordering::Release);
        }
    }

    /// The write sets of the open transactions.
    pub fn open(&self) -> SmallVec<[Arc<WriteSet>; 4]> {
        let contents = self.slots(&self.open).map(|(_, slot)| slot.lock());
        let open = |contents: OrderedGuard<'_, Contents>| match &*contents {
            Contents::Open(writes) => Some(writes.clone()),
            _ => None,
        };
        contents.filter_map(open).collect()
    }

    /// Enters all transactions that were committed up to the time `now`, in commit order, and frees their slots.
    /// `enter` is given the number of each, the time of its commit, and what it has left behind.
    pub fn enter_committed(&self, now: u64, mut enter: impl FnMut(u64, u64, &Leftovers)) {
        let mut committed = Vec::new();
        for (number, slot) in self.slots(&self.used) {
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
            let mut contents = slot.lock();
            // Release: a thread that does not find it here finds what was entered.
            self.open.clear(number, Ordering::Release);
            self.release(number, &mut contents);
        }
    }

    /// Frees a slot. What is needed of its transaction has been entered.
    fn release(&self, number: usize, contents: &mut Contents) {
        *contents = Contents::Free;
        // Release: pairs with `has_removals`. The table has the removed keys.
        self.removals.clear(number, Ordering::Release);
        // Release: pairs with `is_empty`. Acquire: the clearing above happens before the next transaction takes the slot.
        self.used.clear(number, Ordering::AcqRel);
    }

    /// Shows the versions of a record, at most one of each transaction: the writer, its state, and the before-image.
    /// Those of commits up to the time `since` may be left out; one may be shown several times.
    #[inline]
    pub fn search(
        &self,
        record: (PageId, &[u8]),
        hash: u64,
        since: u64,
        mut show: impl FnMut(u64, State, BeforeImage<'_>),
    ) {
        self.for_each_since(since, |number, slot| {
            if slot.filter.may_have(hash) {
                slot.show(number, |undone| {
                    if let Some(before) = undone.find(record, hash) {
                        show(undone.by.0, undone.by.1, before);
                    }
                });
            }
        });
    }

    /// Shows the keys of removed records of a tree, and of those that are claimed and absent. Those whose removal a
    /// snapshot sees may be left out.
    pub fn for_each_removed(&self, tree: PageId, sight: Sight, mut show: impl FnMut(&[u8])) {
        self.for_each_since(sight.time, |number, slot| {
            if self.removals.has(number, Ordering::Acquire) {
                slot.show(number, |undone| {
                    if undone.by.0 == sight.own {
                        return;
                    }
                    let removed =
                        undone.changed.iter().filter(|undo| undo.is_removal && undo.before.tree == tree);
                    removed.for_each(|undo| show(undo.before.key()));
                    let is_absent = |record: &&Before| record.tree == tree && record.value().is_none();
                    undone.touched.iter().filter(is_absent).for_each(|record| show(record.key()));
                });
            }
        });
    }

    /// Whether a transaction with a slot has removed records, which is open or was committed after the time `since`.
    pub fn has_removals(&self, since: u64) -> bool {
        // Acquire: the slots are at least as new.
        if self.removals.is_empty(Ordering::Acquire) {
            return false;
        }
        let mut has_removals = false;
        self.for_each_since(since, |number, _| {
            has_removals |= self.removals.has(number, Ordering::Acquire);
        });
        has_removals
    }
}

/// The undo buffer of a transaction.
struct Undone<'s> {
    /// The transaction's number and its state.
    by: (u64, State),
    changed: &'s UndoBuffer,
    touched: &'s [Before],
}

impl<'s> Undone<'s> {
    /// A record that it has changed or claimed, as others see it: as it was before the first change.
    fn find(&self, record: (PageId, &[u8]), hash: u64) -> Option<BeforeImage<'s>> {
        let touched =
            || self.touched.iter().rev().map(Before::image).find(|before| before.is_of(record, hash));
        self.changed.find(record, hash).or_else(touched)
    }
}
