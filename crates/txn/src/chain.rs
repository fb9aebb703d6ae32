//! The versions of one record.

use crate::{
    before::{Before, BeforeImage},
    writer::{State, Writer},
};
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_base::PageId;

/// A change of a record.
pub(crate) struct Version {
    pub writer: Arc<Writer>,
    pub before: Before,
}

impl Version {
    /// About how many bytes of memory it takes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + 16 + self.before.bytes() as usize
    }
}

/// The changes of one record.
pub(crate) struct Chain {
    /// The latest last, so their commits are in the order of time; at least one.
    pub versions: SmallVec<[Version; 1]>,
    /// Whether its key is kept among those of removed records.
    pub is_removed: bool,
    /// It is to be cut when it has this many versions.
    cut_at: u32,
}

impl Chain {
    /// It is not cut before it has this many versions.
    const CUT_AT_LEAST: u32 = 3;
    /// About how many bytes of memory it takes without its versions.
    pub const WEIGHT: usize = size_of::<Self>();

    pub fn new(version: Version) -> Self {
        Self { versions: SmallVec::from_buf([version]), is_removed: false, cut_at: Self::CUT_AT_LEAST }
    }

    pub fn first(&self) -> Option<&Before> {
        self.versions.first().map(|version| &version.before)
    }

    /// The tree of the record.
    pub fn tree(&self) -> Option<PageId> {
        self.first().map(|first| first.tree)
    }

    /// Whether one of the changes is by this writer.
    pub fn has(&self, writer: u64) -> bool {
        self.versions.iter().any(|version| version.writer.id == writer)
    }

    pub fn is_of(&self, record: (PageId, &[u8]), hash: u64) -> bool {
        self.first().is_some_and(|first| first.is_of(record, hash))
    }

    pub fn is_same(&self, record: BeforeImage<'_>) -> bool {
        self.first().is_some_and(|first| first.is_same(record))
    }

    pub fn hash(&self) -> u64 {
        self.first().map_or(0, |first| first.hash())
    }

    /// About how many bytes of memory it takes. Looks at all versions, of which a chain may have as many as there are snapshots.
    pub fn weight(&self) -> usize {
        self.versions.iter().map(Version::weight).sum::<usize>() + Self::WEIGHT
    }

    /// The writer of the last version that counts, and the writer's state.
    #[inline]
    pub fn last(&self) -> Option<(u64, State)> {
        let states = self.versions.iter().rev().map(|version| (version.writer.id, version.writer.state()));
        states.into_iter().find(|(_, state)| !matches!(state, State::RolledBack(_)))
    }

    /// Removes the versions that every snapshot sees: those committed up to `seen_by_all`, and all older ones. Returns their
    /// weight, which is zero if there are none.
    pub fn drop_dead(&mut self, seen_by_all: u64) -> usize {
        let mut dead = 0;
        // The oldest first: there may be thousands that a snapshot does not see.
        for (index, version) in self.versions.iter().enumerate() {
            match version.writer.state() {
                State::Committed(time) if time <= seen_by_all => dead = index + 1,
                State::RolledBack(_) => {}
                State::Committed(_) | State::Open => break,
            }
        }
        if dead == 0 {
            return 0;
        }
        let lost = self.drop_first(dead);
        self.cut_at = self.cut_at.min(self.twice());
        lost
    }

    /// Removes this many versions, the oldest. Returns their weight.
    pub fn drop_first(&mut self, count: usize) -> usize {
        self.versions.drain(..count).map(|version| version.weight()).sum()
    }

    /// Removes the version of this writer. Returns its weight.
    pub fn retract(&mut self, writer: u64) -> usize {
        let mut lost = 0;
        self.versions.retain(|version| {
            let stays = version.writer.id != writer;
            lost += if stays { 0 } else { version.weight() };
            stays
        });
        lost
    }

    /// Whether it is to be cut: it has twice as many versions as were left when it was last shortened. To cut it, the
    /// open snapshots must be known, for which all threads ask at one place; so a hot record does not ask each time.
    pub fn is_to_be_cut(&self) -> bool {
        self.versions.len() >= self.cut_at as usize
    }

