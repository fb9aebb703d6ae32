//! Models of the state word of a page: optimistic reads, latches, eviction.
//!
//! The contents of a page are two cells that are read and written with relaxed atomics, like the bytes of a page.

use super::check;
use crate::page::state::{PageState, Wake};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

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
