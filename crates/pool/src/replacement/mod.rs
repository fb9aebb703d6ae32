//! Which extents are in memory, how many may be, and which go when memory is short.

pub(crate) mod budget;
#[cfg(not(loom))]
pub(crate) mod evict;
pub(crate) mod resident_set;
