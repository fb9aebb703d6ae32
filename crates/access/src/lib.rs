//! Internal to Vellum (use the crate `vellum`): the structures that are built from pages.
//!
//! - [`Tree`]: the B+tree, from keys to values, with cursors in both directions;
//! - [`Batch`]: many operations on trees, run by one thread, whose cache misses and reads overlap;
//! - [`BulkLoad`]: a tree built from its leaves up, out of records sorted by key;
//! - [`BlobReader`]: values too large for a leaf, each in an extent of its own;
//! - [`ChangeRecord`], [`PageChange`] and [`redo`]: changes of pages as data, and how to redo them;
//! - [`View`] and [`Isolation`]: what transactions see of a tree, and how they are kept apart;
//! - [`LatchedObjects`], [`NewLarge`], [`PageEdits`]: pages of objects, laid out by the crate `objects`;
//! - [`LeafImage`]: the contents of a leaf at some moment;
//! - [`RecordGroup`]: trees that are created or freed together with the record that says where they are;
//! - [`node`]: the layout of the tree's nodes.
//!
//! All code here is written against [`vellum_pool::Pager`] and knows neither the pool nor files.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod blob;
mod direction;
mod error;
mod gateway;
mod isolation;
mod large;
mod leaf_image;
pub mod node;
mod tree;
mod value;

pub use blob::{BlobReference, MAX_VALUE_BYTES};
pub use direction::Direction;
pub use error::AccessError;
pub use gateway::{
    ChangeRecord, LatchedObjects, NodeImage, PageChange, PageEdits, PageRedo, RecordFault, RecordGroup,
    RecordKind, RedoBytes, SpaceEvent, UndoChange, ValueImage, free_large, redo,
};
pub use isolation::{Claim, Intent, Isolation, Removed, Seen, SharedBytes, Unshared, View, Writer};
pub use large::{NewLarge, read_large};
pub use leaf_image::LeafImage;
pub use tree::{
    Answer, Batch, BlobReader, BulkLoad, CurrentRoot, Cursor, CursorPosition, Entry, Held, Lookups,
    NumberedRoot, Prepared, Relocation, Salvaged, Task, Tree, TreeHints, TreeReport, TreeShape, WriteMode,
    Written,
};
pub use value::Value;
