//! How pages come into memory: blocking misses and asynchronous ones, which enter through one place, and waiting for
//! pages that a queue reads. And how copies of changed pages go to storage while the pages are used.

pub(crate) mod cooperative;
pub(crate) mod copies;
pub(crate) mod fault;
pub(crate) mod miss_queue;
pub(crate) mod on_demand;
pub(crate) mod page_io;
pub(crate) mod reads;
