//! Changing a tree: records in leaves, and the splits and merges that follow from that.

pub(super) mod destroy;
pub(super) mod merge;
pub(super) mod modify;
pub(super) mod split;
pub(super) mod write;
