//! The synchronisation primitives of which the latches, the parking lot, the resident set and the budget are made.
//!
//! With `--cfg loom` they are those of loom, so that the models in `models` explore every interleaving and every result
//! that the memory model allows.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
};
#[cfg(not(loom))]
pub(crate) use vellum_base::primitive::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence, spin_loop,
};

/// Locks data that a panic cannot leave half-done: only a broken invariant causes a panic under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Like [`lock`], but returns `None` if another thread holds the lock.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        #[cfg(not(loom))]
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(_) => None,
    }
}

/// Bugs that the models plant, one at a time, to show that they would find them.
#[cfg_attr(not(loom), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Nothing orders taking the exclusive latch before what is written under it.
    NoReleaseFence,
    /// Nothing orders the optimistic reads before the second load of the word.
    NoAcquireFence,
    /// Nothing orders upgrading a shared latch before what is written under it.
    NoUpgradeFence,
    /// Loading the word does not show what was written before.
    RelaxedLoad,
    /// A latch is taken without seeing what its last holders did.
    RelaxedExchange,
    /// Releasing the exclusive latch does not publish what was written under it.
    RelaxedRelease,
    /// Releasing a shared latch does not say that the reads under it are over.
    RelaxedSharedRelease,
    /// The version does not change when a page is evicted.
    VersionStaysAtEviction,
    /// An upgrade takes the latch regardless of the version.
    BlindUpgrade,
    /// A shared latch is taken regardless of the version that an optimistic reader saw.
    BlindShare,
    /// A page becomes clean after a copy of it was written, regardless of the version.
    BlindClean,
    /// A page that is seen to be clean does not imply that its copy was written.
    RelaxedClean,
    /// The last shared holder clears the waiting bit and wakes no thread.
    SilentRelease,
    /// The waking thread does not take the bucket's lock.
    WakeWithoutLock,
    /// A sleeper does not check the word again once it holds the bucket's lock.
    SleepWithoutLook,
    /// A sleeper looks at the queues before it announces that it is waiting.
    LookBeforeAnnouncing,
    /// A page is latched for a queue before the queue is locked. Only the model of `io::miss_queue` has it.
    LatchBeforeLock,
    /// Two threads may insert into the same slot.
    InsertWithoutExchange,
    /// A search ends at the first empty slot, as if no entry were ever removed.
    RemoveStopsAtEmpty,
    /// Nothing orders the evictor's "I am asleep" before its look at the count.
    EvictorFence,
    /// Nothing orders the count before the check whether the evictor is asleep.
    ReserverFence,
    /// Nothing orders the latch of a page that is about to leave before the look at its run's flag.
    ReleaserFence,
    /// Nothing orders the flag of a run before the look at the latches of its pages.
    CollapserFence,
    /// A run that was split before its memory came is not split again.
    NoLookAfterFetch,
    /// A page ceases to be a head only after its latch has been released. Only the model of `space` has it.
    FreedAfterTheLatch,
    /// An append hint is accepted whatever happened while it was read.
    OneLookAtTheTurn,
    /// Nothing orders an append hint's odd turn before its words.
    NoFenceAfterTheTurn,
    /// Loading the turn of an append hint does not show the words of that turn.
    RelaxedTurn,
    /// The turn of an append hint does not publish its words.
    RelaxedEndOfTurn,
    /// Reasons against a change are looked for before changes are admitted.
    LookBeforeAdmission,
    /// A thread that suspends changes hides the reasons of those that have suspended them before.
    SuspensionByStore,
    /// Suspending changes does not publish the reason.
    RelaxedSuspension,
    /// Admitting changes neither shows the reasons against them nor publishes what was done before.
    RelaxedAdmission,
    /// Seeing that changes are admitted does not show what was done before.
    RelaxedLookAtAdmission,
    /// A thread that waited for another one to mark the file as in use does so too.
    MarkedTwice,
    /// An outage is told before its error is.
    OutageBeforeItsError,
    /// What another thread has said meanwhile of the room for undo is forgotten.
    ShortageForgotten,
    /// Nothing orders what is kept for undo before the look at what is assured.
    RelaxedKeep,
    /// Nothing orders what is assured for undo before the look at what is kept.
    RelaxedAssurance,
    /// Redo on demand is said to be needed before the object to ask is known.
    NeededBeforeNamed,
    /// The end of redo on demand does not publish what was redone.
    RelaxedEndOfRedo,
    /// Seeing that no page lacks changes does not show what was redone.
    RelaxedLookAtRedo,
    /// A claim of what was assured for undo is not said.
    ClaimNotSaid,
    /// An inner page that is still in memory is not dropped. Only the model of `space` has it.
    NoVisit,
}

/// Whether this bug is planted.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

/// This ordering; none if the bug is planted.
#[inline(always)]
pub(crate) fn unless_planted(bug: Bug, ordering: Ordering) -> Ordering {
    if planted(bug) { Ordering::Relaxed } else { ordering }
}

#[cfg(loom)]
std::thread_local! {
    /// All threads of a model run on one thread of the system, and each model has its own.
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

#[cfg(loom)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Plants a bug, or none.
#[cfg(loom)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
