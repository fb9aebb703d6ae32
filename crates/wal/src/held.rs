//! How much log there is, and what keeps it from being given up.

use std::{fmt, panic::Location};

/// How much log cannot be given up, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldLog {
    /// How many bytes of segments there are.
    pub bytes: u64,
    /// What keeps them; `None` if there are no more than a log always has.
    pub keeper: Option<LogKeeper>,
}

/// What keeps a part of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogKeeper {
    /// A backup is being made, and has not copied it yet.
    Backup,
    /// A reader that follows the log, a feed of changes say, has not read it yet.
    Follower,
    /// The archive does not have it yet.
    Archive,
    /// A transaction would need it to be undone.
    Transaction {
        /// Where the program began the transaction, if it is still open.
        begun_at: Option<&'static Location<'static>>,
    },
    /// Contents of a bulk load, or of a large value, that are being logged.
    Contents,
    /// A crash would make the next opening read it, because no checkpoint could be taken.
    Checkpoint {
        /// Why.
        error: String,
    },
}

impl fmt::Display for HeldLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log holds {} KiB", self.bytes >> 10)?;
        match &self.keeper {
            None => Ok(()),
            Some(LogKeeper::Backup) => f.write_str(", which a backup that is being made has not copied yet"),
            Some(LogKeeper::Follower) => f.write_str(", which a feed of changes has not read yet"),
            Some(LogKeeper::Archive) => f.write_str(", which the archive of the log does not have yet"),
            Some(LogKeeper::Transaction { begun_at: None }) => {
                f.write_str(", by which an ended transaction is yet to be undone")
            }
            Some(LogKeeper::Transaction { begun_at: Some(place) }) => {
                write!(f, ", by which the transaction that was begun at {place} would be undone: end that")
            }
            Some(LogKeeper::Contents) => {
                f.write_str(", of which a bulk load or a large value takes a part that is being written")
            }
            Some(LogKeeper::Checkpoint { error }) => {
                write!(f, ", because no checkpoint could be taken: {error}")
            }
        }
    }
}
