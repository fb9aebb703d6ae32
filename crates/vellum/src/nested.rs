//! Detects uses of the database by a closure of the caller that would wait for themselves.
//!
//! A callback of a compaction or a backup that begins another one of the same database gets an error.
//!
//! A closure that changes a value in place, or is shown one, runs under the latch of the value's page. If it uses the same
//! database, it waits for a latch that its own thread holds, immediately or when another page happens to be affected.
//! Debug builds note for each thread in which databases it has such a latch, and panic where one of them is used. Other
//! databases and other threads are not restricted. A thread that is about to end notes nothing. Release builds contain
//! none of this.

use std::cell::RefCell;
use vellum_pool::Pool;

/// Work that calls the caller back, and of which a database does one at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Compaction,
    Backup,
}

vellum_base::primitive::thread_local! {
    /// What this thread does to which databases, by their addresses.
    static WORKING: RefCell<Vec<(Work, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Marks this thread as doing something to a database, until it is dropped.
pub(crate) struct Mark;

impl Mark {
    /// None if the thread is doing that to the database already: it would wait for itself for ever.
    pub(crate) fn set(work: Work, database: usize) -> Option<Self> {
        let is_new = WORKING.try_with(|working| {
            let mut working = working.borrow_mut();
            let is_new = !working.contains(&(work, database));
            if is_new {
                working.push((work, database));
            }
            is_new
        });
        // A thread that is about to end notes nothing. A mark is made only if it is set, because it ends when dropped.
        if is_new.unwrap_or(true) { Some(Self) } else { None }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // Marks end in the opposite order.
        let _ = WORKING.try_with(|working| working.borrow_mut().pop());
    }
}

#[cfg(debug_assertions)]
vellum_base::primitive::thread_local! {
    /// The pools in which this thread runs a closure under a latch, by their addresses.
    static LATCHED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
fn address(pool: &Pool) -> usize {
    std::ptr::from_ref(pool).addr()
}

/// Runs a closure of the caller under a latch of `pool`.
#[inline]
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "see the module"))]
pub(crate) fn latched<T>(pool: &Pool, work: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _mark = {
        struct Mark;
        impl Drop for Mark {
            fn drop(&mut self) {
                let _ = LATCHED.try_with(|latched| latched.borrow_mut().pop());
            }
        }
        let _ = LATCHED.try_with(|latched| latched.borrow_mut().push(address(pool)));
        Mark
    };
    work()
}

/// Makes sure that this thread runs no closure under a latch of `pool`.
///
/// # Panics
/// In debug builds, if it is.
#[inline]
#[track_caller]
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "see the module"))]
pub(crate) fn check(pool: &Pool) {
    #[cfg(debug_assertions)]
    assert!(
        !LATCHED.try_with(|latched| latched.borrow().contains(&address(pool))).unwrap_or_default(),
        "the closure that changes a value, or is shown one, uses the same database, and would wait for itself for ever; \
         use the database before or after `modify`, `multi_modify` or `scan`, not inside"
    );
}
