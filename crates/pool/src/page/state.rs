//! The state word of a page: its latch, its version, and whether it is resident and dirty.
//!
//! One 64-bit word a page, in one array indexed by page id:
//!
//! | bits | meaning |
//! |---|---|
//! | 56..64 | state: 0 evicted, 1 unlocked, 2-253 one to 252 shared holders, 254 marked, 255 exclusive |
//! | 55 | a thread is parked and waits for a change of state |
//! | 54 | the page differs from its image on storage |
//! | 0..54 | version: grows when an exclusive latch under which something changed is released, and at eviction |
//!
//! Zero means evicted, so that the array needs no initialisation: it is an anonymous mapping as large as the address
//! space of the database, of which only the touched part takes memory.
//!
//! *Marked* is unlocked plus "the clock has passed and no thread has come since"; a thread that latches or reads the
//! page turns it back to unlocked. The scheme is that of *Virtual-Memory Assisted Buffer Management* (SIGMOD 2023,
//! section 3.2), with the waiting and the dirty bit added.
//!
//! # Ordering
//! Taking a latch acquires, releasing it releases: the next holder sees what the last one wrote. Optimistic readers
//! form a sequence lock: they load the word (acquire), read, and compare the word again after an acquire fence. The
//! counterpart is the release fence after each exclusive acquisition: a reader that saw any byte written under the
//! latch also sees the word as latched, or a later version.

use crate::primitive::{AtomicU64, Bug, Ordering, fence, planted, unless_planted};

const STATE_SHIFT: u32 = 56;
const WAITING: u64 = 1 << 55;
const DIRTY: u64 = 1 << 54;
const VERSION_MASK: u64 = DIRTY - 1;

const EVICTED: u64 = 0;
const UNLOCKED: u64 = 1;
const SHARED_FIRST: u64 = 2;
const SHARED_LAST: u64 = 253;
const MARKED: u64 = 254;
const EXCLUSIVE: u64 = 255;

/// How many holders a shared latch can have at once.
pub const SHARED_HOLDERS_MAX: u64 = SHARED_LAST - UNLOCKED;

/// A value of the state word at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub(crate) u64);

impl Word {
    #[inline]
    const fn state(self) -> u64 {
        self.0 >> STATE_SHIFT
    }

    #[inline]
    const fn with_state(self, state: u64) -> Self {
        Self((self.0 & !(0xff << STATE_SHIFT)) | (state << STATE_SHIFT))
    }

    /// The version, which differs whenever the contents may differ.
    #[inline]
    pub const fn version(self) -> u64 {
        self.0 & VERSION_MASK
    }

    const fn next_version(self) -> Self {
        Self((self.0 & !VERSION_MASK) | ((self.0 + 1) & VERSION_MASK))
    }

    /// The page is not in memory.
    #[inline]
    pub const fn is_evicted(self) -> bool {
        self.state() == EVICTED
    }

    /// The page is in memory and no thread holds a latch; the clock has not passed it.
    #[inline]
    pub const fn is_unlocked(self) -> bool {
        self.state() == UNLOCKED
    }

    /// The clock has passed the page and no thread has come since.
    #[inline]
    pub const fn is_marked(self) -> bool {
        self.state() == MARKED
    }

    /// A thread holds the page exclusively.
    #[inline]
    pub const fn is_exclusive(self) -> bool {
        self.state() == EXCLUSIVE
    }

    /// Unlocked or shared: an optimistic read may begin without touching the word.
    #[inline]
    pub const fn is_readable(self) -> bool {
        self.state().wrapping_sub(UNLOCKED) <= SHARED_LAST - UNLOCKED
    }

    /// The page differs from its image on storage.
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    const fn is_waited_for(self) -> bool {
        self.0 & WAITING != 0
    }

    /// The number of threads that hold the page shared.
    pub const fn shared_holders(self) -> u64 {
        let state = self.state();
        if state >= SHARED_FIRST && state <= SHARED_LAST { state - UNLOCKED } else { 0 }
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.state() {
            EVICTED => f.write_str("evicted")?,
            UNLOCKED => f.write_str("unlocked")?,
            MARKED => f.write_str("marked")?,
            EXCLUSIVE => f.write_str("exclusive")?,
            shared => write!(f, "shared by {}", shared - UNLOCKED)?,
        }
        let dirty = if self.is_dirty() { ", dirty" } else { "" };
        let waited_for = if self.is_waited_for() { ", waited for" } else { "" };
        write!(f, ", version {}{dirty}{waited_for}", self.version())
    }
}

/// How the version may change in a transition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The version stays, and so does the dirty bit.
    Stays,
    /// The version stays, or grows by one and the dirty bit may change with it.
    MayGrow,
    /// The version grows by one, and the page is not dirty.
    GrowsClean,
}

