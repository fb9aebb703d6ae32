//! Models of the state word of a page: optimistic reads, latches, eviction.
//!
//! The contents of a page are two cells that are read and written with relaxed atomics, like the bytes of a page. Mostly
//! they hold the page's version, so that a reader must find just the contents of the version that it saw.

use super::{check, note};
use crate::page::state::{PageState, Wake, Word};
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

    /// Takes a shared latch and turns it into the exclusive one, if both can be had at once.
    fn try_shared_and_exclusive(&self) -> bool {
        if !self.state.try_shared(self.state.load()) {
            return false;
        }
        let upgraded = self.state.try_upgrade_shared();
        if !upgraded {
            let _ = self.state.release_shared();
        }
        upgraded
    }

    /// Writes the next version into the page, which is latched exclusively, and releases it.
    fn change(&self) {
        self.write(self.state.word_after(true).version());
        let _ = self.state.release_exclusive(true);
    }

    /// An optimistic read: what it accepted, if anything, and the word at which it began.
    fn read_optimistically(&self) -> Option<(Word, u64)> {
        let seen = self.state.load();
        if !seen.is_readable() {
            return None;
        }
        let [first, second] = self.read();
        self.state.validate(seen).then(|| {
            assert_eq!(first, second, "accepted a torn pair");
            (seen, first)
        })
    }
}

model!(
    an_optimistic_reader_accepts_the_contents_of_the_version_that_it_saw,
    [NoReleaseFence, NoUpgradeFence, NoAcquireFence, RelaxedLoad, RelaxedRelease],
    [0, 1, 2],
    || {
        let page = Page::resident(0);
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                if page.try_shared_and_exclusive() {
                    page.change();
                }
            })
        };
        let reader = {
            let page = page.clone();
            thread::spawn(move || {
                if let Some((seen, number)) = page.read_optimistically() {
                    assert_eq!(number, seen.version());
                    note(number);
                }
            })
        };
        if page.try_exclusive() {
            page.change();
        }
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(page.read_optimistically().is_some_and(|(_, number)| number > 0));
    }
);

model!(upgrades_lose_no_update, [BlindUpgrade, RelaxedLoad, RelaxedRelease], [0, 1], || {
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
        note(seen.version());
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
    assert!(page.read_optimistically().is_some_and(|(_, number)| number == added));
});

// As a scan does: it finds its place optimistically, and then latches the page.
model!(
    what_is_read_before_and_under_a_shared_latch_belongs_together,
    [BlindShare, RelaxedLoad, RelaxedRelease],
    [0, 1],
    || {
        let page = Page::resident(0);
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                if page.try_exclusive() {
                    page.change();
                }
            })
        };
        let scan = {
            let page = page.clone();
            thread::spawn(move || {
                let seen = page.state.load();
                if !seen.is_readable() {
                    return;
                }
                let before = page.read();
                if page.state.try_share_optimistic(seen) {
                    assert_eq!([before, page.read()], [[seen.version(); 2]; 2]);
                    note(seen.version());
                    let _ = page.state.release_shared();
                }
            })
        };
        let seen = page.state.load();
        if seen.is_readable() && page.state.try_share_optimistic(seen) {
            let _ = page.state.release_shared();
        }
        writer.join().unwrap();
        scan.join().unwrap();
    }
);

/// What the thread that cleans the page and the one that evicts it have met: the versions that became clean or were
/// about to be evicted.
const CLEANED: u64 = 10;
const EVICTED: u64 = 20;

