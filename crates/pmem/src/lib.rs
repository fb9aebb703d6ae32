//! Internal to Vellum (use the command line `vellum pmem`): a key-value store for byte-addressable persistent memory.
//!
//! Some memory is persistent: NVDIMMs, battery-backed and CXL-attached memory, mapped directly (DAX). For such memory a
//! page cache, a buffer pool and a log are detours. Here all records lie in place in persistent memory, and the index
//! lies in ordinary memory and is rebuilt when the store is opened. The design is that of *Viper: An Efficient Hybrid
//! PMem-DRAM Key-Value Store* (Benson, Makait, Rabl, VLDB 2021), made safe where several clients change the same key.
//!
//! - [`Store`] is a file; [`Client`] writes, one for each thread; [`Reader`] reads without locks.
//! - [`Fixed`] holds records of one size, known when the program is compiled; [`Variable`] holds any.
//! - What an operation acknowledges is durable. [`Persistence`] says how: by cache lines flushed and fenced on
//!   persistent memory, or by `msync` on an ordinary file, which is slow. A file that does not confirm that it is
//!   persistent memory is never assumed to be, unless the user vouches for it.
//!
//! How the parts fit together: `core` has the operations and the order in which things become durable, and is the place
//! to start reading; `layout` and `format` define what lies where; `medium` is what a store lies on: `file` is the real
//! one, `shadow` that of the tests, which tries every state that a crash can leave; `index`, `blocks` and `space` are
//! rebuilt by `recover`; `reclaim` compacts.
//!
//! What it does not provide: order (there are no range scans), transactions over several keys, and several processes
//! that write at once.
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
mod numbers;
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
mod syncs;
mod update;

pub use crate::core::Put;
pub use error::{Damage, PmemError, Result};
pub use format::{Layout, fixed::Fixed, variable::Variable};
pub use handles::{Client, Reader};
pub use layout::VALUE_BYTES_MAX;
pub use options::{Options, Persistence, ReclaimOptions};
pub use reclaim::Reclaimed;
pub use recover::Recovery;
pub use store::{Statistics, Store, describe};
pub use superblock::{Shape, Superblock};
