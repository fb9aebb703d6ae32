//! What passes the pool by: extents larger than memory, and pages that are written in their order.

pub(crate) mod extent_stream;
pub(crate) mod page_stream;
