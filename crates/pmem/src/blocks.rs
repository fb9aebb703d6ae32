//! The use of each block, and how much of it is live: one word a block, in ordinary memory.
//!
//! A block is free, open (a client writes to it), waiting for a client, closed, being compacted, or part of a large
//! record. Its word also counts its live records, and the space of retracted ones, in units of the format. A block
//! becomes free when it is closed and nothing in it is live. Exactly one thread learns this, either the client that
//! closes the block or the thread that retracts its last record, because both facts are in one word.
//!
//! The word of an open block names its client, and a client counts each record in the word before writing it, by an
//! exchange that fails if the block no longer belongs to it. So compaction may take an open block without the
//! cooperation of the client, which may sleep for ever: what the client has counted stays live, and the client writes
//! nothing more there.

use crate::lock::SharedWord;
use std::sync::atomic::Ordering;

const STATE_SHIFT: u32 = 56;
const DEAD_SHIFT: u32 = 32;
const DEAD_MAX: u32 = 0xff_ffff;
const CLIENT_SHIFT: u32 = 16;
const LIVE_MAX: u32 = 0xffff;

/// The use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Nothing.
    Free = 0,
    /// A client writes to it; its word holds the client's number.
    Open = 1,
    /// No thread writes to it.
    Closed = 2,
    /// Its live records are being moved.
    Compacting = 3,
    /// It belongs to a large record.
    Large = 4,
    /// Something in it is damaged: it is left alone.
    Damaged = 5,
    /// A client returned it before it was full; it waits for another.
    Waiting = 6,
}

impl State {
    fn of(word: u64) -> Self {
        match word >> STATE_SHIFT {
            0 => Self::Free,
            1 => Self::Open,
            2 => Self::Closed,
            3 => Self::Compacting,
            4 => Self::Large,
            6 => Self::Waiting,
            _ => Self::Damaged,
        }
    }
}

/// The decoded word of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    state: State,
    /// The client that has it open; zero otherwise.
    client: u16,
    live: u32,
    dead: u32,
}

impl Block {
    const FREE: Self = Self { state: State::Free, client: 0, live: 0, dead: 0 };

    fn of(word: u64) -> Self {
        Self {
            state: State::of(word),
            client: (word >> CLIENT_SHIFT) as u16,
            live: word as u32 & LIVE_MAX,
            dead: (word >> DEAD_SHIFT) as u32 & DEAD_MAX,
        }
    }

    fn word(self) -> u64 {
        ((self.state as u64) << STATE_SHIFT)
            | (u64::from(self.dead.min(DEAD_MAX)) << DEAD_SHIFT)
            | (u64::from(self.client) << CLIENT_SHIFT)
            | u64::from(self.live.min(LIVE_MAX))
    }

    /// The same block in another state, in which no client has it.
    fn now(self, state: State) -> Self {
        Self { state, client: 0, ..self }
    }

    fn is_of(self, client: u16) -> bool {
        self.state == State::Open && self.client == client
    }

    /// Closed, or free if nothing in it is live.
    fn closed(self) -> Self {
        if self.live == 0 { Self::FREE } else { self.now(State::Closed) }
    }
}

/// The word of a block.
pub struct BlockWord<'a, W>(pub &'a W);

