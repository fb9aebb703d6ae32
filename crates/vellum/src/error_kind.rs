//! The categories of errors.

use crate::Error;
use vellum_access::AccessError;
use vellum_objects::ObjectError;
use vellum_pool::PoolError;
use vellum_txn::{ArchiveError, BackupError, LogError, TxnError};
use vellum_vm::{VmError, is_full};

/// The category of an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A named file, table or other item does not exist.
    NotFound,
    /// A file, table or other item that was to be created already exists.
    AlreadyExists,
    /// A limit was violated, or the request makes no sense.
    InvalidInput,
    /// Bytes on storage are not what was written.
    Corruption,
    /// The database was not closed cleanly.
    NotClosedCleanly,
    /// The file is not a Vellum database, or its version is unknown to this program.
    Incompatible,
    /// Another process, or another part of this one, is using it.
    Busy,
    /// The file system is full, or the reserved address space is exhausted. What is free may be kept for undoing the
    /// transactions that are open: then there is room again when they have ended.
    OutOfSpace,
    /// The pool or the system is out of memory.
    OutOfMemory,
    /// The transaction was open for too long, or held back too much: run it again, in less time.
    SnapshotTooOld,
    /// The database may not be changed.
    ReadOnly,
    /// Another transaction was faster: roll back and try again.
    Conflict,
    /// A device or the system failed, or permission was denied.
    Io,
    /// The log could not be written: whether the last changes are durable is known once the database has been opened
    /// again. Further changes are refused with it before they are made; reads go on.
    OutcomeUnknown,
    /// The program itself has given up a transaction: see [`Error::other`].
    Other,
}

impl Error {
    /// The category of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Pool(error) => pool_kind(error),
            Self::Log(error) => log_kind(error),
            Self::Backup(error) => backup_kind(error),
            Self::RestoreExists { .. } | Self::UnfinishedExists { .. } => ErrorKind::AlreadyExists,
            Self::WithoutLog
            | Self::WithoutArchive
            | Self::ArchiveNotNamed { .. }
            | Self::NoSuchSavepoint
            | Self::TransactionKept
            | Self::OwnConflict { .. }
            | Self::OtherDatabase { .. }
            | Self::PlainTable { .. }
            | Self::TableTypes { .. }
            | Self::NestedCompaction
            | Self::NestedBackup
            | Self::Inherited
            | Self::RestoreOptions { .. }
            | Self::IsHeap { .. }
            | Self::IsTable { .. }
            | Self::TypeName { .. }
            | Self::NotEncoded { .. }
            | Self::LostLog { .. }
            | Self::NoSuchPosition { .. } => ErrorKind::InvalidInput,
            Self::Objects(ObjectError::Dangling { .. } | ObjectError::NothingToConvert { .. }) => {
                ErrorKind::NotFound
            }
            Self::Objects(ObjectError::TypeChanged { .. }) => ErrorKind::Incompatible,
            Self::Objects(ObjectError::TooFarBehind) => ErrorKind::OutOfSpace,
            Self::Objects(ObjectError::Overtaken) => ErrorKind::Conflict,
            Self::Objects(_) => ErrorKind::InvalidInput,
            Self::Malformed { .. } => ErrorKind::Corruption,
            Self::SnapshotTooOld => ErrorKind::SnapshotTooOld,
            Self::Conflict { .. } | Self::HeldByThread { .. } | Self::Ended => ErrorKind::Conflict,
            Self::LogDirectory { source, .. } if is_full(source) => ErrorKind::OutOfSpace,
            Self::LogDirectory { .. } => ErrorKind::Io,
            Self::Access(AccessError::ValueChanged) => ErrorKind::Busy,
            Self::Access(AccessError::Source(_) | AccessError::LoadFailed) => ErrorKind::Io,
            Self::Access(AccessError::TreeTooHigh { .. }) => ErrorKind::OutOfSpace,
            Self::Access(AccessError::NotEmpty) => ErrorKind::AlreadyExists,
            Self::Access(AccessError::Conflict { .. } | AccessError::NeedsTransaction { .. }) => {
                ErrorKind::Conflict
            }
            Self::Access(_) | Self::TableName { .. } => ErrorKind::InvalidInput,
            Self::LargerThanPool { .. } => ErrorKind::OutOfMemory,
            Self::NoSuchTable { .. } | Self::ChangesDiscarded { .. } | Self::EmptyArchive => {
                ErrorKind::NotFound
            }
            Self::TableExists { .. } => ErrorKind::AlreadyExists,
            Self::Other(_) => ErrorKind::Other,
            Self::TableInUse { .. } | Self::StillInUse { .. } | Self::InProgress { .. } => ErrorKind::Busy,
        }
    }
}

