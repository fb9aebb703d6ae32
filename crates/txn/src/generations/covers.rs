//! Old snapshots that cost writers next to nothing.
//!
//! What a snapshot sees of records is kept version by version, and that grows with every change. Once memory has no
//! room for it, all open snapshots are *covered*: a [generation](super::Generation) takes the existing versions, and
//! from then on each leaf is kept as a whole, once, before its first change after that moment. New leaves, and leaves
//! that were kept, cost nothing more. So a covered snapshot costs no more than what there was when it was covered, and
//! versions are pruned as if it were not open.
//!
//! # What a covered snapshot sees
//! Of a record that its own transaction has changed: what the leaf holds, for no other transaction can change it.
//! Otherwise what the leaf held at the moment of the cover: the image of the leaf with that key, or the leaf itself if
//! there is none. Before that, what the frozen versions show; a change rolled back since then counts as
//! open.
//!
//! # The moment
//! All shards of the versions are locked for a moment. Under these locks pages begin to be kept (see
//! [`KeptPages`](vellum_pool::KeptPages)), and all versions are taken out: they are *frozen*. A change that was claimed
//! before has its version among them. One that is claimed later finds that pages are kept. Pages that change before that
//! moment belong to earlier covers. Later, versions that memory has no room for go to the file.
//!
//! # Several covers
//! Each cover has the images of all leaves that have changed since its moment, so its snapshots need no later one. A leaf
//! is kept for each cover with open snapshots since whose moment it has not changed, as its LSN tells. When a cover's
//! snapshots have ended, and no later snapshot needs the versions that it took, it goes, though earlier covers stay. The
//! snapshots of these must still find out what was changed: so its filter becomes part of that of the cover before it.
//! The newest one stays as long as there are earlier ones, because changes are noted in its filter.
//!
//! # Trees that have ended
//! Once no snapshot sees a tree, its root may become that of another one, which a covered transaction makes. That
//! transaction sees what the leaves of its own tree hold. What was kept of the earlier tree would show that tree's
//! records among them, or hide some. So it is forgotten, and that the tree has ended is noted.
//!
//! # Changes by covered transactions
//! The first to change a record wins, also against transactions whose versions have been pruned. Therefore the hash of
//! a record is noted in a Bloom filter when its versions are pruned after a cover or taken by a generation, or the undo
//! buffer that has them is given up. Versions of open writers are not noted when a generation takes them, but, if their
//! writers were committed, when it goes; if they are many, all of them if one of their writers was. A record whose leaf has
//! changed since, and whose hash is noted, counts as changed. Rarely, a hash collision refuses a change that might have been
//! made.

use super::{
    Frozen, Generation, Generations, Moving,
    cover::{Cover, Covered},
    images::seen_in,
    order,
};
use crate::plant::{Bug, planted};
use crate::removed_range::RemovedRange;
use crate::shard::Changed;
use crate::spill::SpillFile;
use crate::writer::{Sight, State};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_access::Seen;
use vellum_base::primitive::Ordering;
use vellum_base::{Lsn, PageHeader, PageId};
use vellum_pool::{PageKeeper, PoolError};

impl Generations {
    /// Begins a generation that is to cover the open snapshots. It is kept until it [rests](Generation::rest). The table of
    /// versions may take `version_bytes`.
    pub fn begin_cover(&self, file: &SpillFile, version_bytes: usize) -> Result<Arc<Generation>, PoolError> {
        let generation = Arc::new(Generation::create(file, 0, Some(Cover::new(version_bytes)))?);
        let mut all = self.all.write();
        self.enter(&mut all, generation.clone());
        Ok(generation)
    }

    /// Keeps pages for this generation from now on; `end` gives the end of the log. No record is claimed meanwhile.
    pub fn arm(&self, generation: &Generation, end: impl FnOnce() -> Lsn) {
        // SeqCst, here and below: a rollback that finds the former number has undone everything before pages are kept.
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(cover) = &generation.cover {
            // Release: pairs with `is_armed`. A change that finds that this cover keeps pages shows them to it.
            cover.number.store(number, Ordering::Release);
        }
        self.kept.arm();
        let place = end();
        generation.set_place(place);
        self.kept.set(place);
    }

