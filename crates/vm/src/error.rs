//! Errors of reserving memory, releasing pages and opening files.
//!
//! Reads and writes of an open file fail with [`std::io::Error`] instead: the caller knows which page was concerned.

use crate::{IoEngine, ReleaseMethod};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use vellum_base::{PAGE_SIZE, io_causes, shown};

/// The reason why the kernel, or this layer on its behalf, refused something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// The base page of this system is not [`PAGE_SIZE`].
    #[error(
        "this system's memory pages are {found} bytes, but Vellum needs pages of {PAGE_SIZE} bytes: \
         boot a kernel with {PAGE_SIZE}-byte base pages"
    )]
    BasePage {
        /// The base page of this system, in bytes; 0 if the system does not tell.
        found: usize,
    },

    /// A length that is zero or not a multiple of [`PAGE_SIZE`].
    #[error("cannot reserve {bytes} bytes for {purpose}: it must be a positive multiple of {PAGE_SIZE}")]
    Length {
        /// What the memory was for.
        purpose: &'static str,
        /// How much was asked for, in bytes.
        bytes: usize,
    },

    /// The kernel would not reserve that much address space.
    #[error(
        "cannot reserve {bytes} bytes of address space for {purpose}: {source}. Use a smaller pool or \
         capacity, raise the limit on address space (`ulimit -v`, RLIMIT_AS) or data (`ulimit -d`, RLIMIT_DATA), \
         or set vm.overcommit_memory to 0 or 1"
    )]
    AddressSpace {
        /// What the address space was for.
        purpose: &'static str,
        /// How much was asked for, in bytes.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },

    /// The kernel refused advice on a mapping.
    #[error("cannot set {advice} on the {bytes} bytes mapped for {purpose}: {source}")]
    Advise {
        /// What the memory is for.
        purpose: &'static str,
        /// Which advice.
        advice: &'static str,
        /// The size of the mapping, in bytes.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },

    /// A method of releasing pages was requested that does not work here.
    #[error(
        "releasing pages with {method} does not work here: {source}. Leave the choice of method to Vellum, \
         or use a kernel that supports it (process_madvise: Linux 6.13; exmap: the module in kernel/exmap, and enough \
         locked memory, RLIMIT_MEMLOCK, for the whole pool)"
    )]
    ReleaseUnavailable {
        /// The method that was asked for.
        method: ReleaseMethod,
        /// What the probe found.
        source: io::Error,
    },

    /// The system had no memory for pages, although the pool has it.
    #[error("cannot bring memory to the {bytes} bytes at {address:#x}: {source}")]
    Supply {
        /// The beginning of the range that got no memory, or not all of it.
        address: usize,
        /// Its size in bytes.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },

    /// The kernel would not release pages.
    #[error("cannot release {bytes} bytes of memory at {address:#x}: {source}")]
    Release {
        /// The beginning of the range that was refused.
        address: usize,
        /// Its size in bytes.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },

    /// A file could not be opened or prepared.
    #[error("cannot {action} {}: {source}{}", shown(path), open_advice(path, action, source))]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },

    /// Another process, or another handle in this one, has the file open.
    #[error(
        "{} is locked: {holder} has it open{}; close that first{}",
        shown(path),
        if *to_write { "" } else { " for writing" },
        if *to_write { ", or open both read-only" } else { "" }
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The holder of the lock.
        holder: LockHolder,
        /// Whether it was to be opened for writing.
        to_write: bool,
    },

    /// Direct I/O was requested and is not available.
    #[error(
        "direct I/O on {} is not possible: {reason}. Allow buffered I/O, or put the file on another file system",
        shown(path)
    )]
    DirectUnavailable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },

    /// An I/O engine was requested and is not available.
    #[error(
        "the I/O engine {engine} cannot be used for {}: {source}. Leave the choice of engine to Vellum, or allow \
         io_uring (sysctl kernel.io_uring_disabled=0, the container's seccomp profile, RLIMIT_MEMLOCK)",
        shown(path)
    )]
    EngineUnavailable {
        /// The file.
        path: PathBuf,
        /// The engine that was asked for.
        engine: IoEngine,
        /// What the kernel said.
        source: io::Error,
    },

    /// An unknown name.
    #[error("{name:?} is not a {what}; use one of: {known}")]
    UnknownName {
        /// What it should have named.
        what: &'static str,
        /// The name.
        name: String,
        /// The known names.
        known: &'static str,
    },
}