/// The kinds of state, for the table of transitions: all numbers of shared holders count as one kind.
const fn kind(state: u64) -> u64 {
    if state >= SHARED_FIRST && state <= SHARED_LAST { SHARED_FIRST } else { state }
}

/// Every possible transition between states. Debug builds check each one against this table.
const TRANSITIONS: [(u64, u64, Version); 14] = [
    // A thread reads the page in, or allocates it.
    (EVICTED, EXCLUSIVE, Version::Stays),
    (UNLOCKED, EXCLUSIVE, Version::Stays),
    (MARKED, EXCLUSIVE, Version::Stays),
    (UNLOCKED, SHARED_FIRST, Version::Stays),
    (MARKED, SHARED_FIRST, Version::Stays),
    // One holder more or fewer, or a thread starts to wait for them.
    (SHARED_FIRST, SHARED_FIRST, Version::Stays),
    (SHARED_FIRST, UNLOCKED, Version::Stays),
    // The last holder was a scan, which does not count as a use.
    (SHARED_FIRST, MARKED, Version::Stays),
    (SHARED_FIRST, EXCLUSIVE, Version::Stays),
    (UNLOCKED, MARKED, Version::Stays),
    (MARKED, UNLOCKED, Version::Stays),
    (EXCLUSIVE, UNLOCKED, Version::MayGrow),
    (EXCLUSIVE, SHARED_FIRST, Version::MayGrow),
    (EXCLUSIVE, EVICTED, Version::GrowsClean),
];

/// Whether word `to` may follow word `from`.
fn is_allowed(from: Word, to: Word) -> bool {
    let same_version = from.version() == to.version() && from.is_dirty() == to.is_dirty();
    // A thread announces that it is waiting.
    if !from.is_waited_for() && to.is_waited_for() {
        let held = from.is_exclusive() || from.shared_holders() > 0;
        return held && to.0 == from.0 | WAITING;
    }
    // Threads wait only for a latch that is held, and the threads that wait for an exclusive holder are woken when it
    // leaves.
    let forgotten =
        to.is_waited_for() && (from.is_exclusive() || !(to.is_exclusive() || to.shared_holders() > 0));
    let counted = from.shared_holders() == 0
        || to.shared_holders() == 0
        || from.shared_holders().abs_diff(to.shared_holders()) == 1;
    let rule = TRANSITIONS.iter().find(|row| (row.0, row.1) == (kind(from.state()), kind(to.state())));
    let version = rule.is_some_and(|rule| match rule.2 {
        Version::Stays => same_version,
        Version::MayGrow => same_version || to.version() == from.next_version().version(),
        Version::GrowsClean => to.version() == from.next_version().version() && !to.is_dirty(),
    });
    version && counted && !forgotten
}

/// What a release says about waiting threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the threads that wait must be woken"]
pub enum Wake {
    /// No thread waits.
    None,
    /// The waiting bit was set and is now clear: wake all threads that are parked on this page.
    All,
}

/// The latch that a thread wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Any that lets an optimistic read begin: no thread holds the page exclusively.
    Read,
    /// A shared latch: no exclusive holder, and room for one more shared.
    Shared,
    /// The exclusive latch: no holder at all.
    Exclusive,
}

impl Want {
    /// Whether the latch cannot be had while the state word is `word`.
    pub fn is_blocked_by(self, word: Word) -> bool {
        match self {
            Self::Read => word.is_exclusive(),
            Self::Shared => word.is_exclusive() || word.state() == SHARED_LAST,
            Self::Exclusive => word.is_exclusive() || word.shared_holders() > 0,
        }
    }
}

/// The atomic state word of one page.
#[repr(transparent)]
pub struct PageState(AtomicU64);

impl PageState {
    /// An evicted page; for models and tests, since the pool's words come zeroed from the kernel.
    #[cfg(any(test, loom))]
    pub fn evicted() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The present word.
    #[inline]
    pub fn load(&self) -> Word {
        // Acquire: what the last holder wrote is visible to an optimistic read that begins here.
        Word(self.0.load(unless_planted(Bug::RelaxedLoad, Ordering::Acquire)))
    }

    /// Whether a read that began at `seen` saw one state of the contents.
    ///
    /// A shared latch or the clock's mark in between does no harm; a change, an eviction or an exclusive holder does.
    /// So `seen` is never the word of an exclusive holder, which says nothing about the next holder.
    #[inline]
    pub fn validate(&self, seen: Word) -> bool {
        debug_assert!(!seen.is_exclusive(), "{seen:?}");
        // The reads of the contents come before the load of the word (see the module's ordering).
        if !planted(Bug::NoAcquireFence) {
            fence(Ordering::Acquire);
        }
        let now = Word(self.0.load(Ordering::Relaxed));
        now == seen || Self::same_contents(now, seen)
    }

