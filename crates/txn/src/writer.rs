//! A transaction as versions refer to it, and what it may see of others.

use vellum_base::primitive::{AtomicU64, Ordering};

/// A transaction that changes something, as its versions refer to it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub id: u64,
    /// When it was committed; zero as long as it was not, and the highest number if it has been rolled back.
    committed: AtomicU64,
}

/// How a writer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Open,
    /// When.
    Committed(u64),
    /// All it has changed has been undone.
    RolledBack,
}

impl Writer {
    pub fn new(id: u64) -> Self {
        Self { id, committed: AtomicU64::new(0) }
    }

    /// When it was committed, if it was.
    pub fn committed(&self) -> Option<u64> {
        // Acquire: pairs with `commit`, so a reader that sees the commit sees the changes.
        Some(self.committed.load(Ordering::Acquire)).filter(|time| *time > 0 && *time < u64::MAX)
    }

    pub fn state(&self) -> State {
        match self.committed.load(Ordering::Acquire) {
            0 => State::Open,
            u64::MAX => State::RolledBack,
            time => State::Committed(time),
        }
    }

    /// What it has changed has been undone: none of its versions counts.
    pub fn roll_back(&self) {
        self.committed.store(u64::MAX, Ordering::Release);
    }

    pub fn commit(&self, time: u64) {
        self.committed.store(time, Ordering::Release);
    }
}

/// A number that is read often, apart from others that change.
#[repr(align(64))]
pub(crate) struct Apart(pub AtomicU64);

/// What a reader or a writer may see: commits up to a time, and its own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub time: u64,
    pub own: u64,
}

impl Sight {
    pub fn sees(self, writer: u64, state: State) -> bool {
        writer == self.own || matches!(state, State::Committed(time) if time <= self.time)
    }
}
