//! Primitives under a scheduler.
//!
//! All threads run on one thread of the system, one at a time. At each operation of these primitives the scheduler
//! chooses the next thread. Between two operations no other thread does anything. So racy data, such as the bytes of
//! optimistic reads, is read as a whole or not at all unless the reader calls [`meet`], and orderings weaker than
//! `SeqCst` act like `SeqCst`: loom is for those.
//!
//! Shuttle's locks have no timeouts, and its atomics cannot lie in mapped memory, so both are made here.

use super::clock::{Instant, tick, wait_until};
use shuttle::rand::{Rng as _, RngCore as _};
use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, atomic},
    time::Duration,
};

pub use crate::__thread_local as thread_local;

/// Lets the scheduler choose the next thread. Outside of its threads this does nothing.
pub fn meet() {
    if shuttle::current::try_get_current_task().is_some() {
        tick();
        // This passes no time.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// Lets another thread run if one can.
pub fn spin_loop() {
    tick();
    shuttle::hint::spin_loop();
}

/// A random number, which is determined by the seed.
pub fn random() -> u64 {
    shuttle::rand::thread_rng().next_u64()
}

/// Threads.
pub mod thread {
    use super::super::clock::{Instant, wait_until};
    pub use shuttle::thread::*;
    use std::{io, num::NonZero, time::Duration};

    /// Waits at least this long.
    pub fn sleep(duration: Duration) {
        wait_until(Instant::now() + duration, || false);
    }

    /// The same number everywhere.
    #[expect(clippy::missing_errors_doc, reason = "there are none")]
    pub fn available_parallelism() -> io::Result<NonZero<usize>> {
        Ok(NonZero::<usize>::MIN.saturating_add(1))
    }
}

macro_rules! atomics {
    ($($name:ident: $value:ty, [$($operation:ident),*];)*) => {$(
        /// As in the standard library.
        #[derive(Default, Debug)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[expect(missing_docs, reason = "as in the standard library")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn load(&self, order: atomic::Ordering) -> $value {
                meet();
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: atomic::Ordering) {
                meet();
                self.0.store(value, order);
            }

            $(pub fn $operation(&self, value: $value, order: atomic::Ordering) -> $value {
                meet();
                self.0.$operation(value, order)
            })*

            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: atomic::Ordering,
                failure: atomic::Ordering,
            ) -> Result<$value, $value> {
                meet();
                self.0.compare_exchange(current, new, success, failure)
            }

            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: atomic::Ordering,
                failure: atomic::Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn fetch_update(
                &self,
                success: atomic::Ordering,
                failure: atomic::Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                meet();
                self.0.fetch_update(success, failure, change)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    )*};
}

atomics! {
    AtomicBool: bool, [swap, fetch_or, fetch_and];
    AtomicU64: u64, [swap, fetch_add, fetch_sub, fetch_or, fetch_and, fetch_max, fetch_min];
    AtomicUsize: usize, [swap, fetch_add, fetch_sub, fetch_max, fetch_min];
}

/// As in the standard library; a guard knows its mutex, so that a condition variable can lock the mutex again.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// As in the standard library.
#[must_use]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    inner: shuttle::sync::MutexGuard<'a, T>,
}

#[expect(missing_docs, clippy::missing_errors_doc, reason = "as in the standard library")]
impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        tick();
        let guard = |inner| MutexGuard { mutex: self, inner };
        self.0.lock().map(guard).map_err(|poisoned| PoisonError::new(guard(poisoned.into_inner())))
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        tick();
        let guard = |inner| MutexGuard { mutex: self, inner };
        self.0.try_lock().map(guard).map_err(|error| match error {
            TryLockError::WouldBlock => TryLockError::WouldBlock,
            TryLockError::Poisoned(poisoned) => PoisonError::new(guard(poisoned.into_inner())).into(),
        })
    }

    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }

    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// As in the standard library. The scheduler chooses which thread `notify_one` wakes.
#[derive(Default, Debug)]
pub struct Condvar {
    /// Under a lock for which no thread ever waits: no code here lets another thread run.
    waiters: std::sync::Mutex<Vec<Arc<Waiter>>>,
}

