//! Models: every interleaving of a few threads, and every result that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vellum-pool --release --lib --target-dir target/loom
//! ```
//!
//! Each model is also run with planted bugs, and must then fail: a model that cannot fail proves nothing.
//!
//! Loom remembers only the last access of a word. So a thread that loads a word and then changes it hides what another
//! thread loaded before, and loom does not try that change before that load. Threads that only read are therefore started
//! last: loom first runs them after all others, and lets each load have any older value that the memory model allows.
//! Models [`note`] what their threads met, and [`check`] demands that they met all that they can meet.

use crate::{
    append_hint::AppendHint,
    io::cooperative::Queues,
    page::{parking::CooperativeCompletion, parking::ParkingLot, state::PageState, state::Want},
    primitive::{Bug, plant, planted},
    replacement::{budget::Budget, budget::Woken, resident_set::ResidentSet},
};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use std::{cell::RefCell, collections::BTreeSet, process::Command};
use vellum_base::{Extent, PageId};

/// The environment variable by which a model tells its child process which bug to plant.
const BUG_VARIABLE: &str = "VELLUM_MODEL_BUG";

std::thread_local! {
    /// What was noted over all runs of a model, whose threads all run on one thread of the system.
    static NOTED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes what a thread met.
fn note(what: u64) {
    NOTED.with_borrow_mut(|noted| noted.insert(what));
}

/// Runs a model without bugs, when its threads must note just these numbers in all, and then once with each of these bugs
/// planted, when it must fail. A model that fails ends its process, so each bug gets its own process.
fn check(name: &str, bugs: &[Bug], noted: &[u64], model: fn()) {
    let planted = std::env::var(BUG_VARIABLE).ok();
    plant(bugs.iter().copied().find(|bug| planted.as_ref() == Some(&format!("{bug:?}"))));
    let mut builder = loom::model::Builder::new();
    // More forced switches than this multiply the time and have found nothing more.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
    if planted.is_some() {
        return;
    }
    let met = NOTED.take();
    assert!(met.iter().eq(noted), "the threads did not meet all that they can meet, or more: {met:?}");
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

/// A model as a test: its name, the bugs that it must notice, what its threads note, if anything, and the model itself.
macro_rules! model {
    ($name:ident, [$($bug:ident),*], $model:expr) => {
        model!($name, [$($bug),*], [], $model);
    };
    ($name:ident, [$($bug:ident),*], [$($noted:literal),*], $model:expr) => {
        #[test]
        fn $name() {
            let module = module_path!().split_once("::").map_or("", |(_, module)| module);
            let (name, bugs) = (format!("{module}::{}", stringify!($name)), [$(crate::primitive::Bug::$bug),*]);
            check(&name, &bugs, &[$($noted),*], $model);
        }
    };
}

mod admission;
mod claiming;
mod huge_runs;
mod latches;
mod on_demand;
mod undo_space;

/// Waits for a latch as the pool does, without spinning.
fn latch(lot: &ParkingLot, state: &PageState, want: Want) {
    loop {
        let now = state.load();
        let taken = match want {
            Want::Exclusive => now.is_unlocked() && state.try_exclusive(now),
            Want::Shared | Want::Read => state.try_shared(now),
        };
        if taken {
            return;
        }
        lot.park(PageId(1), state, want, None, || CooperativeCompletion::NotReading);
    }
}

fn unlatch(lot: &ParkingLot, state: &PageState, want: Want) {
    let wake = match want {
        Want::Exclusive => state.release_exclusive(true).1,
        Want::Shared | Want::Read => state.release_shared(),
    };
    lot.wake(PageId(1), wake);
}

/// One thread holds the latch in one mode; other threads want it in theirs. All get it in the end: a lost wake-up is a
/// deadlock, which loom reports.
fn all_get_the_latch(held: Want, wanted: &'static [Want]) {
    let shared = Arc::new((ParkingLot::new(), PageState::evicted()));
    assert!(shared.1.try_exclusive(shared.1.load()));
    let _ = shared.1.release_exclusive(false);
    latch(&shared.0, &shared.1, held);
    let threads: Vec<_> = wanted
        .iter()
        .map(|want| {
            let shared = shared.clone();
            thread::spawn(move || {
                latch(&shared.0, &shared.1, *want);
                unlatch(&shared.0, &shared.1, *want);
            })
        })
        .collect();
    unlatch(&shared.0, &shared.1, held);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(shared.1.load().is_unlocked());
}

model!(no_wake_up_is_lost_after_an_exclusive_holder, [WakeWithoutLock, SleepWithoutLook], || {
    all_get_the_latch(Want::Exclusive, &[Want::Exclusive, Want::Shared]);
});

model!(no_wake_up_is_lost_after_shared_holders, [SilentRelease, WakeWithoutLock, SleepWithoutLook], || {
    all_get_the_latch(Want::Shared, &[Want::Exclusive, Want::Shared]);
});

model!(no_wake_up_is_lost_among_writers, [WakeWithoutLock], || {
    all_get_the_latch(Want::Exclusive, &[Want::Exclusive, Want::Exclusive]);
});

model!(a_downgrade_wakes_readers, [WakeWithoutLock, SleepWithoutLook], || {
    let shared = Arc::new((ParkingLot::new(), PageState::evicted()));
    assert!(shared.1.try_exclusive(shared.1.load()));
    let reader = {
        let shared = shared.clone();
        thread::spawn(move || {
            while shared.1.load().is_exclusive() {
                shared.0.park(PageId(1), &shared.1, Want::Read, None, || CooperativeCompletion::NotReading);
            }
        })
    };
    shared.0.wake(PageId(1), shared.1.downgrade(true));
    // The reader does not wait for the shared holder.
    reader.join().unwrap();
    unlatch(&shared.0, &shared.1, Want::Shared);
});

model!(the_resident_set_loses_no_entry, [InsertWithoutExchange, RemoveStopsAtEmpty], [0, 1, 2], || {
    let home = |page: u64| ResidentSet::home(PageId(page)) % 4;
    // Both begin their search at the same slot.
    let second = (2..).find(|page| home(*page) == home(1)).unwrap();
    let pages = [1, second].map(|page| Extent { head: PageId(page), pages: page as u32 });
    let set = Arc::new(ResidentSet::new(2).unwrap());
    assert_eq!(set.slots(), 4);
    let come_and_go = |set: &ResidentSet, extent: Extent| {
        set.insert(extent);
        assert!(set.contains(extent));
        assert_eq!(set.remove(extent.head), Some(extent));
        set.insert(extent);
    };
    let other = {
        let set = set.clone();
        thread::spawn(move || come_and_go(&set, pages[1]))
    };
    let clock = {
        let set = set.clone();
        thread::spawn(move || {
            // The clock sees only what was inserted.
            let mut seen = 0;
            set.visit(home(1), 2, |extent| {
                assert!(pages.contains(&extent));
                seen += 1;
            });
            note(seen);
        })
    };
    come_and_go(&set, pages[0]);
    other.join().unwrap();
    clock.join().unwrap();
    let mut seen = Vec::new();
    set.for_each(|extent| seen.push(extent));
    seen.sort_unstable();
    assert_eq!(seen, pages);
});

model!(the_evictor_is_woken_when_memory_runs_low, [EvictorFence, ReserverFence], || {
    let budget = Arc::new(Budget::new(16));
    let evictor = {
        let budget = budget.clone();
        thread::spawn(move || {
            assert_eq!(budget.sleep_until_low(None), Woken::Low);
            budget.give_back(8);
        })
    };
    assert!(budget.try_reserve(8));
    assert!(budget.try_reserve(8));
    evictor.join().unwrap();
    assert_eq!(budget.used(), 8);
});

model!(the_evictor_is_woken_when_it_is_asked_for_memory, [EvictorFence, ReserverFence], || {
    let budget = Arc::new(Budget::new(16));
    let evictor = {
        let budget = budget.clone();
        thread::spawn(move || assert_eq!(budget.sleep_until_low(None), Woken::Asked))
    };
    budget.ask_for_memory();
    evictor.join().unwrap();
});

model!(
    an_append_hint_is_never_half_of_one_and_half_of_another,
    [OneLookAtTheTurn, NoFenceAfterTheTurn, RelaxedTurn, RelaxedEndOfTurn],
    [1, 2, 3, 4],
    || {
        let hint = Arc::new(AppendHint::default());
        hint.set(PageId(1), 1);
        let writer = {
            let hint = hint.clone();
            thread::spawn(move || {
                hint.set(PageId(2), 2);
                hint.set(PageId(3), 3);
            })
        };
        let reader = {
            let hint = hint.clone();
            thread::spawn(move || {
                if let Some((page, token)) = hint.get() {
                    assert_eq!(page.0, token);
                    note(token);
                }
            })
        };
        hint.set(PageId(4), 4);
        writer.join().unwrap();
        reader.join().unwrap();
        let (page, token) = hint.get().unwrap();
        assert_eq!(page.0, token);
    }
);

model!(the_evictor_ends_when_it_is_told, [], || {
    let budget = Arc::new(Budget::new(16));
    let evictor = {
        let budget = budget.clone();
        thread::spawn(move || while budget.sleep_until_low(None) == Woken::Low {})
    };
    budget.stop();
    evictor.join().unwrap();
});

/// A page is freed, and becomes an inner page of another extent, while a reader follows a stale reference to it. Only
/// its new owner touches its memory once the extent has been handed out.
fn a_page_changes_hands() {
    struct Shared {
        state: PageState,
        /// Whether the page is a head, as the space map says.
        is_head: AtomicU64,
        memory: UnsafeCell<u64>,
    }
    // SAFETY: the memory is what the model checks: loom fails if two threads access it that should not.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    let page = Arc::new(Shared {
        state: PageState::evicted(),
        is_head: AtomicU64::new(1),
        memory: UnsafeCell::new(0),
    });
    let reader = {
        let page = page.clone();
        thread::spawn(move || {
            let now = page.state.load();
            if !now.is_evicted() || !page.state.try_exclusive(now) {
                return;
            }
            let _ = if page.is_head.load(Ordering::Acquire) == 1 {
                // SAFETY: the latch is held exclusively. The device writes.
                page.memory.with_mut(|memory| unsafe { *memory = 1 });
                page.state.release_exclusive(false).1
            } else {
                page.state.release_exclusive_evicted()
            };
        })
    };
    // The owner latches the page, and frees it.
    let latch = || loop {
        let now = page.state.load();
        if !now.is_exclusive() && page.state.try_exclusive(now) {
            return now;
        }
        thread::yield_now();
    };
    let was = latch();
    if !planted(Bug::FreedAfterTheLatch) {
        page.is_head.store(0, Ordering::Release);
    }
    let _ = if was.is_evicted() {
        page.state.release_exclusive_evicted()
    } else {
        page.state.release_exclusive_clean()
    };
    if planted(Bug::FreedAfterTheLatch) {
        page.is_head.store(0, Ordering::Release);
    }
    // The allocator claims the page as an inner page, and visits it.
    if !page.state.load().is_evicted() && !planted(Bug::NoVisit) {
        if !latch().is_evicted() {
            // SAFETY: the latch is held exclusively. The memory is released.
            page.memory.with_mut(|memory| unsafe { *memory = 0 });
        }
        let _ = page.state.release_exclusive_evicted();
    }
    // SAFETY: the page belongs to the new extent, whose head's latch covers it.
    page.memory.with_mut(|memory| unsafe {
        assert_eq!(*memory, 0, "the page of a new extent is not empty");
        *memory = 2;
    });
    reader.join().unwrap();
}

