//! Claims: a transaction notes which record it is about to change, and is refused if another one was faster.

use super::{Refusal, Shard, Target, Versions};
use crate::{
    before::{BeforeImage, hash_of},
    chain::{Chain, Version},
    shard::Chains,
    writer::{Sight, State, Writer},
};
use hashbrown::hash_table::Entry;
use std::sync::Arc;
use vellum_access::ValueImage;
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// What became of a version that was to be added to a chain.
pub(super) struct Appended {
    /// The record had none of this writer yet.
    pub is_first: bool,
    /// The chain is so long that it is to be [cut](Versions::cut) once its shard is unlocked. The state of the
    /// transactions, which knows the snapshots, is never locked under a shard.
    pub is_long: bool,
}

impl Versions {
    /// Notes that a writer is about to change a record. Its leaf is latched and holds `value`. Returns whether this is the
    /// writer's first change of it. `snapshots` gives the times of the open snapshots that are not covered, in ascending
    /// order.
    ///
    /// # Errors
    /// Why the record cannot be changed; and as for [`seen`](Self::seen).
    pub fn claim(
        &self,
        Target { record: (tree, key), hash, leaf, newest }: Target<'_>,
        (writer, time): (&Arc<Writer>, u64),
        value: Option<ValueImage<'_>>,
        is_removal: bool,
        snapshots: impl FnOnce() -> Vec<u64>,
    ) -> Result<Result<bool, Refusal>, PoolError> {
        let newest = newest.filter(|(id, _)| *id != writer.id);
        if let Err(refusal) = admit(newest, time) {
            return Ok(Err(refusal));
        }
        let before = BeforeImage::new((tree, key), hash, value);
        let shard = self.shard(hash);
        let mut chains = shard.lock();
        let mut last = None;
        if self.generations.may_have(time) || self.generations.covers(writer.id) {
            let in_memory = chains.find((tree, key), hash).and_then(Chain::last);
            let mut is_own = in_memory.is_some_and(|(id, _)| id == writer.id);
            if in_memory.is_none() {
                // Once the writer is covered, it matters which versions are its own.
                loop {
                    let was_covered = self.generations.covers(writer.id);
                    drop(chains);
                    // No other thread claims the record meanwhile: its leaf is latched.
                    last = self.generations.last((tree, key, hash), Sight { time, own: writer.id })?;
                    chains = shard.lock();
                    if was_covered == self.generations.covers(writer.id) {
                        break;
                    }
                }
                // If that is the writer's own, another version in memory shows that the record is now removed.
                is_own = last.is_some_and(|(id, _)| id == writer.id);
                last = last.filter(|_| !is_own);
            }
            if !is_own && self.is_lost(writer.id, (tree, hash), leaf) {
                // That another one is open is told first.
                let last = in_memory.or(last);
                return Ok(Err(admit(last, time).err().unwrap_or(Refusal::Later)));
            }
        }
        let admit = |in_memory: Option<_>| admit(in_memory.or(last), time);
        let appended = self.append((shard, &mut chains), (writer, before), is_removal, admit);
        drop(chains);
        Ok(appended.map(|Appended { is_first, is_long }| {
            if is_long {
                // No other thread adds versions meanwhile: the leaf is latched.
                self.cut(before, (&snapshots(), u64::MAX));
            }
            is_first
        }))
    }

