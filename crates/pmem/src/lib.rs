//! Internal to Vellum (use the command line `vellum pmem`): a key-value store for byte-addressable persistent memory.
//!
//! Some memory keeps its contents: NVDIMMs, battery-backed and CXL-attached memory, mapped directly (DAX). A page cache,
//! a buffer pool and a log are detours there. Here all records lie in persistent memory, in place, and the index lies in
//! ordinary memory and is rebuilt when the store is opened. The design is that of *Viper: An Efficient Hybrid PMem-DRAM
//! Key-Value Store* (Benson, Makait, Rabl, VLDB 2021), made safe where several clients change the same key.
//!
//! - [`Store`] is a file; [`Client`] writes, one for each thread; [`Reader`] reads without locks.
//! - [`Fixed`] holds records of one size, known when the program is compiled; [`Variable`] holds any.
//! - What an operation acknowledges is durable. How, [`Persistence`] says: by cache lines flushed and fenced on persistent
//!   memory, or by `msync` on an ordinary file, which is slow. It is never assumed of a file that does not confirm it,
//!   unless the user vouches for it.
//!
//! How it fits together: `core` has the operations and the order in which things become durable, and is where to begin;
//! `layout` and `format` say what lies where; `medium` is what a store lies on, `file` the real one, `shadow` the one
//! of the tests, which tries every state that a crash can leave; `index`, `blocks` and `space` are what is rebuilt by
//! `recover`; `reclaim` compacts.
//!
//! What it does not do: order (there are no range scans), transactions over several keys, and several processes that
//! write at once.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

#[cfg(target_endian = "big")]
compile_error!("records are little-endian words that are read where they lie");

mod batch;
mod blocks;
mod change;
mod core;
mod cpu;
mod error;
mod file;
mod format;
mod handles;
mod index;
mod layout;
mod lock;
mod mapping;
mod medium;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod options;
mod owed;
mod reclaim;
mod recover;
mod scratch;
mod settling;
#[cfg(all(test, not(loom)))]
mod shadow;
mod space;
mod store;
mod stripes;
mod superblock;
mod update;

pub use crate::core::Put;
pub use error::{Damage, PmemError, Result};
pub use format::{Layout, fixed::Fixed, variable::Variable};
pub use handles::{Client, Reader};
pub use options::{Options, Persistence, ReclaimOptions};
pub use reclaim::Reclaimed;
pub use recover::Recovery;
pub use store::{Statistics, Store, describe};
pub use superblock::{Shape, Superblock};
