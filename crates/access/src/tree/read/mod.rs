//! Reading a tree: records, values in parts, cursors and their read-ahead.

pub(super) mod blob_reader;
pub(super) mod cursor;
mod get;
mod read_ahead;
pub(super) mod record;
mod seen_leaf;
