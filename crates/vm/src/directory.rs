//! A place where files are, by name: a directory of the file system, or a simulated disk.

use crate::disk::{DiskFile, sync_directory};
use crate::{File, FileOptions, VmError};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens, lists, renames and removes files. Shared by threads.
pub trait Directory: Send + Sync + fmt::Debug {
    /// Makes the directory itself if it is not there. By default there is nothing to make.
    ///
    /// # Errors
    /// What the file system reports.
    fn make(&self) -> Result<(), VmError> {
        Ok(())
    }

    /// Opens the file of this name, and creates it if the options say so. That there is such a file is
    /// durable when this returns.
    ///
    /// # Errors
    /// As [`DiskFile::open`].
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError>;

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// What the file system reports.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Removes a file. Open handles stay usable. Durable after [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or what the file system reports.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, in one step, and removes the file that had it. Durable after
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or what the file system reports.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    /// What the file system reports.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system.
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
}

impl DiskDirectory {
    /// The directory at this path, which must exist by the time it is used.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Directory for DiskDirectory {
    fn make(&self) -> Result<(), VmError> {
        match std::fs::create_dir(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(VmError::Open { path: self.path.clone(), action: "make the directory", source })
            }
            _ => Ok(()),
        }
    }

    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        Ok(Arc::new(DiskFile::open(&self.path.join(name), options)?))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // What is not a file, or has a name that is no text, is not ours.
            if let (true, Ok(name)) = (entry.file_type()?.is_file(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        sync_directory(&self.path)
    }
}
