//! How pages get into memory: blocking and asynchronous misses, which use one common path, and waiting for pages that a
//! queue reads. Also how copies of changed pages go to storage while the pages are in use.

pub(crate) mod cooperative;
pub(crate) mod copies;
pub(crate) mod fault;
pub(crate) mod miss_queue;
pub(crate) mod on_demand;
pub(crate) mod page_io;
pub(crate) mod reads;
