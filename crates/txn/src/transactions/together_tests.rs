//! Threads that work side by side.

use super::{Snapshot, Transactions};
use crate::{
    places::Places,
    settings::SnapshotLimit,
    single::Single,
    versions::Spill,
    write_set::{State, WriteSet},
    writer::Sight,
};
use std::{
    panic::Location,
    sync::Arc,
    task::{Context, Waker},
};
use vellum_access::{Intent, Isolation as _, Seen, ValueImage, node::ValueKind};
use vellum_base::primitive::{Mutex, thread};
use vellum_base::{Lsn, PageId};

const TREE: PageId = PageId(9);

fn transactions() -> Arc<Transactions> {
    let (limit, spill) = (SnapshotLimit::default(), Spill::new(None, 1 << 20));
    Arc::new(Transactions::new(1, limit, spill, Default::default(), Places::Clock(Arc::default())))
}

/// One transaction after the other: each changes a record of its thread several times, and one that other threads
/// change too.
fn work(transactions: &Transactions, latch: &Mutex<()>, (thread, rounds): (u8, usize)) {
    for _ in 0..rounds {
        let snapshot = transactions.begin(false, Location::caller(), || (), || Lsn(100));
        let writes = Arc::new(WriteSet::new(snapshot.id));
        let mut state = writes.lock();
        let (number, exposure) = transactions.begin_writing(&writes, || Lsn(100));
        (state.number, state.exposure) = (Some((number, Lsn(100))), exposure);
        drop(state);
        let may_change = |key: u8| {
            let _leaf = latch.lock().unwrap();
            let by = (&*writes, &snapshot);
            let claimed = transactions.claim(by, (TREE, &[key], Lsn(200)), None, Intent::SameLength).unwrap();
            claimed.map(|mut state| state.note_change(Lsn(200), Lsn(210))).is_ok()
        };
        let is_done = [thread, thread, 3 + thread % 2, thread].into_iter().all(may_change);
        let mut state = if is_done {
            writes.lock()
        } else {
            transactions.enter_all();
            writes.lock()
        };
        let left = state.leave();
        let ended = if is_done {
            let by = (&**writes.writer(), &snapshot);
            let committed = transactions.commit(by, (Lsn(100), left), None, |_| Lsn(300));
            *state = State::default();
            drop(state);
            committed.unwrap_or_else(|refused| panic!("{:?}", refused.0)).1
        } else {
            drop(state);
            writes.writer().roll_back(0);
            left.for_each_record(|record| {
                transactions.versions.retract(record, snapshot.id);
                Some(())
            })
            .unwrap();
            transactions.end_writing(snapshot.id);
            transactions.end(&snapshot)
        };
        transactions.prune(&ended);
        ended.free.into_iter().for_each(|(_, left)| left.go_home());
    }
}

/// This many threads work side by side, each on its own database.
fn work_together(threads: u8, rounds: usize) {
    let transactions = transactions();
    let latch = Arc::new(Mutex::new(()));
    let spawn = |thread| {
        let (transactions, latch) = (transactions.clone(), latch.clone());
        thread::spawn(move || work(&transactions, &latch, (thread, rounds)))
    };
    let threads: Vec<_> = (0..threads).map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let history = transactions.history(Lsn(0));
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
}

#[cfg(not(shuttle))]
#[test]
fn threads_that_search_the_buffers_of_others_do_not_wait_for_ever() {
    work_together(3, 20_000);
}

#[cfg(shuttle)]
#[test]
fn none_waits_for_ever_however_threads_meet() {
    use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
    fn check(scheduler: impl Scheduler + 'static, rounds: usize) {
        let mut config = shuttle::Config::new();
        // The slots of this thread's own database are created there.
        config.stack_size = 1 << 20;
        shuttle::Runner::new(scheduler, config).run(move || work_together(2, rounds));
    }
    check(RandomScheduler::new(2000), 2);
    check(PctScheduler::new(3, 2000), 3);
}

