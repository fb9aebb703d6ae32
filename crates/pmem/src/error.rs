//! Errors, each with what was being done and what can be done about it.

use std::{io, path::PathBuf};
use vellum_base::shown;
use vellum_vm::VmError;

/// The result of an operation on a store.
pub type Result<T, E = PmemError> = std::result::Result<T, E>;

/// Why a store could not be created, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmemError {
    /// Address space could not be reserved.
    #[error(transparent)]
    Vm(#[from] VmError),

    /// The file could not be created, opened, mapped or described.
    #[error("cannot {action} {}: {source}", shown(path))]
    File {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },

    /// Another process, or another store in this one, has the file open.
    #[error("{} is in use: {hint}", shown(path))]
    Locked {
        /// The file.
        path: PathBuf,
        /// A hint for the user.
        hint: &'static str,
    },

    /// A device on which a store was to be created is not empty.
    #[error("{} holds {what}: if that may be lost, say that it is to be overwritten", shown(path))]
    Occupied {
        /// The device.
        path: PathBuf,
        /// What it holds.
        what: String,
    },

    /// The file is not a store.
    #[error("{} is not a store of persistent memory: {reason}", shown(path))]
    NotAStore {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: &'static str,
    },

    /// The file was written by a later version.
    #[error(
        "{} has format version {found}, this program knows {known}: use {} version of it",
        shown(path),
        if found > known { "a later" } else { "an earlier" }
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version known to this program.
        known: u32,
    },

    /// The store holds records of another shape.
    #[error("the store holds {found}, but {wanted} were asked for: open it as what it is")]
    Shape {
        /// What it holds.
        found: String,
        /// What was requested.
        wanted: String,
    },

    /// Options contradict each other or the store.
    #[error("these options make no sense: {0}")]
    Options(&'static str),

    /// The requested kind of persistence is not available for the file.
    #[error(
        "stores to {} cannot be made durable as asked: {reason}. Put the file on a file system mounted with \
         `-o dax`, leave the choice to the store (msync), or vouch for the memory with the option for it",
        shown(path)
    )]
    NotPersistent {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },

    /// The data that was read is not what was written.
    #[error(
        "the store is damaged: {0}. Restore it from a backup, or open it with damage tolerated to save the rest"
    )]
    Damaged(Damage),

    /// There is no room for more.
    #[error("the store is full: {reason}. Delete records, or give it more room")]
    Full {
        /// What ran out.
        reason: String,
    },

    /// A key or a value has a length that the store cannot hold.
    #[error("a {what} of {bytes} bytes cannot be stored: at most {most}")]
    TooLong {
        /// `key` or `value`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The maximum length.
        most: usize,
    },

    /// A value has another length than all values of the store.
    #[error("a value of {bytes} bytes cannot be stored: all values of the store have {wanted}")]
    OtherLength {
        /// Its length.
        bytes: usize,
        /// The length of the values of the store.
        wanted: usize,
    },

    /// The system could not make stores durable.
    #[error(
        "stores could not be made durable: {0}. The store accepts no changes any more; close it, find out what is \
         wrong with the device, and open it again"
    )]
    Persist(io::Error),

    /// An earlier change could not be made durable.
    #[error("the store accepts no changes since one could not be made durable: close it and open it again")]
    Poisoned,

    /// A change was requested of a store that was opened for reading only.
    #[error("the store was opened only to be read: open it for changes")]
    ReadOnly,

    /// No sequence number is left that is higher than those of the records.
    #[error("the sequence numbers of the store are used up: copy its records into a new one")]
    Clock,

    /// All client numbers are in use.
    #[error("there are too many clients at once: drop some")]
    Clients,
}

/// What is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// Both superblocks.
    Superblocks,
    /// The word that says how many blocks are used.
    BlocksEnd {
        /// What it holds.
        word: u64,
    },
    /// The file is shorter than its used part.
    Truncated {
        /// How long it must be, in bytes.
        needed: u64,
        /// How long it is, in bytes.
        found: u64,
    },
    /// The first word of a page.
    Page {
        /// Its block.
        block: u64,
        /// Its number in the block.
        page: u32,
    },
    /// A word of occupancy bits, or the word with the size of a record.
    Word {
        /// Where it lies, in bytes from the beginning.
        at: u64,
    },
    /// A record whose checksum is wrong.
    Record {
        /// Where it lies, in bytes from the beginning.
        at: u64,
    },
}

impl PmemError {
    /// Why a file could not be locked.
    pub(crate) fn of_lock(error: VmError) -> Self {
        match error {
            VmError::Open { path, action, source } => Self::File { path, action, source },
            VmError::Locked { path, .. } => {
                let hint =
                    "one process may change a store, or several may read it; close the other one first";
                Self::Locked { path, hint }
            }
            error => error.into(),
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Superblocks => write!(f, "neither superblock is valid"),
            Self::BlocksEnd { word } => write!(f, "the number of used blocks, {word:#x}, fails its check"),
            Self::Truncated { needed, found } => {
                write!(f, "the file has {found} bytes but must have {needed}")
            }
            Self::Page { block, page } => {
                write!(f, "the head of page {page} of block {block} fails its check")
            }
            Self::Word { at } => write!(f, "the word at byte {at} fails its check"),
            Self::Record { at } => write!(f, "the record at byte {at} fails its checksum"),
        }
    }
}
