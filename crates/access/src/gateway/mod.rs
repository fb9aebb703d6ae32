//! The one gateway through which pages are changed.
//!
//! An [`AtomicChange`] (the field's *mini-transaction*) owns the latches on all pages that are changed together. Each
//! change of a page is data, a [`PageChange`], and the same code does it and redoes it later from a record. So a log
//! needs to know nothing of trees, and what it redoes cannot differ from what was done.
//!
//! # Rules
//! - Nothing else in this crate writes to a page, and latched pages exist only within the types of this module. The
//!   traits by which pages are written are imported here alone, which `cargo xtask tidy` checks.
//! - A step that may fail comes before the first page is changed, or changes nothing if it fails: a change of several
//!   pages [prepares](Recording::prepare) copies of all but the first one. New pages may be filled at any time, because
//!   nothing refers to them, and they are freed again unless the change is committed.
//! - An atomic change ends by [`AtomicChange::commit`]. Dropping one that has changed something is a bug.
//! - The redo of each page needs that page and the record, and no other page.
//!
//! # Records
//! Whether changes are recorded is up to the pager
//! ([`ChangeRecords::records`](vellum_pool::ChangeRecords::records)). If not, nothing is gathered. If so, the record
//! takes its number while all pages are latched, all pages get the number as their LSN, and the record is handed over
//! after the latches have been released. A page whose LSN is not less than a record's number has that change already:
//! see [`redo`].
//!
//! Of large values and of the pages of bulk loads only the place and the digest are recorded, and no contents.

mod atomic;
mod encoding;
mod extents;
mod page_change;

pub(crate) use atomic::{AtomicChange, Doomed, Fresh, Latched, PageSet, Recording};
pub use encoding::{ChangeRecord, RecordFault};
pub(crate) use extents::{Append, NodeStream, discard, new_blob, not_a_node, stream_blob};
pub use page_change::{NodeImage, PageChange, ValueImage, redo};
