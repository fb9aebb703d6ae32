//! Versions for which memory has no room.
//!
//! All versions move together, into the tree of a [`Generation`]; later changes begin in memory again. So the chain of
//! a record is what memory has of it, followed by what the generations have, the latest first. A generation is dropped
//! as a whole, once no snapshot needs any of it. It takes more versions as long as the same snapshot holds back most,
//! because it goes when that snapshot ends; after that another generation is begun. Some generations *cover* the
//! snapshots that were open when they were made: see [`covers`].

mod cover;
mod covers;
mod frozen;
mod images;
mod oldest;
mod open;
mod removals;
mod stored;

pub(crate) use cover::Covered;
pub(crate) use frozen::Frozen;
pub(crate) use oldest::{Oldest, OpenSnapshots};
pub(crate) use stored::order;

use crate::{
    before::Before,
    chain::{self, Chain},
    lock_order::{OrderedMutex, OrderedRwLock, rank},
    plant::{Bug, planted},
    shard::Changed,
    spill::{Entry, SpillFile, SpillTree, damaged},
    writer::{Sight, State, Writer},
};
use cover::Cover;
use open::OpenRecords;
use smallvec::SmallVec;
use std::{collections::BTreeMap, sync::Arc};
use stored::{KEY_BYTES_MAX, Version, place_of, versions, whole_key};
use vellum_access::Seen;
use vellum_base::primitive::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use vellum_base::{Lsn, PageId};
use vellum_pool::{KeptPages, PoolError};

/// Versions that went to the file together, or while the same snapshot held back most.
pub(crate) struct Generation {
    tree: SpillTree,
    /// Versions that are not in the tree yet.
    frozen: OrderedRwLock<Option<Arc<Frozen>>, { rank::FROZEN }>,
    /// The oldest snapshot when it was begun.
    oldest: u64,
    contents: OrderedMutex<Contents, { rank::GENERATION }>,
    has_removed: AtomicBool,
    /// One more than the last commit that has versions here, once no writer here is open and as long as no version is
    /// added; zero if unknown.
    settled: AtomicU64,
    /// What else a generation has that is to cover snapshots.
    cover: Option<Cover>,
}

#[derive(Default)]
struct Contents {
    /// Whether it is taking versions, and is therefore needed.
    is_taking: bool,
    /// The last commit that has versions here.
    latest: u64,
    /// The writers that were open when versions of theirs came here.
    writers: BTreeMap<u64, Arc<Writer>>,
    chains: usize,
    /// The hashes of records that have only versions of writers that were open when they came here, each with the last
    /// of these: snapshots that an earlier generation covers must know of them when their writers are committed. None if no
    /// earlier one is a cover.
    open: Option<OpenRecords>,
    /// Who has changed the removed records of each tree.
    removals: BTreeMap<PageId, Removals>,
    /// Whether a page could not be kept.
    has_failed: bool,
}

/// Who has changed the removed records of a tree.
#[derive(Default)]
struct Removals {
    /// The last commit.
    latest: u64,
    /// The writers that were open when versions of theirs came here.
    writers: BTreeMap<u64, Arc<Writer>>,
}

impl Removals {
    /// Whether a snapshot does not see all of it.
    fn are_unseen(&self, sight: Sight) -> bool {
        // If one was rolled back, the record is back in its leaf. Who removed it before counts, too.
        sight.time < self.latest || self.writers.values().any(|writer| sight.lacks(writer))
    }
}

impl Contents {
    /// Notes a record if only open writers have changed it; returns whether a commit has.
    fn add_open<'v>(
        &mut self,
        hash: u64,
        versions: impl IntoIterator<Item = (&'v Arc<Writer>, State)>,
    ) -> bool {
        let mut last = None;
        for (writer, state) in versions {
            match state {
                State::Committed(_) => return true,
                State::Open => last = Some(writer),
                State::RolledBack(_) => {}
            }
        }
        if let (Some(open), Some(last)) = (&mut self.open, last) {
            open.add(hash, last);
        }
        false
    }

    /// Whether there are records whose writers were open when their versions came here, and may have been committed since.
    fn is_any_committed_since(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_any_committed(self.writers.values()))
    }

    /// Notes those records as changed. Nobody else notes anything in that filter meanwhile, or asks.
    fn note_committed_since(&self, changed: &Changed) {
        self.open.iter().for_each(|open| open.note_committed(self.writers.values(), changed));
    }

    /// Counts a version.
    fn add(&mut self, (writer, state): (&Arc<Writer>, State), tree: PageId, is_removed: bool) {
        let removals = is_removed.then(|| self.removals.entry(tree).or_default());
        match state {
            State::Committed(time) => {
                self.latest = self.latest.max(time);
                if let Some(removals) = removals {
                    removals.latest = removals.latest.max(time);
                }
            }
            _ => {
                if let Some(removals) = removals {
                    removals.writers.entry(writer.id).or_insert_with(|| writer.clone());
                }
                self.writers.entry(writer.id).or_insert_with(|| writer.clone());
            }
        }
    }
}

