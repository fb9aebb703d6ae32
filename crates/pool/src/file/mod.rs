//! The file: its superblocks, how it is created and checked, and the open file.

pub(crate) mod admission;
mod claiming;
pub(crate) mod copy_basis;
pub(crate) mod held;
mod in_use;
pub(crate) mod lifecycle;
pub(crate) mod lives;
pub(crate) mod logged;
mod map_room;
pub(crate) mod outage;
pub(crate) mod storage;
pub(crate) mod superblock;
