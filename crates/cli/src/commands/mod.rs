//! The commands, one module each: their arguments, and what they do.

pub mod backup;
pub mod compact;
pub mod delete;
pub mod dump;
pub mod get;
pub mod import;
pub mod load;
pub mod pmem;
pub mod put;
pub mod recover;
pub mod restore;
pub mod scan;
pub mod stat;
pub mod table;
pub mod tables;
pub mod tour;
pub mod verify;