/// The versions of a record on their way to the file, the latest last.
pub(crate) struct Moving {
    /// Whether the record was removed.
    pub is_removed: bool,
    /// At least one.
    pub versions: SmallVec<[(Arc<Writer>, State, Before); 1]>,
}

impl Moving {
    /// The versions of a chain as they are now.
    pub fn of(chain: &Chain) -> Self {
        let copy = |version: &chain::Version| {
            (version.writer.clone(), version.writer.state(), version.before.clone())
        };
        Self { is_removed: chain.is_removed, versions: chain.versions.iter().map(copy).collect() }
    }

    /// The record that these versions belong to.
    pub fn record(&self) -> Option<&Before> {
        self.versions.first().map(|(.., before)| before)
    }
}

/// A version of a record: the writer of the change, the writer's state, and what is seen without the change.
type Found = (u64, State, Seen);

/// All generations.
pub(crate) struct Generations {
    /// The latest last.
    all: OrderedRwLock<SmallVec<[Arc<Generation>; 2]>, { rank::GENERATIONS }>,
    is_any: AtomicBool,
    /// No snapshot of this time or later needs a generation; zero if no such time is known.
    quiet: AtomicU64,
    /// Which pages are kept before they change.
    kept: Arc<KeptPages>,
    /// About how much memory the versions take that are not in the file yet.
    frozen_bytes: AtomicUsize,
    /// How many covers have begun.
    begun: AtomicU64,
    /// The transactions up to this number whose snapshots are open are covered.
    covered: AtomicU64,
    /// The covered snapshots of transactions up to this number have lost what was kept for them.
    lost: AtomicU64,
}

