//! What can go wrong with the archive of a log.

use std::io;
use vellum_base::Lsn;
use vellum_vm::{VmError, advice};

/// Why the log could not be archived, or its archive could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The archive cannot be written.
    #[error(
        "cannot write the archive of the log: {source}. Make room, or make its directory writable; it is tried again"
    )]
    Write {
        /// What the system reports.
        source: io::Error,
    },
    /// The archive cannot be read.
    #[error("cannot read the archive of the log: {source}{}", advice(source))]
    Read {
        /// What the system reports.
        source: io::Error,
    },
    /// A file of the archive cannot be opened or made.
    #[error("cannot open the archive of the log: {0}")]
    Open(#[from] VmError),
    /// A segment of the log that is not in the archive yet cannot be opened.
    #[error("cannot read what the archive of the log does not have yet: {0}")]
    Segment(#[source] VmError),
    /// The archive belongs to another database.
    #[error(
        "the directory holds the archived log of another database, or of this one before it was restored or was changed without \
         a log: name another directory, or an empty one"
    )]
    Foreign,
    /// A file is of a later version.
    #[error(
        "{name} of the archive is of version {version}, which this program does not know: use a later one"
    )]
    Version {
        /// The file.
        name: String,
        /// Its version.
        version: u32,
    },
    /// A file is not as it was written.
    #[error("{name} of the archive is damaged: use another copy of it, or restore up to a place before it")]
    Damaged {
        /// The file.
        name: String,
    },
    /// A file holds something that the log does not have: the database is an older copy of one that has gone on, or one
    /// from which the other was copied.
    #[error(
        "{name} of the archive holds something else than the log of this database, which seems to be an older copy, put back, of one \
         that has gone on. Nothing is archived: name another directory for its archive, and make a backup, with which that \
         archive begins"
    )]
    Diverged {
        /// The file.
        name: String,
    },
    /// The last files that were archived are not in the directory any more.
    #[error(
        "the directory of the archive {}, although the log was archived there up to {to}: mount its file system, or put the missing \
         files back; it is tried again. If they are lost, open the database again, and make a backup, with which the archive begins",
        match from {
            Some(from) => format!("lacks what was archived after {from}"),
            None => "holds nothing".to_owned(),
        }
    )]
    Replaced {
        /// Where the last part ends that is there, if there is one.
        from: Option<Lsn>,
        /// Up to where the log was archived.
        to: Lsn,
    },
    /// A file was written by a copy of the database that had gone on by itself before the backup was made.
    #[error(
        "{name} of the archive was written by another copy of the database than the one of which the backup was made: name the archive \
         of that one"
    )]
    OtherHistory {
        /// The file.
        name: String,
    },
    /// The log does not hold what was written to it.
    #[error(
        "the log is damaged after {at}, and cannot be archived: take a backup of the database, which does not need it"
    )]
    Source {
        /// Where the segment begins.
        at: Lsn,
    },
    /// A record in the archive is incomplete.
    #[error("the archive cannot be read at {at}: what follows was not archived whole, or is damaged")]
    Record {
        /// The record.
        at: Lsn,
    },
    /// A part in between is missing.
    #[error(
        "the archive lacks the log from {from} to {to}: put the missing files back, restore up to a place before {from}, or begin \
         with a backup that was made after {to}"
    )]
    Gap {
        /// Where the part before ends.
        from: Lsn,
        /// Where the next one begins.
        to: Lsn,
    },
    /// The archive does not reach back far enough, or not far enough forward.
    #[error("the log is needed from {from} on, and the archive {}", match oldest {
        Some(oldest) if oldest > from => format!("begins at {oldest}: put its older files back, or use a later backup"),
        Some(_) => "ends before that: nothing was archived since, or its last files are missing. A backup that ends there needs no archive".to_owned(),
        None => "holds nothing: name the directory that was given as the archive of the log".to_owned(),
    })]
    Missing {
        /// From where it is needed.
        from: Lsn,
        /// Where the archive begins, if it holds anything.
        oldest: Option<Lsn>,
    },
}