    /// Counts the frozen versions, and notes their records as changed since the cover before this one; until then the
    /// generation counts as needed.
    pub fn count(&self, generation: &Generation) {
        let Some(frozen) = generation.frozen() else { return };
        let all = self.all();
        let mut covers = all.iter().rev().filter_map(|generation| generation.cover.as_ref());
        let former =
            covers.find(|cover| !generation.cover.as_ref().is_some_and(|own| std::ptr::eq(*cover, own)));
        let mut contents = generation.contents.lock();
        contents.chains = frozen.len();
        for chain in frozen.chains() {
            for version in &chain.versions {
                let by = (&version.writer, version.writer.state());
                contents.add(by, version.before.tree, chain.is_removed);
            }
            let versions = chain.versions.iter().map(|version| (&version.writer, version.writer.state()));
            if contents.add_open(chain.hash(), versions)
                && let Some(former) = former
            {
                // Nobody else notes anything there any more.
                former.changed.note(chain.hash());
            }
        }
    }

    /// Writes frozen versions to the file, the latest first, until those that memory still has take no more than `most`
    /// bytes. Only one thread does so at a time.
    ///
    /// # Errors
    /// If the file fails, and more than that is left: the versions stay in memory, and it can be tried again.
    pub fn write_frozen(&self, most: usize) -> Result<(), PoolError> {
        let mut failed = None;
        for generation in self.all().iter().rev() {
            if self.frozen_bytes() <= most {
                break;
            }
            // There may be room for another one.
            if let Err(error) = self.write_frozen_of(generation) {
                failed.get_or_insert(error);
            }
        }
        failed.filter(|_| self.frozen_bytes() > most).map_or(Ok(()), Err)
    }

    fn write_frozen_of(&self, generation: &Generation) -> Result<(), PoolError> {
        let Some(frozen) = generation.frozen() else { return Ok(()) };
        let mut chains: Vec<_> = frozen.chains().collect();
        // In key order, which suits the tree.
        chains.sort_unstable_by(|one, other| order(one.first(), other.first()));
        let mut load = generation.tree.load()?;
        for chain in chains {
            if let Some((place, entry)) = generation.entry(&Moving::of(chain), None, frozen.snapshots())? {
                load.push(&place, &entry)?;
            }
        }
        load.finish()?;
        self.thaw(generation);
        Ok(())
    }

    /// Frees the memory of frozen versions that are in the file, or not needed.
    pub(super) fn thaw(&self, generation: &Generation) {
        let frozen = generation.frozen.write().take();
        self.frozen_bytes.fetch_sub(frozen.map_or(0, |frozen| frozen.bytes), Ordering::Relaxed);
    }

    /// How many covers have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// The generation is complete and covers these snapshots. Returns false if a page could not be kept.
    pub fn complete(&self, generation: &Generation, covered: Covered) -> bool {
        // So that a thread that drops generations does so before this, when the generation still takes versions, or finds
        // what it covers.
        let _all = self.all.read();
        let contents = generation.contents.lock();
        if contents.has_failed {
            return false;
        }
        if let Some(cover) = &generation.cover {
            cover.covered.store(covered.id, Ordering::Release);
        }
        // SeqCst: versions that only these snapshots need are removed after this.
        self.covered.store(covered.id, Ordering::SeqCst);
        true
    }

    /// The generation covers nothing. Pages are kept for earlier covers, if there are any.
    pub fn give_up(&self, generation: &Generation) {
        let all = self.all.read();
        let former = all.iter().rev().find(|former| former.is_live());
        let place = former.map_or(Lsn(0), |former| former.place());
        generation.set_place(place);
        self.kept.set(place);
    }

    /// Whether a snapshot is covered. Called under the lock of the versions that were looked up: only covered snapshots
    /// need versions that are no longer there.
    #[inline]
    pub fn covers(&self, transaction: u64) -> bool {
        transaction <= self.covered.load(Ordering::SeqCst)
    }