    fn twice(&self) -> u32 {
        u32::try_from(2 * self.versions.len()).unwrap_or(u32::MAX).max(Self::CUT_AT_LEAST)
    }

    /// Joins versions, committed up to `now`, between which no snapshot was taken: no reader sees what lies between.
    /// `snapshots` are the times of those open when `now` was the last commit, in ascending order. Returns the weight of what
    /// has gone.
    pub fn cut(&mut self, (snapshots, now): (&[u64], u64)) -> usize {
        let is_between = |older: &Version, newer: &Version| {
            let (Some(from), Some(to)) = (older.writer.committed(), newer.writer.committed()) else {
                return true;
            };
            let first = snapshots.partition_point(|time| *time < from);
            to > now || snapshots.get(first).is_some_and(|time| *time < to)
        };
        let mut lost = 0;
        let mut left = SmallVec::<[Version; 1]>::new();
        for mut newer in std::mem::take(&mut self.versions) {
            if left.last().is_some_and(|older| !is_between(older, &newer))
                && let Some(older) = left.pop()
            {
                lost += newer.weight();
                newer.before = older.before;
            }
            left.push(newer);
        }
        self.versions = left;
        self.cut_at = self.twice();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{before::hash_of, writer::ASKED};

    const RECORD: (PageId, &[u8]) = (PageId(5), b"key");

    /// A change by a writer that was committed at this time, or rolled back every tenth time.
    fn version(time: u64) -> Version {
        let writer = Writer::new(time);
        if time.is_multiple_of(10) {
            writer.roll_back(0)
        } else {
            writer.commit(time)
        }
        let before = BeforeImage::new(RECORD, hash_of(RECORD.0, RECORD.1), None).copy();
        Version { writer: Arc::new(writer), before }
    }

    fn chain(count: u64) -> Chain {
        let mut chain = Chain::new(version(1));
        (2..=count).for_each(|time| chain.versions.push(version(time)));
        chain
    }

    fn ids(chain: &Chain) -> Vec<u64> {
        chain.versions.iter().map(|version| version.writer.id).collect()
    }

    /// All versions were looked at, by each change of the record, also if snapshots see none of them.
    #[test]
    fn versions_that_snapshots_need_are_not_looked_at_to_find_dead_ones() {
        const COUNT: u64 = 5000;
        let mut chain = chain(COUNT);
        for seen_by_all in [0, 1, 2, 9, 10, 11, 11, 500, 520] {
            let (weight, before) = (chain.weight(), chain.versions.len());
            ASKED.set(0);
            let lost = chain.drop_dead(seen_by_all);
            let (asked, gone) = (ASKED.get(), before - chain.versions.len());
            assert_eq!(chain.weight(), weight - lost);
            assert!(asked <= gone + 2, "{asked} were looked at for {gone} dead ones");
            // What was rolled back counts for nobody.
            let first = if seen_by_all % 10 == 0 { seen_by_all.max(1) } else { seen_by_all + 1 };
            assert_eq!(ids(&chain), (first..=COUNT).collect::<Vec<_>>(), "{seen_by_all}");
        }
        assert!(chain.drop_dead(COUNT) > 0);
        assert_eq!(ids(&chain), [COUNT]);
    }

    #[test]
    fn what_a_chain_loses_is_told() {
        let mut chain = chain(100);
        let former = chain.weight();
        let lost = chain.cut((&[5, 32, 33, 71], 90));
        assert_eq!(chain.weight(), former - lost);
        let open = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
        let left = ids(&chain);
        assert!(open.iter().all(|time| left.contains(time)), "they are no commits: {left:?}");
        assert!([5, 32, 33, 71].iter().all(|time| left.contains(time)), "a snapshot sees them: {left:?}");
        assert!((91..=100).all(|time| left.contains(&time)) && left.len() < 50, "{left:?}");
        let former = chain.weight();
        assert!(chain.retract(1000) == 0 && chain.weight() == former);
        let lost = chain.retract(71);
        assert!(lost > 0 && chain.weight() == former - lost);
        let lost = chain.drop_first(chain.versions.len());
        assert_eq!(
            (chain.weight(), chain.weight() + lost),
            (Chain::WEIGHT, former - Version::weight(&version(71)))
        );
    }
}
