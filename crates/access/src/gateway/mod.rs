//! The one gateway through which pages are changed.
//!
//! An [`AtomicChange`] (the field's *mini-transaction*) owns the latches on all pages that are changed together. Each
//! change of a page is data, a [`PageChange`], and the same code makes it and redoes it later from a record. So a log
//! needs to know nothing of trees, and redo cannot differ from the original change.
//!
//! # Rules
//! - No other code in this crate writes to a page, and latched pages exist only within the types of this module. Only
//!   this module imports the traits by which pages are written, which `cargo xtask tidy` checks.
//! - A step that may fail comes before the first page is changed, or changes nothing if it fails: a change of several
//!   pages [prepares](Recording::prepare) copies of all but the first one. New pages may be filled at any time, because
//!   nothing refers to them, and they are freed again unless the change is committed.
//! - An atomic change ends by [`AtomicChange::commit`]. Dropping one that has changed something is a bug.
//! - The redo of each page needs that page and the record, and no other page.
//!
//! # Records
//! The pager decides whether changes are recorded ([`ChangeRecords::records`](vellum_pool::ChangeRecords::records)). If
//! they are not, nothing is gathered, and pages get an LSN only while one is asked for
//! ([`ChangeRecords::stamp`](vellum_pool::ChangeRecords::stamp)). If they are, the record reserves its place in the log
//! while all pages are latched, all pages get that place as their LSN, and the record is handed over after the latches
//! have been released. A page whose LSN is not less than a record's already has that change: see [`redo`].
//!
//! - **Images.** A page whose LSN is less than [`images_from`](vellum_pool::ChangeRecords::images_from) has not changed
//!   since the last checkpoint began. Its first change after that carries the whole page, so that redo mends it if a
//!   write tore it. A checkpoint may begin while the record is made: after it has reserved its place, the commit asks
//!   again, and if more pages need images, it cancels the place and takes another one.
//! - **Space.** Allocating and freeing are recorded, and the pager is told the LSN before the record is handed over. An
//!   extent whose allocation was never recorded is free after a crash.
//! - **Large values and the nodes of bulk loads** are not in the log. They are written and durable before a record refers to them;
//!   that record also says that their extents are allocated, and that the extent of a replaced value is freed.
//! - **Transactions.** The record of a change that belongs to a transaction says so, and holds what undo needs. It does
//!   not free a large value that it replaces or removes: earlier snapshots see that value, and undo refers to it again.
//!   The record of an undo is redone like any other, and never undone. A transaction may also fill its own new trees by
//!   a bulk load: the record of the load says so, and is not undone, because such a tree is freed as a whole.
//! - **Kept pages.** Old snapshots are shown pages as they were: see [`vellum_pool::KeptPages`]. So a page of a tree
//!   that has a view is kept before its first change after such a snapshot, and the change asks again once it has its
//!   LSN.
//! - **Groups** ([`RecordGroup`]). A change that is too long for one record, such as freeing a large tree, is divided
//!   into several. They count only if the last one is in the log. Only the last one changes pages that existed before.

mod allocation;
mod atomic;
mod change_record;
mod difference;
mod encoding;
mod extents;
mod group;
mod objects;
mod page_change;
mod page_edits;
mod record;
mod unlinked;

pub(crate) use atomic::{AtomicChange, Doomed, Fresh, Latched, PageSet, Recorder, Recording};
pub use change_record::{ChangeRecord, PageRedo, RedoBytes, SpaceEvent, UndoChange};
pub use encoding::{RecordFault, RecordKind};
pub use extents::free_large;
pub(crate) use extents::{
    Append, NodeStream, PinnedContents, abandon, moved_blob, new_blob, not_a_node, persist, stream_blob,
};
pub use group::RecordGroup;
pub use objects::LatchedObjects;
pub use page_change::{NodeImage, PageChange, ValueImage, redo};
pub use page_edits::PageEdits;
pub(crate) use unlinked::UnlinkedExtents;
