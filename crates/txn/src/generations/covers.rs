//! Snapshots that are old, and cost those who change something next to nothing.
//!
//! What a snapshot sees of a record is kept version by version, and that grows with everything that is changed. Once memory has no room
//! for that, all snapshots that are there are *covered*: a [generation](super::Generation) takes the versions that there are, and from then on each
//! leaf is kept as a whole, once, before its first change after that moment. New leaves, and those that were kept, cost nothing more, so what a
//! covered snapshot costs is bounded by what there was when it was covered, and versions are pruned as if it were not open.
//!
//! # What a covered snapshot sees
//! Of a record that its own transaction has changed: what the leaf holds, for nobody else can change it. Else what the leaf held at the moment of the cover, which the first
//! image of a leaf with that key since then shows, or the leaf itself if there is none; and before that what the versions show that were there then. Of
//! those a change that was rolled back since counts like one that is open.
//!
//! # The moment
//! All shards of the versions are locked for a moment. Meanwhile it is said that pages are kept (see [`KeptPages`](vellum_pool::KeptPages)), and all
//! versions are taken out: they are *frozen*. A change that was claimed before has its version there. One that is claimed after it finds that pages are kept.
//! Versions that memory has no room for go on to the file after that.
//!
//! # Changes by covered transactions
//! The first to change a record wins, also against transactions whose versions have been pruned. Therefore the hash of a record is noted in a
//! bitmap when its versions are pruned after a cover. A record in a leaf that has changed since, and whose hash is noted, counts as changed: in
//! one of many cases that refuses a change that might have been made.

use super::{
    Frozen, Generation, Generations, Moving,
    cover::{Cover, Covered},
    images::seen_in,
    order,
};
use crate::shard::Changed;
use crate::spill::SpillFile;
use crate::writer::{Sight, State};
use std::ops::Bound;
use std::sync::{Arc, PoisonError};
use vellum_access::Seen;
use vellum_base::primitive::Ordering;
use vellum_base::{Lsn, PageId};
use vellum_pool::{PageKeeper, PoolError};

impl Generations {
    /// Begins a generation that is to cover the snapshots that are there. It stays until it [rests](Generation::rest).
    pub fn begin_cover(&self, file: &SpillFile) -> Result<Arc<Generation>, PoolError> {
        let generation = Arc::new(Generation::create(file, 0, true)?);
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        self.enter(&mut all, generation.clone());
        Ok(generation)
    }

    /// Keeps pages from now on, for that generation; `end` gives the place where the log ends. No record can be claimed meanwhile.
    pub fn arm(&self, generation: &Generation, end: impl FnOnce() -> Lsn) {
        // SeqCst, here and below: whoever has rolled back and finds the former number has undone everything before pages are kept.
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(cover) = &generation.cover {
            cover.number.store(number, Ordering::Release);
        }
        self.kept.arm();
        let place = end();
        generation.set_place(place);
        self.kept.set(place);
    }

    /// Learns what there is of versions that were frozen; until then the generation counts as needed.
    pub fn count(&self, generation: &Generation) {
        let Some(frozen) = generation.frozen() else { return };
        let mut contents = generation.contents.lock();
        contents.chains = frozen.len();
        for version in frozen.chains().flat_map(|chain| &chain.versions) {
            match version.writer.state() {
                State::Committed(time) => contents.latest = contents.latest.max(time),
                _ => _ = contents.writers.entry(version.writer.id).or_insert_with(|| version.writer.clone()),
            }
        }
    }

    /// Puts versions that were frozen into the file. `snapshots` are the times of those that were open at that moment, in ascending order, and the number of
    /// the last commit then.
    ///
    /// # Errors
    /// If the file fails: they stay in memory.
    pub fn write_frozen(&self, generation: &Generation, snapshots: (&[u64], u64)) -> Result<(), PoolError> {
        let Some(frozen) = generation.frozen() else { return Ok(()) };
        let mut chains: Vec<_> = frozen.chains().collect();
        // As the tree likes it.
        chains.sort_unstable_by(|one, other| order(one.first(), other.first()));
        let mut load = generation.tree.load()?;
        for chain in chains {
            if let Some((place, entry)) = generation.entry(&Moving::of(chain), None, snapshots)? {
                load.push(&place, &entry)?;
            }
        }
        load.finish()?;
        self.thaw(generation);
        Ok(())
    }

    /// Gives up the memory of versions that are in the file, or not needed.
    pub(super) fn thaw(&self, generation: &Generation) {
        let frozen = generation.frozen.write().unwrap_or_else(PoisonError::into_inner).take();
        self.frozen_bytes.fetch_sub(frozen.map_or(0, |frozen| frozen.bytes), Ordering::Relaxed);
    }

    /// How many covers have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// The generation has all that is needed of it: it covers these snapshots. Returns false if something could not be kept.
    pub fn complete(&self, generation: &Generation, covered: Covered) -> bool {
        let contents = generation.contents.lock();
        if contents.has_failed {
            return false;
        }
        if let Some(cover) = &generation.cover {
            cover.covered.store(covered.id, Ordering::Release);
        }
        // SeqCst: versions that only these snapshots need go after this.
        self.covered.store(covered.id, Ordering::SeqCst);
        true
    }

    /// The generation covers nothing: pages are kept for those before it, if there are some.
    pub fn give_up(&self, generation: &Generation) {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let former = all.iter().rev().find(|former| former.covers(1));
        let place = former.map_or(Lsn(0), |former| former.place());
        generation.set_place(place);
        self.kept.set(place);
    }

