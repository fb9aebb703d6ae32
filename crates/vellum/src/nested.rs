//! Detects uses of the database by a closure of the caller that would wait for themselves.
//!
//! A callback of a compaction or a backup gets an error if it begins on the same database what would wait for itself. A callback of a compaction may make a backup, and one of a backup may compact; where two threads do that at
//! once, the second gets the error, because each would wait for the other.
//!
//! A closure that changes a value in place, or is shown one, runs under the latch of the value's page. If it uses the same
//! database, it waits for a latch that its own thread holds, immediately or when another page happens to be affected.
//! Debug builds note for each thread in which databases it has such a latch, and panic where one of them is used. Other
//! databases and other threads are not restricted. A thread that is about to end notes nothing. Release builds contain
//! none of this.

use crate::{Error, driver::lock};
use std::cell::RefCell;
use vellum_base::primitive::Mutex;
use vellum_pool::Pool;

/// Work that calls the caller back, and of which a database does one at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Backup,
    Compaction,
}

impl From<Work> for Error {
    fn from(work: Work) -> Self {
        match work {
            Work::Compaction => Self::NestedCompaction,
            Work::Backup => Self::NestedBackup,
        }
    }
}

vellum_base::primitive::thread_local! {
    /// What this thread does to which databases, by their addresses.
    static WORKING: RefCell<Vec<(Work, usize)>> = const { RefCell::new(Vec::new()) };
}

/// The work in a callback of which a thread does other work, or waits for that; one for each database.
#[derive(Default)]
pub(crate) struct Nesting(Mutex<Option<Work>>);

/// Marks this thread as doing something to a database, until it is dropped.
pub(crate) struct Mark<'n> {
    nesting: &'n Nesting,
    /// Whether the thread is in a callback of other work.
    is_nested: bool,
}

impl<'n> Mark<'n> {
    /// # Errors
    /// What the thread is doing to the database, if it must end before that.
    pub(crate) fn set(work: Work, nesting: &'n Nesting) -> Result<Self, Work> {
        let outer = under_way(nesting);
        match outer {
            Some(outer) if outer == work => return Err(outer),
            Some(outer) => {
                let mut waiting = lock(&nesting.0);
                // The thread that does that work waits in a callback for what this thread is doing.
                if *waiting == Some(work) {
                    return Err(outer);
                }
                *waiting = Some(outer);
            }
            None => {}
        }
        // A thread that is about to end notes nothing, here and below.
        let _ = WORKING.try_with(|working| working.borrow_mut().push((work, address_of(nesting))));
        Ok(Self { nesting, is_nested: outer.is_some() })
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // Marks end in the opposite order.
        let _ = WORKING.try_with(|working| working.borrow_mut().pop());
        if self.is_nested {
            *lock(&self.nesting.0) = None;
        }
    }
}

/// What this thread has begun last of what it is doing to a database.
pub(crate) fn under_way(nesting: &Nesting) -> Option<Work> {
    let last = |working: &Vec<(Work, usize)>| {
        working.iter().rfind(|(_, of)| *of == address_of(nesting)).map(|(work, _)| *work)
    };
    WORKING.try_with(|working| last(&working.borrow())).unwrap_or_default()
}

fn address_of(nesting: &Nesting) -> usize {
    std::ptr::from_ref(nesting).addr()
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
