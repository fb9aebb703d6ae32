//! Models of the version lock, of the change counter and of handing blocks out and back: interleavings of a few threads,
//! and every result that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vellum-pmem --release --lib models --target-dir target/loom
//! ```
//!
//! Each model is run again with planted bugs, one at a time, and must fail then. The bugs are in the words that threads
//! share ([`SharedWord`]), which are loom's here: an ordering weaker than the code asks for, a missing fence, an
//! exchange that is not atomic.
//!
//! Loom remembers only the last access of a word. So a thread that loads a word and then stores to it hides what another
//! thread loaded before, and loom does not try that store before that load. Threads that only read are therefore started
//! last: loom first runs them after all others, and lets each load have any older value that the memory model allows.
//! [`check`] looks whether readers accepted something for each word that they may begin with.

use crate::{
    blocks::{BlockWord, State},
    lock::{self, SharedWord},
};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread,
};
use std::{cell::RefCell, collections::BTreeSet, process::Command};

/// The variable by which a model tells the process that it starts which bug to plant.
const BUG_VARIABLE: &str = "VELLUM_MODEL_BUG";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// Nothing orders taking the lock before what is written under it.
    NoReleaseFence,
    /// Nothing orders the reads before the second load of the word.
    NoAcquireFence,
    /// Exchanges order nothing.
    RelaxedExchange,
    /// Exchanges are a load and a store.
    NoExchange,
    /// Stores order nothing.
    RelaxedStore,
    /// Loads order nothing.
    RelaxedLoad,
    /// Stripes have no locks.
    NoStripeLock,
}

std::thread_local! {
    /// All threads of a model run on one thread of the system, each model on its own.
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    /// The words with which readers began what they accepted, over all runs of a model.
    static ACCEPTED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

impl SharedWord for AtomicU64 {
    fn load(&self, ordering: Ordering) -> u64 {
        AtomicU64::load(self, if planted(Bug::RelaxedLoad) { Ordering::Relaxed } else { ordering })
    }

    fn exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        if planted(Bug::NoExchange) {
            let seen = AtomicU64::load(self, Ordering::Acquire);
            if seen != current {
                return Err(seen);
            }
            self.store(new, Ordering::Release);
            return Ok(seen);
        }
        let success = if planted(Bug::RelaxedExchange) { Ordering::Relaxed } else { success };
        self.compare_exchange(current, new, success, failure)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        AtomicU64::store(self, value, if planted(Bug::RelaxedStore) { Ordering::Relaxed } else { ordering });
    }

    fn pause() {
        thread::yield_now();
    }

    fn acquire_fence() {
        if !planted(Bug::NoAcquireFence) {
            fence(Ordering::Acquire);
        }
    }

    fn release_fence() {
        if !planted(Bug::NoReleaseFence) {
            fence(Ordering::Release);
        }
    }
}

/// Runs a model without bugs, and then with each of these planted, when it must fail. A model that fails ends its
/// process, so each of those runs in its own process. Without bugs, readers must have begun with just the words `accepted`
/// in all that they accepted: a model in which no reader comes late misses bugs of which only late readers suffer.
fn check(name: &str, bugs: &[Bug], accepted: &[u64], model: fn()) {
    let wanted = std::env::var(BUG_VARIABLE).ok();
    PLANTED.set(bugs.iter().copied().find(|bug| wanted.as_ref() == Some(&format!("{bug:?}"))));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
    if wanted.is_some() {
        return;
    }
    assert!(ACCEPTED.take().iter().eq(accepted), "readers did not come at each moment");
    for bug in bugs {
        let outcome = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1"])
            .env(BUG_VARIABLE, format!("{bug:?}"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&outcome.stdout);
        assert!(said.contains("running 1 test"), "{name} is not the name of this model: {said}");
        assert!(!outcome.status.success(), "the model does not notice {bug:?}");
    }
}

/// A page: its first word, and two words of a record.
struct Page {
    head: AtomicU64,
    record: [AtomicU64; 2],
    /// The lock of the stripe.
    stripe: Mutex<()>,
}

impl Page {
    fn new() -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self { head: zero(), record: [zero(), zero()], stripe: Mutex::new(()) })
    }

    fn record(&self) -> [u64; 2] {
        [0, 1].map(|word: usize| self.record[word].load(Ordering::Relaxed))
    }

    /// Reads the record without a lock, as a reader does; returns also the word that it began with.
    fn read(&self) -> Option<(u64, [u64; 2])> {
        let seen = lock::begin_read(&self.head)?;
        let record = self.record();
        lock::end_read(&self.head, seen).then(|| {
            ACCEPTED.with_borrow_mut(|accepted| accepted.insert(seen));
            (seen, record)
        })
    }

    /// Changes one word under the lock of the stripe: the first word if they are equal, else the second.
    fn raise(&self) {
        let held = (!planted(Bug::NoStripeLock)).then(|| self.stripe.lock().unwrap());
        let [first, second] = self.record();
        let change = lock::begin_change(&self.head);
        self.record[usize::from(first > second)].store(second + 1, Ordering::Relaxed);
        drop(change);
        drop(held);
    }
}

/// Runs a writer beside another one and beside a reader, which is started last.
fn run_writers_and_reader(page: &Arc<Page>, write: fn(&Page, u64), read: fn(&Page)) {
    let writer = {
        let page = page.clone();
        thread::spawn(move || write(&page, 1))
    };
    let reader = {
        let page = page.clone();
        thread::spawn(move || read(&page))
    };
    write(page, 2);
    writer.join().unwrap();
    reader.join().unwrap();
}

