//! Errors of trees and blobs.

use crate::{blob::MAX_VALUE_BYTES, node::MAX_KEY_BYTES};
use vellum_base::PageId;
use vellum_pool::{Interrupt, PoolError};

/// The most levels of a tree, leaves included.
const TREE_LEVELS_MAX: usize = 1 << u8::BITS;

/// An error of a tree or a blob.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A page could not be obtained, read or written.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The key is too long.
    #[error(
        "the key is {bytes} bytes long, and the limit is {MAX_KEY_BYTES}; store a hash or a prefix of it"
    )]
    KeyTooLong {
        /// The length of the key.
        bytes: usize,
    },
    /// The value is too long.
    #[error(
        "the value is {bytes} bytes long, and the limit is {MAX_VALUE_BYTES}; divide it among several keys"
    )]
    ValueTooLong {
        /// The length of the value.
        bytes: u64,
    },
    /// The source of the value to be stored could not be read.
    #[error("cannot read the value to be stored: {0}")]
    Source(#[source] std::io::Error),
    /// The keys of a bulk load are not in order.
    #[error(
        "record {number} of the bulk load has the key \"{}\", which does not come after that of the record before, \
         \"{}\"; sort the records by the bytes of their keys, or insert them one by one",
        shown(key),
        shown(before)
    )]
    KeyOrder {
        /// The key.
        key: Vec<u8>,
        /// The key before it.
        before: Vec<u8>,
        /// Which record it is, counted from 1.
        number: u64,
    },
    /// A key comes twice in a bulk load.
    #[error(
        "record {number} of the bulk load has the same key as the record before, \"{}\"; leave one of them out, \
         or insert them one by one",
        shown(key)
    )]
    KeyTwice {
        /// The key.
        key: Vec<u8>,
        /// Which record it is, counted from 1.
        number: u64,
    },
    /// A bulk load found records where it needs an empty tree.
    #[error(
        "a bulk load needs an empty table, and this one holds records; load into a new table, or insert one by one"
    )]
    NotEmpty,
    /// A bulk load was continued after it had failed.
    #[error(
        "an earlier error has ended this bulk load; drop it, which frees what it wrote, and begin a new one"
    )]
    LoadFailed,
    /// A tree has as many levels as it can have.
    #[error(
        "the tree at {tree} has {} levels and cannot get another one, so the record has no room there; copy its records \
         into a new table",
        TREE_LEVELS_MAX
    )]
    TreeTooHigh {
        /// The root of the tree.
        tree: PageId,
    },
    /// The value was replaced or removed while it was being read in parts.
    #[error("the value was changed while it was being read in parts; read it again from its beginning")]
    ValueChanged,
    /// A transaction wants to change a record that another transaction has changed.
    #[error(
        "another transaction {} the record \"{}\" of the tree at {tree}; roll this transaction back and run it again",
        if *committed { "has changed and committed, since this one began," } else { "has changed, and has not committed," },
        shown(key)
    )]
    Conflict {
        /// The root of the tree.
        tree: PageId,
        /// The key.
        key: Vec<u8>,
        /// Whether the other transaction committed after this one began; otherwise it is still open.
        committed: bool,
    },
    /// A single operation wants to change a record while transactions are open.
    #[error(
        "transactions are open, so the record can only be changed by a transaction; run the operation as one"
    )]
    NeedsTransaction {
        /// The tree.
        tree: PageId,
        /// The key.
        key: Vec<u8>,
    },
}

/// The error for a page that cannot hold what was written to it, or that refused a change which should have been
/// possible.
#[cold]
pub(crate) fn damaged(page: PageId, what: impl ToString) -> Interrupt {
    PoolError::contents(page, what.to_string()).into()
}

/// A key as an error message shows it.
fn shown(key: &[u8]) -> String {
    /// The number of bytes shown of a long key: usually enough to tell it from others.
    const LONGEST: usize = 100;
    match key.split_at_checked(LONGEST) {
        Some((start, rest)) if !rest.is_empty() => format!("{}...", start.escape_ascii()),
        _ => key.escape_ascii().to_string(),
    }
}
