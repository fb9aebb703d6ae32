//! The file: its superblocks, what makes it one of ours, and what is open of it.

pub(crate) mod lifecycle;
pub(crate) mod outage;
pub(crate) mod storage;
pub(crate) mod superblock;
