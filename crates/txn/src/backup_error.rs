//! What can go wrong with a backup.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};
use vellum_base::{Extent, Lsn};
use vellum_vm::VmError;

/// Why a backup could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The backup cannot be written.
    #[error(
        "cannot write the backup: {source}. The database is as it was; make room, or name another place, and try again"
    )]
    Write {
        /// What the system reports.
        source: io::Error,
    },
    /// The restored database cannot be written.
    #[error(
        "cannot write the restored database: {source}. What was written of it is removed; make room, or name another place, and \
         try again"
    )]
    WriteRestored {
        /// What the system reports.
        source: io::Error,
    },
    /// The file is whole and durable and has its name, but the name may be lost with the power.
    #[error(
        "{name} is there and whole, but whether its name is durable is unknown: {source}. Sync the file system (`sync`); if a \
         failure of the power takes the name away before, the whole file is called {name}.unfinished, and needs to be renamed"
    )]
    NameNotDurable {
        /// Its name.
        name: String,
        /// What the system reports.
        source: io::Error,
    },
    /// The backup cannot be read.
    #[error("cannot read the backup: {source}")]
    Read {
        /// What the system reports.
        source: io::Error,
    },
    /// The file of the backup cannot be opened or made.
    #[error(transparent)]
    Open(#[from] VmError),
    /// There is a file in its place already.
    #[error("{name} is there already, and a backup overwrites nothing; name another place")]
    Exists {
        /// Its name.
        name: String,
    },
    /// The file is not a backup.
    #[error("this is not a backup of Vellum; `vellum backup DATABASE BACKUP` makes one")]
    Foreign,
    /// The backup is of a later version.
    #[error(
        "this backup is of version {version}, which this program does not know; use the program that made it, or a later one"
    )]
    Version {
        /// The version.
        version: u32,
    },
    /// The backup is incomplete.
    #[error(
        "this backup is not whole: what made it was interrupted, or it was cut off while it was copied. Use another one"
    )]
    Unfinished,
    /// The backup is not as it was written.
    #[error("this backup is damaged: {what}. Use another copy of it, or another backup")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// An increment was given without the backup that it is based on.
    #[error("{0}")]
    Order(String),
    /// Pages of the database are damaged.
    #[error(
        "the database is damaged: {} cannot be read ({first}). A backup of it would lack them. `vellum recover --report` tells \
         which tables and keys they belong to, `vellum scan --salvage` saves the others, and an earlier backup may have them",
        shown(extents)
    )]
    Database {
        /// The damaged pages.
        extents: Vec<Extent>,
        /// What is wrong with the first of them.
        first: String,
    },
    /// The database is changed without a log.
    #[error(
        "the database is open without a log, or was recovered in memory only, so what is in its file belongs to no one moment: open it \
         for writing and with a log, or close it, and make the backup then"
    )]
    WithoutLog,
    /// The target lies before the end of the backup.
    #[error(
        "the backup holds what was committed before {end} of the log, until {}, and the target lies before that: use an earlier \
         backup, or a later target", shown_time(*time)
    )]
    BeforeBackup {
        /// Where the backup ends.
        end: Lsn,
        /// When it was finished.
        time: SystemTime,
    },
    /// The target lies after the end of the archive, or takes in what begins there.
    #[error(
        "the archive ends at {end}{}, and the target takes in what comes after that: add the rest of it, or the log of the lost \
         database (`--log`), or restore to the end of what there is", last.map_or_else(String::new, |last| format!(", and its last commit is of {}", shown_time(last)))
    )]
    AfterArchive {
        /// Where the archive ends.
        end: Lsn,
        /// The time of the last commit.
        last: Option<SystemTime>,
    },
    /// The log lacks what was written past it.
    #[error(
        "the log refers at {at} to a large value, or to what was loaded, which was written while there was no archive: use a backup \
         that was made after that, or a target before it"
    )]
    LacksContents {
        /// The record that refers to it.
        at: Lsn,
    },
    /// The database, or its disk, is full, and changes have needed the space of what was still being copied.
    #[error(
        "the database is full, or its disk is, and changes go on that need the space of what the backup has not copied yet: remove \
         something, raise the capacity, make room on the disk, write the backup to a faster device, or make it when less is changed"
    )]
    Full,
    /// The caller has stopped it.
    #[error("it was interrupted; nothing of it was kept")]
    Stopped,
}

/// A time in UTC, such as `2026-11-23T06:00:00Z`, with a fraction of a second if it has one.
pub fn shown_time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years here begin in March, so that a leap day is the last day of its year. 400 such years have 146,097 days.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + later;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match since.subsec_nanos() {
        0 => String::new(),
        nanoseconds => format!(".{nanoseconds:09}").trim_end_matches('0').to_owned(),
    };
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

fn shown(extents: &[Extent]) -> String {
    /// As many as fit on a line.
    const MOST: usize = 5;
    let mut shown: Vec<String> = extents.iter().take(MOST).map(ToString::to_string).collect();
    if extents.len() > MOST {
        shown.push(format!("{} more", extents.len() - MOST));
    }
    shown.join(", ")
}