    /// Forgets what was kept of a tree that has ended, and that no snapshot sees.
    pub fn forget(&self, tree: PageId) {
        let all = self.all();
        // What is covered by one that is not armed yet sees no such tree, but perhaps another one with this root.
        all.iter()
            .filter_map(|generation| generation.cover.as_ref().filter(|cover| cover.is_armed()))
            .for_each(|cover| cover.images.forget(tree));
    }

    /// Whether a record, whose leaf has the LSN `leaf`, may have been changed since this transaction was covered.
    pub fn may_be_changed(&self, transaction: u64, (tree, hash): (PageId, u64), leaf: Lsn) -> bool {
        let all = self.all.read();
        let Some(first) = all.iter().position(|generation| generation.covers(transaction)) else {
            return false;
        };
        let mut since = all.iter().skip(first).filter_map(|generation| generation.cover.as_ref());
        let Some(first) = since.clone().next() else { return false };
        leaf.0 >= first.place.load(Ordering::Acquire)
            && since.any(|since| since.changed.has(hash))
            && !first.images.has_ended(tree)
    }

    /// What a covered snapshot sees of a record for which memory has no change by its own transaction.
    pub fn seen_by_covered(
        &self,
        (tree, key, hash): (PageId, &[u8], u64),
        sight: Sight,
    ) -> Result<Seen, PoolError> {
        let all = self.all();
        let Some(first) = all.iter().position(|generation| generation.covers(sight.own)) else {
            return Ok(Seen::Leaf);
        };
        let (before, _) = all.split_at(first + 1);
        let cover = before.last().and_then(|generation| generation.cover.as_ref());
        if cover.is_some_and(|cover| cover.images.has_ended(tree)) {
            return Ok(Seen::Leaf);
        }
        let number = cover.map_or(0, |cover| cover.number.load(Ordering::Acquire));
        // In earlier generations, too: what was claimed at the moment of the cover may have been changed after it.
        for generation in all.iter().filter(|generation| generation.may_have_writer(sight.own)) {
            if generation.find(tree, key, hash)?.iter().any(|(writer, ..)| *writer == sight.own) {
                return Ok(Seen::Leaf);
            }
        }
        let mut oldest = Seen::Leaf;
        if let Some(cover) = cover
            && let Some(image) = cover.images.find(tree, key)?
        {
            oldest = seen_in(&image, key)?;
        }
        for generation in before.iter().rev() {
            for (writer, state, seen) in generation.find(tree, key, hash)?.into_iter().rev() {
                match state {
                    // The change had been undone in the leaf before this cover.
                    State::RolledBack(covers) if covers < number => {}
                    state if sight.sees(writer, state) => return Ok(oldest),
                    _ => oldest = seen,
                }
            }
        }
        Ok(oldest)
    }

    /// Adds the keys of a tree that leaves had when a snapshot was covered, and may no longer have.
    pub fn add_covered(
        &self,
        transaction: u64,
        tree: PageId,
        range: &mut RemovedRange<'_>,
    ) -> Result<(), PoolError> {
        let all = self.all();
        let own = all.iter().find(|generation| generation.covers(transaction));
        let cover = own.and_then(|generation| generation.cover.as_ref());
        cover.map_or(Ok(()), |cover| cover.images.add_keys(tree, range))
    }

    /// Whether leaves of a tree have changed since a snapshot was covered.
    pub fn has_images(&self, transaction: u64, tree: PageId) -> bool {
        let all = self.all();
        let own = all.iter().find(|generation| generation.covers(transaction));
        own.and_then(|own| own.cover.as_ref()).is_some_and(|cover| cover.images.has_any(tree))
    }

    /// Whether changes are still noted in this filter.
    pub fn notes_in(&self, changed: &Arc<Changed>) -> bool {
        self.all()
            .iter()
            .any(|generation| generation.changed().is_some_and(|noted| Arc::ptr_eq(noted, changed)))
    }

