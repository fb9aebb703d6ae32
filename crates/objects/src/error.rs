//! Errors of heaps.

use crate::reference::AnyRef;
use vellum_access::{AccessError, MAX_VALUE_BYTES};
use vellum_pool::PoolError;

/// An error of a heap. Each says what was being done, to what, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A page could not be obtained, read or written, or is damaged.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The directory of the heap, or the extent of a large object, failed.
    #[error(transparent)]
    Access(AccessError),
    /// A reference leads to an object that no longer exists, or never existed in this heap.
    #[error(
        "no object is at {reference}: it was deleted, or the reference is of another heap; delete what refers to an object first"
    )]
    Dangling {
        /// The reference.
        reference: AnyRef,
    },
    /// A reference leads to an object of another type.
    #[error("the object at {reference} is a {stored:?}, not a {wanted:?}")]
    OtherType {
        /// The reference.
        reference: AnyRef,
        /// The name of the type of the object.
        stored: String,
        /// The name of the requested type.
        wanted: &'static str,
    },
    /// A type has changed since its objects were stored.
    #[error(
        "the type {name:?} is stored as `{stored}`, and this program has `{wanted}`; convert its objects (`Heap::convert`), or give \
         the new type another name"
    )]
    TypeChanged {
        /// Its name.
        name: &'static str,
        /// Its description in the heap.
        stored: String,
        /// Its description in the program.
        wanted: String,
    },
    /// Two different types have the same fingerprint.
    #[error(
        "the types `{stored}` and `{wanted}` cannot be told apart: their fingerprints are the same by chance; rename one of them"
    )]
    SameFingerprint {
        /// The type in the heap.
        stored: String,
        /// The type that is new to the heap.
        wanted: String,
    },
    /// A type has too many types inside each other.
    #[error(
        "the description of the type {name:?} is {depth} levels deep, and the limit is {limit}; make some of its parts objects"
    )]
    TooDeep {
        /// Its name.
        name: &'static str,
        /// How many descriptions lie in one another.
        depth: usize,
        /// The maximum.
        limit: usize,
    },
    /// A type is to be converted that the heap does not have.
    #[error("the heap has no objects of a type `{wanted}` that could be converted")]
    NothingToConvert {
        /// The type that was to be converted.
        wanted: String,
    },
    /// An object is too long.
    #[error("an object has more than {MAX_VALUE_BYTES} bytes, which is the limit; divide it into several")]
    TooLong,
    /// A single change involves too many pages.
    #[error("one change of objects is about more than {limit} pages; divide it into several")]
    ChangeTooLarge {
        /// The maximum number of pages.
        limit: usize,
    },
    /// A change of a heap writes while the same thread is in the middle of another change of the same heap.
    #[error(
        "a change of this heap is under way in this thread, and writing past it would have it repeated for ever; make all changes \
         through the `Change` that it was given, or after it"
    )]
    ChangeUnderWay,
    /// Another thread has changed what a change had read before the change ended. All its further steps fail, and it is
    /// repeated when it ends, which it should do at once.
    #[error(
        "another thread has changed what this change has read; return this error, and the change is repeated"
    )]
    Overtaken,
    /// A place was reserved for an object, but the change read the object, or ended, without setting it.
    #[error(
        "a place was reserved for an object ({reference}) that is not set yet; set it before it is read, and before the change ends"
    )]
    NotSet {
        /// The reference to the object.
        reference: AnyRef,
    },
    /// The file is too large.
    #[error("pages of objects must lie in the first 2 PiB of the file, which has no room there any more")]
    TooFarBehind,
}

impl From<AccessError> for ObjectError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Pool(error) => Self::Pool(error),
            error => Self::Access(error),
        }
    }
}
