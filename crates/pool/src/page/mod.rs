//! One page: its state word, waiting for its latch, reading its bytes without one; and runs of pages as huge pages.

pub(crate) mod huge_runs;
pub(crate) mod optimistic_bytes;
pub(crate) mod parking;
pub(crate) mod simd;
pub(crate) mod state;
