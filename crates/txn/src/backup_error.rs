//! What can go wrong with a backup.

use std::io;
use vellum_base::Extent;
use vellum_vm::VmError;

/// Why a backup could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// It cannot be written.
    #[error(
        "cannot write the backup: {source}. The database is as it was; make room, or name another place, and try again"
    )]
    Write {
        /// What the system reports.
        source: io::Error,
    },
    /// It cannot be read.
    #[error("cannot read the backup: {source}")]
    Read {
        /// What the system reports.
        source: io::Error,
    },
    /// Its file cannot be opened or made.
    #[error(transparent)]
    Open(#[from] VmError),
    /// There is something in its place.
    #[error("{name} is there already, and a backup overwrites nothing; name another place")]
    Exists {
        /// Its name.
        name: String,
    },
    /// It is something else.
    #[error("this is not a backup of Vellum; `vellum backup DATABASE BACKUP` makes one")]
    Foreign,
    /// It is of a later version.
    #[error(
        "this backup is of version {version}, which this program does not know; use the program that made it, or a later one"
    )]
    Version {
        /// The version.
        version: u32,
    },
    /// It ends before its end.
    #[error(
        "this backup is not whole: what made it was interrupted, or it was cut off while it was copied. Use another one"
    )]
    Unfinished,
    /// It is not as it was written.
    #[error("this backup is damaged: {what}. Use another copy of it, or another backup")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// An increment is given without what it follows on.
    #[error("{0}")]
    Order(String),
    /// Pages of the database are damaged.
    #[error(
        "the database is damaged: {} cannot be read ({first}). A backup of it would lack them. `vellum recover --report` tells \
         which tables and keys they belong to, `vellum scan --salvage` saves the others, and an earlier backup may have them",
        shown(extents)
    )]
    Database {
        /// The pages.
        extents: Vec<Extent>,
        /// What is wrong with the first.
        first: String,
    },
    /// The database is changed without a log.
    #[error(
        "the database is open without a log, or was recovered in memory only, so what is in its file belongs to no one moment: open it \
         for writing and with a log, or close it, and make the backup then"
    )]
    WithoutLog,
    /// The caller has ended it.
    #[error("the backup was interrupted; nothing of it was kept")]
    Stopped,
}

fn shown(extents: &[Extent]) -> String {
    /// As many as a line takes.
    const MOST: usize = 5;
    let mut shown: Vec<String> = extents.iter().take(MOST).map(ToString::to_string).collect();
    if extents.len() > MOST {
        shown.push(format!("{} more", extents.len() - MOST));
    }
    shown.join(", ")
}