    /// Keeps the newest cover as long as there is an earlier one: changes are noted in it. `needed` says of each generation
    /// whether it is needed. While snapshots are being covered, it is not known in which one changes will be noted.
    pub(super) fn keep_covers(&self, all: &[Arc<Generation>], is_covering: bool, needed: &mut [bool]) {
        let is_cover = |index: usize| all.get(index).is_some_and(|generation| generation.cover.is_some());
        let first = (0..all.len()).find(|index| is_cover(*index) && needed.get(*index) == Some(&true));
        let Some(first) = first else { return };
        let newest = (0..all.len()).rev().find(|index| is_cover(*index));
        for (index, needed) in needed.iter_mut().enumerate().skip(first) {
            *needed |= is_cover(index) && (is_covering || Some(index) == newest);
            // Its records would be noted in the cover in which others note changes, which may be any while snapshots are being
            // covered: that takes the locks of the versions.
            let is_last = is_covering || newest.is_some_and(|newest| index > newest);
            *needed |= all.get(index).is_some_and(|generation| generation.must_stay(is_last));
        }
    }

    /// Removes the generations that are not needed, and returns them. The changes that were noted in one are then noted in
    /// the cover before it.
    pub(super) fn remove(
        &self,
        all: &mut SmallVec<[Arc<Generation>; 2]>,
        needed: &[bool],
    ) -> Vec<Arc<Generation>> {
        let (mut former, mut gone) = (None::<Arc<Generation>>, Vec::new());
        let mut needed = needed.iter();
        all.retain(|generation| {
            let is_needed = needed.next() == Some(&true) && !planted(Bug::SpilledDroppedEarly);
            if is_needed {
                if generation.cover.is_some() {
                    former = Some(generation.clone());
                }
                return true;
            }
            // Nobody else notes anything there any more, as it is not the newest cover.
            if let Some(all) = former.as_ref().and_then(|former| former.changed()) {
                generation.changed().into_iter().for_each(|noted| all.note_all(noted));
                generation.contents.lock().note_committed_since(all);
            }
            gone.push(generation.clone());
            false
        });
        gone
    }

    /// How many leaves are kept.
    pub fn images(&self) -> usize {
        let all = self.all();
        all.iter().filter_map(|generation| generation.cover.as_ref()).map(|cover| cover.images.count()).sum()
    }

    /// Whether a covered snapshot has lost what was kept for it, because the file failed.
    #[inline]
    pub fn has_lost(&self, transaction: u64) -> bool {
        // Acquire: pairs with the thread that loses it; that thread changes the leaf afterwards.
        transaction <= self.lost.load(Ordering::Acquire)
    }
}

impl PageKeeper for Generations {
    fn keep(&self, tree: PageId, page: &[u8]) {
        let (all, lsn) = (self.all(), PageHeader::read(page).lsn);
        // One that is not armed yet will show the page as it is then.
        let armed = all.iter().rev().filter_map(|generation| {
            Some((generation, generation.cover.as_ref().filter(|cover| cover.is_armed())?))
        });
        for (index, (generation, cover)) in armed.enumerate() {
            // The place of the newest one may not be known yet. The others have kept pages that have changed since theirs.
            let is_kept = index > 0 && lsn >= generation.place();
            if is_kept || cover.is_retired.load(Ordering::Acquire) {
                continue;
            }
            if cover.images.keep(tree, page, &generation.tree).is_err() {
                // This change can no longer be refused, and its transaction has no part in the old snapshots: they end.
                let mut contents = generation.contents.lock();
                contents.has_failed = true;
                self.lost.fetch_max(self.covered.load(Ordering::SeqCst), Ordering::AcqRel);
            }
        }
    }
}

impl Generation {
    /// Whether it covers the snapshot of this transaction.
    pub(super) fn covers(&self, transaction: u64) -> bool {
        self.cover.as_ref().is_some_and(|cover| transaction <= cover.covered.load(Ordering::Acquire))
    }

    /// The snapshots of transactions up to this one are covered by this generation, or by earlier ones.
    pub(super) fn covered(&self) -> u64 {
        self.cover.as_ref().map_or(0, |cover| cover.covered.load(Ordering::Acquire))
    }

    /// How many covers had begun with this one; zero if it is none.
    pub(super) fn number(&self) -> u64 {
        self.cover.as_ref().map_or(0, |cover| cover.number.load(Ordering::Acquire))
    }

