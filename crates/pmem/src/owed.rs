//! What a client leaves to its next fences: words that need not be durable when it says that an operation is done.
//!
//! - The retraction of a record that another one has taken the place of, and a word of a value that the head of its record says as
//!   well. The stripe of the key remembers the word (`stripes.rs`), and the next fence of the client settles it.
//! - The bits of a page, or the word of a log, which say that its records must be right. They are set when the page is full, or the client leaves it,
//!   and a fence after the last record has been passed. If the client has closed the block, that is counted as in use until then;
//!   if it was taken from the client, its records are moved, and nothing is set. So a client that sleeps keeps no block.

use crate::{format::Record, layout::Place};

/// What a client left to its next fences.
#[derive(Debug, Default)]
pub struct Owed {
    pub words: Vec<OwedWord>,
    pub full: Vec<Full>,
}

/// A word that was changed by a client and is remembered by its stripe.
#[derive(Debug)]
pub struct OwedWord {
    pub hash: u64,
    pub at: u64,
    pub left: Left,
}

/// What a client leaves to its next fence.
#[derive(Debug)]
pub enum Left {
    /// A record that it retracted, and flushed; its space is free then.
    Retracted(Place, Record),
    /// A word of a value, which is flushed then.
    Word,
}

/// Such a word, see [`Format::take_full`]
#[derive(Debug)]
pub struct Full {
    pub block: u64,
    pub word: (u64, u64),
    /// Whether the records that it stands for are durable.
    pub is_due: bool,
    /// Whether it is counted as in use, because the client has left the block; while the client has it, it is no other's.
    pub is_pinned: bool,
}
