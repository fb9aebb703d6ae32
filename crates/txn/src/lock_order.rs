//! The order in which threads take locks. Debug builds check it.
//!
//! Two threads that take the same locks in different orders can wait for each other for ever. A test meets that once in
//! millions of operations. So each lock that is held while another one is taken has a *rank* here, and a thread takes
//! locks in ascending order of their ranks. A debug build panics the first time that a thread does not, whether or not
//! another thread is in its way. The Linux kernel checks its locks in the same way (`lockdep`).
//!
//! The latches of the database's pages come before all of these: a thread that holds one of these locks latches no page. The
//! pages of the file for what memory has no room for are latched last.

use std::ops::{Deref, DerefMut};
use vellum_base::primitive::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, spin_loop, thread,
};

/// The ranks, in the order in which locks are taken.
pub(crate) mod rank {
    /// The turn to move versions out of memory.
    pub const TURN: u8 = 0;
    /// The write set of the thread's own transaction, if other threads do not search it.
    pub const OWN_WRITES: u8 = 1;
    /// The turn to enter undo buffers in the table of versions.
    pub const ENTERING: u8 = 2;
    /// A write set that other threads search, or another thread's.
    pub const WRITES: u8 = 3;
    /// What a transaction has read.
    pub const READS: u8 = 4;
    /// Which transactions there are. Under it only a slot is locked, and the log reserves the record of a commit.
    pub const STATE: u8 = 5;
    /// The slot of an undo buffer.
    pub const SLOT: u8 = 6;
    /// The versions of a generation that are not in its file yet.
    pub const FROZEN: u8 = 7;
    /// A shard of the table of versions.
    pub const SHARD: u8 = 8;
    /// The keys of removed records.
    pub const REMOVED: u8 = 9;
    /// Which generations there are.
    pub const GENERATIONS: u8 = 10;
    /// What is known of the versions of a generation.
    pub const GENERATION: u8 = 11;
    /// The file for what memory has no room for.
    pub const SPILL: u8 = 12;
}

/// A mutex of a rank. A panic in a thread that holds it does not poison it.
#[derive(Default)]
pub(crate) struct OrderedMutex<T, const RANK: u8>(Mutex<T>);

/// A read-write lock of a rank. A panic in a thread that holds it does not poison it.
#[derive(Default)]
pub(crate) struct OrderedRwLock<T, const RANK: u8>(RwLock<T>);

/// The guard of a lock that has a rank.
pub(crate) struct Ranked<G> {
    // Released first.
    guard: G,
    _held: Held,
}

/// An [`OrderedMutex`] that is locked.
pub(crate) type OrderedGuard<'l, T> = Ranked<MutexGuard<'l, T>>;

impl<T, const RANK: u8> OrderedMutex<T, RANK> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> OrderedGuard<'_, T> {
        let _held = Held::take(RANK, RANK);
        Ranked { guard: self.lock_unranked(), _held }
    }

    /// Locks it although the thread may hold others of the same rank. All threads take those in the same order.
    #[track_caller]
    pub fn lock_in_turn(&self) -> OrderedGuard<'_, T> {
        let _held = Held::take(RANK, RANK + 1);
        Ranked { guard: self.lock_unranked(), _held }
    }

    /// Locks it with a rank that depends on its contents, instead of its own.
    #[inline]
    #[track_caller]
    pub fn lock_as(&self, rank: impl FnOnce(&T) -> u8) -> OrderedGuard<'_, T> {
        let guard = self.lock_unranked();
        let rank = rank(&guard);
        Ranked { guard, _held: Held::take(rank, rank) }
    }

    /// Locks it if no other thread has.
    #[track_caller]
    pub fn try_lock(&self) -> Option<OrderedGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Ranked { guard, _held: Held::take(RANK, RANK) })
    }

    #[inline]
    fn lock_unranked(&self) -> MutexGuard<'_, T> {
        match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.spin_or_wait(),
        }
    }

    /// Locks it although another thread has it. These locks are held for less time than it takes to put a thread to
    /// sleep and to wake it, and a thread that sleeps while it has latched a page makes others wait for the page. The
    /// standard library's mutex does not spin once a thread sleeps, and then all that come go to sleep.
    #[cold]
    fn spin_or_wait(&self) -> MutexGuard<'_, T> {
        /// How often it tries, each time after twice as many pauses up to `PAUSES_MAX`: some 10 to 20 us. Then it lets
        /// other threads run in between, which may have the lock.
        const TRIES: u32 = if cfg!(shuttle) { 0 } else { 14 };
        const YIELDS: u32 = if cfg!(shuttle) { 0 } else { 64 };
        const PAUSES_MAX: u32 = 32;
        for number in 0..TRIES + YIELDS {
            if number < TRIES {
                (0..PAUSES_MAX.min(1 << number)).for_each(|_| spin_loop());
            } else {
                thread::yield_now();
            }
            match self.0.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T, const RANK: u8> OrderedRwLock<T, RANK> {
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Locks it beside other readers.
    #[track_caller]
    pub fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        let _held = Held::take(RANK, RANK);
        Ranked { guard: self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()), _held }
    }

    /// Locks it for this thread alone.
    #[track_caller]
    pub fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        let _held = Held::take(RANK, RANK);
        Ranked { guard: self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()), _held }
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// That this thread holds a lock of some rank.
#[cfg(debug_assertions)]
struct Held(u8);

#[cfg(not(debug_assertions))]
struct Held;

#[cfg(not(debug_assertions))]
impl Held {
    #[inline]
    fn take(_: u8, _: u8) -> Self {
        Self
    }
}

#[cfg(debug_assertions)]
mod checked {
    use super::Held;
    use std::cell::Cell;
    use vellum_base::primitive::thread_local;

    /// How many ranks there are at most.
    const RANKS: usize = 16;

    thread_local! {
        /// How many locks of each rank this thread holds.
        // It needs no destructor, so it can be used while the thread ends.
        static HELD: Cell<[u8; RANKS]> = const { Cell::new([0; RANKS]) };
    }

    impl Held {
        /// The thread takes a lock of this rank, and may hold none of the rank `beyond` or above.
        #[track_caller]
        pub fn take(rank: u8, beyond: u8) -> Self {
            let mut held = HELD.get();
            let above = held.iter().skip(beyond.into()).any(|count| *count > 0);
            assert!(!above, "a lock of rank {rank} is taken after one of its rank or above: {held:?}");
            if let Some(count) = held.get_mut(usize::from(rank)) {
                *count += 1;
            }
            HELD.set(held);
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let mut held = HELD.get();
            if let Some(count) = held.get_mut(usize::from(self.0)) {
                *count = count.saturating_sub(1);
            }
            HELD.set(held);
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_thread_that_takes_locks_in_another_order_is_told() {
        let (state, shard) =
            (OrderedMutex::<_, { rank::STATE }>::new(1), OrderedMutex::<_, { rank::SHARD }>::new(2));
        let sum = *state.lock() + *shard.lock();
        assert_eq!(sum, 3);
        let other = OrderedMutex::<_, { rank::SHARD }>::new(3);
        {
            let _shard = shard.lock();
            assert!(catch_unwind(AssertUnwindSafe(|| drop(state.lock()))).is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| drop(other.lock()))).is_err());
            assert_eq!(*other.lock_in_turn(), 3);
        }
        // Nothing is left of what was refused, and locks may be released in any order.
        let (first, second) = (state.lock(), shard.lock());
        drop(first);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(state.lock()))).is_err());
        drop(second);
        assert_eq!(*state.lock(), 1);
        assert_eq!(*state.lock_as(|value| *value), 1);
    }
}
