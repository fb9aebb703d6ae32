//! Fences, and what a client makes durable by them: the words it has [left](crate::owed) to them, and its records.

use crate::{
    core::{Core, Sites, Writer},
    error::Result,
    format::{Format, Record},
    layout::Place,
    medium::{Medium, Site},
    memory::WORD,
    owed::{Full, Left, OwedWord},
};
use std::sync::MutexGuard;

impl<L: Format, M: Medium> Core<L, M> {
    /// Waits until what the writer flushed is durable, and also what it left to this fence. If that fails, no more
    /// changes are accepted.
    #[inline]
    pub fn fence(&self, writer: &mut Writer<L>, site: Site) -> Result<()> {
        if writer.owed.words.is_empty() && writer.owed.full.is_empty() {
            self.fence_alone(writer, site)
        } else {
            self.fence_with_owed(writer, site)
        }
    }

    /// The same without what it left, for a thread that holds the lock of a page and so may free nothing.
    #[inline]
    pub fn fence_alone(&self, writer: &mut Writer<L>, site: Site) -> Result<()> {
        self.watch(self.medium.fence(&mut writer.lane, site))?;
        writer.owed.is_unfenced = false;
        Ok(())
    }

    fn fence_with_owed(&self, writer: &mut Writer<L>, site: Site) -> Result<()> {
        for owed in &writer.owed.words {
            if matches!(owed.left, Left::Word) {
                self.medium.flush(&mut writer.lane, Site::UpdateWord, owed.at, WORD);
            }
        }
        writer.owed.full.retain_mut(|full| {
            full.is_pinned =
                full.is_pinned || (full.is_due && self.space.block(full.block).reserve(writer.id));
            full.is_pinned || !full.is_due
        });
        for full in writer.owed.full.iter().filter(|full| full.is_due) {
            L::settle(&self.medium, &mut writer.lane, Site::Occupancy, full.word);
        }
        self.fence_alone(writer, site)?;
        writer.owed.full.retain_mut(|full| {
            if full.is_due {
                self.space.retracted(full.block, 0);
            }
            !std::mem::replace(&mut full.is_due, true)
        });
        self.free_owed(writer)
    }

    /// Frees the records whose retraction a fence has just made durable, and lets the stripes forget the words that it
    /// made durable.
    fn free_owed(&self, writer: &mut Writer<L>) -> Result<()> {
        let mut owed = std::mem::take(&mut writer.owed.words);
        let mut outcome = Ok(());
        for OwedWord { hash, left, .. } in owed.drain(..) {
            match left {
                Left::Word => self.stripes.settled(hash),
                Left::Retracted(place, record) => {
                    if !self.stripes.settled_retracted(hash) {
                        outcome = outcome.and(self.freed(writer, place, &record));
                    }
                }
            }
        }
        writer.owed.words = owed;
        outcome
    }

    /// Makes durable what the writer has left to its next fence, except in the block that it has.
    pub fn settle_owed(&self, writer: &mut Writer<L>) -> Result<()> {
        let has_pinned = writer.owed.full.iter().any(|full| full.is_pinned);
        if writer.owed.words.is_empty() && !has_pinned { Ok(()) } else { self.fence(writer, Site::Retract) }
    }

    /// Whether a record is valid because its checksum is right.
    #[inline]
    pub fn is_evident(&self, record: &Record) -> bool {
        self.superblock.checksums && L::is_evident(self.geometry, record)
    }

    /// Marks all records that the writer wrote, which are durable, as ones that must be right.
    pub fn settle_page(&self, writer: &mut Writer<L>) -> Result<()> {
        if let Some(cursor) = writer.cursor.as_ref().filter(|_| self.superblock.checksums) {
            let (block, word) = (L::block(cursor), L::begun(self.geometry, cursor));
            self.note_full(writer, block, word, true);
        }
        writer.owed.full.iter_mut().for_each(|full| full.is_due = true);
        // After a failure it is unknown what is durable.
        self.check_writable()?;
        if writer.owed.full.is_empty() { Ok(()) } else { self.fence(writer, Site::Occupancy) }
    }

    /// Remembers to set bits in the writer's block, unless the block no longer belongs to the writer by then.
    pub fn note_full(&self, writer: &mut Writer<L>, block: u64, word: Option<(u64, u64)>, is_due: bool) {
        if let Some(word) = word {
            writer.owed.full.push(Full { block, word, is_due, is_pinned: false });
        }
    }

