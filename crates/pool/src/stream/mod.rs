//! Writing and reading past the pool: extents larger than memory, and pages that are written in order.

pub(crate) mod extent_stream;
pub(crate) mod page_stream;