fn backup_kind(error: &BackupError) -> ErrorKind {
    match error {
        BackupError::Write { source }
        | BackupError::WriteRestored { source }
        | BackupError::Read { source }
            if is_full(source) =>
        {
            ErrorKind::OutOfSpace
        }
        BackupError::Full => ErrorKind::OutOfSpace,
        BackupError::Open(error) => vm_kind(error),
        BackupError::Exists { .. } => ErrorKind::AlreadyExists,
        BackupError::Foreign | BackupError::Version { .. } => ErrorKind::Incompatible,
        BackupError::Unfinished | BackupError::Damaged { .. } | BackupError::Database { .. } => {
            ErrorKind::Corruption
        }
        BackupError::Order(_)
        | BackupError::WithoutLog
        | BackupError::BeforeBackup { .. }
        | BackupError::AfterArchive { .. }
        | BackupError::LacksContents { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

fn log_kind(error: &TxnError) -> ErrorKind {
    match error {
        TxnError::Pool(error) => pool_kind(error),
        TxnError::Log(error) => wal_kind(error),
        TxnError::Record { .. } => ErrorKind::Corruption,
        TxnError::NotArchived { source } => wal_kind(source),
        TxnError::Buffer { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

fn wal_kind(error: &LogError) -> ErrorKind {
    match error {
        LogError::NoRoom { source, .. }
        | LogError::Files { source, .. }
        | LogError::Unread { source, .. }
        | LogError::NotListed { source, .. }
            if is_full(source) =>
        {
            ErrorKind::OutOfSpace
        }
        LogError::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
        LogError::Closed => ErrorKind::ReadOnly,
        LogError::Hole { .. }
        | LogError::HeaderLost { .. }
        | LogError::Misplaced { .. }
        | LogError::LastLifeMissing { .. }
        | LogError::Missing { .. } => ErrorKind::Corruption,
        LogError::Version { .. }
        | LogError::Foreign { .. }
        | LogError::Newer { .. }
        | LogError::NewerCheckpoint { .. }
        | LogError::OtherLife { .. } => ErrorKind::Incompatible,
        LogError::Option { .. } | LogError::RecordTooLong { .. } => ErrorKind::InvalidInput,
        LogError::Open(error) => vm_kind(error),
        LogError::Archive(error) => archive_kind(error),
        _ => ErrorKind::Io,
    }
}

fn archive_kind(error: &ArchiveError) -> ErrorKind {
    match error {
        ArchiveError::Write { source } | ArchiveError::Read { source } if is_full(source) => {
            ErrorKind::OutOfSpace
        }
        ArchiveError::Read { source } if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        ArchiveError::Open(error) | ArchiveError::Segment(error) => vm_kind(error),
        ArchiveError::Foreign | ArchiveError::Version { .. } => ErrorKind::Incompatible,
        ArchiveError::Damaged { .. } | ArchiveError::Source { .. } | ArchiveError::Record { .. } => {
            ErrorKind::Corruption
        }
        ArchiveError::Gap { .. } | ArchiveError::Missing { .. } | ArchiveError::Replaced { .. } => {
            ErrorKind::NotFound
        }
        ArchiveError::Diverged { .. } | ArchiveError::OtherHistory { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

fn pool_kind(error: &PoolError) -> ErrorKind {
    match error {
        PoolError::Vm(error) => vm_kind(error),
        PoolError::CapacityExhausted { .. } | PoolError::KeptForUndo => ErrorKind::OutOfSpace,
        PoolError::StorageFull { source, .. } | PoolError::Write { source, .. } | PoolError::Sync(source)
            if is_full(source) =>
        {
            ErrorKind::OutOfSpace
        }
        PoolError::Corruption { .. } | PoolError::Truncated { .. } => ErrorKind::Corruption,
        PoolError::PoolExhausted { .. }
        | PoolError::TooManyStreams { .. }
        | PoolError::LargerThanPool { .. } => ErrorKind::OutOfMemory,
        PoolError::PoolTooSmall { .. }
        | PoolError::PoolTooLarge { .. }
        | PoolError::CapacityTooSmall { .. } => ErrorKind::InvalidInput,
        PoolError::Unfinished { .. }
        | PoolError::BeingRestored { .. }
        | PoolError::NotVellum { .. }
        | PoolError::Backup { .. }
        | PoolError::FormatTooNew { .. }
        | PoolError::OtherApplication { .. } => ErrorKind::Incompatible,
        PoolError::NotClosedCleanly { .. } => ErrorKind::NotClosedCleanly,
        PoolError::ReadOnly => ErrorKind::ReadOnly,
        PoolError::Versions(error) => pool_kind(error),
        PoolError::NoRoomForVersions(error) => pool_kind(error),
        PoolError::Log(source) | PoolError::LogRefuses(source) => {
            let error = source.get_ref().and_then(|error| error.downcast_ref());
            error.map_or(ErrorKind::Io, wal_kind)
        }
        _ => ErrorKind::Io,
    }
}

fn vm_kind(error: &VmError) -> ErrorKind {
    match error {
        VmError::Open { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            _ if is_full(source) => ErrorKind::OutOfSpace,
            _ => ErrorKind::Io,
        },
        VmError::Locked { .. } => ErrorKind::Busy,
        VmError::AddressSpace { .. } | VmError::Advise { .. } => ErrorKind::OutOfMemory,
        VmError::Length { .. } | VmError::UnknownName { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}