impl Generations {
    /// None yet.
    pub fn new(kept: Arc<KeptPages>) -> Arc<Self> {
        let generations = Arc::new(Self {
            all: OrderedRwLock::default(),
            is_any: AtomicBool::new(false),
            quiet: AtomicU64::new(0),
            kept: kept.clone(),
            frozen_bytes: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        kept.set_keeper(Arc::downgrade(&generations) as _);
        generations
    }

    /// About how much memory the versions take that are not in the file yet.
    pub fn frozen_bytes(&self) -> usize {
        // Relaxed: an estimate.
        self.frozen_bytes.load(Ordering::Relaxed)
    }

    /// Whether there is no generation.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Acquire: what is no longer in memory was entered here before.
        !self.is_any.load(Ordering::Acquire)
    }

    /// Whether there may be versions that a snapshot of this time does not see. Called after memory has been searched.
    #[inline]
    pub fn may_have(&self, time: u64) -> bool {
        // Acquire: it is reset to zero before versions are taken out of memory, where the calling thread has looked.
        let is_quiet = |quiet: u64| quiet > 0 && time >= quiet;
        !self.is_empty() && !is_quiet(self.quiet.load(Ordering::Acquire))
    }

    /// The generation that takes versions while `oldest` is the oldest snapshot. It stays until it
    /// [rests](Generation::rest).
    pub fn current(&self, file: &SpillFile, oldest: u64) -> Result<Arc<Generation>, PoolError> {
        let mut all = self.all.write();
        if let Some(last) = all.last().filter(|last| last.oldest == oldest && last.cover.is_none()) {
            last.take_more();
            self.disturb();
            return Ok(last.clone());
        }
        let generation = Arc::new(Generation::create(file, oldest, None)?);
        self.enter(&mut all, generation.clone());
        Ok(generation)
    }

    /// Adds a generation that takes versions.
    fn enter(&self, all: &mut SmallVec<[Arc<Generation>; 2]>, generation: Arc<Generation>) {
        let former = all.iter().rev().find_map(|former| former.changed());
        generation.contents.lock().open = former.map(|changed| OpenRecords::new(changed));
        all.push(generation);
        self.disturb();
        self.is_any.store(true, Ordering::Release);
    }

    /// More versions are about to go to the file, and any snapshot may need them. The generations are locked.
    fn disturb(&self) {
        if !planted(Bug::SpilledOverlooked) {
            self.quiet.store(0, Ordering::Release);
        }
    }

    /// The generations with versions that may not be seen, the latest first; none if all that are not seen are the
    /// transaction's own. If it is covered, it must know its own.
    pub fn needed_by(&self, sight: Sight) -> SmallVec<[Arc<Generation>; 2]> {
        let all = self.all.read();
        let needed: SmallVec<[Arc<Generation>; 2]> =
            all.iter().rev().filter(|generation| generation.is_needed_at(sight.time)).cloned().collect();
        if needed.is_empty() {
            // Under their lock, so that none takes versions. A time that another thread stores meanwhile is as good.
            self.quiet.store(sight.time, Ordering::Release);
        } else if !self.covers(sight.own) && !needed.iter().any(|generation| generation.has_unseen(sight)) {
            return SmallVec::new();
        }
        needed
    }

    fn all(&self) -> SmallVec<[Arc<Generation>; 2]> {
        self.all.read().clone()
    }

    /// Drops the generations that no snapshot needs. Returns whether the last cover was among them.
    pub fn prune(&self, oldest: &Oldest) -> bool {
        if self.is_empty() {
            return false;
        }
        // There was no generation when the snapshots were listed.
        let Some(open) = &oldest.open else { return false };
        let mut all = self.all.write();
        let had_cover = all.iter().any(|generation| generation.cover.is_some());
        // What it has been given so far may already be needed.
        let is_covering = all.iter().any(|generation| generation.is_begun_cover());
        let mut former = 0;
        let mut needed: SmallVec<[bool; 4]> = SmallVec::new();
        for generation in &*all {
            // A snapshot needs its cover and what came before it. So the first that may need this one is the first that
            // earlier ones do not cover.
            let (first, time) = open.first_after(former);
            let cover = all.iter().find(|generation| generation.covers(first));
            // It is not known what one that is begun will cover.
            let covered = if is_covering { Some(0) } else { cover.map(|cover| cover.number()) };
            let is_live = generation.covers(first);
            if !is_live {
                generation.retire();
            }
            needed.push(is_live || generation.is_needed(time, covered));
            former = former.max(generation.covered());
        }
        self.keep_covers(&all, is_covering, &mut needed);
        let gone = self.remove(&mut all, &needed);
        self.is_any.store(!all.is_empty(), Ordering::Release);
        let is_last = had_cover && all.iter().all(|generation| generation.cover.is_none());
        if !is_covering && had_cover {
            // Under their lock: a cover that is begun later keeps pages again.
            let live = all.iter().rev().find(|generation| generation.is_live());
            self.kept.set(live.map_or(Lsn(0), |live| live.place()));
        }
        drop(all);
        // Their trees are freed here, or by a reader that still has one.
        gone.into_iter().for_each(|generation| self.thaw(&generation));
        is_last
    }

    /// What is seen of a record of which memory has no visible version. `newer` is the oldest version in memory, or
    /// what the leaf holds.
    pub fn seen(
        &self,
        (tree, key, hash): (PageId, &[u8], u64),
        sight: Sight,
        newer: Seen,
    ) -> Result<Seen, PoolError> {
        let mut oldest = newer;
        for generation in self.needed_by(sight) {
            for (writer, state, seen) in generation.find(tree, key, hash)?.into_iter().rev() {
                match state {
                    State::RolledBack(_) => {}
                    state if sight.sees(writer, state) => return Ok(oldest),
                    _ => oldest = seen,
                }
            }
        }
        Ok(oldest)
    }

    /// The writer of the last version of a record, and the writer's state, if that version may not be seen. Unless the
    /// transaction is covered, its own may be left out.
    pub fn last(
        &self,
        (tree, key, hash): (PageId, &[u8], u64),
        sight: Sight,
    ) -> Result<Option<(u64, State)>, PoolError> {
        for generation in self.needed_by(sight) {
            for (writer, state, _) in generation.find(tree, key, hash)?.into_iter().rev() {
                match state {
                    State::RolledBack(_) => {}
                    state => return Ok(Some((writer, state))),
                }
            }
        }
        Ok(None)
    }

    /// Whether there are removed records that a snapshot may see.
    pub fn has_removed(&self, sight: Sight) -> bool {
        (self.may_have(sight.time) || self.covers(sight.own) && !self.is_empty())
            && self.all().iter().any(|generation| self.has_removed_in(generation, sight))
    }

    fn has_removed_in(&self, generation: &Generation, sight: Sight) -> bool {
        generation.has_removed.load(Ordering::Acquire)
            && (self.covers(sight.own) || generation.is_needed_at(sight.time))
    }

    /// How many of them cover snapshots, or did.
    #[cfg(test)]
    pub fn covers_count(&self) -> usize {
        self.all().iter().filter(|generation| generation.cover.is_some()).count()
    }

    /// How many records have versions in the file; a record in several generations counts several times.
    pub fn records(&self) -> usize {
        self.all().iter().map(|generation| generation.contents.lock().chains).sum()
    }
}

impl Generation {
    fn create(file: &SpillFile, oldest: u64, cover: Option<Cover>) -> Result<Self, PoolError> {
        Ok(Self {
            tree: SpillTree::create(file)?,
            frozen: OrderedRwLock::new(None),
            oldest,
            contents: OrderedMutex::new(Contents { is_taking: true, ..Contents::default() }),
            has_removed: AtomicBool::new(false),
            settled: AtomicU64::new(0),
            cover,
        })
    }

