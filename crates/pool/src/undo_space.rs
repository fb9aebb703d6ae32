//! Room in the file for undoing transactions.
//!
//! A transaction that removes a record, or makes one shorter, leaves room in a leaf that others may use. To put the
//! record back, the leaf is then split, and that takes pages. So that this works in a full file too, the pages that
//! undo may need are *kept*. Ordinary allocations leave them, and only a thread that is [undoing](undoing) takes them.
//! If there is no room for all that is kept, others must not use the room in leaves either.

use crate::primitive::{AtomicBool, AtomicU64, Ordering};
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
    /// Whether more are kept than are assured. Apart from the rest, because each change reads it.
    is_scarce: Apart<AtomicBool>,
    counts: Apart<Counts>,
}

#[derive(Default)]
struct Counts {
    kept: AtomicU64,
    assured: AtomicU64,
}

impl UndoSpace {
    /// From now on so many more pages are kept. A caller that has made room in a leaf still has the leaf latched, so the
    /// next thread that changes the leaf knows of them, unless it asked before.
    pub fn keep(&self, pages: u64) {
        let Counts { kept, assured } = &self.counts.0;
        // SeqCst: see `assure`.
        let kept = kept.fetch_add(pages, Ordering::SeqCst) + pages;
        if kept > assured.load(Ordering::SeqCst) {
            self.is_scarce.0.store(true, Ordering::SeqCst);
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
        self.is_scarce.0.load(Ordering::Relaxed)
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
        // SeqCst: either this sees what another thread keeps meanwhile, or that thread sees what is assured now and says
        // after this one that it is too little.
        self.counts.0.assured.store(pages, Ordering::SeqCst);
        if self.kept() <= pages {
            self.is_scarce.0.store(false, Ordering::SeqCst);
        }
        if self.kept() > pages {
            self.is_scarce.0.store(true, Ordering::SeqCst);
        }
    }
}
