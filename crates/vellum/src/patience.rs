//! How long a change that is a transaction of its own waits for the transactions in its way.

use std::time::Duration;
use vellum_base::primitive::Instant;
use vellum_txn::Wait;

/// For one of them.
const EACH: Duration = Duration::from_millis(20);
/// For all of them: as long as each is short, it may lose against others many times.
const ALL: Duration = Duration::from_secs(1);

/// What is left of that time.
pub(crate) struct Patience {
    begun: Instant,
    /// The transaction for which it waits, if that is known, and since when.
    other: Option<u64>,
    since: Instant,
}

impl Patience {
    pub fn new() -> Self {
        let begun = Instant::now();
        Self { begun, other: None, since: begun }
    }

    /// How long it may go on to wait for the transaction that is in its way now; zero if it is to give up.
    pub fn left(&mut self, wait: Option<&Wait>) -> Duration {
        let (now, other) = (Instant::now(), wait.map(Wait::transaction));
        if other != self.other {
            (self.other, self.since) = (other, now);
        }
        EACH.saturating_sub(now - self.since).min(ALL.saturating_sub(now - self.begun))
    }
}
