//! LSNs in a file without a log.
//!
//! With a log the LSN of a page tells when it last changed, and so whether a snapshot must ask for earlier contents.
//! Without a log there are no records whose places could serve as LSNs. Instead, as long as a thread *holds* the clock,
//! each change gets the clock's present number. Otherwise changes leave LSNs alone: a thread that holds the clock later
//! sees all of them.
//!
//! Changes do not move the clock, so threads that make changes do not contend for its cache line. A snapshot, or
//! whatever else is compared with LSNs, *advances* it: earlier changes have smaller numbers, and later changes do not.
//!
//! The numbers continue where a log would: a clean close stores the next number as the redo point, so no LSN is used
//! twice, whether or not the file is opened with a log afterwards.

use crate::primitive::{AtomicU64, AtomicUsize, Ordering};
use vellum_base::Lsn;

/// The least LSN: zero means that there is none.
const FIRST: Lsn = Lsn(1);

/// Gives LSNs to changes of a file without a log while it is held: see [`Pool::lsn_clock`](crate::Pool::lsn_clock).
// All fields are used together.
#[repr(align(64))]
pub struct LsnClock {
    now: AtomicU64,
    holders: AtomicUsize,
    /// The number at which the clock began.
    first: u64,
}

impl Default for LsnClock {
    fn default() -> Self {
        Self::new(Lsn(0))
    }
}

impl LsnClock {
    /// A clock that begins at the redo point of a file.
    pub(crate) fn new(redo: Lsn) -> Self {
        let Lsn(first) = redo.max(FIRST);
        Self { now: AtomicU64::new(first), holders: AtomicUsize::new(0), first }
    }

    /// From now on, until [`release`](Self::release) has been called as often, the pages of each change get an LSN. A
    /// change whose latches are not yet released may lack one; it comes before everything that the caller reads.
    pub fn hold(&self) {
        // A number that was given before the clock was held is not given again.
        self.advance();
        // SeqCst: a change checks this under the latches of its pages. If it sees no holder, the caller reads later.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the effect of one call of [`hold`](Self::hold).
    pub fn release(&self) {
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }

    /// The LSN of a change that is made now, if the clock is held.
    pub fn now(&self) -> Lsn {
        // SeqCst, here and in `advance`: a change may announce something before it takes its LSN, or check something
        // after that. If another thread does the same around `advance`, the two agree on their order.
        Lsn(self.now.load(Ordering::SeqCst))
    }

    /// Changes from now on have at least the returned LSN, and earlier changes have smaller ones.
    pub fn advance(&self) -> Lsn {
        Lsn(self.now.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The redo point for a clean close: greater than all LSNs that were given; zero if none was ever given.
    pub(crate) fn redo(&self) -> Lsn {
        match self.now() {
            // The clock was never held.
            Lsn(now) if now == self.first => Some(Lsn(now)).filter(|now| *now > FIRST).unwrap_or_default(),
            Lsn(now) => Lsn(now + 1),
        }
    }

    /// Whether the clock is held, so that a change whose pages are latched needs an LSN.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.holders.load(Ordering::SeqCst) != 0
    }

    /// The LSN of a change whose pages are latched; zero if it needs none.
    #[inline]
    pub(crate) fn stamp(&self) -> Lsn {
        if self.is_held() { self.now() } else { Lsn(0) }
    }
}
