//! The primitives through which threads meet: locks, atomics, threads, thread-local values, and time.
//!
//! They are the standard library's. With `--cfg shuttle` they are shuttle's, or made from those: threads then run one
//! at a time, in an order that a scheduler chooses, so that a seed determines how they meet (see [`scheduled`](self)).
//! Primitives for which no other thread can wait, such as counters, need not come from here.

#[cfg(shuttle)]
mod clock;
#[cfg(shuttle)]
mod scheduled;

#[cfg(not(shuttle))]
pub use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
        WaitTimeoutResult,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
        mpsc,
    },
    thread, thread_local,
    time::Instant,
};
#[cfg(shuttle)]
pub use {
    clock::{Instant, wall_time},
    scheduled::{
        AtomicBool, AtomicU64, AtomicUsize, Condvar, Local, Mutex, MutexGuard, WaitTimeoutResult, meet,
        random, spin_loop, thread, thread_local,
    },
    shuttle::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    std::sync::{
        TryLockError,
        atomic::{Ordering, fence},
    },
};

/// The time since 1970; zero if the clock is before that.
#[cfg(not(shuttle))]
pub fn wall_time() -> std::time::Duration {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Lets a scheduler choose the next thread, between two reads of data that other threads may change. Free without one.
#[cfg(not(shuttle))]
#[inline(always)]
pub fn meet() {}

/// A random number.
#[cfg(not(shuttle))]
pub fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    // The keys of the standard library's hash come from the system's source of random numbers.
    RandomState::new().hash_one(0)
}

/// The number of the calling thread, as the standard library counts them: threads that begin one after the other have
/// consecutive numbers.
pub fn thread_number() -> u64 {
    use std::hash::{Hash as _, Hasher};

    /// Extracts the number from the id of a thread.
    struct Number(u64);

    impl Hasher for Number {
        fn write(&mut self, bytes: &[u8]) {
            bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
        }

        fn write_u64(&mut self, number: u64) {
            self.0 ^= number;
        }

        fn write_usize(&mut self, number: usize) {
            self.0 ^= number as u64;
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }

    let mut number = Number(0);
    thread::current().id().hash(&mut number);
    number.finish()
}

/// Starts a thread that ends within a scope.
///
/// # Errors
/// If the system refuses the thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
    #[cfg(not(shuttle))]
    return thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
    #[cfg(shuttle)]
    {
        let _ = name;
        Ok(scope.spawn(work))
    }
}

/// A number that is given only once.
pub fn random_id() -> [u8; 16] {
    (u128::from(random()) << 64 | u128::from(random())).to_le_bytes()
}
