//! What undo buffers say about a record.

use super::Versions;
use crate::{
    before::hash_of,
    writer::{Sight, State},
};
use vellum_access::Seen;
use vellum_base::{Lsn, PageId};

/// A record that is about to be changed, or may be.
#[derive(Clone, Copy)]
pub(crate) struct Target<'k> {
    pub record: (PageId, &'k [u8]),
    pub hash: u64,
    /// The LSN of its leaf.
    pub leaf: Lsn,
    /// Its newest version in undo buffers, if it is not among the commits that matter to nobody: the writer, and the
    /// writer's state.
    pub(super) newest: Option<(u64, State)>,
}

impl<'k> Target<'k> {
    /// A record that has no version in undo buffers.
    pub fn without_buffers(record: (PageId, &'k [u8]), leaf: Lsn) -> Self {
        Self { record, hash: hash_of(record.0, record.1), leaf, newest: None }
    }
}

impl Versions {
    /// A record to be claimed or checked; its leaf has the LSN `leaf`. Commits up to the time `since` matter to nobody.
    /// None of the searched write sets is locked.
    pub fn target<'k>(&self, record: (PageId, &'k [u8]), leaf: Lsn, since: u64) -> Target<'k> {
        let target = Target::without_buffers(record, leaf);
        Target { newest: self.newest_in_buffers(record, target.hash, since), ..target }
    }

    /// The newest version of a record in an undo buffer: the writer, and the writer's state. Commits up to the time
    /// `since` may be left out.
    pub(super) fn newest_in_buffers(
        &self,
        record: (PageId, &[u8]),
        hash: u64,
        since: u64,
    ) -> Option<(u64, State)> {
        let mut newest = None;
        self.buffers.search(record, hash, since, |writer, state, _| {
            let is_newer = match (newest, state) {
                (None, _) => true,
                (Some((_, State::Committed(former))), State::Committed(time)) => former < time,
                (Some((_, former)), _) => former != State::Open,
            };
            if is_newer {
                newest = Some((writer, state));
            }
        });
        newest
    }

    /// What is seen of a record given its versions in undo buffers, if all older versions are seen.
    pub(super) fn seen_in_buffers(&self, record: (PageId, &[u8]), hash: u64, sight: Sight) -> Seen {
        let mut oldest: Option<(u64, Seen)> = None;
        self.buffers.search(record, hash, sight.time, |writer, state, before| {
            let time = match state {
                State::RolledBack(_) => return,
                state if sight.sees(writer, state) => return,
                State::Committed(time) => time,
                State::Open => u64::MAX,
            };
            if oldest.as_ref().is_none_or(|(former, _)| time < *former) {
                oldest = Some((time, before.seen()));
            }
        });
        oldest.map_or(Seen::Leaf, |(_, seen)| seen)
    }
}
