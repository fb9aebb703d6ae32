//! What each block is being used for, and how much of it is live: one word a block, in ordinary memory.
//!
//! A block is free, open (a client writes to it, or it waits for one), closed, being compacted, or part of a large
//! record. Its word also counts its live records, and what retracted ones take, in units of the format. It is free again
//! when it is closed and nothing in it is live: exactly one of those who may bring that about, the client that closes
//! it and whoever retracts its last record, is told so, because both facts are in one word.

use crate::lock::SharedWord;
use std::sync::atomic::Ordering;

const STATE_SHIFT: u32 = 56;
const DEAD_SHIFT: u32 = 32;
const DEAD_MAX: u32 = 0xff_ffff;

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Nothing.
    Free = 0,
    /// A client writes to it.
    Open = 1,
    /// Nobody writes to it.
    Closed = 2,
    /// Its live records are being moved.
    Compacting = 3,
    /// It is one of those that a large record takes.
    Large = 4,
    /// Something in it is damaged: it is left alone.
    Damaged = 5,
}

impl State {
    fn of(word: u64) -> Self {
        match word >> STATE_SHIFT {
            0 => Self::Free,
            1 => Self::Open,
            2 => Self::Closed,
            3 => Self::Compacting,
            4 => Self::Large,
            _ => Self::Damaged,
        }
    }
}

/// The word of a block.
pub struct BlockWord<'a, W>(pub &'a W);

impl<W: SharedWord> BlockWord<'_, W> {
    /// What it is, how many records in it are live, and how many units are dead.
    pub fn load(&self) -> (State, u32, u32) {
        // Relaxed: decisions are made by exchanges.
        let word = self.0.load(Ordering::Relaxed);
        (State::of(word), word as u32, dead_of(word))
    }

    /// Changes the word by a function of what it is; nothing happens if that says nothing.
    fn change(&self, new: impl Fn(State, u32, u32) -> Option<(State, u32, u32)>) -> Option<State> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (state, live, dead) = new(State::of(word), word as u32, dead_of(word))?;
            let dead = u64::from(dead.min(DEAD_MAX)) << DEAD_SHIFT;
            let changed = ((state as u64) << STATE_SHIFT) | dead | u64::from(live);
            // Acquire and release: whoever frees a block has seen all uses of it by others end.
            match self.0.exchange(word, changed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(state),
                Err(now) => word = now,
            }
        }
    }

    /// Sets everything, where nobody else uses the block.
    pub fn set(&self, state: State, live: u32, dead: u32) {
        self.change(|_, _, _| Some((state, live, dead)));
    }

    /// One more record is live.
    pub fn published(&self) {
        self.change(|state, live, dead| Some((state, live.saturating_add(1), dead)));
    }

    /// One record less is live, so many units more are dead. Whether the block is free now, and the caller's to give
    /// back.
    #[must_use]
    pub fn retracted(&self, units: u32) -> bool {
        let after = self.change(|state, live, dead| {
            Some(match (state, live.saturating_sub(1)) {
                (State::Closed, 0) => (State::Free, 0, 0),
                (state, live) => (state, live, dead.saturating_add(units)),
            })
        });
        after == Some(State::Free)
    }

    /// The client that has it open, or who compacted it, is done. Whether it is free now, and the caller's to give back.
    #[must_use]
    pub fn close(&self) -> bool {
        let after = self.change(|_, live, dead| {
            Some(if live == 0 { (State::Free, 0, 0) } else { (State::Closed, live, dead) })
        });
        after == Some(State::Free)
    }

    /// Takes a closed block to compact it.
    #[must_use]
    pub fn begin_compaction(&self) -> bool {
        let take = |state, live, dead| (state == State::Closed).then_some((State::Compacting, live, dead));
        self.change(take).is_some()
    }
}

fn dead_of(word: u64) -> u32 {
    (word >> DEAD_SHIFT) as u32 & DEAD_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_block_is_free_when_it_is_closed_and_empty_whatever_comes_last() {
        let word = AtomicU64::new(0);
        let block = BlockWord(&word);
        block.set(State::Open, 0, 0);
        (0..3).for_each(|_| block.published());
        assert!(!block.retracted(2) && !block.retracted(1) && !block.retracted(1), "it is still open");
        assert_eq!(block.load(), (State::Open, 0, 4));
        assert!(block.close());
        block.set(State::Open, 0, 0);
        block.published();
        block.published();
        assert!(!block.close() && !block.retracted(1));
        assert!(block.begin_compaction() && !block.begin_compaction());
        assert!(!block.retracted(1), "who compacts it gives it back");
        assert!(block.close());
        assert_eq!(block.load(), (State::Free, 0, 0));
        block.set(State::Damaged, 4, 0);
        assert!(!block.begin_compaction());
    }
}
