//! Internal to Vellum (use the crate `vellum`): the only place that talks to the kernel about memory and
//! files.
//!
//! - [`Mapping`]: address space as large as a database, of which only the used part is resident;
//! - [`LargeBuffer`]: large memory for temporary use;
//! - [`Releaser`]: gives the memory of batches of pages back (eviction);
//! - [`PageMemory`]: a mapping, a releaser and a file that go together, by the best method that works here;
//! - [`File`]: direct, overlapped reads and writes of pages, by [`DiskFile`] (io_uring, or `pread`/`pwrite` where
//!   io_uring is refused), and [`Directory`], a place for files;
//! - [`OverlayFile`], [`OverlayDirectory`]: files that are only read, with writes kept over them in memory;
//! - [`Queue`]: requests to a file that are submitted now and reaped later;
//! - [`SimulatedFile`] and [`SimulatedDisk`]: the same in memory, failing in every way that real ones do;
//! - [`VmError`]: says what was being done, on what, and what to do about it.
//!
//! This crate knows nothing of what the pages mean: no states, no headers, no checksums.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod aligned;
mod cpu_time;
mod directory;
mod disk;
mod error;
mod exmap;
mod exmap_file;
mod file;
mod huge;
mod large;
mod lock;
mod memory;
mod names;
mod overlay;
mod page_memory;
mod plain;
mod prefetch;
mod queue;
#[cfg(test)]
#[path = "../tests/common/refuse.rs"]
mod refuse;
mod release;
mod rename;
mod request;
mod ring;
#[cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "a test double: numbers of files are its own, and a bug is to panic"
    )
)]
mod sim;
mod transfer;

pub use aligned::AlignedBuffer;
pub use cpu_time::cpu_time_of_others;
pub use directory::{Directory, DiskDirectory};
pub use disk::{DiskFile, sync_directory};
pub use error::{LockHolder, VmError, advice, is_full, shows_damage};
pub use exmap::ExmapCounters;
pub use file::{CreateMode, File, FileDescription, FileOptions};
pub use huge::{Collapse, SpareHugePage, huge_page_bytes};
pub use large::LargeBuffer;
pub use lock::lock;
pub use memory::{Mapping, PageRange, WordTable, physical_bytes, resident_bytes, resident_bytes_peak};
pub use names::{IoEngine, ReleaseMethod};
pub use overlay::{OverlayDirectory, OverlayFile};
pub use page_memory::{PageMemory, PageMemoryOptions};
pub use plain::check_size_limit;
pub use prefetch::{LINE_BYTES, prefetch, prefetch_line, prefetch_to_write};
pub use queue::{Completion, Queue, Wait};
pub use release::Releaser;
pub use rename::{Named, has_other_names, named, rename_new};
pub use request::{Operation, Request};
pub use sim::{
    CrashModel, Faults, FileOperation, HeldReads, Image, OperationCounts, SimulatedDisk, SimulatedFile,
};
