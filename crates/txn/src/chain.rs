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

/// The changes of one record.
pub(crate) struct Chain {
    /// The latest last; at least one.
    pub versions: SmallVec<[Version; 1]>,
    /// Whether its key is kept among those of removed records.
    pub is_removed: bool,
    /// It is to be cut when it has this many versions.
    cut_at: u32,
}

impl Chain {
    /// It is not cut before it has this many versions.
    const CUT_AT_LEAST: u32 = 3;

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

    /// About how many bytes of memory it takes.
    pub fn weight(&self) -> usize {
        let bytes = |version: &Version| size_of::<Version>() + 16 + version.before.bytes() as usize;
        self.versions.iter().map(bytes).sum::<usize>() + size_of::<Self>()
    }

    /// The writer of the last version that counts, and the writer's state.
    #[inline]
    pub fn last(&self) -> Option<(u64, State)> {
        let states = self.versions.iter().rev().map(|version| (version.writer.id, version.writer.state()));
        states.into_iter().find(|(_, state)| !matches!(state, State::RolledBack(_)))
    }

    /// Removes the versions that every snapshot sees. Returns whether there were any.
    pub fn drop_dead(&mut self, seen_by_all: u64) -> bool {
        let former = self.versions.len();
        drop_dead(&mut self.versions, seen_by_all);
        let is_shorter = self.versions.len() < former;
        if is_shorter {
            self.cut_at = self.cut_at.min(self.twice());
        }
        is_shorter
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
    /// `snapshots` are the times of those open when `now` was the last commit, in ascending order.
    pub fn cut(&mut self, (snapshots, now): (&[u64], u64)) {
        let mut index = 1;
        while let Some([older, newer]) = self.versions.get(index - 1..=index) {
            let (Some(from), Some(to)) = (older.writer.committed(), newer.writer.committed()) else {
                index += 1;
                continue;
            };
            let first = snapshots.partition_point(|time| *time < from);
            if to > now || snapshots.get(first).is_some_and(|time| *time < to) {
                index += 1;
                continue;
            }
            let older = self.versions.remove(index - 1);
            if let Some(newer) = self.versions.get_mut(index - 1) {
                newer.before = older.before;
            }
        }
        self.cut_at = self.twice();
    }
}

/// Removes the versions that every snapshot sees: those committed up to `oldest`, and all older ones.
pub(crate) fn drop_dead(versions: &mut SmallVec<[Version; 1]>, oldest: u64) {
    let seen_by_all = |version: &Version| version.writer.committed().is_some_and(|time| time <= oldest);
    if let Some(last) = versions.iter().rposition(seen_by_all) {
        versions.drain(..=last);
    }
}
