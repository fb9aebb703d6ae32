//! How pages come into memory: blocking misses and asynchronous ones, which enter through one place, and waiting for
//! pages that a queue reads.

pub(crate) mod cooperative;
#[cfg(not(loom))]
pub(crate) mod fault;
#[cfg(not(loom))]
pub(crate) mod miss_queue;
#[cfg(not(loom))]
pub(crate) mod page_io;
#[cfg(not(loom))]
pub(crate) mod reads;
