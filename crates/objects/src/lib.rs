//! Internal to Vellum (use `vellum::objects`): a heap of persistent objects on the pool.
//!
//! - [`Persistent`], [`Object`]: types that can be stored, and how: derived for structs and enums;
//! - [`Ref`], [`Text`], [`Array`]: references, and values of any length;
//! - [`Field`]: a part of an object that can be read by itself;
//! - [`Heap`]: objects by their references; [`Change`]: several changes as one;
//! - [`Fetcher`]: brings many objects into memory by parallel reads;
//! - [`HeapReport`]: the result of verifying a heap;
//! - [`Shape`]: the description of a type, stored beside its objects.
//!
//! The layers, from the bottom: `reference` and `shape`; `codec` (how values are encoded as bytes), on which
//! `persistent`, `text` and `array` build; `body` and `page` (the layout of objects in a page); `directory` (which
//! pages there are); `state`; `under_way`; `copies`; `heap`; `filled`; `change`; `operations`; and, on top of that, `fetch`, `convert` and
//! `verify`, with `outline`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod array;
mod body;
mod change;
mod codec;
mod convert;
mod copies;
mod directory;
mod error;
mod fetch;
mod field;
mod filled;
mod heap;
mod operations;
mod outline;
mod page;
mod persistent;
mod plant;
mod reference;
mod roots;
mod shape;
mod state;
mod text;
mod under_way;
mod verify;

pub use array::Array;
pub use change::Change;
pub use convert::Converted;
pub use error::ObjectError;
pub use fetch::Fetcher;
pub use field::{Field, Fields};
pub use heap::Heap;
pub use page::OBJECT_BYTES_INLINE_MAX;
pub use persistent::{Object, Persistent};
pub use reference::{AnyRef, Ref};
pub use shape::Shape;
pub use state::HeapState;
pub use text::Text;
pub use vellum_objects_derive::Persistent;
pub use verify::{HeapProblem, HeapReport};

/// For the derive only.
#[doc(hidden)]
pub mod __private {
    pub use crate::codec::{Reader, Writer};
    pub use crate::field::Field;
    pub use crate::persistent::{Object, Persistent, end, mix, print_of};
    pub use crate::shape::Shape;
    pub use vellum_base::Bytes;
}
