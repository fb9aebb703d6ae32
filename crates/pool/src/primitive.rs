//! The synchronisation primitives that the latches and the resident set are made of.
//!
//! With `--cfg loom` they are loom's, so that the models under `tests/` explore every interleaving and
//! every result that the memory model allows.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
};
