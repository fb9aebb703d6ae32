//! One page: its state word, waiting for its latch, reading its bytes without one; and runs of pages as huge pages.

#[cfg(not(loom))]
pub(crate) mod huge_runs;
#[cfg(not(loom))]
pub(crate) mod optimistic_bytes;
pub(crate) mod parking;
#[cfg(not(loom))]
pub(crate) mod simd;
pub(crate) mod state;
