//! Pages that are kept as they are before they change, for snapshots that are older than the changes.
//!
//! A *keeper* may ask for every page of a tree as it was at one place of the log (of the clock, without a log): each page whose LSN is
//! less is shown to it before it is changed for the first time after that. Pages are changed side by side, so a change may begin before the place
//! is chosen and get its LSN after it. Therefore:
//!
//! 1. [`arm`](KeptPages::arm) says that every change keeps its pages from now on;
//! 2. the keeper takes the place at which the log ends then, and [`set`](KeptPages::set)s it.
//!
//! A change looks before it begins and once more when it has its LSN. If it finds something else then, it has begun before and may lie behind the
//! place: it shows its pages again, as they are with it. If it finds the same, it lies before the place, or has kept its pages. What the change was
//! about is for the keeper to know: such changes were claimed before the keeper was armed.

use crate::primitive::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use vellum_base::{Lsn, PageId};

/// Keeps pages before they change.
pub trait PageKeeper: Send + Sync {
    /// Keeps what a page of the tree with this root holds. The page is latched, so it calls nothing of this pool. A page that is shown a second
    /// time is kept as it was the first time.
    fn keep(&self, tree: PageId, page: &[u8]);
}

/// From where on pages are kept, and what keeps them.
pub struct KeptPages {
    from: AtomicU64,
    keeper: OnceLock<Weak<dyn PageKeeper>>,
}

impl Default for KeptPages {
    fn default() -> Self {
        Self { from: AtomicU64::new(0), keeper: OnceLock::new() }
    }
}

impl KeptPages {
    /// Names the keeper; the first one stays.
    pub fn set_keeper(&self, keeper: Weak<dyn PageKeeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// Every page is kept before it changes, until a place is [set](Self::set).
    pub fn arm(&self) {
        // SeqCst, here and in `from`: the module's argument is about the order of this and of the LSNs that are given.
        self.from.store(u64::MAX, Ordering::SeqCst);
    }

    /// Pages whose LSN is less are kept before they change; zero if none is.
    pub fn set(&self, place: Lsn) {
        self.from.store(place.0, Ordering::SeqCst);
    }

    /// A page whose LSN is less is kept before it changes.
    #[inline(always)]
    pub fn from(&self) -> Lsn {
        Lsn(self.from.load(Ordering::SeqCst))
    }

    /// Keeps a page.
    #[cold]
    pub(crate) fn keep(&self, tree: PageId, page: &[u8]) {
        if let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) {
            keeper.keep(tree, page);
        }
    }
}
