//! A file's life: creating, opening, checkpointing and closing it, and the superblocks that say which of these it is in.

pub(crate) mod lifecycle;
pub(crate) mod superblock;