    /// The writer is about to close its block: the bits it remembers to set there count as in use.
    pub fn pin_full(&self, writer: &mut Writer<L>) {
        let is_fenced = !writer.owed.is_unfenced;
        writer.owed.full.retain_mut(|full| {
            full.is_due |= is_fenced;
            full.is_pinned = full.is_pinned || self.space.block(full.block).reserve(writer.id);
            full.is_pinned
        });
    }

    /// Makes sure that no older record of the keys with these hashes, whose stripes the caller holds, can return: makes
    /// durable what other threads, or the writer itself, have left to their next fence.
    pub fn settle_stripes(&self, writer: &mut Writer<L>, hashes: impl Iterator<Item = u64>) -> Result<()> {
        let mut is_any = false;
        for at in hashes.filter_map(|hash| self.stripes.unsettled(hash)) {
            is_any = true;
            self.medium.flush(&mut writer.lane, Site::Unsettled, at, WORD);
        }
        if is_any { self.fence(writer, Site::Unsettled) } else { Ok(()) }
    }

    /// Leaves a word to the next fence, if the stripe of the key, which the caller holds, can remember it; returns
    /// whether it can.
    #[must_use]
    pub fn leave(&self, writer: &mut Writer<L>, hash: u64, at: u64, left: Left) -> bool {
        let is_left = self.stripes.remember(hash, at, matches!(left, Left::Retracted(..)));
        if is_left {
            writer.owed.words.push(OwedWord { hash, at, left });
        }
        is_left
    }

    /// Retracts a record that another one has replaced, durably or nearly so: the fence is left to the writer's next
    /// operation if the stripe can remember the record, because until then the later record of its key counts. That
    /// record is durable, and a delete would check the stripe first.
    pub fn retract_replaced(
        &self,
        writer: &mut Writer<L>,
        hash: u64,
        (place, record): (Place, Record),
        held: MutexGuard<'_, ()>,
    ) -> Result<()> {
        // The next fence frees the record: see `freed`.
        self.space.prefetch(self.geometry.block_of(place));
        self.retract(writer, Site::Retract, place, &record);
        let at = L::retracted_at(self.geometry, (place, &record));
        if self.leave(writer, hash, at, Left::Retracted(place, record)) {
            return Ok(());
        }
        self.fence(writer, Site::Retract)?;
        drop(held);
        self.freed(writer, place, &record)
    }

    /// Frees the retracted records of blocks that `are_wanted` which clients have left to their next fences: a client that
    /// sleeps would keep the block in use. The caller holds no stripe.
    pub fn free_of_others(&self, writer: &mut Writer<L>, are_wanted: impl Fn(u64) -> bool) -> Result<()> {
        /// How many stripes are locked at a time.
        const MANY: usize = 32;
        let block_of = |at: u64| at / self.geometry.block_bytes();
        let numbers = self.stripes.with_retracted(|at| are_wanted(block_of(at)));
        for numbers in numbers.chunks(MANY) {
            self.check_writable()?;
            let mut found = Vec::with_capacity(numbers.len());
            for number in numbers {
                let (held, at) = self.stripes.lock_retracted(*number);
                if let Some(at) = at.filter(|at| are_wanted(block_of(*at))) {
                    self.medium.flush(&mut writer.lane, Site::Unsettled, at, WORD);
                    found.push((held, *number, at));
                }
            }
            if found.is_empty() {
                continue;
            }
            self.fence(writer, Site::Unsettled)?;
            let mut records = Vec::with_capacity(found.len());
            for (held, number, at) in found {
                // If its client has freed it meanwhile, this may be anything, and is not taken.
                let record = L::retracted_record(&self.medium, at);
                if let Some(record) = record.filter(|_| self.stripes.take(number, at)) {
                    records.push((block_of(at), record));
                }
                drop(held);
            }
            for (block, record) in records {
                self.freed_in(writer, block, &record)?;
            }
        }
        Ok(())
    }

    /// Makes records that were just written durable and valid.
    pub fn publish<'r>(
        &self,
        writer: &mut Writer<L>,
        sites: Sites,
        records: impl Iterator<Item = (Place, &'r Record)>,
    ) -> Result<()> {
        self.fence(writer, sites.record)?;
        let mut is_any = false;
        for (place, record) in records.filter(|(_, record)| !self.is_evident(record)) {
            self.make_valid(writer, sites.publish, place, record);
            is_any = true;
        }
        if is_any { self.fence(writer, sites.publish) } else { Ok(()) }
    }
}