model!(
    a_page_is_clean_only_if_storage_has_what_it_holds,
    [BlindClean, RelaxedClean, RelaxedLoad],
    [11, 12, 21, 22],
    || {
        let (page, storage) = (Page::resident(0), Arc::new(AtomicU64::new(0)));
        let change = |page: &Page| {
            if page.try_exclusive() {
                page.change();
            }
        };
        change(&page);
        let cleaner = {
            let (page, storage) = (page.clone(), storage.clone());
            thread::spawn(move || {
                let seen = page.state.load();
                if !seen.is_readable() || !seen.is_dirty() {
                    return;
                }
                let [number, _] = page.read();
                if page.state.validate(seen) {
                    storage.store(number, Ordering::Relaxed);
                    if page.state.try_clean(seen) {
                        note(CLEANED + seen.version());
                    }
                }
            })
        };
        // A clean page may be evicted, and is then read from storage.
        let evictor = {
            let (page, storage) = (page.clone(), storage.clone());
            thread::spawn(move || {
                let now = page.state.load();
                if now.is_unlocked() && !now.is_dirty() && page.state.try_exclusive(now) {
                    assert_eq!(page.read(), [now.version(); 2]);
                    assert_eq!(storage.load(Ordering::Relaxed), now.version());
                    note(EVICTED + now.version());
                    let _ = page.state.release_exclusive(false);
                }
            })
        };
        change(&page);
        cleaner.join().unwrap();
        evictor.join().unwrap();
        assert!(page.state.load().is_dirty() || storage.load(Ordering::Relaxed) == page.read()[0]);
    }
);

/// A page whose contents only holders of its latch touch: loom fails if two of them do so that should not.
struct Latched(PageState, UnsafeCell<u64>);
// SAFETY: the cell is what the models check.
unsafe impl Sync for Latched {}
// SAFETY: as above.
unsafe impl Send for Latched {}

impl Latched {
    fn new() -> Arc<Self> {
        let page = Self(PageState::evicted(), UnsafeCell::new(0));
        assert!(page.0.try_exclusive(page.0.load()));
        let _ = page.0.release_exclusive(false);
        Arc::new(page)
    }

    fn read(&self) -> u64 {
        // SAFETY: the latch is held.
        self.1.with(|cell| unsafe { *cell })
    }

    fn add(&self, number: u64) {
        // SAFETY: the latch is held exclusively.
        self.1.with_mut(|cell| unsafe { *cell += number });
    }
}

/// What the writer and the reader have met: the versions.
const WRITER: u64 = 10;
const READER: u64 = 20;

model!(
    holders_of_latches_exclude_each_other,
    [RelaxedRelease, RelaxedSharedRelease],
    [10, 11, 20, 21],
    || {
        let page = Latched::new();
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                let now = page.0.load();
                if now.is_unlocked() && page.0.try_exclusive(now) {
                    note(WRITER + now.version());
                    page.add(1);
                    let _ = page.0.downgrade(true);
                    assert_eq!(page.read() % 2, 1);
                    let _ = page.0.release_shared();
                }
            })
        };
        let reader = {
            let page = page.clone();
            thread::spawn(move || {
                let now = page.0.load();
                if !now.is_evicted() && page.0.try_shared(now) {
                    note(READER + now.version());
                    let seen = page.read();
                    if page.0.try_upgrade_shared() {
                        page.add(2);
                        assert_eq!(page.read(), seen + 2);
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
    }
);

// The word is the same before and after them, so only the exchange sees that they have left.
model!(
    a_writer_comes_after_the_readers_that_it_did_not_see,
    [RelaxedExchange, RelaxedSharedRelease],
    [10, 20, 21],
    || {
        let page = Latched::new();
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                let now = page.0.load();
                if now.is_unlocked() && page.0.try_exclusive(now) {
                    note(WRITER + page.read());
                    page.add(1);
                    let _ = page.0.release_exclusive(true);
                }
            })
        };
        let reader = {
            let page = page.clone();
            thread::spawn(move || {
                if page.0.try_shared(page.0.load()) {
                    note(READER + page.read());
                    let _ = page.0.release_shared();
                }
            })
        };
        writer.join().unwrap();
        reader.join().unwrap();
    }
);

/// Added to the version if the reader found the page marked.
const MARKED: u64 = 10;

model!(
    a_reader_notices_that_a_page_was_evicted_and_came_back,
    [VersionStaysAtEviction, NoReleaseFence, NoAcquireFence, RelaxedLoad, RelaxedRelease],
    [0, 1, 10],
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
        let reader = {
            let page = page.clone();
            thread::spawn(move || {
                let seen = page.state.load();
                let marked = if page.state.try_unmark(seen) { MARKED } else { 0 };
                if let Some((seen, number)) = page.read_optimistically() {
                    assert_eq!(number, 7, "accepted what an evicted page reads as");
                    note(marked + seen.version());
                }
            })
        };
        evictor.join().unwrap();
        reader.join().unwrap();
    }
);
