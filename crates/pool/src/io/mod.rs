//! Reads and writes past a latch: misses that do not stop a thread, and streams of pages and of extents.

pub(crate) mod cooperative;
#[cfg(not(loom))]
pub(crate) mod extent_stream;
#[cfg(not(loom))]
pub(crate) mod miss_queue;
#[cfg(not(loom))]
pub(crate) mod outage;
#[cfg(not(loom))]
pub(crate) mod page_stream;
