//! Of which transactions undo buffers are searched, and of which the table of versions has what they have changed.

use crate::leftovers::Leftovers;
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};

/// From when on undo buffers are searched again. When they no longer are, one thread enters what is in them, and others
/// wait for it. So the more often that happens, the longer the table is used instead.
#[derive(Default)]
pub(super) struct Searching {
    /// The first transaction, by its number in the log, whose buffer is searched.
    pub from: u64,
    /// How many transactions the last pause lasted for.
    pause: u64,
}

impl Searching {
    /// Begins a pause at the transaction of this number, or prolongs it.
    pub fn pause(&mut self, number: u64) {
        const SHORTEST: u64 = if cfg!(test) { 1 } else { 8 };
        const LONGEST: u64 = if cfg!(test) { 4 } else { 4096 };
        if let Some(searched) = number.checked_sub(self.from) {
            let pause = if searched < 4 * self.pause { 2 * self.pause } else { self.pause / 2 };
            self.pause = pause.clamp(SHORTEST, LONGEST);
        }
        self.from = number + self.pause;
    }
}

/// The commits whose undo buffers have a slot, or had one, in commit order.
#[derive(Default)]
pub(super) struct Searched {
    queue: VecDeque<Commit>,
    /// About how much memory their undo buffers take.
    bytes: u64,
    /// How many of them have replaced large values.
    large: usize,
}

/// A commit, by its time, and its slot.
#[derive(Clone, Copy)]
struct Commit {
    time: u64,
    slot: usize,
    bytes: u64,
    is_large: bool,
}

impl Searched {
    /// Adds the last commit.
    pub fn push(&mut self, time: u64, slot: usize, left: &Leftovers) {
        let (bytes, is_large) = (left.memory_bytes(), !left.large().is_empty());
        self.queue.push_back(Commit { time, slot, bytes, is_large });
        self.bytes += bytes;
        self.large += usize::from(is_large);
    }

    /// Takes out the oldest commit, if it is not later than `time`. Returns its time and its slot.
    pub fn pop(&mut self, time: u64) -> Option<(u64, usize)> {
        let Commit { time, slot, bytes, is_large } =
            *self.queue.front().filter(|commit| commit.time <= time)?;
        self.queue.pop_front();
        self.bytes -= bytes;
        self.large -= usize::from(is_large);
        Some((time, slot))
    }

    /// How many should be entered, if all versions may take `most` bytes.
    fn too_many(&self, most: usize) -> usize {
        /// A snapshot that is older than so many commits looks at the filter of each for every record.
        const MANY: usize = if cfg!(test) { 2 } else { 768 };
        /// Large values that others have replaced under an old snapshot stay in the file until they are entered.
        const LARGE_MAX: usize = if cfg!(test) { 2 } else { 16 };
        if self.bytes <= most as u64 / 8 && self.large <= LARGE_MAX {
            self.queue.len().saturating_sub(MANY) / AT_A_TIME * AT_A_TIME
        } else {
            self.queue.len().div_ceil(2)
        }
    }

    /// The oldest, each by its time and its slot, that should be entered next.
    pub fn oldest(&self, most: usize) -> SmallVec<[(u64, usize); AT_A_TIME_MAX]> {
        let many = self.too_many(most).min(AT_A_TIME);
        self.queue.iter().take(many).map(|commit| (commit.time, commit.slot)).collect()
    }

    /// Whether some should be entered.
    pub fn are_many(&self, most: usize) -> bool {
        self.too_many(most) > 0
    }
}

/// How many commits are entered at a time.
const AT_A_TIME_MAX: usize = 16;
const AT_A_TIME: usize = if cfg!(test) { 1 } else { AT_A_TIME_MAX };

/// The transactions whose versions may be in the table.
#[derive(Default)]
pub(super) struct InTable {
    /// The open ones.
    open: BTreeSet<u64>,
    /// The time of the last of those that have been committed.
    last: u64,
}

impl InTable {
    /// Notes that what an open transaction has changed will be in the table.
    pub fn add(&mut self, id: u64) {
        self.open.insert(id);
    }

    /// Notes that a transaction has ended; with the time of its commit, if it was committed.
    pub fn end(&mut self, id: u64, committed: Option<u64>) {
        if self.open.remove(&id) {
            self.last = self.last.max(committed.unwrap_or_default());
        }
    }

    /// Notes that commits up to this one, which have undo buffers, will be entered.
    pub fn enter(&mut self, time: u64) {
        self.last = self.last.max(time);
    }

    /// A snapshot of this time or a later one sees everything that is in the table.
    pub fn seen_from(&self) -> u64 {
        if self.open.is_empty() { self.last } else { u64::MAX }
    }
}
