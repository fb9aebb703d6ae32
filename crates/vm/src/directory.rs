//! A place for files, by name: a directory of the file system, or a simulated disk.

use crate::disk::{DiskFile, sync_directory};
use crate::rename::rename_new;
use crate::{File, FileOptions, VmError};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Opens, lists, renames and removes files. Shared by threads.
pub trait Directory: Send + Sync + fmt::Debug {
    /// Creates the directory itself if it does not exist. By default there is nothing to create.
    ///
    /// # Errors
    /// The errors of the file system.
    fn make(&self) -> Result<(), VmError> {
        Ok(())
    }

    /// Opens the file of this name, and creates it if the options say so. The existence of the file is durable when
    /// this returns.
    ///
    /// # Errors
    /// As for [`DiskFile::open`].
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError>;

    /// The path of the directory, for messages; none if it is none of the file system.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// The names of all files, sorted; also of symbolic links to files, and of those that lead nowhere.
    ///
    /// # Errors
    /// The errors of the file system.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Removes a file. Open handles stay usable. Durable after [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or the errors of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file, atomically, and removes the file that had the new name. Durable after [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or the errors of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Renames a file, and fails if a file has the new name. By default this looks first, and then renames. Durable after
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], [`io::ErrorKind::NotFound`] if there is no such file, or the errors of the file
    /// system.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        if self.names()?.iter().any(|name| name == to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.rename(from, to)
    }

    /// Makes names durable.
    ///
    /// # Errors
    /// The errors of the file system.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system. Its path is made absolute when this is made, so that it does not depend on the
/// working directory later.
///
/// # Examples
/// ```
/// use vellum_vm::{CreateMode, Directory, DiskDirectory, FileOptions};
/// # let temporary = tempfile::tempdir()?;
/// # let path = temporary.path();
/// let directory = DiskDirectory::new(path);
/// let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
/// let file = directory.open("pages", &options)?;
/// file.grow(1 << 20)?;
/// assert_eq!(directory.names()?, ["pages"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DiskDirectory {
    path: PathBuf,
    /// Present if it stays the same directory.
    held: Option<Arc<OnceLock<Held>>>,
}

/// A directory that is held open.
#[derive(Debug)]
struct Held {
    directory: fs::File,
    /// A path that leads to it, wherever it is.
    place: PathBuf,
}

impl DiskDirectory {
    /// The directory that is at this path whenever it is used.
    pub fn new(path: &Path) -> Self {
        // This fails only if the path is empty, or there is no working directory.
        Self { path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()), held: None }
    }

    /// The directory that is at this path when it is first used. It stays the same one, even if it is moved and another
    /// directory takes its path: files that belong together are found and made in one directory. For that, `/proc` must
    /// be there; without it this is as [`new`](Self::new).
    pub fn held(path: &Path) -> Self {
        Self { held: Some(Arc::default()), ..Self::new(path) }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path by which the directory can be used now.
    fn place(&self) -> io::Result<&Path> {
        let Some(held) = &self.held else { return Ok(&self.path) };
        if let Some(held) = held.get() {
            return Ok(&held.place);
        }
        let new = Held::open(&self.path)?;
        Ok(&held.get_or_init(|| new).place)
    }
}

impl Held {
    fn open(path: &Path) -> io::Result<Self> {
        let directory = fs::File::open(path)?;
        let about = directory.metadata()?;
        let place = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let is_same = |there: fs::Metadata| (there.dev(), there.ino()) == (about.dev(), about.ino());
        let leads_there = fs::metadata(&place).is_ok_and(is_same);
        Ok(Self { directory, place: if leads_there { place } else { path.to_owned() } })
    }
}

impl Directory for DiskDirectory {
    fn make(&self) -> Result<(), VmError> {
        match fs::create_dir(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(VmError::Open { path: self.path.clone(), action: "make the directory", source })
            }
            _ => Ok(()),
        }
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        let path = self.path.join(name);
        match self.place() {
            Ok(place) => Ok(Arc::new(DiskFile::open_at(&place.join(name), path, options)?)),
            Err(source) => Err(VmError::Open { path, action: "open the directory of", source }),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.place()?)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            // A link that leads nowhere is a file that is missing: opening it says so.
            let is_link = || kind.is_symlink() && fs::metadata(entry.path()).map_or(true, |to| to.is_file());
            // Entries that are not files, or whose names are not text, are not ours.
            if let (true, Ok(name)) = (kind.is_file() || is_link(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.place()?.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let place = self.place()?;
        fs::rename(place.join(from), place.join(to))
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        let place = self.place()?;
        rename_new(&place.join(from), &place.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        let place = self.place()?;
        match self.held.as_ref().and_then(|held| held.get()) {
            Some(held) => held.directory.sync_all(),
            None => sync_directory(place),
        }
    }
}
