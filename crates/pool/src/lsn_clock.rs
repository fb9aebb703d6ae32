//! LSNs in a file without a log.
//!
//! With a log the LSN of a page tells when it was changed last, and so whether a snapshot need ask what it held before. Without
//! one there are no records whose places could be that. As long as a thread *holds* the clock, each change gets the number at which the
//! clock stands instead. Otherwise changes leave LSNs as they are: a thread that holds the clock later sees all of them.
//!
//! Changes do not move the clock, so threads that change something do not pass its cache line to each other. What is compared with LSNs
//! *advances* it: a snapshot, say. Changes that came before that have lesser numbers, and those that come after it have not.
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
    now: AtomicU64,
    holders: AtomicUsize,
    /// Where it began.
    first: u64,
}

impl Default for LsnClock {
    fn default() -> Self {
        Self::new(Lsn(0))
    }
}

impl LsnClock {
    /// One that begins at the redo point of a file.
    pub(crate) fn new(redo: Lsn) -> Self {
        let Lsn(first) = redo.max(FIRST);
        Self { now: AtomicU64::new(first), holders: AtomicUsize::new(0), first }
    }

    /// From now on, until as many calls of [`release`](Self::release), the pages of each change get an LSN. A change whose
    /// latches are not released yet may lack it; it comes before whatever the caller reads.
    pub fn hold(&self) {
        // What was given before it was held is not given any more.
        self.advance();
        // SeqCst: a change looks at this under the latches of its pages. If it sees no holder, the caller reads the pages after it.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what one call of [`hold`](Self::hold) began.
    pub fn release(&self) {
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }

    /// The LSN of a change that came now, if it is held.
    pub fn now(&self) -> Lsn {
        // SeqCst, here and in `advance`: a change that says something before it takes its LSN, or looks at something after that, and a thread
        // that does so around `advance` agree on the order of the two.
        Lsn(self.now.load(Ordering::SeqCst))
    }

    /// Changes that come from now on have at least the LSN that is returned, and those that came before have a lesser one.
    pub fn advance(&self) -> Lsn {
        Lsn(self.now.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The redo point at a clean close: greater than all LSNs that were given, and zero if none was ever.
    pub(crate) fn redo(&self) -> Lsn {
        match self.now() {
            // It was never held.
            Lsn(now) if now == self.first => Some(Lsn(now)).filter(|now| *now > FIRST).unwrap_or_default(),
            Lsn(now) => Lsn(now + 1),
        }
    }

    /// Whether a change whose pages are latched needs an LSN: it is held.
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
