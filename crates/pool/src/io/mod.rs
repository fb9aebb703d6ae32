//! How pages come into memory: blocking misses and asynchronous ones, which enter through one place, and waiting for
//! pages that a queue reads.

pub(crate) mod cooperative;
pub(crate) mod fault;
pub(crate) mod miss_queue;
pub(crate) mod page_io;
pub(crate) mod reads;