    /// No snapshot is open any more that this generation covers: no more pages are kept for it.
    pub(super) fn retire(&self) {
        if let Some(cover) = self.cover.as_ref().filter(|_| !self.is_begun_cover()) {
            // Release: pairs with `keep`, which may keep a page in vain.
            cover.is_retired.store(true, Ordering::Release);
        }
    }

    /// Whether it covers snapshots that are open.
    pub(super) fn is_live(&self) -> bool {
        self.covers(1) && self.cover.as_ref().is_some_and(|cover| !cover.is_retired.load(Ordering::Acquire))
    }

    /// Whether it is to cover snapshots, and does not yet.
    pub(super) fn is_begun_cover(&self) -> bool {
        self.cover.is_some() && self.contents.lock().is_taking
    }

    pub(super) fn place(&self) -> Lsn {
        Lsn(self.cover.as_ref().map_or(0, |cover| cover.place.load(Ordering::Acquire)))
    }

    fn set_place(&self, place: Lsn) {
        if let Some(cover) = &self.cover {
            cover.place.store(place.0, Ordering::Release);
        }
    }

    /// Takes over all versions; `freeze` returns them, with the keys of removed records.
    pub fn freeze(&self, generations: &Generations, freeze: impl FnOnce() -> Frozen) {
        // Locked throughout, so that a thread that finds nothing in memory finds the versions here.
        let mut place = self.frozen.write();
        // Release: before the keys are forgotten in memory.
        self.has_removed.store(true, Ordering::Release);
        let frozen = freeze();
        generations.frozen_bytes.fetch_add(frozen.bytes, Ordering::Relaxed);
        *place = Some(Arc::new(frozen));
    }

    /// The filter in which changes of records after the cover are noted.
    pub fn changed(&self) -> Option<&Arc<Changed>> {
        self.cover.as_ref().map(|cover| &cover.changed)
    }

    /// Whether it stays as long as an earlier generation covers snapshots. `is_last` says whether others may note changes in
    /// the cover before it.
    fn must_stay(&self, is_last: bool) -> bool {
        is_last && self.contents.lock().is_any_committed_since()
    }

    /// Whether it may have versions of a transaction that was open when they came here. Those that are just coming are
    /// not counted yet.
    fn may_have_writer(&self, transaction: u64) -> bool {
        let contents = self.contents.lock();
        contents.is_taking || contents.writers.contains_key(&transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generations::{Oldest, OpenSnapshots};
    use vellum_base::primitive::thread;
    use vellum_vm::SimulatedDisk;

    fn open(snapshots: &[(u64, u64)]) -> Oldest {
        let open = OpenSnapshots { all: snapshots.iter().copied().collect(), next: (4, 2) };
        Oldest { of_all: 2, of_others: 2, open: Some(open) }
    }

    /// A thread completes a cover while another one drops what no snapshot needs.
    fn complete_beside_another(file: &SpillFile) {
        let generations = Generations::new(Arc::default());
        let generation = generations.begin_cover(file, 1000).unwrap();
        let completing = generations.clone();
        let complete = thread::spawn(move || {
            assert!(completing.complete(&generation, Covered { id: 3, time: 2 }));
            generation.rest();
        });
        // Of the snapshots that it covers, the last one is open.
        generations.prune(&open(&[(3, 2)]));
        complete.join().unwrap();
        assert_eq!(generations.all().len(), 1, "what covers an open snapshot has been dropped");
        generations.prune(&open(&[]));
        assert!(generations.is_empty());
    }

    fn file() -> SpillFile {
        SpillFile::new(Some(Arc::new(SimulatedDisk::new(1))), 1 << 20)
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_cover_stays_that_is_completed_while_others_are_dropped() {
        let file = file();
        (0..500).for_each(|_| complete_beside_another(&file));
    }

    #[cfg(shuttle)]
    #[test]
    fn a_cover_stays_however_threads_meet() {
        shuttle::check_random(|| complete_beside_another(&file()), 2000);
    }
}
