//! The synchronisation primitives that the buffer uses; with `--cfg loom` they are loom's (see `models`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use vellum_base::primitive::{AtomicU64, Ordering};

/// An array of words, initially zero, that begins at a page boundary.
#[cfg(not(loom))]
pub(crate) type Words = std::sync::Arc<vellum_vm::WordTable>;
#[cfg(loom)]
pub(crate) type Words = Box<[AtomicU64]>;

/// Allocates an array of words.
#[cfg(not(loom))]
pub(crate) fn words(count: usize) -> Result<Words, vellum_vm::VmError> {
    vellum_vm::WordTable::new(count, "the buffer of the log").map(std::sync::Arc::new)
}
#[cfg(loom)]
pub(crate) fn words(count: usize) -> Result<Words, vellum_vm::VmError> {
    Ok((0..count).map(|_| AtomicU64::new(0)).collect())
}

/// Words that are mapped elsewhere as well.
#[cfg(not(loom))]
pub(crate) fn shared_words(table: &std::sync::Arc<vellum_vm::WordTable>) -> Words {
    table.clone()
}
/// Models have no files.
#[cfg(loom)]
pub(crate) fn shared_words(table: &std::sync::Arc<vellum_vm::WordTable>) -> Words {
    (0..table.len()).map(|_| AtomicU64::new(0)).collect()
}

/// Bugs that the models plant, one at a time, to show that they would find them.
#[cfg_attr(not(loom), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingBug {
    /// The end of a frame is published without what is before it.
    RelaxedEnd,
    /// The end of a frame is found without what is before it.
    RelaxedLook,
    /// The frontier is moved without what is before it.
    RelaxedAdvance,
    /// The frontier is seen without what is before it.
    RelaxedFrontier,
    /// Room is given before what was there has been read.
    RelaxedRelease,
    /// Room is taken before what was there has been read.
    RelaxedRoom,
    /// A frame is written even if there is no room for it.
    NoLookAtRoom,
    /// An end is followed that belongs to a frame of a later lap.
    NoLookAtLap,
    /// A thread that says what is ready does not look whether the log has ended.
    NoLookAtEnd,
}

/// Whether this bug is planted.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn planted(_: RingBug) -> bool {
    false
}

/// This ordering; none if the bug is planted.
#[inline(always)]
pub(crate) fn unless_planted(bug: RingBug, ordering: Ordering) -> Ordering {
    if planted(bug) { Ordering::Relaxed } else { ordering }
}

#[cfg(loom)]
std::thread_local! {
    /// All threads of a model run on one system thread, and each model runs on its own.
    static PLANTED: std::cell::Cell<Option<RingBug>> = const { std::cell::Cell::new(None) };
}

#[cfg(loom)]
pub(crate) fn planted(bug: RingBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Plants a bug, or none.
#[cfg(loom)]
pub(crate) fn plant(bug: Option<RingBug>) {
    PLANTED.set(bug);
}