model!(
    a_stale_reader_never_touches_a_page_that_changed_hands,
    [FreedAfterTheLatch, NoVisit],
    a_page_changes_hands
);

/// A thread releases a page, an event loop begins to read it and never reaps, and another thread wants the page. That
/// thread gets it, because it completes the read itself.
fn another_thread_ends_the_read() {
    struct Shared {
        lot: ParkingLot,
        state: PageState,
        queues: Queues<Option<PageId>>,
    }
    const PAGE: PageId = PageId(1);
    let shared =
        Arc::new(Shared { lot: ParkingLot::new(), state: PageState::evicted(), queues: Queues::new() });
    let queue = std::sync::Arc::new(Mutex::new(None));
    shared.queues.add(queue.clone());
    assert!(shared.state.try_exclusive(shared.state.load()));
    let owner = {
        let shared = shared.clone();
        thread::spawn(move || {
            // Like `Reads::begin`. No thread will ever reap.
            let begin = |reading: &mut Option<PageId>| *reading = Some(PAGE);
            let early = planted(Bug::LatchBeforeLock) && take(&shared.state);
            let mut reading = queue.lock().unwrap();
            if early || take(&shared.state) {
                begin(&mut reading);
            }
        })
    };
    let waiter = {
        let shared = shared.clone();
        thread::spawn(move || {
            // Like `PageIo::wait`.
            while shared.state.load().is_exclusive() {
                shared.lot.park(PAGE, &shared.state, Want::Read, None, || {
                    shared.queues.complete(
                        |reading| *reading == Some(PAGE),
                        |reading| {
                            *reading = None;
                            shared.lot.wake(PAGE, shared.state.release_exclusive(false).1);
                        },
                    )
                });
            }
        })
    };
    shared.lot.wake(PAGE, shared.state.release_exclusive_evicted());
    waiter.join().unwrap();
    owner.join().unwrap();
}

/// Latches an evicted page to be read.
fn take(state: &PageState) -> bool {
    let now = state.load();
    now.is_evicted() && state.try_exclusive(now)
}

model!(
    no_thread_waits_for_an_event_loop_that_never_reaps,
    [LookBeforeAnnouncing, LatchBeforeLock],
    another_thread_ends_the_read
);