/// Threads wait for a transaction that another thread ends.
fn wait_for_another() {
    let transactions = transactions();
    let snapshot = transactions.begin(false, Location::caller(), || (), || Lsn(100));
    let writes = Arc::new(WriteSet::new(snapshot.id));
    let (number, exposure) = transactions.begin_writing(&writes, || Lsn(100));
    let mut state = writes.lock();
    (state.number, state.exposure) = (Some((number, Lsn(100))), exposure);
    drop(state);
    let by = (&*writes, &snapshot);
    let claimed = transactions.claim(by, (TREE, b"key", Lsn(200)), None, Intent::SameLength).unwrap();
    claimed.unwrap_or_else(|refusal| panic!("{refusal:?}")).note_change(Lsn(200), Lsn(210));
    transactions.publish_private();
    assert_eq!(transactions.versions.keeper(TREE, b"key"), Some(snapshot.id));
    // Without a limit of time, which a scheduler may let be over.
    let wait = |transactions: Arc<Transactions>| {
        if let Some(mut wait) = transactions.wait_for(TREE, b"key") {
            while wait.poll(&Context::from_waker(Waker::noop())).is_pending() {
                thread::yield_now();
            }
        }
    };
    let spawn = |transactions: Arc<Transactions>| thread::spawn(move || wait(transactions));
    let waiting = [spawn(transactions.clone()), spawn(transactions.clone())];
    transactions.roll_back(&writes);
    transactions.end_writing(snapshot.id);
    transactions.end(&snapshot);
    transactions.waiting.end(snapshot.id);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(transactions.waiting.is_empty());
}

#[cfg(not(shuttle))]
#[test]
fn all_that_wait_for_another_are_called() {
    (0..500).for_each(|_| wait_for_another());
}

#[cfg(shuttle)]
#[test]
fn all_that_wait_for_another_are_called_however_threads_meet() {
    shuttle::check_random(wait_for_another, 3000);
    shuttle::check_pct(wait_for_another, 3000, 3);
}

/// What a leaf holds under its only key, and the values that were committed there, each with the time of its commit.
#[derive(Default)]
struct Record {
    key: u8,
    leaf: Mutex<u64>,
    committed: Mutex<Vec<(u64, u64)>>,
}

impl Record {
    /// What a snapshot of this time is to see.
    fn at(&self, time: u64) -> u64 {
        let committed = self.committed.lock().unwrap();
        committed.iter().filter(|(of, _)| *of <= time).max().map_or(0, |(_, value)| *value)
    }

    /// Checks what a snapshot sees.
    fn look(&self, transactions: &Transactions, sight: Sight) {
        let see = || transactions.versions.seen(TREE, &[self.key], sight).unwrap();
        self.look_at(see, |seen| assert_eq!(seen, self.at(sight.time), "{sight:?}"));
    }

    /// Checks what is seen.
    fn look_at(&self, see: impl FnOnce() -> Seen, check: impl FnOnce(u64)) {
        let leaf = self.leaf.lock().unwrap();
        let seen = match see() {
            Seen::Value(bytes) => u64::from_le_bytes(bytes[..].try_into().unwrap()),
            Seen::Leaf => *leaf,
            seen => panic!("{seen:?}"),
        };
        check(seen);
    }

    /// Checks what a reader outside transactions sees.
    fn look_outside(&self, transactions: &Arc<Transactions>) {
        let first = transactions.last_commit();
        let outside = Single { transactions: transactions.clone() };
        let see = || outside.seen(TREE, &[self.key]).unwrap();
        self.look_at(see, |seen| {
            let last = self.committed.lock().unwrap().last().map_or(0, |(time, _)| *time).max(first);
            assert!((first..=last).any(|time| self.at(time) == seen), "{seen} between {first} and {last}");
        });
    }