impl<W: SharedWord> BlockWord<'_, W> {
    /// Its state, the number of live records in it, and the number of dead units.
    pub fn load(&self) -> (State, u32, u32) {
        // Relaxed: decisions are made by exchanges.
        let block = Block::of(self.0.load(Ordering::Relaxed));
        (block.state, block.live, block.dead)
    }

    /// Changes the word by a function of its present content; does nothing if the function returns none. Returns the
    /// new state.
    fn change(&self, new: impl Fn(Block) -> Option<Block>) -> Option<State> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let changed = new(Block::of(word))?;
            // Acquire and release: a thread that frees a block has seen the end of all uses of the block by other
            // threads.
            match self.0.exchange(word, changed.word(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(changed.state),
                Err(now) => word = now,
            }
        }
    }

    /// Sets everything, where no other thread uses the block.
    pub fn set(&self, state: State, live: u32, dead: u32) {
        self.change(|_| Some(Block { state, client: 0, live, dead }));
    }

    /// Gives it to a client, which alone knows of it.
    pub fn open(&self, client: u16) {
        self.change(|block| Some(Block { client, ..block.now(State::Open) }));
    }

    /// Counts one more live record, before it is written. Fails if the block no longer belongs to the client, which
    /// must not write to it then.
    #[must_use]
    pub fn reserve(&self, client: u16) -> bool {
        let one_more = |block: Block| block.is_of(client).then_some(Block { live: block.live + 1, ..block });
        self.change(one_more).is_some()
    }

    /// Counts one live record less and more dead units. Returns whether the block is now free, and the caller's to give
    /// back.
    #[must_use]
    pub fn retracted(&self, units: u32) -> bool {
        let after = self.change(|block| {
            let live = block.live.saturating_sub(1);
            let dead = block.dead.saturating_add(units);
            let block = Block { live, dead, ..block };
            Some(if block.state == State::Closed { block.closed() } else { block })
        });
        after == Some(State::Free)
    }

    /// Ends its compaction, or its waiting. Returns whether it is now free, and the caller's to give back.
    #[must_use]
    pub fn close(&self) -> bool {
        self.change(|block| Some(block.closed())) == Some(State::Free)
    }

    /// As [`close`](Self::close), by a client; does nothing if the block no longer belongs to the client.
    #[must_use]
    pub fn close_by(&self, client: u16) -> bool {
        self.change(|block| block.is_of(client).then(|| block.closed())) == Some(State::Free)
    }

    /// Leaves it to other clients. Fails if it no longer belongs to the client.
    #[must_use]
    pub fn leave(&self, client: u16) -> bool {
        self.change(|block| block.is_of(client).then(|| block.now(State::Waiting))).is_some()
    }

    /// Takes a closed block, or one that a client has open, to compact it.
    #[must_use]
    pub fn begin_compaction(&self) -> bool {
        let is_possible = |block: Block| matches!(block.state, State::Closed | State::Open);
        self.change(|block| is_possible(block).then(|| block.now(State::Compacting))).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_block_is_free_when_it_is_closed_and_empty_whatever_comes_last() {
        let word = AtomicU64::new(0);
        let block = BlockWord(&word);
        block.open(7);
        (0..3).for_each(|_| assert!(block.reserve(7)));
        assert!(!block.retracted(2) && !block.retracted(1) && !block.retracted(1), "it is still open");
        assert_eq!(block.load(), (State::Open, 0, 4));
        assert!(block.close_by(7));
        block.open(0);
        assert!(block.reserve(0) && block.reserve(0));
        assert!(!block.close_by(0) && !block.retracted(1));
        assert!(block.begin_compaction() && !block.begin_compaction());
        assert!(!block.retracted(1), "who compacts it gives it back");
        assert!(block.close());
        assert_eq!(block.load(), (State::Free, 0, 0));
        block.set(State::Damaged, 4, 0);
        assert!(!block.begin_compaction());
    }

    #[test]
    fn a_client_notices_that_its_block_was_taken_and_what_it_counted_stays() {
        let word = AtomicU64::new(0);
        let block = BlockWord(&word);
        block.open(3);
        assert!(block.reserve(3) && !block.reserve(4) && !block.leave(4) && !block.close_by(4));
        assert!(block.begin_compaction());
        assert!(!block.reserve(3) && !block.leave(3) && !block.close_by(3));
        assert!(!block.close(), "what the client counted is live");
        assert_eq!(block.load(), (State::Closed, 1, 0));
        assert!(block.retracted(2));
        // Another thread has it now.
        block.open(4);
        assert!(!block.reserve(3) && block.reserve(4) && block.leave(4));
        assert_eq!(block.load(), (State::Waiting, 1, 0));
        assert!(!block.begin_compaction(), "it must be taken from those that wait first");
        block.open(3);
        assert!(!block.reserve(4) && block.reserve(3));
        assert_eq!(block.load(), (State::Open, 2, 0));
    }
}