    /// Whether there may be versions that a snapshot of this time does not see.
    fn is_needed_at(&self, time: u64) -> bool {
        // Acquire: pairs with the release below. It is reset to zero before versions come that are then taken out of
        // memory, where the calling thread has looked before; and before `Generations::quiet` is reset.
        let settled = self.settled.load(Ordering::Acquire);
        if settled > 0 {
            return time + 1 < settled;
        }
        let contents = self.contents.lock();
        if contents.is_taking {
            return true;
        }
        let mut latest = contents.latest;
        for writer in contents.writers.values() {
            match writer.state() {
                State::Open => return true,
                State::Committed(time) => latest = latest.max(time),
                State::RolledBack(_) => {}
            }
        }
        self.settled.store(latest + 1, Ordering::Release);
        time < latest
    }

    /// Whether there may be versions of other transactions that are not seen.
    fn has_unseen(&self, sight: Sight) -> bool {
        let contents = self.contents.lock();
        contents.is_taking
            || contents.latest > sight.time
            || contents.writers.values().any(|writer| sight.lacks(writer))
    }

    /// Whether records of a tree may have been removed by writers that a snapshot does not see.
    fn may_have_unseen_removal(&self, tree: PageId, sight: Sight) -> bool {
        let contents = self.contents.lock();
        contents.is_taking || contents.removals.get(&tree).is_some_and(|removals| removals.are_unseen(sight))
    }

    /// Whether a snapshot needs its versions, of those that see the commits up to `seen`. `covered` is the number of the
    /// first cover that covers some of them, if there is one.
    fn is_needed(&self, seen: u64, covered: Option<u64>) -> bool {
        let contents = self.contents.lock();
        contents.is_taking
            || contents.latest > seen
            || contents.writers.values().any(|writer| match writer.state() {
                State::Open => true,
                State::Committed(time) => time > seen,
                // Leaves that were kept before its changes had been undone may contain them.
                State::RolledBack(covers) => covered.is_some_and(|covered| covered <= covers),
            })
    }

    /// It takes more versions, until it [rests](Self::rest).
    fn take_more(&self) {
        let mut contents = self.contents.lock();
        contents.is_taking = true;
        // Release: pairs with `is_needed_at`. While it takes versions it is not settled.
        self.settled.store(0, Ordering::Release);
    }

    /// It takes no more versions for now.
    pub fn rest(&self) {
        self.contents.lock().is_taking = false;
    }

    /// Takes the versions of some records. `snapshots` are the times of the open snapshots, in ascending order; `now`
    /// is the last commit that the youngest of them may see.
    pub fn take(&self, chains: &[Moving], (snapshots, now): (&[u64], u64)) -> Result<(), PoolError> {
        let mut contents = self.contents.lock();
        for chain in chains {
            for (writer, state, before) in &chain.versions {
                contents.add((writer, *state), before.tree, chain.is_removed);
            }
            if let Some(record) = chain.record() {
                let versions = chain.versions.iter().map(|(writer, state, _)| (writer, *state));
                contents.add_open(record.hash(), versions);
            }
        }
        if chains.iter().any(|chain| chain.is_removed) {
            // Release: before the keys are forgotten in memory.
            self.has_removed.store(true, Ordering::Release);
        }
        drop(contents);
        for chain in chains {
            let Some(record) = chain.record() else { continue };
            let former = self.get(record.tree, record.key(), record.hash())?;
            let Some((place, entry)) = self.entry(chain, former.as_deref(), (snapshots, now))? else {
                continue;
            };
            self.tree.put(&place, &entry)?;
            if former.is_none() {
                self.contents.lock().chains += 1;
            }
        }
        Ok(())
    }

