//! The page to which a thread appended last.
//!
//! A thread that appends to a structure comes to the same page again and again. An append hint keeps the page, and the
//! version that it had when the thread left it. While the page has that version, it is unchanged, and the thread need
//! not search for it.
//!
//! Page and version are two words that belong together. A turn counter ties them together: it is odd while they are
//! being written, and a reader compares it before and after (a *sequence lock*). No thread waits: a reader that meets a
//! writer does without the hint.
//!
//! Threads that append to different places would overwrite each other's append hint, so there are several of them, and
//! each thread has its own, as long as there are no more threads than append hints.

use crate::primitive::{AtomicU64, Bug, Ordering, fence, planted, unless_planted};
use vellum_base::PageId;

/// Remembers a page, and its contents at one moment, for [`Navigation::reacquire`](crate::Navigation::reacquire).
/// Shared by threads, none of which waits for another.
///
/// ```
/// use vellum_base::PageId;
/// use vellum_pool::AppendHint;
///
/// let hint = AppendHint::default();
/// assert_eq!(hint.get(), None);
/// hint.set(PageId(7), 42);
/// assert_eq!(hint.get(), Some((PageId(7), 42)));
/// hint.clear();
/// assert_eq!(hint.get(), None);
/// ```
// Each has its own cache line, so that threads that append do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct AppendHint {
    turn: AtomicU64,
    /// The marked page. Page 0 is a superblock and means that no page is marked.
    page: AtomicU64,
    token: AtomicU64,
}

impl AppendHint {
    /// The marked page, and the token of its contents.
    #[inline]
    pub fn get(&self) -> Option<(PageId, u64)> {
        // Acquire: the words that were written before this turn are visible.
        let turn = self.turn.load(unless_planted(Bug::RelaxedTurn, Ordering::Acquire));
        let (page, token) = (self.page.load(Ordering::Relaxed), self.token.load(Ordering::Relaxed));
        // Acquire: the words are read before the turn is loaded again.
        fence(Ordering::Acquire);
        let same = self.turn.load(Ordering::Relaxed) == turn || planted(Bug::OneLookAtTheTurn);
        (page != 0 && turn.is_multiple_of(2) && same).then_some((PageId(page), token))
    }

    /// Marks a page; `token` is the [`OptimisticPage::token`](crate::OptimisticPage::token) of a guard on it. Does
    /// nothing if another thread is doing the same.
    #[inline]
    pub fn set(&self, page: PageId, token: u64) {
        let turn = self.turn.load(Ordering::Relaxed);
        // Acquire: an earlier writer has finished.
        let mine = turn.is_multiple_of(2)
            && self.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !mine {
            return;
        }
        // Release: a reader that sees one of the words sees the odd turn at its second load.
        if !planted(Bug::NoFenceAfterTheTurn) {
            fence(Ordering::Release);
        }
        self.page.store(page.0, Ordering::Relaxed);
        self.token.store(token, Ordering::Relaxed);
        // Release: publishes the words.
        self.turn.store(turn + 2, unless_planted(Bug::RelaxedEndOfTurn, Ordering::Release));
    }

    /// Clears the hint.
    pub fn clear(&self) {
        self.set(PageId(0), 0);
    }
}

/// How many threads have hints of their own.
const THREADS: usize = 16;

/// Append hints for the threads that share a structure.
///
/// ```
/// use vellum_base::PageId;
/// use vellum_pool::AppendHints;
///
/// let hints = AppendHints::default();
/// hints.mine().set(PageId(7), 42);
/// assert_eq!(hints.mine().get(), Some((PageId(7), 42)));
/// ```
#[derive(Debug, Default)]
pub struct AppendHints([AppendHint; THREADS]);

impl AppendHints {
    /// The hint of the calling thread, which other threads may share.
    #[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "a remainder by the number of hints"))]
    #[inline]
    pub fn mine(&self) -> &AppendHint {
        use std::sync::atomic::AtomicUsize;
        static THREADS_SEEN: AtomicUsize = AtomicUsize::new(0);
        std::thread_local! {
            // Relaxed: threads only need different numbers.
            static NUMBER: usize = THREADS_SEEN.fetch_add(1, Ordering::Relaxed) % THREADS;
        }
        // A thread that is ending no longer has a number.
        &self.0[NUMBER.try_with(|number| *number).unwrap_or(0) % THREADS]
    }
}
