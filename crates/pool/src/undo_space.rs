//! Room in the file for undoing transactions.
//!
//! A transaction that removes a record, or makes one shorter, leaves room in a leaf that others may use. To put the
//! record back, the leaf is then split, and that takes pages. So that this works in a full file too, the pages that
//! undo may need are *kept*. Ordinary allocations leave them, and only a thread that is [undoing](undoing) takes them.
//! If there is no room for all that is kept, others must not use the room in leaves either. Then leaves are not merged
//! either: undo splits what was merged, and its halves may take twice the pages that the merges have freed.

use crate::primitive::{AtomicU64, Bug, Ordering, planted, unless_planted};
use std::cell::Cell;
use vellum_base::Apart;

vellum_base::primitive::thread_local! {
    /// Whether this thread is undoing a transaction.
    static UNDOES: Cell<bool> = const { Cell::new(false) };
}

/// Undoes something, which may take the room that is kept for undo, on storage as in the log.
pub fn undoing<T>(undo: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            UNDOES.set(self.0);
        }
    }
    let _before = Before(UNDOES.replace(true));
    undo()
}

/// Whether this thread is [undoing](undoing) something.
pub fn is_undoing() -> bool {
    UNDOES.get()
}

/// How many pages are kept for undoing transactions: see [`Pool::undo_space`](crate::Pool::undo_space).
#[derive(Default)]
pub struct UndoSpace {
    /// How often more were kept than were assured since all that were kept were assured; zero while they are. Apart from
    /// the rest, because each change reads it.
    shortages: Apart<AtomicU64>,
    counts: Apart<Counts>,
}

#[derive(Default)]
struct Counts {
    kept: AtomicU64,
    assured: AtomicU64,
    /// How many pages were kept when there was last no room for all of them; zero since there was.
    refused: AtomicU64,
    /// How many threads undo what nothing is kept for.
    holders: AtomicU64,
}

impl UndoSpace {
    /// From now on so many more pages are kept. A caller that has made room in a leaf still has the leaf latched, so the
    /// next thread that changes the leaf knows of them, unless it asked before.
    pub fn keep(&self, pages: u64) {
        let Counts { kept, assured, .. } = &self.counts.0;
        // SeqCst: see `assure`.
        let kept = kept.fetch_add(pages, unless_planted(Bug::RelaxedKeep, Ordering::SeqCst)) + pages;
        if kept > assured.load(Ordering::SeqCst) {
            self.shortages.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// From now on so many pages less are kept.
    pub fn release(&self, pages: u64) {
        // Relaxed: that there is room is not known before a thread looks.
        self.counts.0.kept.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Whether the file may lack room for pages that are kept. [`Pool::admit_growth`](crate::Pool::admit_growth) finds
    /// out.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        // Relaxed: a thread that has latched a leaf since the change that has made it scarce sees it.
        self.shortages.0.load(Ordering::Relaxed) > 0
    }

    /// Undoes something for which nothing is kept, as a recovery does: meanwhile no leaves are merged.
    pub fn holding_leaves<T>(&self, undo: impl FnOnce() -> T) -> T {
        struct Held<'u>(&'u AtomicU64);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Relaxed: the thread that undoes is this one.
        self.counts.0.holders.fetch_add(1, Ordering::Relaxed);
        let _held = Held(&self.counts.0.holders);
        undo()
    }

    /// Whether it is known that the file lacks room for what is kept, or nothing is known.
    pub(crate) fn lacks_room(&self) -> bool {
        let Counts { refused, holders, .. } = &self.counts.0;
        // Relaxed, both: another thread may find room, or keep more, at any moment.
        let refused = refused.load(Ordering::Relaxed);
        holders.load(Ordering::Relaxed) > 0 || (refused > 0 && self.kept() >= refused)
    }

    /// Notes that the file lacks room for so many pages that are kept; zero if it does not.
    pub(crate) fn note_refused(&self, kept: u64) {
        self.counts.0.refused.store(kept, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self) -> u64 {
        self.counts.0.kept.load(Ordering::SeqCst)
    }

    pub(crate) fn assured(&self) -> u64 {
        // Relaxed: it is written under the lock of the space map, which the caller holds.
        self.counts.0.assured.load(Ordering::Relaxed)
    }

    /// Notes what the file has room for. The space map is locked.
    pub(crate) fn assure(&self, pages: u64) {
        // SeqCst: either this sees what another thread keeps meanwhile, or that thread sees what is assured now, and counts
        // a shortage if it is too little. A shortage that is counted after this line stays.
        let shortages = self.shortages.0.load(Ordering::SeqCst);
        self.counts.0.assured.store(pages, unless_planted(Bug::RelaxedAssurance, Ordering::SeqCst));
        if self.kept() > pages {
            self.shortages.0.fetch_add(1, Ordering::SeqCst);
        } else if planted(Bug::ShortageForgotten) {
            self.shortages.0.store(0, Ordering::SeqCst);
        } else {
            // Relaxed if it fails: nothing depends on it.
            let _ = self.shortages.0.compare_exchange(shortages, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}
