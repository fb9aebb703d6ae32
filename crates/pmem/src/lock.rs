//! The version lock: the lowest byte of the first word of a page.
//!
//! Bit 0 says that the page is being changed in a way that readers must not see half done; the seven bits above it
//! count such changes. A reader remembers the word, copies, and looks again: the same word without the lock bit means
//! that no such change began or ended meanwhile. Seven bits wrap around after 128 changes, so readers do not rely on
//! them alone: see `core.rs`. For changes of values there is a second word, the change counter of a stripe
//! (`stripes.rs`), of 64 bits and in ordinary memory: it is odd while a word of a value is being stored. Readers treat it
//! as they treat the word of a page.
//!
//! The lock is needed for a change in place, from before its first store until it is durable, so that no thread reads
//! what may yet be lost; and for reformatting a block, so that a reader of one of its former records notices. It is not
//! needed for writing a record to a place that nothing leads to, for publishing it and for retracting it, which are
//! single words. A thread that holds a version lock waits for no other lock, so there is no order of version locks to
//! violate.

use std::sync::atomic::Ordering;

/// The bit that says "locked".
const LOCKED: u64 = 1;
/// The increment for one version.
const VERSION_STEP: u64 = 2;
/// The byte of the lock in the word.
pub const LOCK_MASK: u64 = 0xff;

/// A word that threads share: the standard library's, or loom's in the models.
pub trait SharedWord {
    /// Atomic load.
    fn load(&self, ordering: Ordering) -> u64;
    /// Atomic compare-and-exchange; may fail spuriously.
    fn exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    /// Atomic store.
    fn store(&self, value: u64, ordering: Ordering);
    /// Lets other threads run.
    fn pause();
    /// An acquire fence.
    fn acquire_fence();
    /// A release fence.
    fn release_fence();
}

impl SharedWord for std::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        std::sync::atomic::AtomicU64::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        std::sync::atomic::AtomicU64::store(self, value, ordering);
    }

    #[inline]
    fn exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, success, failure)
    }

    #[inline]
    fn pause() {
        std::thread::yield_now();
    }

    #[inline]
    fn acquire_fence() {
        std::sync::atomic::fence(Ordering::Acquire);
    }

    #[inline]
    fn release_fence() {
        std::sync::atomic::fence(Ordering::Release);
    }
}

/// The lock byte with which a page is formatted anew, given its previous word.
#[inline]
pub const fn next_version(word: u64) -> u64 {
    (word & LOCK_MASK & !LOCKED).wrapping_add(VERSION_STEP) & LOCK_MASK
}

/// The word that a reader remembers; none while the page is locked.
#[inline]
pub fn begin_read<W: SharedWord>(word: &W) -> Option<u64> {
    // Acquire: what is read after this is not older than the change that the version counts.
    let seen = word.load(Ordering::Acquire);
    (seen & LOCKED == 0).then_some(seen)
}

/// Whether nothing that needs the lock changed since `seen`.
#[inline]
pub fn end_read<W: SharedWord>(word: &W, seen: u64) -> bool {
    // The fence keeps the loads of the record before this one; a writer's stores come after its fence in
    // `lock`, so a thread that saw one of them sees at least the lock bit here.
    W::acquire_fence();
    word.load(Ordering::Relaxed) == seen
}

/// A change of a value that is under way; its end is counted when this is dropped.
#[must_use]
pub struct Counted<'a, W: SharedWord>(&'a W);

/// Begins to store a word of a value: readers that began before notice. The caller holds the lock of the stripe to which
/// the counter belongs, so no other thread changes the counter.
pub fn begin_change<W: SharedWord>(counter: &W) -> Counted<'_, W> {
    // Relaxed: the lock of the stripe orders it after the change before.
    count(counter, Ordering::Relaxed);
    // Release fence: the stores that follow are not seen before the odd number is.
    W::release_fence();
    Counted(counter)
}

fn count<W: SharedWord>(counter: &W, ordering: Ordering) {
    // Not an exchange: only the thread that holds the lock of the stripe changes the counter.
    let seen = counter.load(Ordering::Relaxed);
    counter.store(seen.wrapping_add(1), ordering);
}

impl<W: SharedWord> Drop for Counted<'_, W> {
    fn drop(&mut self) {
        // Release: a thread that sees the even number sees the change. Relaxed, a thread could accept the value before the
        // change instead. It would be a whole value only because a change is of one word: the fence of the next change
        // keeps two changes in order.
        count(self.0, Ordering::Release);
    }
}

/// A locked page; unlocked, with the next version, when dropped.
#[must_use]
pub struct PageLock<'a, W: SharedWord>(&'a W);

/// Locks a page that belongs to the caller alone, such as one of a block that was just handed out: no other thread may
/// hold the lock, so if its bit is set, a crash has left it.
pub fn seize<W: SharedWord>(word: &W) -> PageLock<'_, W> {
    let mut seen = word.load(Ordering::Relaxed);
    while let Err(now) = word.exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
        seen = now;
    }
    W::release_fence();
    PageLock(word)
}

/// Clears a lock bit that was left by a crash, while no thread uses the store yet; returns whether there was one.
pub fn reset<W: SharedWord>(word: &W) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & LOCKED != 0 {
        match word.exchange(seen, seen & !LOCKED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Locks a page, waiting for the thread that has it.
pub fn lock<W: SharedWord>(word: &W) -> PageLock<'_, W> {
    let mut tries = 0u32;
    loop {
        let seen = word.load(Ordering::Relaxed);
        // Acquire: the changes of the last holder are visible.
        if seen & LOCKED == 0
            && word.exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            // Release fence: the stores that follow are not seen before the lock bit is.
            W::release_fence();
            return PageLock(word);
        }
        tries += 1;
        if tries.is_multiple_of(64) || cfg!(loom) {
            W::pause();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl<W: SharedWord> Drop for PageLock<'_, W> {
    fn drop(&mut self) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let new = (seen & !LOCK_MASK) | next_version(seen);
            // Release: changes under the lock become visible before its end. The holder may change the rest of the word
            // under the lock, so this is an exchange.
            match self.0.exchange(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn readers_notice_a_lock_and_what_happened_under_one() {
        let word = AtomicU64::new(0xabcd_ef00_0000_00fe);
        let seen = begin_read(&word).unwrap();
        assert!(end_read(&word, seen));
        let held = lock(&word);
        assert!(begin_read(&word).is_none() && !end_read(&word, seen));
        drop(held);
        assert!(!end_read(&word, seen));
        assert_eq!(word.load(Ordering::Relaxed), 0xabcd_ef00_0000_0000, "the version came round, alone");
    }

    #[test]
    fn readers_notice_a_change_however_many_there_were() {
        let counter = AtomicU64::new(0);
        let seen = begin_read(&counter).unwrap();
        for _ in 0..128 {
            let change = begin_change(&counter);
            assert!(begin_read(&counter).is_none() && !end_read(&counter, seen));
            drop(change);
            assert!(begin_read(&counter).is_some() && !end_read(&counter, seen));
        }
    }

    #[test]
    fn only_one_holds_it() {
        let word = AtomicU64::new(0);
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let held = lock(&word);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), (4000 * VERSION_STEP) & LOCK_MASK);
    }
}
