//! What a client leaves to its next fences: words that need not be durable when it acknowledges an operation.
//!
//! - The retraction of a record that another one has replaced, and a word of a value that the head of its record holds
//!   as well. The stripe of the key remembers the word (`stripes.rs`), and the client's next fence settles it.
//! - The bits of a page, or the word of a log, that say that its records must be right. They are set once the page is
//!   full or the client has left it, and a fence has been passed after the last record. If the client has closed the
//!   block, the block is counted as in use until then, which is the fence of the same operation, as all records in the
//!   block are durable already; a batch has one more. If the block was taken from the client, its records are moved, and
//!   nothing is set.
//!
//! So a sleeping client ties up no block: reclaiming frees the records that it has retracted (`settling.rs`).

use crate::{format::Record, layout::Place};

/// The words that a client has left to its next fences.
#[derive(Debug, Default)]
pub struct Owed {
    pub words: Vec<OwedWord>,
    pub full: Vec<Full>,
    /// Whether it has written records since its last fence.
    pub is_unfenced: bool,
}

/// A word that a client has changed and its stripe remembers.
#[derive(Debug)]
pub struct OwedWord {
    pub hash: u64,
    pub at: u64,
    pub left: Left,
}

/// What the client's next fence has to do with the word.
#[derive(Debug)]
pub enum Left {
    /// A record that the client retracted and flushed; its space is free after the fence.
    Retracted(Place, Record),
    /// A word of a value, which is flushed before the fence.
    Word,
}

/// The word of a full page, see [`Format::take_full`].
#[derive(Debug)]
pub struct Full {
    pub block: u64,
    pub word: (u64, u64),
    /// Whether the records that it covers are durable.
    pub is_due: bool,
    /// Whether the block is counted as in use, because the client has left it; while the client has it, it belongs to
    /// no other.
    pub is_pinned: bool,
}