    /// Whether a snapshot is covered. Asked under the lock of the versions that were looked up: what is not there any more was needed
    /// by covered ones only.
    #[inline]
    pub fn covers(&self, transaction: u64) -> bool {
        transaction <= self.covered.load(Ordering::SeqCst)
    }

    /// Whether a record, whose leaf has the LSN `leaf`, may have been changed since this transaction was covered.
    pub fn may_be_changed(&self, transaction: u64, hash: u64, leaf: Lsn) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = all.iter().position(|generation| generation.covers(transaction)) else {
            return false;
        };
        let mut since = all.iter().skip(first);
        since.clone().next().is_some_and(|first| leaf >= first.place())
            && since.any(|since| since.cover.as_ref().is_some_and(|cover| cover.changed.has(hash)))
    }

    /// What a covered snapshot sees of a record that its transaction has not changed, as far as memory knows.
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
        let number = cover.map_or(0, |cover| cover.number.load(Ordering::Acquire));
        // Those that came before it, too: what was claimed at the moment may have been changed after it.
        for generation in all.iter().filter(|generation| generation.has_writer(sight.own)) {
            if generation.find(tree, key, hash)?.iter().any(|(writer, ..)| *writer == sight.own) {
                return Ok(Seen::Leaf);
            }
        }
        let mut oldest = Seen::Leaf;
        for generation in all.iter().skip(first) {
            let Some(Cover { images, .. }) = &generation.cover else { continue };
            if let Some(image) = images.find(tree, key)? {
                oldest = seen_in(&image, key)?;
                break;
            }
        }
        for generation in before.iter().rev() {
            for (writer, state, seen) in generation.find(tree, key, hash)?.into_iter().rev() {
                match state {
                    // It had been undone in the leaf.
                    State::RolledBack(covers) if covers < number => {}
                    state if sight.sees(writer, state) => return Ok(oldest),
                    _ => oldest = seen,
                }
            }
        }
        Ok(oldest)
    }

    /// Adds the keys of a tree within bounds that leaves had when a snapshot was covered, and may not have any more.
    pub fn add_covered(
        &self,
        transaction: u64,
        tree: PageId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        keys: &mut Vec<Box<[u8]>>,
    ) -> Result<(), PoolError> {
        let all = self.all();
        let first = all.iter().position(|generation| generation.covers(transaction)).unwrap_or(all.len());
        all.iter()
            .skip(first)
            .filter_map(|generation| generation.cover.as_ref())
            .try_for_each(|cover| cover.images.add_keys(tree, bounds, keys))
    }

    /// Whether changes are noted there still.
    pub fn notes_in(&self, changed: &Arc<Changed>) -> bool {
        self.all()
            .iter()
            .any(|generation| generation.changed().is_some_and(|noted| Arc::ptr_eq(noted, changed)))
    }

    /// How many leaves are kept.
    pub fn images(&self) -> usize {
        let all = self.all();
        all.iter().filter_map(|generation| generation.cover.as_ref()).map(|cover| cover.images.count()).sum()
    }

    /// Whether a snapshot that was covered has lost what was kept for it, because the file failed.
    #[inline]
    pub fn has_lost(&self, transaction: u64) -> bool {
        // Acquire: pairs with the thread that loses it, which changes the leaf after that.
        transaction <= self.lost.load(Ordering::Acquire)
    }
}

impl PageKeeper for Generations {
    fn keep(&self, tree: PageId, page: &[u8]) {
        let all = self.all();
        let newest = all.iter().rev().find_map(|generation| Some((generation, generation.cover.as_ref()?)));
        let Some((generation, Cover { images, .. })) = newest else {
            return;
        };
        if images.keep(tree, page, &generation.tree).is_err() {
            // The change cannot be refused any more, and who makes it has nothing to do with old snapshots: these end.
            let mut contents = generation.contents.lock();
            contents.has_failed = true;
            self.lost.fetch_max(self.covered.load(Ordering::SeqCst), Ordering::AcqRel);
        }
    }
}

impl Generation {
    /// Whether it covers the snapshot of this transaction.
    pub(super) fn covers(&self, transaction: u64) -> bool {
        self.cover.as_ref().is_some_and(|cover| transaction <= cover.covered.load(Ordering::Acquire))
    }

    fn place(&self) -> Lsn {
        Lsn(self.cover.as_ref().map_or(0, |cover| cover.place.load(Ordering::Acquire)))
    }

    fn set_place(&self, place: Lsn) {
        if let Some(cover) = &self.cover {
            cover.place.store(place.0, Ordering::Release);
        }
    }

    /// Takes over all versions; `freeze` gives them, with what is removed.
    pub fn freeze(&self, generations: &Generations, freeze: impl FnOnce() -> Frozen) {
        // Locked throughout, so that a thread that finds memory empty finds them here.
        let mut place = self.frozen.write().unwrap_or_else(PoisonError::into_inner);
        // Release: before the keys are forgotten in memory.
        self.has_removed.store(true, Ordering::Release);
        let frozen = freeze();
        generations.frozen_bytes.fetch_add(frozen.bytes, Ordering::Relaxed);
        *place = Some(Arc::new(frozen));
    }

    /// Where changes of records are noted that come after it.
    pub fn changed(&self) -> Option<&Arc<Changed>> {
        self.cover.as_ref().map(|cover| &cover.changed)
    }

    /// Whether there are versions of a transaction that was open when they came here.
    fn has_writer(&self, transaction: u64) -> bool {
        self.contents.lock().writers.contains_key(&transaction)
    }
}
