//! Reading a tree: cursors, and fetching the leaves that they will come to.

pub(super) mod cursor;
pub(super) mod read_ahead;
