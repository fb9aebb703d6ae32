//! One page: its state word, the guards on it, waiting for its latch, and reading its bytes without one.

#[cfg(not(loom))]
pub(crate) mod guard;
#[cfg(not(loom))]
pub(crate) mod optimistic_bytes;
pub(crate) mod parking;
#[cfg(not(loom))]
pub(crate) mod simd;
pub(crate) mod state;
