//! How many wait for syncs, how many of them a sync serves, and when the next sync begins.
//!
//! While threads or tasks commit one after the other, a sync that began as soon as one of them waits would serve only
//! that one, and the others, which come a moment later, would wait for two syncs. So the next sync *gathers* first: it
//! begins when as many wait as have lately, but at the latest after as long as the last sync took. A client that is
//! alone never waits. (PostgreSQL's `commit_delay` and MySQL's `binlog_group_commit_sync_delay` are times that an
//! administrator must choose; here both numbers are measured.)

use std::{sync::PoisonError, time::Duration};
use vellum_base::Lsn;
use vellum_base::primitive::{Condvar, Mutex, MutexGuard};

/// How many syncs there have been since the log was opened, and how many records tasks or threads waited for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SyncCounts {
    /// How many syncs have made records durable.
    pub syncs: u64,
    /// How many records were waited for when a sync began, summed over the syncs.
    pub waiting: u64,
    /// How many of these the sync made durable. The others came while it was written, or were not filled yet.
    pub acknowledged: u64,
}

/// The counts, and how many the next sync must wait for.
#[derive(Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    is_complete: Condvar,
}

#[derive(Default)]
struct State {
    counts: SyncCounts,
    /// The records that threads wait for.
    threads: Vec<Lsn>,
    /// How many were waiting when recent syncs began.
    expected: usize,
    /// How many are still missing before the sync that is about to begin; zero if none is about to.
    missing: usize,
    /// How long the last sync took, including the writes for it.
    took: Duration,
}

/// The longest time that a sync gathers, however slow the device is.
const GATHERING_MAX: Duration = Duration::from_millis(10);

/// The wait of a thread for a record.
pub(crate) struct Waits<'s> {
    syncs: &'s Syncs,
    lsn: Lsn,
}

impl Syncs {
    /// Notes that this thread waits until a record is durable.
    pub fn wait(&self, lsn: Lsn) -> Waits<'_> {
        let mut state = self.lock();
        state.threads.push(lsn);
        self.count(state);
        Waits { syncs: self, lsn }
    }

    /// Notes that a task waits for a record.
    pub fn note_task(&self) {
        self.count(self.lock());
    }

    fn count(&self, mut state: MutexGuard<'_, State>) {
        if state.missing > 0 {
            state.missing -= 1;
            if state.missing == 0 {
                self.is_complete.notify_one();
            }
        }
    }

    /// The records that threads and these `tasks` wait for. Waits for records before `durable` are over.
    pub fn awaited(&self, durable: Lsn, tasks: Vec<Lsn>) -> Vec<Lsn> {
        awaited(&self.lock(), durable, tasks)
    }

    /// Returns when the next sync should begin; one thread at a time. `durable` and `tasks` are as for `awaited`.
    pub fn gather(&self, durable: Lsn, tasks: Vec<Lsn>) {
        let mut state = self.lock();
        let waiting = awaited(&state, durable, tasks).len();
        // Nothing waits: the flush is not for a commit.
        if waiting == 0 || waiting >= state.expected {
            return;
        }
        state.missing = state.expected - waiting;
        let limit = state.took.min(GATHERING_MAX);
        let gathered = self.is_complete.wait_timeout_while(state, limit, |state| state.missing > 0);
        let (mut state, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        state.missing = 0;
    }

    /// Lets a sync that [gathers](Self::gather) begin.
    pub fn hurry(&self) {
        self.lock().missing = 0;
        self.is_complete.notify_one();
    }

    /// Notes a sync that took `took` and has made the log durable up to `end`; `awaited` were waited for when it began.
    pub fn add(&self, end: Lsn, awaited: &[Lsn], took: Duration) {
        let mut state = self.lock();
        state.counts.syncs += 1;
        state.counts.waiting += awaited.len() as u64;
        state.counts.acknowledged += awaited.iter().filter(|lsn| **lsn < end).count() as u64;
        // If fewer come, the expectation falls by an eighth each time.
        state.expected = awaited.len().max(state.expected - state.expected.div_ceil(8));
        state.took = took;
    }

    pub fn counts(&self) -> SyncCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn awaited(state: &State, durable: Lsn, mut tasks: Vec<Lsn>) -> Vec<Lsn> {
    tasks.extend_from_slice(&state.threads);
    tasks.retain(|lsn| *lsn >= durable);
    // A thread may wait for a record that a task waits for as well.
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.lock();
        if let Some(place) = state.threads.iter().position(|lsn| *lsn == self.lsn) {
            state.threads.swap_remove(place);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::{sync::Barrier, thread, time::Instant};

    /// The next sync begins after a while if fewer come.
    const LONG: Duration = Duration::from_millis(8);

    fn after_a_sync_for(count: u64) -> Syncs {
        let syncs = Syncs::default();
        syncs.add(Lsn(100), &Vec::from_iter((0..count).map(Lsn)), LONG);
        syncs
    }

    fn gathering_time(syncs: &Syncs, tasks: &[Lsn]) -> Duration {
        let tasks = tasks.to_vec();
        let begun = Instant::now();
        syncs.gather(Lsn(100), tasks);
        begun.elapsed()
    }

    #[test]
    fn one_that_is_alone_waits_for_nobody() {
        // Many attempts, of which the system may delay some.
        let syncs = after_a_sync_for(1);
        let least = (0..20).map(|_| gathering_time(&syncs, &[Lsn(100)])).min();
        assert!(least < Some(LONG / 4), "{least:?}");
        let syncs = after_a_sync_for(3);
        let least = (0..20).map(|_| gathering_time(&syncs, &[])).min();
        assert!(least < Some(LONG / 4), "nobody waits: {least:?}");
    }

    #[test]
    fn a_sync_waits_as_long_as_the_last_took_for_those_that_do_not_come() {
        let syncs = after_a_sync_for(3);
        // One of them has been served, and does not know yet.
        let _served = syncs.wait(Lsn(99));
        let _waits = syncs.wait(Lsn(100));
        let time = gathering_time(&syncs, &[Lsn(101)]);
        assert!(time >= LONG, "{time:?}");
        let _third = syncs.wait(Lsn(102));
        let least = (0..20).map(|_| gathering_time(&syncs, &[Lsn(101)])).min();
        assert!(least < Some(LONG / 4), "all are there: {least:?}");
    }

    #[test]
    fn it_begins_when_the_last_has_come() {
        for comes in [|syncs: &Syncs| drop(syncs.wait(Lsn(103))), Syncs::note_task, Syncs::hurry] {
            let least = (0..20).map(|_| {
                let syncs = after_a_sync_for(2);
                let begun = Barrier::new(2);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        begun.wait();
                        // It may come before the other thread gathers, which then waits in vain.
                        while syncs.lock().missing == 0 && !syncs.lock().threads.is_empty() {
                            thread::yield_now();
                        }
                        comes(&syncs);
                    });
                    let waits = syncs.wait(Lsn(100));
                    begun.wait();
                    let time = gathering_time(&syncs, &[]);
                    drop(waits);
                    time
                })
            });
            let least = least.min();
            assert!(least < Some(LONG / 2), "{least:?}");
        }
    }

    #[test]
    fn those_that_come_no_more_are_soon_not_waited_for() {
        let syncs = after_a_sync_for(64);
        let syncs_needed = (0..).take_while(|_| {
            let expected = syncs.lock().expected;
            syncs.add(Lsn(200), &[Lsn(100)], LONG);
            expected > 1
        });
        assert!(syncs_needed.count() < 30);
    }
}