    #[inline]
    fn same_contents(now: Word, seen: Word) -> bool {
        now.version() == seen.version() && !now.is_exclusive() && !now.is_evicted()
    }

    fn exchange(&self, from: Word, to: Word) -> Result<(), Word> {
        debug_assert!(is_allowed(from, to), "from {from:?} to {to:?}");
        // Acquire: the next holder sees what the last one wrote. Release is not needed to take a latch.
        let order = unless_planted(Bug::RelaxedExchange, Ordering::Acquire);
        let taken = self.0.compare_exchange(from.0, to.0, order, order);
        taken.map(|_| ()).map_err(Word)
    }

    /// Takes the exclusive latch if the word is still `from`, which must be evicted, unlocked or marked.
    #[inline]
    pub fn try_exclusive(&self, from: Word) -> bool {
        debug_assert!(from.is_evicted() || from.is_unlocked() || from.is_marked(), "{from:?}");
        let taken = self.exchange(from, from.with_state(EXCLUSIVE)).is_ok();
        // Release: orders the latch before the contents that are written under it (module's ordering).
        if !planted(Bug::NoReleaseFence) {
            fence(Ordering::Release);
        }
        taken
    }

    /// Takes the exclusive latch if the contents are still those that the optimistic reader of `seen` saw.
    #[inline]
    pub fn try_upgrade_optimistic(&self, seen: Word) -> bool {
        let now = self.load();
        let same = Self::same_contents(now, seen) || (planted(Bug::BlindUpgrade) && !now.is_exclusive());
        same && now.shared_holders() == 0 && self.try_exclusive(now)
    }

    /// Takes a shared latch, if another holder fits and the contents are still those that the reader of `seen` saw.
    #[inline]
    pub fn try_share_optimistic(&self, seen: Word) -> bool {
        loop {
            let now = self.load();
            let same = Self::same_contents(now, seen) || (planted(Bug::BlindShare) && !now.is_exclusive());
            if !same || now.state() == SHARED_LAST {
                return false;
            }
            // What the reader has not read yet it reads under the latch. If this fails, another thread has got on.
            if self.try_shared(now) {
                return true;
            }
        }
    }

    /// Adds a shared holder if the word is still `from`, which must be resident.
    #[inline]
    pub fn try_shared(&self, from: Word) -> bool {
        debug_assert!(!from.is_evicted(), "{from:?}");
        let to = match from.state() {
            EXCLUSIVE | SHARED_LAST => return false,
            MARKED => SHARED_FIRST,
            state => state + 1,
        };
        self.exchange(from, from.with_state(to)).is_ok()
    }

    /// Turns the only shared holder into the exclusive one.
    pub fn try_upgrade_shared(&self) -> bool {
        let now = self.load();
        let taken = now.state() == SHARED_FIRST && self.exchange(now, now.with_state(EXCLUSIVE)).is_ok();
        // Release: as in `try_exclusive`.
        if !planted(Bug::NoUpgradeFence) {
            fence(Ordering::Release);
        }
        taken
    }

    /// Records that the clock passes: unlocked becomes marked.
    pub fn try_mark(&self, from: Word) -> bool {
        from.is_unlocked() && self.exchange(from, from.with_state(MARKED)).is_ok()
    }

    /// Records that a reader came: marked becomes unlocked.
    #[inline]
    pub fn try_unmark(&self, from: Word) -> bool {
        from.is_marked() && self.exchange(from, from.with_state(UNLOCKED)).is_ok()
    }

    /// Releases the exclusive latch; `changed` says that the contents are no longer what they were.
    #[inline]
    pub fn release_exclusive(&self, changed: bool) -> (Word, Wake) {
        let word = self.word_after(changed);
        (word, self.leave(word))
    }

    /// The word as it will be when the exclusive latch is released, unless the page is changed again.
    #[inline]
    pub fn word_after(&self, changed: bool) -> Word {
        let now = self.exclusive_word();
        let word = if changed { Word(now.next_version().0 | DIRTY) } else { now };
        word.with_state(UNLOCKED)
    }

    /// Releases the exclusive latch of a page that is resident but no longer differs from storage in any way that
    /// matters: it was freed.
    pub fn release_exclusive_clean(&self) -> Wake {
        let word = Word(self.exclusive_word().next_version().0 & !DIRTY);
        self.leave(word.with_state(UNLOCKED))
    }

    /// Releases the exclusive latch of a page whose memory was released.
    pub fn release_exclusive_evicted(&self) -> Wake {
        let now = self.exclusive_word();
        let word = if planted(Bug::VersionStaysAtEviction) { now } else { now.next_version() };
        let word = Word(word.0 & !DIRTY);
        self.leave(word.with_state(EVICTED))
    }

