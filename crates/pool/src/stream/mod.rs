//! What is written and read past the pool: extents larger than memory, and pages that are written in their order.

pub(crate) mod extent_stream;
pub(crate) mod page_stream;