/// A thread that waits for a condition.
#[derive(Debug)]
struct Waiter {
    thread: shuttle::thread::Thread,
    is_woken: atomic::AtomicBool,
}

impl Waiter {
    fn is_woken(&self) -> bool {
        self.is_woken.load(atomic::Ordering::SeqCst)
    }

    fn wake(&self) {
        self.is_woken.store(true, atomic::Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Whether the wait timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait timed out.
    pub const fn timed_out(&self) -> bool {
        self.0
    }
}

#[expect(missing_docs, clippy::missing_errors_doc, reason = "as in the standard library")]
impl Condvar {
    pub const fn new() -> Self {
        Self { waiters: std::sync::Mutex::new(Vec::new()) }
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let (mutex, waiter) = (guard.mutex, self.enter());
        drop(guard);
        while !waiter.is_woken() {
            shuttle::thread::park();
        }
        mutex.lock()
    }

    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        duration: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (mutex, waiter) = (guard.mutex, self.enter());
        drop(guard);
        let is_woken = wait_until(Instant::now() + duration, || waiter.is_woken());
        self.waiters().retain(|other| !Arc::ptr_eq(other, &waiter));
        let timed_out = WaitTimeoutResult(!is_woken);
        let locked = mutex.lock();
        locked
            .map(|guard| (guard, timed_out))
            .map_err(|poisoned| PoisonError::new((poisoned.into_inner(), timed_out)))
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        duration: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let end = Instant::now() + duration;
        while condition(&mut guard) {
            let left = end - Instant::now();
            if left.is_zero() {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = self.wait_timeout(guard, left)?.0;
        }
        Ok((guard, WaitTimeoutResult(false)))
    }

    pub fn notify_one(&self) {
        meet();
        let waiter = {
            let mut waiters = self.waiters();
            let count = waiters.len();
            (count > 0).then(|| waiters.swap_remove(shuttle::rand::thread_rng().gen_range(0..count)))
        };
        waiter.into_iter().for_each(|waiter| waiter.wake());
    }

    pub fn notify_all(&self) {
        meet();
        let waiters = std::mem::take(&mut *self.waiters());
        waiters.iter().for_each(|waiter| waiter.wake());
    }

    /// Adds this thread to the waiting threads while it still holds the lock.
    fn enter(&self) -> Arc<Waiter> {
        let is_woken = atomic::AtomicBool::new(false);
        let waiter = Arc::new(Waiter { thread: shuttle::thread::current(), is_woken });
        self.waiters().push(waiter.clone());
        waiter
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value that each thread has for itself.
#[derive(Debug)]
pub struct Local<T: 'static>(shuttle::thread::LocalKey<T>);

#[expect(missing_docs, reason = "as in the standard library")]
impl<T> Local<T> {
    pub const fn new(init: fn() -> T) -> Self {
        Self(shuttle::thread::LocalKey { init, _p: PhantomData })
    }

    pub fn with<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
        self.0.with(work)
    }

    pub fn try_with<R>(&'static self, work: impl FnOnce(&T) -> R) -> Result<R, shuttle::thread::AccessError> {
        self.0.try_with(work)
    }
}

#[expect(missing_docs, reason = "as in the standard library")]
impl<T> Local<Cell<T>> {
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }

    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }
}

#[expect(missing_docs, reason = "as in the standard library")]
impl<T> Local<RefCell<T>> {
    pub fn with_borrow<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| work(&cell.borrow()))
    }

    pub fn with_borrow_mut<R>(&'static self, work: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| work(&mut cell.borrow_mut()))
    }
}

/// Declares thread-local values.
#[doc(hidden)]
#[macro_export]
macro_rules! __thread_local {
    ($($(#[$attribute:meta])* static $name:ident: $value:ty = const { $init:expr };)*) => {$(
        $(#[$attribute])*
        static $name: $crate::primitive::Local<$value> = $crate::primitive::Local::new(|| $init);
    )*};
}
