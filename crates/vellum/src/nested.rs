//! Detects a use of the database inside a change of one of its values, which would wait for itself.
//!
//! A closure that changes a value in place runs under the latch of the value's page. If it uses the same database, it
//! waits for a latch that its own thread holds, immediately or when another page happens to be affected. Debug builds
//! note for each thread which databases it is changing, and panic where one of them is used. Other databases and other
//! threads are not restricted. A thread that is about to end notes nothing. Release builds contain none of this.

use vellum_pool::Pool;

#[cfg(debug_assertions)]
vellum_base::primitive::thread_local! {
    /// The pools in which this thread is changing a value, by their addresses.
    static CHANGING: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
fn address(pool: &Pool) -> usize {
    std::ptr::from_ref(pool).addr()
}

/// Runs a closure that changes a value in `pool`.
#[inline]
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "see the module"))]
pub(crate) fn changing<T>(pool: &Pool, change: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _mark = {
        struct Mark;
        impl Drop for Mark {
            fn drop(&mut self) {
                let _ = CHANGING.try_with(|changing| changing.borrow_mut().pop());
            }
        }
        let _ = CHANGING.try_with(|changing| changing.borrow_mut().push(address(pool)));
        Mark
    };
    change()
}

/// Makes sure that this thread is not changing a value in `pool`.
///
/// # Panics
/// In debug builds, if it is.
#[inline]
#[track_caller]
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "see the module"))]
pub(crate) fn check(pool: &Pool) {
    #[cfg(debug_assertions)]
    assert!(
        !CHANGING.try_with(|changing| changing.borrow().contains(&address(pool))).unwrap_or_default(),
        "the closure that changes a value uses the same database, and would wait for itself for ever; use the \
         database before or after `modify` or `multi_modify`, not inside"
    );
}
