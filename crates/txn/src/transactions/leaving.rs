//! What commits leave behind: when it goes, and what of it stays for old snapshots.
//!
//! Leftovers between which there is no snapshot are joined, so under an old snapshot they grow with the records that
//! were changed, not with the changes. Large values that the earlier ones brought and the later ones replaced are freed
//! then: no snapshot sees them.
//!
//! Those that are *pruned*, whose versions only covered snapshots would need, stay for two reasons: the large values
//! that they have replaced, and the keys that they have changed, because of which a covered serializable transaction
//! may be refused. They are never joined with others: each commit would prune all of them again. Their keys are
//! *condensed* by the thread that has pruned them, while nothing is locked: without values, and once they are many,
//! [coarse](crate::coarse). So they take a limited amount of memory.

use super::{Ended, Pruned, State, Transactions};
use crate::leftovers::{Left, Leftovers};
use std::sync::Arc;
use vellum_base::Lsn;

impl Transactions {
    /// Forgets the versions that no snapshot needs any more.
    pub fn prune(&self, Ended { oldest, free, pruned, forgotten, are_many_searched, .. }: &Ended) {
        forgotten.iter().for_each(|(time, slot)| self.versions.forget_buffer(*slot, *time));
        for (_, left) in pruned.all.iter().chain(free) {
            self.versions.prune_all(left, oldest.of_others);
        }
        self.condense(pruned);
        if *are_many_searched {
            self.enter_oldest();
        }
    }

    /// Condenses the keys of pruned leftovers that have stayed, if these are still there.
    pub(super) fn condense(&self, Pruned { all, have_stayed }: &Pruned) {
        for (time, left) in all.iter().filter(|_| *have_stayed) {
            let mut next = left.has_keys().then(|| (*time, left.clone()));
            while let Some((time, left)) = next {
                // If a file with keys cannot be read, the leftovers stay as they are.
                let Ok(condensed) = left.condensed() else { break };
                next = self.lock().replace(time, &left, condensed);
            }
        }
    }
}

impl Pruned {
    /// Gives up what has not stayed.
    pub fn go_home(self) {
        if !self.have_stayed {
            self.all.into_iter().for_each(|(_, left)| left.go_home());
        }
    }
}

impl State {
    /// Moves what was left behind by commits up to this one to `free`.
    pub(super) fn free_up_to(&mut self, oldest: u64, free: &mut Left) {
        while let Some((time, ..)) = self.leftovers.front()
            && *time <= oldest
            && let Some((_, first, left)) = self.leftovers.pop_front()
        {
            let number = if left.large().is_empty() { 0 } else { self.begin_freeing(first) };
            free.push((number, left));
        }
    }

    /// The log from `first` on is needed until the leftovers of the number that is returned are gone.
    fn begin_freeing(&mut self, first: Lsn) -> u64 {
        self.last_freeing += 1;
        self.freeing.insert(self.last_freeing, first);
        self.last_freeing
    }

    /// Moves to `pruned` what commits up to this one, which all snapshots that are not covered see, have left behind
    /// for versions. What covered snapshots need of it stays.
    pub(super) fn prune_up_to(&mut self, others: u64, pruned: &mut Pruned) {
        if others <= self.pruned {
            return;
        }
        let from = self.leftovers.partition_point(|(time, ..)| *time <= self.pruned);
        let to = self.leftovers.partition_point(|(time, ..)| *time <= others);
        self.pruned = others;
        if from == to {
            return;
        }
        // A covered serializable transaction may be refused because of these keys.
        let stays = self.covered().any(|begun| begun.is_serializable);
        pruned.have_stayed |= stays;
        let rest = self.leftovers.split_off(to);
        let taken = self.leftovers.split_off(from);
        for (time, first, left) in taken {
            let large = left.only_large();
            pruned.all.push((time, left.clone()));
            match large {
                // They are joined when they have been condensed.
                _ if stays => self.leftovers.push_back((time, first, left)),
                Some(large) => {
                    self.leftovers.push_back((time, first, Arc::new(large)));
                    self.join_at(time - 1);
                }
                None => {}
            }
        }
        self.leftovers.extend(rest);
    }

    /// Replaces leftovers by what they have been condensed to, unless they are gone, and joins them with their
    /// neighbours. Returns what is to be condensed again.
    fn replace(
        &mut self,
        time: u64,
        left: &Arc<Leftovers>,
        condensed: Leftovers,
    ) -> Option<(u64, Arc<Leftovers>)> {
        let mut index = self.leftovers.partition_point(|(of, ..)| *of < time);
        let (_, _, place) = self.leftovers.get_mut(index).filter(|(.., now)| Arc::ptr_eq(now, left))?;
        *place = Arc::new(condensed);
        // Several, because another thread may have been testing against some of them.
        while self.join(index + 1) {}
        while self.join(index) {
            index -= 1;
        }
        let (time, _, left) = self.leftovers.get(index)?;
        left.is_to_be_coarse().then(|| (*time, left.clone()))
    }

    /// Joins what the last commit up to this one has left behind with the leftovers of the next commit, and with those
    /// before that could not be joined.
    pub(super) fn join_at(&mut self, time: u64) {
        let mut index = self.leftovers.partition_point(|(of, ..)| *of <= time);
        while self.join(index) {
            index -= 1;
        }
    }

    /// Joins the leftovers at `index` with those before, if no snapshot sees only one of the two and either both or
    /// none have been pruned. Returns whether it has.
    fn join(&mut self, index: usize) -> bool {
        /// With fewer leftovers joining does not pay, unless large values can be freed.
        const FEW: usize = if cfg!(test) { 2 } else { 1024 };
        let Some((.., newer)) = self.leftovers.get(index).filter(|_| index > 0) else { return false };
        if self.leftovers.len() <= FEW && newer.large().is_empty() {
            return false;
        }
        let Self { snapshots, pruned, .. } = self;
        let apart = |from, to| {
            let first = snapshots.partition_point(|begun| begun.time < from);
            snapshots.get(first).is_some_and(|begun| begun.time < to) || (from <= *pruned) != (to <= *pruned)
        };
        let mut both = self.leftovers.range_mut(index - 1..=index);
        if let (Some((from, older_first, older)), Some((to, first, newer))) = (both.next(), both.next())
            && !apart(*from, *to)
            // Another thread may be testing against them.
            && let (Some(older), Some(newer)) = (Arc::get_mut(older), Arc::get_mut(newer))
        {
            let (newer_first, older_large) = (*first, older.large().len());
            let unseen = newer.join(*from, std::mem::take(older));
            // Leftovers without large values need no log; their part of it may have been given up.
            match (older_large, newer.large().len() - older_large) {
                (0, _) => {}
                (_, 0) => *first = *older_first,
                _ => *first = (*first).min(*older_first),
            }
            self.leftovers.remove(index - 1);
            if !unseen.is_empty() {
                let number = self.begin_freeing(newer_first);
                self.unseen.push((number, Arc::new(Leftovers::of_large(unseen))));
            }
            return true;
        }
        false
    }

    /// The commits after this one, with what they have left behind.
    pub(super) fn since(&self, time: u64) -> impl Iterator<Item = &(u64, Lsn, Arc<Leftovers>)> {
        let first = self.leftovers.partition_point(|(of, ..)| *of <= time);
        self.leftovers.range(first..)
    }
}
