//! The files of a directory tree: finding them, and reading them while they may be changed.

use crate::{
    failure::{Failure, Result},
    signals, store,
};
use rustix::{
    fs::{FsWord, OFlags, StatFs},
    io::Errno,
};
use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};
use vellum_base::shown;
use walkdir::{DirEntry, WalkDir};

/// A directory tree.
pub struct Tree<'t> {
    /// Its root.
    pub root: &'t Path,
    /// Whether to stay on the file system of the root.
    pub one_file_system: bool,
    /// Files and directories to leave out: those of the database into which the others are stored.
    pub except: Vec<Metadata>,
}

/// An item found in a tree.
pub enum Found {
    /// A regular file.
    File(Job),
    /// A file or directory that cannot be read.
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file or directory for which the system has nothing left to read it with.
    Refused {
        /// Where.
        path: PathBuf,
        /// What is used up.
        error: io::Error,
    },
    /// A file or directory that is left out on purpose although one would expect it.
    Skipped {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
}

/// A regular file that was found.
pub struct Job {
    /// Where it is.
    pub path: PathBuf,
    /// Its path below the root, as bytes.
    pub key: Vec<u8>,
}

impl Tree<'_> {
    /// Makes sure that the root is a readable directory.
    pub fn check_root(root: &Path) -> Result {
        match std::fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => match std::fs::read_dir(root) {
                Ok(_) => Ok(()),
                Err(error) => Err(Failure::file("read", root, &error)),
            },
            Ok(_) => Err(Failure::usage(format!(
                "{} is not a directory; to store a single file: vellum put DATABASE KEY --file {}",
                shown(root),
                crate::output::shell_path(root)
            ))),
            Err(error) => Err(Failure::file("look at", root, &error)),
        }
    }

    /// Walks the tree until `visit` returns false. Symbolic links are not followed; anything that is neither a file nor
    /// a directory is skipped silently.
    pub fn walk(&self, mut visit: impl FnMut(Found) -> bool) {
        let root_device = std::fs::metadata(self.root).map_or(0, |metadata| metadata.dev());
        // The database's log, and the archive of that, are skipped silently.
        let is_log = |entry: &DirEntry| entry.file_type().is_dir() && self.is_excepted(entry);
        let mut left_out = Vec::new();
        let walk = WalkDir::new(self.root).same_file_system(self.one_file_system).into_iter();
        let entries = walk.filter_entry(|entry| {
            let enter = !is_kernels(entry, root_device);
            if enter && is_log(entry) {
                return false;
            }
            if !enter {
                left_out.push(entry.path().to_owned());
            }
            enter
        });
        for entry in entries {
            let found = match entry {
                Ok(entry) => self.look_at(&entry),
                Err(error) => Some(unreadable(error, self.root)),
            };
            if found.is_some_and(|found| !visit(found)) {
                return;
            }
        }
        let reason = "it shows the kernel's state, not files";
        for path in left_out {
            if !visit(Found::Skipped { path, reason }) {
                return;
            }
        }
    }

    fn look_at(&self, entry: &DirEntry) -> Option<Found> {
        if !entry.file_type().is_file() {
            return None;
        }
        let path = entry.path().to_owned();
        if self.is_excepted(entry) {
            return Some(Found::Skipped { path, reason: "it is the database itself" });
        }
        let below = path.strip_prefix(self.root).unwrap_or(&path);
        let key = below.as_os_str().as_bytes().to_vec();
        Some(Found::File(Job { path, key }))
    }

    fn is_excepted(&self, entry: &DirEntry) -> bool {
        use walkdir::DirEntryExt as _;
        self.except.iter().any(|file| {
            let may_be = entry.ino() == file.ino();
            may_be && entry.metadata().is_ok_and(|metadata| store::is_same_file(&metadata, file))
        })
    }
}

fn unreadable(error: walkdir::Error, root: &Path) -> Found {
    let path = error.path().unwrap_or(root).to_owned();
    let reason = error.io_error().map_or_else(|| error.to_string(), io::Error::to_string);
    match error.into_io_error() {
        Some(error) if is_used_up(&error) => Found::Refused { path, error },
        _ => Found::Unreadable { path, reason },
    }
}

/// Whether an error of reading a file says nothing about the file: this process or the system has no descriptors or no
/// memory left, and would read no other file either.
pub fn is_used_up(error: &io::Error) -> bool {
    const USED_UP: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| USED_UP.contains(&error))
}

/// The failure for what cannot be read because of such an error.
pub fn used_up(error: &io::Error) -> Failure {
    let failure = Failure::io("read it", error);
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => failure.and(
            "This process may have no more files open: raise that limit (`ulimit -n`, RLIMIT_NOFILE), or use fewer --threads",
        ),
        Some(Errno::NFILE) => failure.and("This system may have no more files open: close other programs"),
        _ => failure,
    }
}

/// The file systems that contain only the kernel's state.
const KERNELS_STATE: [FsWord; 9] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
];

/// Whether a file shows the kernel's state: its length is known only once it has been read.
pub fn is_kernels_state(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|about| KERNELS_STATE.contains(&about.f_type))
}

/// Whether an entry is the root of a file system that contains only the kernel's state.
fn is_kernels(entry: &DirEntry, root_device: u64) -> bool {
    if !entry.file_type().is_dir() || entry.depth() == 0 {
        return false;
    }
    let other_device = entry.metadata().is_ok_and(|metadata| metadata.dev() != root_device);
    let about = |entry: &DirEntry| -> Option<StatFs> { rustix::fs::statfs(entry.path()).ok() };
    other_device && about(entry).is_some_and(|about| KERNELS_STATE.contains(&about.f_type))
}

