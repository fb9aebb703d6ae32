//! How a transaction claims records, and how others find what it has changed.

use super::{Snapshot, State, Transactions};
use crate::{
    before::{Before, BeforeImage},
    exposure::Exposure,
    lock_order::OrderedGuard,
    plant::{Bug, planted},
    versions::{Refusal, Target},
    waiting::Wait,
    write_set::{self, WriteSet},
};
use vellum_access::{Intent, ValueImage};
use vellum_base::primitive::Ordering;
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

impl Transactions {
    /// Enters in the table of versions what others search in undo buffers.
    pub(super) fn enter_buffers(&self) {
        self.versions.enter_all(|open| {
            let mut state = self.lock();
            // Those that have ended meanwhile will not be entered.
            let State { writers, in_table, time, .. } = &mut *state;
            writers.iter().filter(|(_, id)| open.contains(id)).for_each(|(_, id)| in_table.add(*id));
            in_table.enter(*time);
            self.versions.note_in_table(in_table.seen_from());
            state.others_and_now()
        });
    }

    /// Enters in the table all versions that are not there yet. This thread holds the lock of none of their write sets.
    pub fn enter_all(&self) {
        self.publish_private();
        self.enter_buffers();
    }

    /// Enters the oldest commits in the table of versions that have undo buffers, if many have. This thread holds the
    /// lock of no write set.
    #[cold]
    pub fn enter_oldest(&self) {
        self.versions.enter_oldest(
            || {
                let mut state = self.lock();
                let oldest = state.searched.oldest(self.versions.spill().bytes);
                if let Some((last, _)) = oldest.last().filter(|_| !planted(Bug::EnteredOverlooked)) {
                    state.in_table.enter(*last);
                    self.versions.note_in_table(state.in_table.seen_from());
                }
                (oldest, state.others_and_now())
            },
            |oldest| {
                let mut state = self.lock();
                for (time, _) in oldest {
                    // Only now: a thread that finds it gone finds its versions in the table.
                    while state.searched.pop(*time).is_some() {}
                    // With those before it.
                    state.join_at(time - 1);
                }
            },
        );
    }

