//! Frames: where pages lie in memory, each with one word of state and the page that it holds.
//!
//! The word, from its lowest bit: held exclusively, how many hold it shared (15 bits), dirty, and from bit 24 on the
//! version, which grows whenever an exclusive hold ends that changed something, a page having come or gone included. So a
//! frame and a version stand for one page and one state of it, for ever.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use vellum_base::{PAGE_SIZE, PageId};
use vellum_pool::PoolError;
use vellum_vm::Mapping;

/// Held exclusively.
pub const EXCLUSIVE: u64 = 1;
/// One of those that hold it shared.
const SHARED_ONE: u64 = 2;
const SHARED: u64 = 0xfffe;
/// Held in either way.
pub const HELD: u64 = EXCLUSIVE | SHARED;
/// The page differs from its image on storage.
pub const DIRTY: u64 = 1 << 16;
const VERSION_ONE: u64 = 1 << 24;
const VERSION: u64 = !(VERSION_ONE - 1);

/// The state of one frame.
#[derive(Default)]
pub struct Frame {
    state: AtomicU64,
    /// Twice the page, plus one if it was used since the clock passed; zero for none.
    page: AtomicU64,
}

impl Frame {
    /// The state at this moment; what is read of the page afterwards is not older.
    #[inline]
    pub fn load(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// The page that it holds; zero for none. Certain under a hold, or once validated.
    #[inline]
    pub fn page(&self) -> PageId {
        // Relaxed: it changes under an exclusive hold only, which validation notices.
        PageId(self.page.load(Ordering::Relaxed) >> 1)
    }

    /// Whether it holds `page`; if so, notes that it is used.
    #[inline]
    pub fn holds(&self, page: PageId) -> bool {
        // Relaxed: as in `page`; the note orders nothing.
        let now = self.page.load(Ordering::Relaxed);
        if now == page.0 << 1 {
            self.page.fetch_or(1, Ordering::Relaxed);
        }
        now >> 1 == page.0
    }

    /// Whether it was used since the last call.
    pub fn take_use(&self) -> bool {
        // Relaxed: the note orders nothing.
        let used = self.page.load(Ordering::Relaxed) & 1 == 1;
        if used {
            self.page.fetch_and(!1, Ordering::Relaxed);
        }
        used
    }

    /// Gives it another page, or none; the caller holds it exclusively.
    pub fn set_page(&self, page: PageId, used: bool) {
        self.page.store(page.0 << 1 | u64::from(used), Ordering::Relaxed);
    }

    /// Whether what was read since the state was `seen` belongs to one state of one page.
    #[inline]
    pub fn validate(&self, seen: u64) -> bool {
        // The reads before must not move behind the load.
        fence(Ordering::Acquire);
        // Relaxed: the fence orders it.
        (self.state.load(Ordering::Relaxed) ^ seen) & (VERSION | EXCLUSIVE) == 0
    }

    /// Holds it exclusively if nobody holds it and it still is what was `seen`, dirty or not.
    #[inline]
    pub fn try_exclusive(&self, seen: u64) -> bool {
        // Relaxed: the exchange decides.
        let now = self.state.load(Ordering::Relaxed);
        (now ^ seen) & VERSION == 0 && now & HELD == 0 && self.exchange_exclusive(now, now)
    }

    /// Holds it exclusively instead of shared, if nobody else holds it.
    pub fn try_exclusive_from_shared(&self) -> bool {
        let now = self.state.load(Ordering::Relaxed);
        now & HELD == SHARED_ONE && self.exchange_exclusive(now, now & !SHARED)
    }

    #[inline]
    fn exchange_exclusive(&self, now: u64, without: u64) -> bool {
        // Acquire: to see what the holder before has written. Relaxed where it fails: nothing follows.
        let taken = self
            .state
            .compare_exchange(now, without | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        // What is written under the hold must not be seen before the hold is.
        fence(Ordering::Release);
        taken
    }

    /// Holds it exclusively, for a frame that nobody uses: at most the clock looks at it for a moment.
    pub fn exclusive_of_free(&self) {
        while !self.try_exclusive(self.state.load(Ordering::Relaxed)) {
            std::hint::spin_loop();
        }
    }

    /// Holds it shared, if it still is what was `seen` and nobody holds it exclusively.
    pub fn try_shared(&self, seen: u64) -> bool {
        loop {
            let now = self.state.load(Ordering::Relaxed);
            if (now ^ seen) & VERSION != 0 || now & EXCLUSIVE != 0 || now & SHARED == SHARED {
                return false;
            }
            // As for an exclusive hold.
            if self
                .state
                .compare_exchange_weak(now, now + SHARED_ONE, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
    }

    /// Ends a shared hold.
    pub fn release_shared(&self) {
        // Release: what was read stays before it.
        self.state.fetch_sub(SHARED_ONE, Ordering::Release);
    }

    /// Ends a shared hold under which the page was written to storage, so that it is clean.
    pub fn release_written(&self) {
        self.state.fetch_and(!DIRTY, Ordering::Relaxed);
        self.release_shared();
    }

    /// Lets others read; the page was changed.
    pub fn downgrade(&self) {
        let now = self.state.load(Ordering::Relaxed);
        // Release: what was written is seen by who sees this. Nobody else changes the word meanwhile.
        self.state.store((now & !EXCLUSIVE) + VERSION_ONE + SHARED_ONE, Ordering::Release);
    }

    /// Ends an exclusive hold under which the page was changed, or nothing was; gives the state that follows.
    #[inline]
    pub fn release(&self, changed: bool) -> u64 {
        let now = self.state.load(Ordering::Relaxed) & !EXCLUSIVE;
        let next = if changed { (now | DIRTY) + VERSION_ONE } else { now };
        // As in `downgrade`.
        self.state.store(next, Ordering::Release);
        next
    }

    /// Ends an exclusive hold under which a clean page came, or a page went.
    pub fn release_replaced(&self) {
        let now = self.state.load(Ordering::Relaxed) & !(EXCLUSIVE | DIRTY);
        self.state.store(now + VERSION_ONE, Ordering::Release);
    }

    /// The part of a state by which it is recognised later.
    #[inline]
    pub fn version(state: u64) -> u64 {
        state & VERSION
    }
}

/// The frames of a pool, in one piece of memory.
pub struct Frames {
    arena: Mapping,
    states: Box<[Frame]>,
}

impl Frames {
    /// So many frames, none of which takes memory before it is used. Huge pages back them where the system has some.
    ///
    /// # Errors
    /// If there is no address space for them.
    pub fn new(count: usize) -> Result<Self, PoolError> {
        let arena = Mapping::reserve(count * PAGE_SIZE, "the frames of a pool")?.for_table();
        Ok(Self { arena, states: std::iter::repeat_with(Frame::default).take(count).collect() })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// The state of one.
    #[inline]
    pub fn state(&self, frame: u32) -> &Frame {
        &self.states[frame as usize]
    }

    /// Where its page lies.
    #[inline]
    pub fn address(&self, frame: u32) -> *mut u8 {
        self.arena.base().as_ptr().wrapping_add(frame as usize * PAGE_SIZE)
    }

    /// Its page, to be read.
    ///
    /// # Safety
    /// The caller holds the frame, shared or exclusively, as long as the slice lives.
    #[inline]
    pub unsafe fn bytes(&self, frame: u32) -> &[u8] {
        // SAFETY: it lies in the arena, and the hold excludes writers.
        unsafe { std::slice::from_raw_parts(self.address(frame), PAGE_SIZE) }
    }

    /// Its page, to be changed.
    ///
    /// # Safety
    /// The caller holds the frame exclusively as long as the slice lives, which is the only one.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the hold of the frame is what makes it unique")]
    pub unsafe fn bytes_mut(&self, frame: u32) -> &mut [u8] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.address(frame), PAGE_SIZE) }
    }
}
