//! Internal to Vellum (use `vellum::pool`): a buffer pool whose page table is the processor's.
//!
//! The guide to it, with examples, is the documentation of the module `vellum::pool`, under which the
//! published crate re-exports it. Begin reading the code with `core`, which has the invariants and the order
//! of locks, then `state` and `guard`.
#![warn(missing_docs)]
// With loom, only what is modelled is compiled, and the models do not use all of it.
#![cfg_attr(loom, allow(dead_code))]

mod bookmark;
mod budget;
mod helping;
#[cfg(all(test, loom))]
mod models;
mod parking;
mod primitive;
mod resident;
mod state;

#[cfg(not(loom))]
mod ahead;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod detached;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod evict;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod inflight;
#[cfg(not(loom))]
mod lifecycle;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod page_stream;
#[cfg(not(loom))]
mod pager;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod statistics;
#[cfg(not(loom))]
mod superblock;
#[cfg(not(loom))]
mod view;
#[cfg(not(loom))]
mod wide;

#[cfg(not(loom))]
pub use {
    bookmark::{Bookmark, Bookmarks},
    detached::ExtentStream,
    error::{Fault, Interrupt, Miss, PoolError},
    guard::{AllocatedGuard, ExclusiveGuard, OptimisticGuard, SharedGuard},
    inflight::{Begun, FinishedRead, MissQueue},
    options::{LogBarrier, POOL_BYTES_MIN, PoolOptions},
    page_stream::PageStream,
    pager::{
        AllocatedPage, ExclusivePage, ExtentWriter, Misses, OptimisticPage, PageWriter, Pager, SharedPage,
    },
    pool::Pool,
    resident::{EXTENT_PAGES_MAX, PAGE_ID_MAX},
    state::SHARED_HOLDERS_MAX,
    statistics::PoolStatistics,
    superblock::{APPLICATION_BYTES, ROOTS},
    view::OptimisticBytes,
};