/// Opens a regular file for reading, but not through a symbolic link, and not if reading it could block.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file any more"));
    }
    Ok((file, metadata))
}

/// The attributes that show whether a file was changed: its length and the time of its last change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Its length in bytes.
    pub length: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub changed_ns: i64,
}

impl Attributes {
    /// The attributes of a file.
    pub fn of(metadata: &Metadata) -> Self {
        let seconds = metadata.mtime().saturating_mul(1_000_000_000);
        Self { length: metadata.len(), changed_ns: seconds.saturating_add(metadata.mtime_nsec()) }
    }

    /// As bytes, to be stored.
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (length, changed) = bytes.split_at_mut(8);
        length.copy_from_slice(&self.length.to_le_bytes());
        changed.copy_from_slice(&self.changed_ns.to_le_bytes());
        bytes
    }

    /// From bytes that were stored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (length, changed) = bytes.split_first_chunk()?;
        let changed = changed.try_into().ok()?;
        Some(Self { length: u64::from_le_bytes(*length), changed_ns: i64::from_le_bytes(changed) })
    }
}

/// Why a [`Source`] could not deliver what it should.
#[derive(Debug)]
pub enum Fault {
    /// The file cannot be read.
    Io(io::Error),
    /// It is shorter than it was when it was opened.
    Shrunk,
    /// It is longer than it was when it was opened.
    Grown,
    /// Its length or the time of its last change is not what it was when it was opened.
    Changed,
    /// A signal came.
    Interrupted,
}

/// Reads exactly the announced number of bytes of a file, and makes sure that there are no more, and that the file was
/// not changed meanwhile. Otherwise reading fails before the last byte is returned, so that what was read is not stored.
pub struct Source<'f, R> {
    reader: R,
    left: u64,
    /// The file, and what its attributes must still be at the end.
    file: Option<(&'f File, Attributes)>,
    /// Why it failed, if it did.
    pub fault: Option<Fault>,
}

impl<'f> Source<'f, &'f File> {
    /// A source for a file that must not change while it is read.
    pub fn of_file(file: &'f File, attributes: Attributes) -> Self {
        Self { file: Some((file, attributes)), ..Self::new(file, attributes.length) }
    }
}

impl<R: Read> Source<'_, R> {
    /// A source of `length` bytes.
    pub fn new(reader: R, length: u64) -> Self {
        Self { reader, left: length, file: None, fault: None }
    }

    /// Makes sure that the file ends here and was not changed, if nothing is left to be read.
    pub fn check_end(&mut self) -> io::Result<()> {
        if self.left > 0 {
            return Ok(());
        }
        match read_retrying(&mut self.reader, &mut [0]) {
            Ok(0) => self.check_attributes(),
            Ok(_) => Err(self.fail(Fault::Grown)),
            Err(error) => Err(self.fail(Fault::Io(error))),
        }
    }

    fn check_attributes(&mut self) -> io::Result<()> {
        let Some((file, attributes)) = self.file else { return Ok(()) };
        match file.metadata() {
            Ok(metadata) if Attributes::of(&metadata) == attributes => Ok(()),
            Ok(_) => Err(self.fail(Fault::Changed)),
            Err(error) => Err(self.fail(Fault::Io(error))),
        }
    }

    fn fail(&mut self, fault: Fault) -> io::Error {
        self.fault = Some(fault);
        io::Error::other("the file to be stored cannot be read as it was")
    }
}

impl<R: Read> Read for Source<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        if signals::interrupted() {
            return Err(self.fail(Fault::Interrupted));
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        match read_retrying(&mut self.reader, buffer.get_mut(..wanted).unwrap_or_default()) {
            Ok(0) => Err(self.fail(Fault::Shrunk)),
            Ok(done) => {
                self.left -= done as u64;
                self.check_end()?;
                Ok(done)
            }
            Err(error) => Err(self.fail(Fault::Io(error))),
        }
    }
}

/// Reads what there is, also if a signal comes meanwhile.
pub fn read_retrying(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_delivers_exactly_what_was_announced() {
        let mut bytes = Vec::new();
        Source::new(&b"abc"[..], 3).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"abc");
    }

    #[test]
    fn a_file_that_shrinks_or_grows_is_noticed_before_its_last_byte() {
        let mut shrunk = Source::new(&b"ab"[..], 3);
        assert!(shrunk.read_exact(&mut [0; 3]).is_err());
        assert!(matches!(shrunk.fault, Some(Fault::Shrunk)));
        let mut grown = Source::new(&b"abcd"[..], 3);
        assert!(grown.read_exact(&mut [0; 3]).is_err());
        assert!(matches!(grown.fault, Some(Fault::Grown)));
        let mut grown_from_nothing = Source::new(&b"a"[..], 0);
        assert!(grown_from_nothing.check_end().is_err());
    }

    #[test]
    fn a_file_that_is_changed_in_place_is_noticed_before_its_last_byte() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        let (file, metadata) = open(&path).unwrap();
        let attributes = Attributes::of(&metadata);
        Source::of_file(&file, attributes).read_exact(&mut [0; 3]).unwrap();
        let (file, _) = open(&path).unwrap();
        let mut source = Source::of_file(&file, attributes);
        source.read_exact(&mut [0; 2]).unwrap();
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(source.read_exact(&mut [0]).is_err());
        assert!(matches!(source.fault, Some(Fault::Changed)));
    }

    #[test]
    fn attributes_come_back_as_they_were_stored() {
        let attributes = Attributes { length: 7, changed_ns: -8 };
        assert_eq!(Attributes::decode(&attributes.encode()), Some(attributes));
        assert_eq!(Attributes::decode(&[0; 15]), None);
        assert_eq!(Attributes::decode(&[0; 17]), None);
    }
}
