//! The attempts of a transaction that is run again until it meets no conflict.

use crate::{Error, Result};
use std::{ops::ControlFlow, time::Duration};
use vellum_base::primitive::{Instant, random};

/// After this many conflicts a transaction gets precedence.
const PATIENCE: u32 = 8;
/// How long precedence lasts at least and at most.
const PRECEDENCE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));
/// This many conflicts with what was committed, in spite of precedence, each when only something inside the transaction
/// had been committed since it began, are taken to be no chance: it always conflicts with that.
const OWN_CONFLICTS: u32 = 8;

/// For how long a transaction is retried that conflicts with another one of its own thread, unless its caller sets a
/// limit. The thread may have given the other transaction to another thread, which ends it.
const HELD: Duration = Duration::from_secs(5);

/// How long an attempt waits at most for the transaction that it conflicted with.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Work that is done again, each time with another transaction, until it meets no conflict.
pub(crate) trait Repeated<X> {
    /// Does it, and keeps the result.
    fn run(&mut self, transaction: &X) -> Result<()>;
    /// Drops the result.
    fn discard(&mut self);
}

/// Work and its result, so that what repeats it is compiled once for all kinds of work.
pub(crate) struct Work<F, T> {
    work: F,
    result: Option<T>,
}

impl<F, T> Work<F, T> {
    pub fn new(work: F) -> Self {
        Self { work, result: None }
    }

    /// The result of work that has been done.
    pub fn result(self) -> T {
        self.result.unwrap_or_else(|| unreachable!("the work has been done"))
    }
}

impl<X, T, F: FnMut(&X) -> Result<T>> Repeated<X> for Work<F, T> {
    fn run(&mut self, transaction: &X) -> Result<()> {
        self.result = Some((self.work)(transaction)?);
        Ok(())
    }

    fn discard(&mut self) {
        self.result = None;
    }
}

/// The history of a transaction's attempts.
pub(crate) struct Attempts {
    start: Instant,
    retry_for: Option<Duration>,
    begun: Instant,
    /// How long the last attempt took.
    took: Duration,
    conflicts: u32,
    own_conflicts: u32,
}

impl Attempts {
    /// No attempts yet. After `retry_for`, if that is given, a conflict is final.
    pub fn new(retry_for: Option<Duration>) -> Self {
        let now = Instant::now();
        Self { start: now, retry_for, begun: now, took: Duration::ZERO, conflicts: 0, own_conflicts: 0 }
    }

    /// For how long the next attempt has precedence at most, if it has.
    pub fn precedence(&self) -> Option<Duration> {
        (self.conflicts >= PATIENCE).then(|| (2 * self.took).clamp(PRECEDENCE.0, PRECEDENCE.1))
    }

    /// The next attempt begins.
    pub fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// The outcome of an attempt, unless it is to be repeated. If a conflict with what was committed `may_be_own`, that
    /// was committed inside the transaction. A conflict with a transaction that is open has another cause.
    pub fn end<T>(&mut self, done: Result<T>, may_be_own: bool) -> ControlFlow<Result<T>> {
        match done {
            Err(Error::Conflict { table, key, committed: true })
                if may_be_own && self.own_conflicts >= OWN_CONFLICTS =>
            {
                ControlFlow::Break(Err(Error::OwnConflict { table, key }))
            }
            Err(Error::Conflict { committed, .. })
                if self.retry_for.is_none_or(|time| self.start.elapsed() < time) =>
            {
                self.own_conflicts += u32::from(may_be_own && committed);
                self.took = self.begun.elapsed();
                self.conflicts += 1;
                ControlFlow::Continue(())
            }
            done => ControlFlow::Break(done),
        }
    }

    /// Whether it has been retried for so long that a conflict with a transaction of its own thread would go on for
    /// ever. False if the caller has set a time limit.
    pub fn is_over_if_held(&self) -> bool {
        self.retry_for.is_none() && self.start.elapsed() >= HELD
    }

    /// The transaction that it conflicted with was waited for, and `has_ended` or is still open. In the latter case
    /// precedence would not help: it would only keep others waiting as well.
    pub fn waited(&mut self, has_ended: bool) {
        if !has_ended {
            self.conflicts -= 1;
        }
    }

    /// For how long it waits at most, after a conflict, for the other transaction to end.
    pub fn longest_wait(&self) -> Duration {
        let left = self.retry_for.map_or(LONGEST_WAIT, |time| time.saturating_sub(self.start.elapsed()));
        left.min(LONGEST_WAIT)
    }

    /// The pause after a conflict with a transaction that is not waited for: longer each time, up to 2 ms.
    pub fn pause(&self) -> Duration {
        let longest = 1u64 << self.conflicts.min(10);
        Duration::from_micros(longest + random() % longest)
    }
}