    /// Adds a version to the chain of its record, unless the last version is by the same writer. `admit` is shown the
    /// last version first, and may refuse.
    ///
    /// # Errors
    /// What `admit` returns. Nothing has been added then.
    pub(super) fn append(
        &self,
        (shard, chains): (&Shard, &mut Chains),
        (writer, before): (&Arc<Writer>, BeforeImage<'_>),
        is_removal: bool,
        admit: impl FnOnce(Option<(u64, State)>) -> Result<(), Refusal>,
    ) -> Result<Appended, Refusal> {
        let seen_by_all = self.seen_by_all();
        if chains.is_to_be_swept() {
            self.sweep(shard, chains, seen_by_all);
        }
        let hash = before.hash();
        let version = || Version { writer: writer.clone(), before: before.copy() };
        let mut commits_go = false;
        let appended = match chains.entry(before.tree, hash, |chain| chain.is_same(before)) {
            Entry::Vacant(place) => {
                admit(None)?;
                let mut chain = Chain::new(version());
                if is_removal {
                    self.note_removed(&mut chain, writer);
                }
                shard.grow(chain.weight());
                place.insert(chain);
                self.note_used();
                Appended { is_first: true, is_long: false }
            }
            Entry::Occupied(mut chain) => {
                let chain = chain.get_mut();
                let last = chain.last();
                let is_first = last.is_none_or(|(id, _)| id != writer.id);
                if is_first {
                    admit(last)?;
                    let (lost, version) = (chain.drop_dead(seen_by_all), version());
                    commits_go = lost > 0;
                    shard.shrink(lost);
                    shard.grow(version.weight());
                    chain.versions.push(version);
                }
                if is_removal {
                    self.note_removed(chain, writer);
                }
                Appended { is_first, is_long: is_first && chain.is_to_be_cut() }
            }
        };
        if commits_go {
            chains.note_changed(hash);
        }
        Ok(appended)
    }

    /// Joins versions of a record that no snapshot can tell apart: see [`Chain::cut`].
    #[cold]
    pub(super) fn cut(&self, record: BeforeImage<'_>, snapshots: (&[u64], u64)) {
        self.change(record, |chain| (false, chain.cut(snapshots)));
    }

    /// Whether another writer keeps a record from being changed.
    ///
    /// # Errors
    /// As for [`claim`](Self::claim).
    pub fn check(
        &self,
        Target { record: (tree, key), hash, leaf, newest }: Target<'_>,
        sight: Sight,
    ) -> Result<Result<(), Refusal>, PoolError> {
        if let Some((writer, state)) = newest {
            return Ok(refuse_unseen(sight, (writer, state)));
        }
        if !self.has_others(sight.time) {
            return Ok(Ok(()));
        }
        let shard = self.lock(hash);
        let mut last = shard.find((tree, key), hash).and_then(Chain::last);
        let may_be_lost = self.is_lost(sight.own, (tree, hash), leaf);
        drop(shard);
        if last.is_none() && self.generations.may_have(sight.time) {
            last = self.generations.last((tree, key, hash), sight)?;
        }
        Ok(match last {
            Some((writer, _)) if writer == sight.own => Ok(()),
            Some(last) => {
                refuse_unseen(sight, last).and(if may_be_lost { Err(Refusal::Later) } else { Ok(()) })
            }
            None if may_be_lost => Err(Refusal::Later),
            None => Ok(()),
        })
    }

    /// The open transaction that keeps others from changing a record; `None` also if the file of versions cannot be read.
    pub fn keeper(&self, tree: PageId, key: &[u8]) -> Option<u64> {
        let (hash, sight) = (hash_of(tree, key), Sight::ALL_COMMITS);
        let newest = self.newest_in_buffers((tree, key), hash, sight.time);
        let in_memory = newest.or_else(|| self.lock(hash).find((tree, key), hash).and_then(Chain::last));
        let last = match in_memory {
            None if self.generations.may_have(sight.time) => {
                self.generations.last((tree, key, hash), sight).ok()?
            }
            last => last,
        }?;
        (last.1 == State::Open).then_some(last.0)
    }

    /// Whether a record may have been changed since this transaction was covered. Called under the lock of its shard.
    fn is_lost(&self, transaction: u64, record: (PageId, u64), leaf: Lsn) -> bool {
        self.generations.covers(transaction) && self.generations.may_be_changed(transaction, record, leaf)
    }
}

/// Whether a writer whose snapshot is of `time` may change a record that another writer has changed last.
fn admit(last: Option<(u64, State)>, time: u64) -> Result<(), Refusal> {
    match last {
        Some((_, State::Open)) => Err(Refusal::Open),
        Some((_, State::Committed(committed))) if committed > time => Err(Refusal::Later),
        _ => Ok(()),
    }
}

/// Whether this last version of a record keeps the record from being changed.
fn refuse_unseen(sight: Sight, (writer, state): (u64, State)) -> Result<(), Refusal> {
    match state {
        _ if sight.sees(writer, state) => Ok(()),
        State::Open => Err(Refusal::Open),
        _ => Err(Refusal::Later),
    }
}
