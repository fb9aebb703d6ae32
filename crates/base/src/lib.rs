//! Internal to Vellum (use the crate `vellum`): the vocabulary that every other layer shares.
//!
//! Identifiers that must not be mixed up ([`PageId`], [`Lsn`]), the size of a page, the [`PageHeader`] with which every
//! page on storage begins, the checksum, and [`Bytes`], the one way in which code reads the bytes of a page without
//! knowing whether it holds a latch on it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod apart;
mod background;
mod bytes;
mod causes;
mod header;
mod ids;
pub mod plant;
mod precedence;
pub mod primitive;
mod shown;

pub use apart::Apart;
pub use background::tell_panic;
pub use bytes::Bytes;
pub use causes::io_causes;
pub use header::{
    ChecksumStream, HEADER_BYTES, HeaderFault, LSN_AT, PAGE_FORMAT_VERSION, PageHeader, PageKind, checksum,
    stamp_checksum, stamp_lsn, verify_header,
};
pub use ids::{Extent, Lsn, PageId};
pub use precedence::{Precedence, Preceding};
pub use shown::shown;

/// The size of a page, in bytes: the unit of addressing, of allocation on storage and of eviction.
///
/// It is the base page of the processor's page table on x86-64 and most AArch64 systems; a system with
/// larger base pages is refused when a pool is opened.
pub const PAGE_SIZE: usize = 4096;
