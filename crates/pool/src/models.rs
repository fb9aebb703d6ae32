//! Models: every interleaving of a few threads, and every result that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vellum-pool --release --lib --target-dir target/loom
//! ```
//!
//! Each model is also run with planted bugs, and must then fail: a model that cannot fail proves nothing. The contents
//! of a page are two cells that are read and written with relaxed atomics, like the bytes of a page.

use crate::{
    append_hint::AppendHint,
    io::cooperative::Queues,
    page::{parking::CooperativeCompletion, parking::ParkingLot, state::PageState, state::Wake, state::Want},
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
use std::process::Command;
use vellum_base::{Extent, PageId};

/// The environment variable by which a model tells its child process which bug to plant.
const BUG_VARIABLE: &str = "VELLUM_MODEL_BUG";

/// Runs a model without bugs, and then once with each of these bugs planted, when it must fail. A model that fails ends
/// its process, so each bug gets its own process.
fn check(name: &str, bugs: &[Bug], model: fn()) {
    let planted = std::env::var(BUG_VARIABLE).ok();
    plant(bugs.iter().copied().find(|bug| planted.as_ref() == Some(&format!("{bug:?}"))));
    let mut builder = loom::model::Builder::new();
    // More forced switches than this multiply the time and have found nothing more.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
    if planted.is_some() {
        return;
    }
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

/// A model as a test: its name, the bugs that it must notice, and the model itself.
macro_rules! model {
    ($name:ident, [$($bug:ident),*], $model:expr) => {
        #[test]
        fn $name() {
            check(concat!("models::", stringify!($name)), &[$(Bug::$bug),*], $model);
        }
    };
}

/// A page: its state, and two cells that always hold the same number.
struct Page {
    state: PageState,
    contents: [AtomicU64; 2],
}

impl Page {
    fn resident(number: u64) -> Arc<Self> {
        let page = Self { state: PageState::evicted(), contents: [0, 1].map(|_| AtomicU64::new(number)) };
        assert!(page.state.try_exclusive(page.state.load()));
        assert_eq!(page.state.release_exclusive(false).1, Wake::None);
        Arc::new(page)
    }

    fn write(&self, number: u64) {
        self.contents.iter().for_each(|cell| cell.store(number, Ordering::Relaxed));
    }

    fn read(&self) -> [u64; 2] {
        [0, 1].map(|index| self.contents[index].load(Ordering::Relaxed))
    }

    /// Takes the exclusive latch, if it can be had at once.
    fn try_exclusive(&self) -> bool {
        let now = self.state.load();
        (now.is_unlocked() || now.is_marked()) && self.state.try_exclusive(now)
    }

    /// An optimistic read: the number that it accepted, if any.
    fn read_optimistically(&self) -> Option<u64> {
        let seen = self.state.load();
        if !seen.is_readable() {
            return None;
        }
        let [first, second] = self.read();
        self.state.validate(seen).then(|| {
            assert_eq!(first, second, "accepted a torn pair");
            first
        })
    }
}

model!(
    an_optimistic_reader_never_accepts_a_torn_pair,
    [NoReleaseFence, NoAcquireFence, RelaxedRelease],
    || {
        let page = Page::resident(0);
        let writers = [1, 2].map(|number| {
            let page = page.clone();
            thread::spawn(move || {
                if page.try_exclusive() {
                    page.write(number);
                    let _ = page.state.release_exclusive(true);
                }
            })
        });
        page.read_optimistically();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(page.read_optimistically().is_some_and(|number| number > 0));
    }
);

model!(upgrades_lose_no_update, [BlindUpgrade], || {
    let page = Page::resident(0);
    let add = |page: &Page| {
        let seen = page.state.load();
        if !seen.is_readable() {
            return 0;
        }
        let [number, _] = page.read();
        if !page.state.try_upgrade_optimistic(seen) {
            return 0;
        }
        page.write(number + 1);
        let _ = page.state.release_exclusive(true);
        1
    };
    let threads = [0, 1].map(|_| {
        let page = page.clone();
        thread::spawn(move || add(&page))
    });
    let added: u64 = threads.map(|thread| thread.join().unwrap()).iter().sum();
    assert!(added >= 1, "nobody was first");
    assert_eq!(page.read_optimistically(), Some(added));
});

// As a scan does: it finds its place optimistically, and then latches the page.
model!(what_is_read_before_and_under_a_shared_latch_belongs_together, [BlindShare], || {
    let page = Page::resident(0);
    let writer = {
        let page = page.clone();
        thread::spawn(move || {
            if page.try_exclusive() {
                page.write(1);
                let _ = page.state.release_exclusive(true);
            }
        })
    };
    let other = {
        let page = page.clone();
        thread::spawn(move || {
            let seen = page.state.load();
            if seen.is_readable() && page.state.try_share_optimistic(seen) {
                let _ = page.state.release_shared();
            }
        })
    };
    let seen = page.state.load();
    if seen.is_readable() {
        let [before, _] = page.read();
        if page.state.try_share_optimistic(seen) {
            assert_eq!(page.read(), [before, before]);
            let _ = page.state.release_shared();
        }
    }
    writer.join().unwrap();
    other.join().unwrap();
});

model!(a_page_is_clean_only_if_storage_has_what_it_holds, [BlindClean, RelaxedClean], || {
    let (page, storage) = (Page::resident(0), Arc::new(AtomicU64::new(0)));
    let change = |page: &Page, number| {
        if page.try_exclusive() {
            page.write(number);
            let _ = page.state.release_exclusive(true);
        }
    };
    change(&page, 1);
    let writer = {
        let page = page.clone();
        thread::spawn(move || change(&page, 2))
    };
    // A clean page may be evicted, and is then read from storage.
    let evictor = {
        let (page, storage) = (page.clone(), storage.clone());
        thread::spawn(move || {
            let now = page.state.load();
            if now.is_unlocked() && !now.is_dirty() && page.state.try_exclusive(now) {
                assert_eq!(storage.load(Ordering::Relaxed), page.read()[0]);
                let _ = page.state.release_exclusive(false);
            }
        })
    };
    let seen = page.state.load();
    if seen.is_readable() && seen.is_dirty() {
        let [number, _] = page.read();
        if page.state.validate(seen) {
            storage.store(number, Ordering::Relaxed);
            page.state.try_clean(seen);
        }
    }
    writer.join().unwrap();
    evictor.join().unwrap();
    assert!(page.state.load().is_dirty() || storage.load(Ordering::Relaxed) == page.read()[0]);
});

model!(holders_of_latches_exclude_each_other, [RelaxedRelease, RelaxedSharedRelease], || {
    struct Latched(PageState, UnsafeCell<u64>);
    // SAFETY: the cell is what the model checks: loom fails if two threads access it that should not.
    unsafe impl Sync for Latched {}
    // SAFETY: as above.
    unsafe impl Send for Latched {}

    let page = Arc::new(Latched(PageState::evicted(), UnsafeCell::new(0)));
    assert!(page.0.try_exclusive(page.0.load()));
    let _ = page.0.release_exclusive(false);
    let writer = {
        let page = page.clone();
        thread::spawn(move || {
            let now = page.0.load();
            if now.is_unlocked() && page.0.try_exclusive(now) {
                // SAFETY: the latch is held exclusively.
                page.1.with_mut(|cell| unsafe { *cell += 1 });
                let _ = page.0.downgrade(true);
                // SAFETY: the latch is held shared.
                page.1.with(|cell| assert_eq!(unsafe { *cell } % 2, 1));
                let _ = page.0.release_shared();
            }
        })
    };
    let reader = {
        let page = page.clone();
        thread::spawn(move || {
            let now = page.0.load();
            if !now.is_evicted() && page.0.try_shared(now) {
                // SAFETY: the latch is held shared.
                let seen = page.1.with(|cell| unsafe { *cell });
                if page.0.try_upgrade_shared() {
                    // SAFETY: the latch is held exclusively.
                    page.1.with_mut(|cell| unsafe { *cell += 2 });
                    // SAFETY: as above.
                    page.1.with(|cell| assert_eq!(unsafe { *cell }, seen + 2));
                    let _ = page.0.release_exclusive(true);
                } else {
                    let _ = page.0.release_shared();
                }
            }
        })
    };
    writer.join().unwrap();
    reader.join().unwrap();
    assert!(page.0.load().is_unlocked());
});

model!(
    a_reader_notices_that_a_page_was_evicted_and_came_back,
    [VersionStaysAtEviction, NoReleaseFence, NoAcquireFence],
    || {
        let page = Page::resident(7);
        let evictor = {
            let page = page.clone();
            thread::spawn(move || {
                let now = page.state.load();
                assert!(page.state.try_mark(now));
                let now = page.state.load();
                if !now.is_marked() || !page.state.try_exclusive(now) {
                    return;
                }
                // The memory is released.
                page.write(0);
                let _ = page.state.release_exclusive_evicted();
                // The page is read in again.
                assert!(page.state.try_exclusive(page.state.load()));
                page.write(7);
                let _ = page.state.release_exclusive(false);
            })
        };
        let seen = page.state.load();
        if seen.is_marked() {
            page.state.try_unmark(seen);
        }
        if let Some(number) = page.read_optimistically() {
            assert_eq!(number, 7, "accepted what an evicted page reads as");
        }
        evictor.join().unwrap();
    }
);

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

model!(the_resident_set_loses_no_entry, [InsertWithoutExchange, RemoveStopsAtEmpty], || {
    let home = |page: u64| ResidentSet::home(PageId(page)) % 4;
    // Both begin their search at the same slot.
    let second = (2..).find(|page| home(*page) == home(1)).unwrap();
    let pages = [1, second].map(|page| Extent { head: PageId(page), pages: page as u32 });
    let set = Arc::new(ResidentSet::new(2).unwrap());
    assert_eq!(set.slots(), 4);
    let threads = pages.map(|extent| {
        let set = set.clone();
        thread::spawn(move || {
            set.insert(extent);
            assert!(set.contains(extent));
            assert_eq!(set.remove(extent.head), Some(extent));
            set.insert(extent);
        })
    });
    // The clock sees only what was inserted.
    set.visit(1, 2, |extent| assert!(pages.contains(&extent)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
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
    [OneLookAtTheTurn, NoFenceAfterTheTurn],
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
        if let Some((page, token)) = hint.get() {
            assert_eq!(page.0, token);
        }
        hint.set(PageId(4), 4);
        writer.join().unwrap();
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
