//! LSNs in a file without a log.
//!
//! With a log the LSN of a page tells when it was changed last, and so whether a snapshot need ask what it held before. Without
//! one there are no records whose places could be that. As long as a thread *holds* the clock, each change gets the next number
//! instead. Otherwise changes leave LSNs as they are and count nothing: a thread that holds the clock later sees all of them.
//!
//! The numbers go on where a log would: a clean close keeps the next one as the redo point, so no LSN is used twice, whether or not
//! the file is opened with a log afterwards.

use crate::primitive::{AtomicU64, AtomicUsize, Ordering};
use vellum_base::Lsn;

/// The least LSN: zero says that there is none.
const FIRST: Lsn = Lsn(1);

/// Gives the LSNs of a file without a log while it is held: see [`Pool::lsn_clock`](crate::Pool::lsn_clock).
// All of it is used together.
#[repr(align(64))]
pub struct LsnClock {
    next: AtomicU64,
    holders: AtomicUsize,
}

impl Default for LsnClock {
    fn default() -> Self {
        Self::new(Lsn(0))
    }
}

impl LsnClock {
    /// One that begins at the redo point of a file.
    pub(crate) fn new(redo: Lsn) -> Self {
        Self { next: AtomicU64::new(redo.max(FIRST).0), holders: AtomicUsize::new(0) }
    }

    /// From now on, until as many calls of [`release`](Self::release), the pages of each change get an LSN. A change whose
    /// latches are not released yet may lack it; it comes before whatever the caller reads.
    pub fn hold(&self) {
        // SeqCst: a change looks at this under the latches of its pages. If it sees no holder, the caller reads the pages after it.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what one call of [`hold`](Self::hold) began.
    pub fn release(&self) {
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }

    /// The LSN of the next change.
    pub fn next(&self) -> Lsn {
        Lsn(self.next.load(Ordering::SeqCst))
    }

    /// The redo point at a clean close: greater than all LSNs that were given, and zero if none was ever.
    pub(crate) fn redo(&self) -> Lsn {
        Some(self.next()).filter(|next| *next > FIRST).unwrap_or_default()
    }

    /// Whether a change whose pages are latched needs an LSN: it is held.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.holders.load(Ordering::SeqCst) != 0
    }

    /// The LSN of a change whose pages are latched; zero if it needs none.
    #[inline]
    pub(crate) fn stamp(&self) -> Lsn {
        if !self.is_held() {
            return Lsn(0);
        }
        Lsn(self.next.fetch_add(1, Ordering::SeqCst))
    }
}