    /// A transaction looks twice, and may change the record to a value.
    fn visit(&self, transactions: &Transactions, value: Option<u64>) {
        let snapshot = transactions.begin(false, Location::caller(), || (), || Lsn(100));
        self.look(transactions, snapshot.sight());
        let writes = Arc::new(WriteSet::new(snapshot.id));
        let changed = value.and_then(|value| self.change(transactions, (&writes, &snapshot), value));
        let ended = match changed {
            Some(value) => {
                let mut state = writes.lock();
                let left = state.leave();
                let by = (&**writes.writer(), &snapshot);
                let note = |time| {
                    self.committed.lock().unwrap().push((time, value));
                    Lsn(300)
                };
                let committed = transactions.commit(by, (Lsn(100), left), None, note);
                *state = State::default();
                drop(state);
                committed.unwrap_or_else(|refused| panic!("{:?}", refused.0)).1
            }
            None => {
                self.look(transactions, snapshot.sight());
                transactions.roll_back(&writes);
                transactions.end_writing(snapshot.id);
                transactions.end(&snapshot)
            }
        };
        transactions.prune(&ended);
        ended.free.into_iter().for_each(|(_, left)| left.go_home());
    }

    /// Changes the record, if no other transaction was faster.
    fn change(
        &self,
        transactions: &Transactions,
        by: (&Arc<WriteSet>, &Snapshot),
        value: u64,
    ) -> Option<u64> {
        let (writes, snapshot) = by;
        let mut state = writes.lock();
        let (number, exposure) = transactions.begin_writing(writes, || Lsn(100));
        (state.number, state.exposure) = (Some((number, Lsn(100))), exposure);
        drop(state);
        let mut leaf = self.leaf.lock().unwrap();
        let bytes = leaf.to_le_bytes();
        let held = Some(ValueImage { kind: ValueKind::Inline, bytes: &bytes });
        let target = (TREE, &[self.key][..], Lsn(200));
        let claimed = transactions.claim((writes, snapshot), target, held, Intent::SameLength).unwrap();
        claimed.ok()?.note_change(Lsn(200), Lsn(210));
        assert_eq!(*leaf, self.at(snapshot.time), "no other has changed it since the snapshot");
        *leaf = value;
        Some(value)
    }
}

/// Threads that change records, and one that only looks; and perhaps an old snapshot, for which versions are kept.
fn look_together(rounds: u64, count: u8, has_old: bool) {
    let transactions = transactions();
    let old = has_old.then(|| transactions.begin(false, Location::caller(), || (), || Lsn(100)));
    let records: Arc<[_]> = (0..count).map(|key| Record { key, ..Record::default() }).collect();
    let spawn = |thread: u64| {
        let (transactions, records) = (transactions.clone(), records.clone());
        thread::spawn(move || {
            for (round, record) in (1..=rounds).zip(records.iter().cycle()) {
                record.visit(&transactions, (thread > 0).then_some(round * 4 + thread));
                record.look_outside(&transactions);
            }
        })
    };
    let threads: Vec<_> = (0..3).map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    if let Some(old) = old {
        records.iter().for_each(|record| record.look(&transactions, old.sight()));
        transactions.prune(&transactions.end(&old));
    }
    let history = transactions.history(Lsn(0));
    assert_eq!((history.open, history.records, history.leftovers), (0, 0, 0));
}

#[cfg(not(shuttle))]
#[test]
fn each_sees_its_moment() {
    look_together(20_000, 1, false);
    look_together(50_000, 3, true);
}

#[cfg(shuttle)]
#[test]
fn each_sees_its_moment_however_threads_meet() {
    use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
    fn check(scheduler: impl Scheduler + 'static, rounds: u64) {
        let mut config = shuttle::Config::new();
        // As above.
        config.stack_size = 1 << 20;
        shuttle::Runner::new(scheduler, config).run(move || {
            look_together(rounds, 1, false);
            look_together(3 * rounds, 3, true);
        });
    }
    check(RandomScheduler::new(5000), 4);
    check(PctScheduler::new(3, 5000), 5);
}
