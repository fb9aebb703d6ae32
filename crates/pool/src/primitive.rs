//! The synchronisation primitives that the latches, the parking lot, the resident set and the budget are
//! made of.
//!
//! With `--cfg loom` they are loom's, so that the models in `models` explore every interleaving and every
//! result that the memory model allows.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
};