/// The words of the record always hold the same number.
#[test]
fn a_reader_never_accepts_half_of_a_change() {
    let bugs =
        [Bug::NoReleaseFence, Bug::NoAcquireFence, Bug::NoExchange, Bug::RelaxedExchange, Bug::RelaxedLoad];
    check("models::a_reader_never_accepts_half_of_a_change", &bugs, &[0, 2, 4], || {
        let page = Page::new();
        let write = |page: &Page, number| {
            let held = lock::lock(&page.head);
            page.record.iter().for_each(|word| word.store(number, Ordering::Relaxed));
            drop(held);
        };
        run_writers_and_reader(&page, write, |page| {
            if let Some((_, [first, second])) = page.read() {
                assert_eq!(first, second, "accepted a torn record");
            }
        });
        let seen = lock::begin_read(&page.head).expect("nobody has the lock");
        assert_eq!(seen, 4, "two changes are two versions");
    });
}

/// The words of the value are raised in turn, each under the lock of the stripe, so the counter tells the value.
#[test]
fn a_reader_accepts_the_value_that_the_counter_counts() {
    let bugs =
        [Bug::NoReleaseFence, Bug::NoAcquireFence, Bug::RelaxedStore, Bug::RelaxedLoad, Bug::NoStripeLock];
    check("models::a_reader_accepts_the_value_that_the_counter_counts", &bugs, &[0, 2, 4], || {
        let page = Page::new();
        let write = |page: &Page, _| page.raise();
        run_writers_and_reader(&page, write, |page| {
            if let Some((seen, record)) = page.read() {
                let counted = [[0, 0], [1, 0], [1, 1]][seen as usize / 2];
                assert_eq!(record, counted, "accepted another value than the one that is counted");
            }
        });
        assert_eq!(lock::begin_read(&page.head), Some(4), "each change is counted at its begin and its end");
        assert_eq!(page.record(), [1, 1]);
    });
}

/// Formats a block, in the thread that was told that it is free.
fn reuse(shared: &(AtomicU64, UnsafeCell<u32>)) {
    // SAFETY: the thread that was told has the block alone; loom reports it if not.
    shared.1.with_mut(|cell| unsafe { *cell += 1 });
}

/// Retracts a record of a block.
fn retract(shared: &(AtomicU64, UnsafeCell<u32>)) {
    if BlockWord(&shared.0).retracted(1) {
        reuse(shared);
    }
}

#[test]
fn a_block_is_given_back_once_and_after_all_use_of_it() {
    let bugs = [Bug::RelaxedExchange, Bug::NoExchange];
    check("models::a_block_is_given_back_once_and_after_all_use_of_it", &bugs, &[], || {
        let shared = Arc::new((AtomicU64::new(0), UnsafeCell::new(0u32)));
        BlockWord(&shared.0).open(1);
        assert!(BlockWord(&shared.0).reserve(1) && BlockWord(&shared.0).reserve(1));
        let client = {
            let shared = shared.clone();
            thread::spawn(move || {
                // SAFETY: an open block is written by its client alone; loom reports it if not.
                shared.1.with_mut(|cell| unsafe { *cell = 10 });
                if BlockWord(&shared.0).close_by(1) {
                    reuse(&shared);
                }
            })
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || retract(&shared))
        };
        retract(&shared);
        client.join().unwrap();
        other.join().unwrap();
        assert_eq!(BlockWord(&shared.0).load().0, State::Free);
        // SAFETY: all threads have ended.
        assert_eq!(shared.1.with(|cell| unsafe { *cell }), 11, "given back once");
    });
}

#[test]
fn a_block_that_is_taken_from_its_client_is_not_written_by_it_any_more() {
    let bugs = [Bug::RelaxedExchange, Bug::NoExchange];
    check("models::a_block_that_is_taken_from_its_client_is_not_written_by_it_any_more", &bugs, &[], || {
        let shared = Arc::new((AtomicU64::new(0), UnsafeCell::new(0u32)));
        BlockWord(&shared.0).open(1);
        // The thread that is told that the block is free gives it to another client, which writes to it.
        let pass_on = |shared: &(AtomicU64, UnsafeCell<u32>)| {
            BlockWord(&shared.0).open(2);
            assert!(BlockWord(&shared.0).reserve(2), "nobody takes it again");
            reuse(shared);
        };
        let client = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut written = 0;
                while written < 2 && BlockWord(&shared.0).reserve(1) {
                    // SAFETY: what was counted is the client's to write, alone; loom reports it if not.
                    shared.1.with_mut(|cell| unsafe { *cell += 10 });
                    written += 1;
                    if BlockWord(&shared.0).retracted(1) {
                        pass_on(&shared);
                    }
                }
                written
            })
        };
        let word = BlockWord(&shared.0);
        if word.begin_compaction() && word.close() {
            pass_on(&shared);
        }
        let written = client.join().unwrap();
        // SAFETY: all threads have ended.
        assert_eq!(shared.1.with(|cell| unsafe { *cell }), written * 10 + 1, "passed on once");
        assert_eq!(word.load().0, State::Open);
    });
}

#[test]
fn a_block_is_compacted_by_one_and_freed_by_whoever_comes_last() {
    let bugs = [Bug::NoExchange];
    check("models::a_block_is_compacted_by_one_and_freed_by_whoever_comes_last", &bugs, &[], || {
        let word = Arc::new(AtomicU64::new(0));
        BlockWord(&*word).set(State::Closed, 1, 0);
        let freed = Arc::new(AtomicU64::new(0));
        let threads = [0, 1].map(|_| {
            let (word, freed) = (word.clone(), freed.clone());
            thread::spawn(move || {
                if BlockWord(&*word).begin_compaction() && BlockWord(&*word).close() {
                    freed.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        if BlockWord(&*word).retracted(1) {
            freed.fetch_add(1, Ordering::Relaxed);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
        assert_eq!(BlockWord(&*word).load().0, State::Free);
    });
}
