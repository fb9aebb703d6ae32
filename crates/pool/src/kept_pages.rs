//! Pages that are kept as they were before a change, for snapshots that are older than the change.
//!
//! A *keeper* may ask for every page of a tree as it was at one place of the log (or of the clock, without a log): each
//! page with a smaller LSN is shown to the keeper before it first changes after that. Changes run concurrently, so one
//! may begin before the place is chosen and get its LSN after it. Therefore:
//!
//! 1. [`arm`](KeptPages::arm) makes every change keep its pages from now on;
//! 2. the keeper takes the present end of the log as the place, and [`set`](KeptPages::set)s it.
//!
//! A change checks this before it begins, and again when it has its LSN. If the answer differs, it began earlier and
//! may lie after the place: it shows its pages again, now with the change. If the answer is the same, the change lies
//! before the place, or has kept its pages. The keeper knows what such a change did, as its claims precede the arming.

use crate::primitive::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use vellum_base::{Lsn, PageId};

/// Keeps pages before they change.
pub trait PageKeeper: Send + Sync {
    /// Keeps the contents of a page of the tree with this root. The page is latched, so the keeper must call nothing of
    /// this pool. If a page is shown a second time, the first version stays.
    fn keep(&self, tree: PageId, page: &[u8]);
}

/// The place from which on pages are kept, and the keeper.
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
    /// Sets the keeper; the first one stays.
    pub fn set_keeper(&self, keeper: Weak<dyn PageKeeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// Has every page kept before it changes, until a place is [set](Self::set).
    pub fn arm(&self) {
        // SeqCst, here and in `from`: the module's argument depends on the order of these accesses and of the LSNs that
        // are given.
        self.from.store(u64::MAX, Ordering::SeqCst);
    }

    /// Has pages with a smaller LSN kept before they change; none if the place is zero.
    pub fn set(&self, place: Lsn) {
        self.from.store(place.0, Ordering::SeqCst);
    }

    /// A page with a smaller LSN is kept before it changes.
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