    /// The key and the entry of a chain, joined with its former entry.
    fn entry(
        &self,
        chain: &Moving,
        former: Option<&[u8]>,
        snapshots: (&[u64], u64),
    ) -> Result<Option<Entry>, PoolError> {
        let Some(record) = chain.record() else { return Ok(None) };
        let place = place_of(record.tree, record.key(), record.hash());
        let mut all: SmallVec<[Version<'_>; 4]> = SmallVec::new();
        let was_removed = match former {
            Some(former) => {
                all.extend(versions(former)?);
                former.first() == Some(&1)
            }
            None => false,
        };
        // Up to the last one that is there, what is missing was joined there: behind it, it would count as newer.
        let is_there = |id: u64| all.iter().any(|version| version.writer == id);
        let from = chain.versions.iter().rposition(|(writer, ..)| is_there(writer.id));
        for (writer, state, before) in chain.versions.iter().skip(from.map_or(0, |last| last + 1)) {
            // If the first change of the record by a writer is there, later ones by the same writer say nothing.
            if all.iter().all(|version| version.writer != writer.id) {
                all.push(Version {
                    writer: writer.id,
                    committed: if let State::Committed(time) = state { *time } else { 0 },
                    kind: before.value().map(|value| value.kind),
                    value: before.value().map_or(&[], |value| value.bytes),
                });
            }
        }
        self.cut(&mut all, snapshots);
        let is_removed = (chain.is_removed || was_removed) && !planted(Bug::SpilledRemovalForgotten);
        let mut entry = vec![u8::from(is_removed)];
        let whole = if place.len() < KEY_BYTES_MAX { &[][..] } else { record.key() };
        entry.extend_from_slice(&(whole.len() as u16).to_le_bytes());
        entry.extend_from_slice(whole);
        all.iter().for_each(|version| version.encode(&mut entry));
        Ok(Some((place, entry)))
    }

    /// Joins versions between which no snapshot was taken, and drops those that do not count.
    fn cut(&self, versions: &mut SmallVec<[Version<'_>; 4]>, (snapshots, now): (&[u64], u64)) {
        // Leaves that are shown to covered snapshots may contain changes that have been rolled back by now.
        versions
            .retain(|version| self.cover.is_some() || !matches!(self.state(version), State::RolledBack(_)));
        let mut index = 1;
        while let Some([older, newer]) = versions.get(index - 1..=index) {
            let is_one = match (self.state(older), self.state(newer)) {
                // Before a commit later than `now` there may be a snapshot that `snapshots` lacks.
                (State::Committed(from), State::Committed(to)) if to <= now => {
                    let first = snapshots.partition_point(|time| *time < from);
                    snapshots.get(first).is_none_or(|time| *time >= to)
                }
                _ => false,
            };
            if !is_one {
                index += 1;
                continue;
            }
            let older = versions.remove(index - 1);
            if let Some(newer) = versions.get_mut(index - 1) {
                (newer.kind, newer.value) = (older.kind, older.value);
            }
        }
    }

    /// The versions of a record, the latest last.
    fn find(&self, tree: PageId, key: &[u8], hash: u64) -> Result<SmallVec<[Found; 2]>, PoolError> {
        let frozen = self.frozen();
        if let Some(frozen) = frozen {
            let versions = frozen.find(tree, key, hash).into_iter().flat_map(|chain| &chain.versions);
            let found =
                |version: &chain::Version| (version.writer.id, version.writer.state(), version.before.seen());
            return Ok(versions.map(found).collect());
        }
        let Some(chain) = self.get(tree, key, hash)? else { return Ok(SmallVec::new()) };
        let versions = versions(&chain)?;
        versions.iter().map(|version| Ok((version.writer, self.state(version), version.seen()?))).collect()
    }

    fn frozen(&self) -> Option<Arc<Frozen>> {
        self.frozen.read().clone()
    }

    fn get(&self, tree: PageId, key: &[u8], hash: u64) -> Result<Option<Vec<u8>>, PoolError> {
        let chain = self.tree.get(&place_of(tree, key, hash))?;
        if let Some(chain) = &chain
            && whole_key(chain).is_none_or(|whole| !whole.is_empty() && whole != key)
        {
            return Err(damaged());
        }
        Ok(chain)
    }

    fn state(&self, version: &Version<'_>) -> State {
        match version.committed {
            0 => {
                let contents = self.contents.lock();
                contents.writers.get(&version.writer).map_or(State::RolledBack(0), |writer| writer.state())
            }
            time => State::Committed(time),
        }
    }
}