    /// A transaction claims a record before it changes it. Its leaf is latched, has the LSN `leaf`, and holds `value`.
    ///
    /// # Errors
    /// Why the record cannot be changed; and if versions cannot be read.
    pub fn claim<'w>(
        &self,
        (writes, snapshot): (&'w WriteSet, &Snapshot),
        (tree, key, leaf): (PageId, &[u8], Lsn),
        value: Option<ValueImage<'_>>,
        intent: Intent,
    ) -> Result<Result<OrderedGuard<'w, write_set::State>, Refusal>, PoolError> {
        let (versions, record) = (&self.versions, (tree, key));
        // A key that is only reserved while it is absent is one that its leaf lacks, like that of a removed record.
        let is_removal = intent == Intent::Remove || intent == Intent::Reserve && value.is_none();
        let is_settled = self.is_settled(leaf, snapshot);
        // Before this write set is locked: other threads search it while they hold the lock of theirs.
        let looked_up = (!is_settled && !versions.buffers().is_empty())
            .then(|| versions.target(record, leaf, snapshot.time));
        // If there were no buffers, none has a version of the record now: only this thread can claim it.
        let mut state = writes.lock();
        if matches!(state.exposure, Exposure::Searched(_)) && state.is_large(versions.spill().bytes_each()) {
            drop(state);
            self.enter_buffers();
            state = writes.lock();
        }
        state.undo_room.note_leaf(leaf, intent.growth(key, value));
        if state.exposure == Exposure::Private {
            state.claim(BeforeImage::new(record, 0, value), true, is_removal);
            return Ok(Ok(state));
        }
        let target = looked_up.unwrap_or_else(|| Target::without_buffers(record, leaf));
        if let Exposure::Searched(slot) = state.exposure {
            if !is_settled && let Err(refusal) = versions.check(target, snapshot.sight())? {
                return Ok(Err(refusal));
            }
            versions.buffers().note(slot, target.hash, is_removal);
            state.claim(BeforeImage::new(record, target.hash, value), true, is_removal);
            return Ok(Ok(state));
        }
        let writer = (writes.writer(), snapshot.time);
        let before = BeforeImage::new(record, target.hash, value);
        match versions.claim(target, writer, value, is_removal, || self.snapshots())? {
            Ok(is_first) => state.claim(before, is_first, is_removal),
            Err(refusal) => return Ok(Err(refusal)),
        }
        Ok(Ok(state))
    }

    /// Whether a latched leaf with this LSN holds just what a snapshot sees, and none of its records is reserved. Then
    /// each of them may be changed, and no other transaction's changes are looked at: what others have changed is
    /// mostly in their processors' caches. That a leaf has the LSN of one's own last change does not tell: without a log
    /// several changes may have one LSN.
    #[inline]
    fn is_settled(&self, leaf: Lsn, snapshot: &Snapshot) -> bool {
        let Lsn(settled) = snapshot.settled;
        // Relaxed: a record is reserved while its leaf is latched.
        leaf.0 < settled && self.reserved.0.load(Ordering::Relaxed) < settled
    }

    /// The record that a transaction has claimed last stays as it is, and stays claimed. Its leaf is latched.
    pub fn reserve(&self, state: &mut write_set::State) {
        self.note_reserved();
        state.keep_claim();
    }

    /// A transaction takes its first claim of a record back; the leaf is latched. It stays claimed if its version is on its
    /// way to the file: there it would count as later than what others change after that.
    pub fn retract(&self, writes: &WriteSet, state: &mut write_set::State, before: Before) {
        if !self.versions.retract_claim(before.image(), writes.id()) {
            self.note_reserved();
            if before.value().is_none() {
                self.note_absent(writes, state, before.image());
            }
            state.touch(before);
        }
    }

    /// Notes that a leaf lacks a record that a transaction has claimed and others see as absent: what is loaded there
    /// later hides from them. Its write set is locked.
    pub fn note_absent(&self, writes: &WriteSet, state: &write_set::State, record: BeforeImage<'_>) {
        match state.exposure {
            // It is noted when it is shown to others.
            Exposure::Private => {}
            Exposure::Searched(slot) => self.versions.buffers().note(slot, record.hash(), true),
            Exposure::Entered => self.versions.note_absent(record, writes.writer()),
        }
    }

    /// Notes that a record is claimed that has not been changed.
    fn note_reserved(&self) {
        // An open transaction that has reserved a record holds back the place up to which everything has settled, and
        // one that ends is seen by all that begin later. So this concerns only snapshots up to this place.
        self.reserved.0.fetch_max(self.places.end().0, Ordering::Relaxed);
    }

    /// A transaction has undone all its changes: others may change the records that it has claimed.
    pub fn roll_back(&self, writes: &WriteSet) {
        let mut state = writes.lock();
        let left = state.leave();
        writes.writer().roll_back(self.versions.generations().begun());
        // A thread that is about to publish or enter the write set finds that there is nothing left to do.
        if let Some(slot) = std::mem::take(&mut state.exposure).slot() {
            self.versions.buffers().leave(slot);
        }
        drop(state);
        if left.is_entered() {
            // If they cannot be read, its versions stay in memory, and do not count.
            let _ = left.for_each_record(|record| {
                self.versions.retract(record, writes.id());
                Some(())
            });
        }
    }

    /// Begins to wait for the open transaction that keeps others from changing a record, if there is one.
    pub fn wait_for(&self, tree: PageId, key: &[u8]) -> Option<Wait> {
        self.publish_private();
        let keeper = self.versions.keeper(tree, key)?;
        let wait = Wait::begin(&self.waiting, keeper);
        if !self.is_open(keeper) {
            self.waiting.end(keeper);
        }
        Some(wait)
    }

    /// Publishes the changes of a transaction that was alone. Called by a thread that may ask for earlier versions.
    #[inline]
    pub fn publish_private(&self) {
        // Acquire: pairs with `end_private`. That it is set shows with the latch of a leaf: see `begin_writing`.
        if self.has_private.load(Ordering::Acquire) {
            drop(self.lock_published());
        }
    }

    /// Locks the state when all versions are in the table.
    pub(super) fn lock_entered(&self) -> OrderedGuard<'_, State> {
        loop {
            self.enter_all();
            let mut state = self.lock();
            if state.private.is_none() && self.versions.buffers().is_empty() {
                return state;
            }
            // Those that begin meanwhile use the table: otherwise this might not end as long as there are many.
            let number = state.next_writer;
            state.searching.pause(number);
        }
    }

    /// Locks the state when no write set is private.
    pub(super) fn lock_published(&self) -> OrderedGuard<'_, State> {
        let mut state = self.lock();
        while let Some(writes) = state.private.clone() {
            // It may be entered, if no slot is free.
            state.in_table.add(writes.id());
            self.versions.note_in_table(state.in_table.seen_from());
            drop(state);
            self.versions.publish(&writes);
            state = self.lock();
            state.end_private(&self.has_private, writes.id());
        }
        state
    }
}