    /// Turns the exclusive holder into a shared one.
    pub fn downgrade(&self, changed: bool) -> Wake {
        self.leave(self.word_after(changed).with_state(SHARED_FIRST))
    }

    /// Records that the caller, which holds the page shared or exclusively, has written it to storage.
    pub fn clear_dirty(&self) {
        // Relaxed: the latch that the caller holds orders this; no thread bases a decision on this bit without one.
        let before = Word(self.0.fetch_and(!DIRTY, Ordering::Relaxed));
        debug_assert!(
            before.is_exclusive() || before.shared_holders() > 0,
            "cleaned without a latch: {before:?}"
        );
    }

    /// Records that a copy of the contents that were read at `seen` was written to storage. If the contents are still
    /// the same, and no thread holds the page exclusively, the page is no longer dirty.
    pub fn try_clean(&self, seen: Word) -> bool {
        let mut now = self.load();
        loop {
            let same = Self::same_contents(now, seen) || (planted(Bug::BlindClean) && !now.is_exclusive());
            if !same || !now.is_dirty() {
                return false;
            }
            // Release: a thread that finds the page clean finds the written contents on storage.
            let order = unless_planted(Bug::RelaxedClean, Ordering::AcqRel);
            let clean = self.0.compare_exchange(now.0, now.0 & !DIRTY, order, Ordering::Acquire);
            match clean {
                Ok(_) => return true,
                Err(found) => now = Word(found),
            }
        }
    }

    /// Releases a shared latch.
    pub fn release_shared(&self) -> Wake {
        self.leave_shared(UNLOCKED)
    }

    /// Releases a shared latch of a holder whose visit does not count as a use, and who found the page marked: it is
    /// marked again, unless others hold it.
    pub fn release_shared_marked(&self) -> Wake {
        self.leave_shared(MARKED)
    }

    /// Releases a shared latch; the last holder leaves the page in state `last`.
    fn leave_shared(&self, last: u64) -> Wake {
        let mut now = Word(self.0.load(Ordering::Relaxed));
        loop {
            debug_assert!(now.shared_holders() > 0, "released a shared latch that nobody holds: {now:?}");
            // A thread that waits while there are shared holders wants the page to itself, or one of the 252 places:
            // wake it at the first chance that either wish can be met.
            let wake = now.is_waited_for() && (now.state() == SHARED_FIRST || now.state() == SHARED_LAST);
            let left = if now.state() == SHARED_FIRST { last } else { now.state() - 1 };
            let mut next = now.with_state(left);
            if wake {
                next = Word(next.0 & !WAITING);
            }
            debug_assert!(is_allowed(now, next), "from {now:?} to {next:?}");
            // Release: the next exclusive holder must not overtake this holder's reads.
            let order = unless_planted(Bug::RelaxedSharedRelease, Ordering::Release);
            match self.0.compare_exchange_weak(now.0, next.0, order, Ordering::Relaxed) {
                Ok(_) => {
                    let wake = wake && !planted(Bug::SilentRelease);
                    return if wake { Wake::All } else { Wake::None };
                }
                Err(seen) => now = Word(seen),
            }
        }
    }

    /// Announces that the thread is about to park until `want` may be possible.
    ///
    /// Returns false if it is possible now: then do not park.
    pub fn announce_waiting(&self, want: Want) -> bool {
        let mut now = self.load();
        loop {
            if !want.is_blocked_by(now) {
                return false;
            }
            if now.is_waited_for() {
                return true;
            }
            match self.exchange(now, Word(now.0 | WAITING)) {
                Ok(()) => return true,
                Err(seen) => now = seen,
            }
        }
    }

    /// Whether a thread that announced `want` must still sleep: the bit is set, so the release that clears it is yet to
    /// come, and will wake the thread.
    pub fn must_sleep(&self, want: Want) -> bool {
        let now = self.load();
        now.is_waited_for() && want.is_blocked_by(now)
    }

    fn exclusive_word(&self) -> Word {
        // Relaxed: while the page is held exclusively only the waiting bit can change.
        let now = Word(self.0.load(Ordering::Relaxed));
        debug_assert!(now.is_exclusive(), "released an exclusive latch that nobody holds: {now:?}");
        Word(now.0 & !WAITING)
    }

    fn leave(&self, to: Word) -> Wake {
        // Release: the next holder sees what this one wrote.
        let order = unless_planted(Bug::RelaxedRelease, Ordering::Release);
        let before = Word(self.0.swap(to.0, order));
        debug_assert!(is_allowed(before, to), "from {before:?} to {to:?}");
        if before.is_waited_for() { Wake::All } else { Wake::None }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
