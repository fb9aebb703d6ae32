//! What can go wrong with a log.

use crate::{ArchiveError, HeldLog};
use std::{io, path::PathBuf, sync::Arc};
use vellum_base::{Lsn, shown};
use vellum_vm::{VmError, advice, is_full};

/// Why the log could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// An option is out of its range.
    #[error(
        "{option} cannot be {bytes} bytes: {}",
        match *option {
            "log_segment_bytes" => "a segment is a multiple of 4096, at least 8192 and at most a tebibyte",
            _ => "the buffer is a power of two, and has the room of several records",
        }
    )]
    Option {
        /// Which option.
        option: &'static str,
        /// The value that was given.
        bytes: u64,
    },

    /// A record is longer than the log allows.
    #[error("a log record of {bytes} bytes is too long: at most {bytes_max} bytes fit")]
    RecordTooLong {
        /// Its length.
        bytes: usize,
        /// The longest allowed length.
        bytes_max: usize,
    },

    /// A segment could not be made. Nothing is lost: pending records are written when a segment can be made.
    #[error(
        "cannot make the next segment of the log: {source}{}. Make room on the disk, or mend what this says, and try again",
        held.as_ref().map_or_else(String::new, |held| format!("; {held}"))
    )]
    NoRoom {
        /// What the system reports.
        source: io::Error,
        /// How much log a checkpoint does not give up, and why, if that was tried.
        held: Option<HeldLog>,
    },

    /// A write or a sync failed. It is unknown whether what was in flight is durable, and nothing more is accepted.
    #[error(
        "the log could not be written: {source}. Whether the last transactions are durable is unknown: {}open the database \
         anew, which finds out",
        if is_full(source) { "make room first, and " } else { "" }
    )]
    OutcomeUnknown {
        /// What the system reported first.
        source: Arc<io::Error>,
    },

    /// The log was removed, because its database was closed.
    #[error("the database has been closed, and takes no changes: open it anew")]
    Closed,

    /// The archive of the log could not be written or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),

    /// A segment's file could not be opened.
    #[error(transparent)]
    Open(#[from] VmError),

    /// The files of the log's directory could not be listed.
    #[error(
        "cannot list the segments of the log{}: {source}{}",
        directory.as_ref().map_or_else(String::new, |path| format!(" in {}", shown(path))),
        advice_about("list", source)
    )]
    NotListed {
        /// The directory, if it is one of the file system.
        directory: Option<PathBuf>,
        /// What the system reports.
        source: io::Error,
    },

    /// Segments could not be read, renamed or removed.
    #[error("cannot {action} of the log: {source}{}", advice_about(action, source))]
    Files {
        /// What was being done.
        action: &'static str,
        /// What the system reports.
        source: io::Error,
    },

    /// A segment could not be read.
    #[error("cannot read {}, a file of the log: {source}{}", shown(file), advice_about("read", source))]
    Unread {
        /// The file: its path, if it is on disk, or its name.
        file: PathBuf,
        /// What the system reports.
        source: io::Error,
    },

    /// Part of the log is damaged that was once durable.
    #[error(
        "the log is damaged: what it holds at {at} cannot be read, although it was durable up to {durable}. Restore the \
         files of the log, or the database from a backup"
    )]
    Hole {
        /// Where reading ended.
        at: Lsn,
        /// The place up to which it was durable.
        durable: Lsn,
    },

    /// A segment that is needed has lost its first page, or is missing.
    #[error(
        "{segment}, a file of the log, is missing or its first page is damaged, and what was committed may be in it. Restore \
         the files of the log, or the database from a backup"
    )]
    HeaderLost {
        /// The name of the segment.
        segment: String,
    },

    /// A segment that is needed has another one's name.
    #[error(
        "the file {file} of the log should have the name {segment}: give it that name, and the one that has it now its own"
    )]
    Misplaced {
        /// The name that it has.
        file: String,
        /// The name that it should have.
        segment: String,
    },

    /// A part of the log that is needed is missing.
    #[error(
        "the log is needed from {from} on, and {}: the database was not closed, and its log belongs to it. Put the files of \
         the log where they were, by default a directory beside the database with `-log` after its name, or restore the database \
         from a backup",
        if oldest.0 == 0 { "is not there".to_owned() } else { format!("begins at {oldest}") }
    )]
    Missing {
        /// The place from which on it is needed.
        from: Lsn,
        /// Where it begins.
        oldest: Lsn,
    },

    /// The database's file was closed, and the log goes on after that: the file is older than the log.
    #[error(
        "the log goes on to {end}, and this file was closed at {closed}: it is an older copy, and what was committed since is in \
         the log. Put the file that belongs to the log where it was. Or, to go on with this one without that, move the log away, by \
         default a directory beside the database with `-log` after its name"
    )]
    Newer {
        /// Where the file was closed.
        closed: Lsn,
        /// A place up to which the log is there.
        end: Lsn,
    },

    /// The database's file was not closed, and the log goes on after a later checkpoint of it: the file is older than the log.
    #[error(
        "the log goes on to {end}, after a later checkpoint than the one at {redo}, which is the last in this file: it is an older \
         copy. Put the file that belongs to the log where it was, or restore the database from a backup"
    )]
    NewerCheckpoint {
        /// From where on the file needs the log.
        redo: Lsn,
        /// Where the log ends.
        end: Lsn,
    },

    /// A file of the log that is needed was written by a copy of the database, which went on by itself.
    #[error(
        "{file}, a file of the log, was written by a copy of this database that went on by itself: what it holds at {at} is of \
         life {life:016x}, and the last life that is known here is {known:016x}. Put the files of the log where they were that \
         belong to this database, by default a directory beside it with `-log` after its name, and these beside the copy"
    )]
    OtherLife {
        /// The name of the file.
        file: String,
        /// A place of what it holds.
        at: Lsn,
        /// The number of the life that wrote it.
        life: u64,
        /// The number of the last life that is known here.
        known: u64,
    },

    /// The log has nothing of the time when the database was last open.
    #[error(
        "the log has no file of life {life:016x}, in which this database was last open: its last files are missing, or all of them \
         belong to a copy of the database. Put the files of the log where they were, by default a directory beside the \
         database with `-log` after its name, or restore the database from a backup"
    )]
    LastLifeMissing {
        /// The number of the life.
        life: u64,
    },

    /// A segment was written by a later version.
    #[error(
        "the log has format version {version}, which this version of Vellum does not know: use a later one"
    )]
    Version {
        /// The version.
        version: u32,
    },

    /// The segments belong to another database, or were made with another size.
    #[error(
        "{segment}, where the log should be, is not part of this database's log but of another one's: move it to its database, \
         or remove it if there is none any more"
    )]
    Foreign {
        /// The name of the segment.
        segment: String,
    },
}

impl LogError {
    /// The next segment is there, and cannot be opened now. What is to be written to it is written when it can be.
    pub(crate) fn not_opened(error: VmError) -> Self {
        Self::NoRoom { source: io::Error::other(error), held: None }
    }
}

/// What to do when something cannot be done to segments.
fn advice_about(action: &str, source: &io::Error) -> &'static str {
    match advice(source) {
        "" if action.starts_with("remove") => {
            ". Nothing is lost: the next opening of the database removes what is left"
        }
        "" if source.kind() == io::ErrorKind::NotADirectory => {
            "; something else has the name of the log's directory: move it away, and put the directory where it was"
        }
        advice => advice,
    }
}
