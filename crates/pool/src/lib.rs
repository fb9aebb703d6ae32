//! Internal to Vellum (use `vellum::pool`): a buffer pool whose page table is the processor's.
//!
//! The guide to it, with examples, is the documentation of the module `vellum::pool`, under which the
//! published crate re-exports it.
//!
//! The layers, from the bottom up; each owns the layer below it, and knows nothing of those above: `page_table` (where
//! pages live, and their states), `file` and `space` (what is on storage), `replacement` (what is in memory, and what
//! leaves it), `io` (what enters memory), `allocator`, `guard`, `stream`, `maintenance` (the background thread),
//! `pool`, `navigation` and `copying`. Start reading with `page_table` and `page::state`.
#![warn(missing_docs)]
// With loom, the models do not use everything.
#![cfg_attr(loom, allow(dead_code))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

// For test modules that are also compiled here.
#[cfg(test)]
extern crate self as vellum_pool;

mod allocator;
mod append_hint;
mod change_log;
mod change_records;
mod copying;
#[cfg(all(test, not(loom)))]
mod crashes;
mod error;
mod file;
mod guard;
mod io;
mod kept_pages;
mod limits;
mod lsn_clock;
mod maintenance;
#[cfg(all(test, loom))]
mod models;
mod navigation;
mod options;
mod page;
mod page_table;
mod pager;
mod plant;
mod pool;
mod pool_file;
mod primitive;
mod redo;
mod remains;
mod replacement;
mod space;
mod statistics;
mod stream;
mod undo_space;

pub use {
    allocator::SpaceMaker,
    append_hint::{AppendHint, AppendHints},
    change_log::ChangeLog,
    change_records::ChangeRecords,
    copying::HeldSpace,
    error::{Fault, Interrupt, Miss, PoolError},
    file::copy_basis::CopyBasis,
    file::lifecycle::is_left_by_restore,
    file::superblock::{APPLICATION_BYTES, ROOTS},
    guard::{AllocatedGuard, ExclusiveGuard, OptimisticGuard, SharedGuard},
    io::copies::Progress,
    io::miss_queue::MissQueue,
    io::on_demand::RedoOnDemand,
    kept_pages::{KeptPages, PageKeeper},
    limits::{EXTENT_PAGES_MAX, PAGE_ID_MAX},
    lsn_clock::LsnClock,
    options::{CAPACITY_BYTES_MIN, POOL_BYTES_MIN, PoolOptions},
    page::optimistic_bytes::OptimisticBytes,
    page::simd::detect as detect_simd,
    page::state::SHARED_HOLDERS_MAX,
    pager::{
        AllocatedPage, Allocation, AsynchronousReads, Begun, ExclusivePage, ExtentWriter, FinishedRead,
        Followed, Misses, Navigation, OptimisticPage, PageWriter, Pager, SharedPage, Streams,
    },
    pool::{Checkpointer, Pool, SetAside, SpaceWatch},
    pool_file::{PoolFile, note_backup, renew_database},
    redo::Redoer,
    remains::Remains,
    statistics::PoolStatistics,
    stream::extent_stream::ExtentStream,
    stream::page_stream::PageStream,
    undo_space::{UndoSpace, is_undoing, undoing},
};
