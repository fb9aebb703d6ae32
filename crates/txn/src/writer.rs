//! A transaction as versions refer to it, and what it may see of others.

use vellum_base::primitive::{AtomicU64, Ordering};

/// A transaction that changes something, as its versions refer to it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub id: u64,
    /// The time of its commit; zero before; if it has been rolled back, `ROLLED_BACK` and how many covers had begun.
    committed: AtomicU64,
}

/// Set if the writer has been rolled back.
const ROLLED_BACK: u64 = 1 << 63;

/// The state of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Open,
    /// At this time.
    Committed(u64),
    /// All its changes have been undone, before any cover with a greater number began.
    RolledBack(u64),
}

#[cfg(test)]
thread_local! {
    /// How often this thread has asked for the state of a writer.
    pub(crate) static ASKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[inline(always)]
fn note_asked() {
    #[cfg(test)]
    ASKED.set(ASKED.get() + 1);
}

impl Writer {
    pub fn new(id: u64) -> Self {
        Self { id, committed: AtomicU64::new(0) }
    }

    /// A writer that was committed at this time.
    pub fn committed_at(id: u64, time: u64) -> Self {
        Self { id, committed: AtomicU64::new(time) }
    }

    /// The time of its commit, if it was committed.
    pub fn committed(&self) -> Option<u64> {
        note_asked();
        // Acquire: pairs with `commit`, so a reader that sees the commit sees the changes.
        Some(self.committed.load(Ordering::Acquire)).filter(|time| *time > 0 && *time < ROLLED_BACK)
    }

    pub fn state(&self) -> State {
        note_asked();
        match self.committed.load(Ordering::Acquire) {
            0 => State::Open,
            time if time & ROLLED_BACK > 0 => State::RolledBack(time - ROLLED_BACK),
            time => State::Committed(time),
        }
    }

    /// Notes that all its changes have been undone: none of its versions counts, except for snapshots that were covered
    /// before. `covers` is how many covers had begun when the last change had been undone.
    pub fn roll_back(&self, covers: u64) {
        self.committed.store(ROLLED_BACK | covers, Ordering::Release);
    }

    pub fn commit(&self, time: u64) {
        self.committed.store(time, Ordering::Release);
    }
}

/// What a reader or a writer may see: commits up to a time, and its own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub time: u64,
    pub own: u64,
}

impl Sight {
    /// What readers outside transactions see: all commits. It is not those up to the last one: no thread would know that
    /// there is such a reader, and versions between that commit and the next would be dropped while it looks for them.
    pub const ALL_COMMITS: Self = Self { time: u64::MAX - 1, own: u64::MAX };

    /// Whether changes of this writer are not seen, and were not rolled back.
    pub fn lacks(self, writer: &Writer) -> bool {
        let state = writer.state();
        !matches!(state, State::RolledBack(_)) && !self.sees(writer.id, state)
    }

    pub fn sees(self, writer: u64, state: State) -> bool {
        writer == self.own || matches!(state, State::Committed(time) if time <= self.time)
    }
}
