//! The place of a database's log, and of transaction data for which there is no room in memory: a directory beside the
//! database file.

use crate::{Error, Result};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_vm::{Directory, DiskDirectory};

/// The directory of a log.
#[derive(Clone, Default)]
pub(crate) struct LogPlace {
    /// None if there is no place for a log.
    pub directory: Option<Arc<dyn Directory>>,
    /// The path of the directory that is created for the log.
    path: Option<PathBuf>,
    /// The path of the database's file.
    file: Option<PathBuf>,
    opener: Opener,
}

/// The process that has opened the database.
#[derive(Clone)]
struct Opener(u32);

impl Default for Opener {
    fn default() -> Self {
        Self(std::process::id())
    }
}

impl LogPlace {
    /// A directory that holds other files too.
    pub fn given(directory: Arc<dyn Directory>) -> Self {
        Self { directory: Some(directory), ..Self::default() }
    }

    /// The directory beside a database's file.
    pub fn beside(file: &Path) -> Self {
        let directory = directory_of(file);
        let path = directory.path().to_owned();
        // This fails only if the path is empty, or there is no working directory.
        let file = target_of(file);
        let file = std::path::absolute(&file).unwrap_or(file);
        Self { directory: Some(Arc::new(directory)), path: Some(path), file: Some(file), ..Self::default() }
    }

    /// Whether this process is a child, made by `fork`, of the one that has opened the database.
    pub fn is_inherited(&self) -> bool {
        self.opener.0 != std::process::id()
    }

    /// The path of the database's file when it was opened, beside which this is: absolute, and not that of a symbolic link to
    /// it. None if the file lies elsewhere.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Creates the directory durably, if it does not exist.
    pub fn make(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        make_directory(path).map_err(|source| Error::LogDirectory { path: path.clone(), source })
    }

    /// Removes the directory, if nothing is left in it.
    pub fn remove(&self) {
        // If that fails, an empty directory stays, which the next opening uses.
        let _ = self.path.as_ref().map(std::fs::remove_dir);
    }
}

/// Creates a directory durably, if it does not exist: a log is worthless if its directory can vanish.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        // What cannot be made durable is made again, and not taken for durable the next time.
        Ok(()) => sync_parent(path).inspect_err(|_| drop(std::fs::remove_dir(path))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.is_dir() {
            // A process that made it may have been killed before it was durable.
            true => sync_parent(path),
            false => Err(io::ErrorKind::NotADirectory.into()),
        },
        Err(error) => Err(error),
    }
}

/// Makes a directory's entry in its parent durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// The directory of the log of a database, which stays the same one while the database is open: if the database is moved,
/// another one may be made at its place, with a log of its own.
pub(crate) fn directory_of(file: &Path) -> DiskDirectory {
    DiskDirectory::held(&path_of(file))
}

/// How many symbolic links lead on from one another at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// The path of the log of a database. It is beside the file itself, also if a symbolic link names that.
pub(crate) fn path_of(file: &Path) -> PathBuf {
    let mut name = target_of(file).into_os_string();
    name.push("-log");
    PathBuf::from(name)
}

/// The file to which a path leads, which need not exist. Links among the directories stay: they lead to the log, too.
fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = std::fs::read_link(&target) else { break };
        // An absolute link replaces the path.
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}