impl VmError {
    /// The same error, about the file of this path.
    pub(crate) fn of_file(mut self, of: &Path) -> Self {
        if let Self::Open { path, .. }
        | Self::Locked { path, .. }
        | Self::DirectUnavailable { path, .. }
        | Self::EngineUnavailable { path, .. } = &mut self
        {
            of.clone_into(path);
        }
        self
    }
}

/// As [`advice`], for the error of an action with the file of this path. What cannot be created because something is missing
/// lacks its directory.
fn open_advice(path: &Path, action: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound && action.ends_with("create") {
        format!(". Is there a directory {}?", shown(parent(path)))
    } else {
        advice(error).to_owned()
    }
}

/// What to do about an error of opening a file or a directory, or of writing, as the end of the sentence that tells the
/// error. Empty if the error says enough.
pub fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            ". This process may have no more files open: raise that limit (`ulimit -n`, RLIMIT_NOFILE), and try again"
        }
        Some(libc::ENFILE) => {
            ". This system may have no more files open: close other programs, or raise that limit (sysctl fs.file-max), and \
             try again"
        }
        Some(libc::ENOSPC) => ". Make room on the disk, and try again",
        Some(libc::EDQUOT) => ". Make room within the quota, or have it raised, and try again",
        Some(libc::EFBIG) => {
            ". A file may not become so large: raise that limit (`ulimit -f`, RLIMIT_FSIZE), or that of the file system, and \
             try again"
        }
        _ => "",
    }
}

/// Whether an error of opening, listing or reading files may mean that something is missing or damaged. All other errors
/// mean that the system does not give now what may be whole: for want of descriptors, memory, room or permission.
pub fn shows_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{
        Interrupted, OutOfMemory, PermissionDenied, QuotaExceeded, ResourceBusy, StorageFull, TimedOut,
        WouldBlock,
    };
    match error.raw_os_error() {
        Some(number) => matches!(
            number,
            // What devices and file systems report of data that they have lost.
            libc::EIO | libc::EUCLEAN | libc::EBADMSG | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO
            // Something is missing, or something else has its place.
            | libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ENXIO
        ),
        None => !matches!(
            error.kind(),
            Interrupted
                | OutOfMemory
                | PermissionDenied
                | QuotaExceeded
                | ResourceBusy
                | StorageFull
                | TimedOut
                | WouldBlock
        ),
    }
}

/// Whether the system reports lack of space: on the device, in a quota, or because of a limit on the size of files. So may
/// an error among the causes of this one.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let says_so = |error: &io::Error| matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge);
    says_so(error) || io_causes(error).any(says_so)
}

/// The process or handle that has a file open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LockHolder {
    /// Another handle in this process.
    ThisProcess,
    /// Another process.
    Process {
        /// Its number.
        process: u32,
        /// The name of its program, or why that is not known.
        name: String,
    },
    /// The system does not tell.
    Unknown,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => f.write_str("another handle in this process"),
            Self::Process { process, name } => write!(f, "process {process} ({name})"),
            Self::Unknown => f.write_str("another process, or another handle in this one,"),
        }
    }
}

/// The directory that contains a file.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_want_of_descriptors_or_room_says_what_to_do_and_is_no_damage() {
        let open = |number| VmError::Open {
            path: "file".into(),
            action: "open for reading",
            source: io::Error::from_raw_os_error(number),
        };
        assert!(open(libc::EMFILE).to_string().contains("raise that limit (`ulimit -n`, RLIMIT_NOFILE)"));
        assert!(open(libc::ENFILE).to_string().contains("fs.file-max"));
        for full in [libc::ENOSPC, libc::EDQUOT] {
            assert!(open(full).to_string().contains(". Make room "));
        }
        assert!(open(libc::EFBIG).to_string().contains("ulimit -f"));
        for (number, is_lack) in
            [(libc::ENOSPC, true), (libc::EDQUOT, true), (libc::EFBIG, true), (libc::EIO, false)]
        {
            assert_eq!(is_full(&io::Error::from_raw_os_error(number)), is_lack);
            assert_eq!(is_full(&io::Error::other(open(number))), is_lack);
        }
        assert_eq!(
            open(libc::EIO).to_string(),
            "cannot open for reading file: Input/output error (os error 5)"
        );
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EDQUOT, libc::EACCES, libc::ENOMEM] {
            assert!(!shows_damage(&io::Error::from_raw_os_error(number)), "{number}");
        }
        for number in [libc::EIO, libc::ENOENT, libc::ENOTDIR] {
            assert!(shows_damage(&io::Error::from_raw_os_error(number)), "{number}");
        }
        assert!(shows_damage(&io::ErrorKind::UnexpectedEof.into()));
        assert!(!shows_damage(&io::ErrorKind::OutOfMemory.into()));
    }
}
