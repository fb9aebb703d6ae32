//! The one gateway through which pages are changed.
//!
//! An [`AtomicChange`] (the field's *mini-transaction*) owns the latches on all pages that are changed together. What it
//! does to each page it has as data, a [`PageChange`], and doing it is the same code as redoing it later from a record. So
//! a log needs to know nothing of trees, and what it redoes cannot differ from what was done.
//!
//! # Rules
//! - Nothing else in this crate writes to a page, and latched pages exist only within the types of this module. The
//!   traits by which pages are written are imported here alone, which `cargo xtask tidy` checks.
//! - Whatever may fail comes before the first page is changed, or fails without having changed it: what changes several
//!   pages [prepares](Recording::prepare) all but the first one beside them. New pages may be filled at any time, because
//!   nobody refers to them, and they are freed again unless the change is committed.
//! - An atomic change ends by [`AtomicChange::commit`]. Dropping one that has changed something is a bug.
//! - The redo of each page needs that page and the record, and no other page.
//!
//! # Records
//! Whether changes are recorded is a constant of the pager ([`ChangeRecords::RECORDS`](vellum_pool::ChangeRecords::RECORDS)). If they are
//! not, nothing is gathered. If they are, the record takes its number while all pages are latched, all of them get it as
//! their LSN, and the record is handed over after the latches have been released. A page whose LSN is not less than a
//! record's number has that change already: see [`redo`].
//!
//! The contents of large values and the pages of bulk loads are not recorded, but where they are and their digest is.

mod atomic;
mod encoding;
mod extents;
mod page_change;

pub(crate) use atomic::{AtomicChange, Doomed, Fresh, Latched, PageSet, Recording};
pub use encoding::{ChangeRecord, RecordFault};
pub(crate) use extents::{BlobStream, NodeStream, discard, new_blob};
pub use page_change::{NodeImage, PageChange, ValueImage, redo};
