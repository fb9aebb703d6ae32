//! A place for files, by name: a directory of the file system, or a simulated disk.

use crate::disk::{DiskFile, sync_directory};
use crate::{File, FileOptions, VmError};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// The names of all files, sorted.
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

    /// Makes names durable.
    ///
    /// # Errors
    /// The errors of the file system.
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

    /// The path of the directory.
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
            // Entries that are not files, or whose names are not text, are not ours.
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
