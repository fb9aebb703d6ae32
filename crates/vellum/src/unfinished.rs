//! Files with a temporary name, `NAME.unfinished`, until they are complete and durable.
//!
//! The file is locked from when it is made until it has its name, or is removed. So of two attempts to make a file of one
//! name, the second is refused, and neither touches what the other has made.
//!
//! No existing file is written to: it may have another name, under which it is complete. What an interrupted attempt has
//! left loses its name, and a new file gets it. Anything else that has that name is left alone.

use crate::{Error, Result};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_base::PAGE_SIZE;
use vellum_pool::is_left_by_restore;
use vellum_txn::{BackupError, BackupFile, TxnError};
use vellum_vm::{
    AlignedBuffer, CreateMode, Directory, DiskDirectory, File, FileOptions, Named, VmError, has_other_names,
    named, rename_new,
};

/// The suffix of the name of an incomplete file.
const UNFINISHED: &str = ".unfinished";
/// As much of a page is written at once, in bytes, if the power fails.
const SECTOR_BYTES: usize = 512;
/// How often the file is tried to be made: another attempt may make and remove it meanwhile.
const TRIES_MAX: u32 = 100;

/// What is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Backup,
    Database,
}

impl Kind {
    /// What is in the first page, and at which offset.
    fn mark(self) -> (usize, &'static [u8]) {
        match self {
            Self::Backup => (0, b"VELLUMBK"),
            // Behind the header that all pages have.
            Self::Database => (32, b"VELLUMDB"),
        }
    }

    /// The error of writing it.
    pub fn write_error(self, source: io::Error) -> Error {
        Error::Backup(match self {
            Self::Backup => BackupError::Write { source },
            Self::Database => BackupError::WriteRestored { source },
        })
    }
}

/// Where a file is to be made.
pub(crate) struct Target {
    directory: Arc<dyn Directory>,
    /// Its name. In the file system the path counts: its name need not be text.
    name: String,
    place: Option<Place>,
    kind: Kind,
}

/// A path in the file system.
struct Place {
    /// As it was given.
    given: PathBuf,
    /// Absolute, so that it does not depend on the working directory later.
    path: PathBuf,
    /// The path of the unfinished file.
    unfinished: PathBuf,
}

impl Target {
    /// At a path of the file system.
    pub fn at(given: &Path, kind: Kind) -> Self {
        let name = given.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let directory = DiskDirectory::new(parent(given));
        let path = std::path::absolute(given).unwrap_or_else(|_| given.to_owned());
        let unfinished = directory.path().join(unfinished(&name));
        let place = Some(Place { given: given.to_owned(), path, unfinished });
        Self { directory: Arc::new(directory), name, place, kind }
    }

    /// In a directory that may be simulated.
    pub fn within(directory: Arc<dyn Directory>, name: &str, kind: Kind) -> Self {
        Self { directory, name: name.to_owned(), place: None, kind }
    }

    /// Its path, for people.
    pub fn shown(&self) -> PathBuf {
        self.place.as_ref().map_or_else(|| PathBuf::from(&self.name), |place| place.given.clone())
    }

    /// The path of the unfinished file, as absolute as can be.
    pub fn unfinished_path(&self) -> PathBuf {
        self.place.as_ref().map_or_else(|| unfinished(&self.name).into(), |place| place.unfinished.clone())
    }

    fn shown_unfinished(&self) -> PathBuf {
        self.shown().with_file_name(unfinished(&self.name))
    }

    /// # Errors
    /// If something has its name.
    pub fn refuse_if_there(&self) -> Result<()> {
        let is_there = match &self.place {
            Some(place) => std::fs::symlink_metadata(&place.path).is_ok(),
            None => {
                self.directory.names().map_err(|error| self.kind.write_error(error))?.contains(&self.name)
            }
        };
        if is_there { Err(self.exists()) } else { Ok(()) }
    }

    fn exists(&self) -> Error {
        match self.kind {
            Kind::Backup => Error::Backup(BackupError::Exists { name: self.shown().display().to_string() }),
            Kind::Database => Error::RestoreExists { path: self.shown(), advice: "" },
        }
    }

    /// Makes the unfinished file, empty and locked. If an interrupted attempt has left one, that is removed, and before it,
    /// by `remove_rest`, what it has left beside the file.
    ///
    /// # Errors
    /// [`Error::InProgress`] if another attempt is running, [`Error::UnfinishedExists`] if something else has that name.
    pub fn make(
        &self,
        options: &FileOptions,
        remove_rest: &dyn Fn() -> Result<()>,
    ) -> Result<Unfinished<'_>> {
        self.refuse_if_there()?;
        let options = FileOptions { create: CreateMode::CreateNew, ..options.clone() };
        for _ in 0..TRIES_MAX {
            self.refuse_what_is_no_file()?;
            match self.directory.open(&unfinished(&self.name), &options) {
                Err(error) if is_open_error(&error, io::ErrorKind::AlreadyExists) => {
                    self.remove_left(remove_rest)?;
                }
                opened => {
                    let file = opened.map_err(|error| self.not_opened(error))?;
                    let made = Unfinished { target: self, file, clean: None, is_finished: false };
                    // Another attempt may have ended meanwhile.
                    self.refuse_if_there()?;
                    return Ok(made);
                }
            }
        }
        let source = io::Error::other("other attempts made and removed it again and again");
        Err(self.kind.write_error(source))
    }

    fn not_opened(&self, error: VmError) -> Error {
        match error {
            VmError::Locked { holder, .. } => {
                Error::InProgress { path: self.shown(), holder: holder.to_string() }
            }
            error => Error::Backup(BackupError::Open(error)),
        }
    }

    /// A symbolic link is not followed: what it leads to is not an unfinished file.
    fn refuse_what_is_no_file(&self) -> Result<()> {
        let about = self.place.as_ref().map(|place| std::fs::symlink_metadata(&place.unfinished));
        match about {
            Some(Ok(about)) if !about.is_file() => Err(self.unfinished_exists()),
            _ => Ok(()),
        }
    }

    fn unfinished_exists(&self) -> Error {
        Error::UnfinishedExists { path: self.shown_unfinished() }
    }

    /// Removes what an interrupted attempt has left, and nothing else.
    fn remove_left(&self, remove_rest: &dyn Fn() -> Result<()>) -> Result<()> {
        let name = unfinished(&self.name);
        let file = match self.directory.open(&name, &FileOptions::default()) {
            Err(error) if is_open_error(&error, io::ErrorKind::NotFound) => return Ok(()),
            opened => opened.map_err(|error| self.not_opened(error))?,
        };
        if is_incomplete(&file, self.kind)? {
            remove_rest()?;
        } else if !is_named_twice(&*file, self.kind).map_err(read_error)? {
            return Err(self.unfinished_exists());
        }
        if has_its_name(&*file).map_err(|error| self.kind.write_error(error))? {
            self.directory.remove(&name).map_err(|error| self.kind.write_error(error))?;
        }
        Ok(())
    }
}

/// A file that is being made. It is removed when this is dropped, unless it is finished: after an error, and after a panic
/// in what a caller gave.
pub(crate) struct Unfinished<'t> {
    target: &'t Target,
    /// Keeps the lock.
    file: Arc<dyn File>,
    /// Removes what was made beside the file.
    clean: Option<Box<dyn Fn() -> Result<()> + 't>>,
    is_finished: bool,
}

impl<'t> Unfinished<'t> {
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Before the file is removed, what was made beside it is removed by `clean`. If that fails, the file stays too: the
    /// next attempt finds it, and removes both.
    pub fn clean_with(&mut self, clean: impl Fn() -> Result<()> + 't) {
        self.clean = Some(Box::new(clean));
    }

    /// Gives the complete and durable file its name, if nothing has that name. If only the name cannot be made durable, the
    /// file stays.
    pub fn finish(mut self) -> Result<()> {
        let target = self.target;
        if !has_its_name(&*self.file).map_err(|error| target.kind.write_error(error))? {
            let source = io::Error::other(format!(
                "{} was moved or removed while it was made",
                target.shown_unfinished().display()
            ));
            return Err(target.kind.write_error(source));
        }
        let renamed = match &target.place {
            Some(place) => rename_new(&place.unfinished, &place.path),
            None => target.directory.rename_new(&unfinished(&target.name), &target.name),
        };
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => target.exists(),
            _ => target.kind.write_error(error),
        })?;
        self.is_finished = true;
        target.directory.sync().map_err(|source| {
            let name = target.shown().display().to_string();
            Error::Backup(BackupError::NameNotDurable { name, source })
        })
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_finished || self.clean.as_ref().is_some_and(|clean| clean().is_err()) {
            return;
        }
        if has_its_name(&*self.file).unwrap_or(false) {
            // If that fails, the next attempt removes it.
            let _ = self.target.directory.remove(&unfinished(&self.target.name));
        }
    }
}

/// Whether a file is what an interrupted attempt may leave before it is complete.
fn is_incomplete(file: &Arc<dyn File>, kind: Kind) -> Result<bool> {
    match kind {
        Kind::Backup => is_left_by_backup(file),
        Kind::Database => Ok(is_left_by_restore(&**file)?),
    }
}

/// Whether a file is complete and has another name. It has kept this one because the attempt was interrupted between the
/// two.
fn is_named_twice(file: &dyn File, kind: Kind) -> io::Result<bool> {
    Ok(has_other_names(file)? && has_mark(file, kind)?)
}

/// Whether a file is empty, or a backup that was not finished, or one whose first page was not written yet.
fn is_left_by_backup(file: &Arc<dyn File>) -> Result<bool> {
    let size = file.size().map_err(read_error)?;
    if size < PAGE_SIZE as u64 {
        return Ok(size == 0);
    }
    if first_page(&**file).map_err(read_error)?.iter().take(SECTOR_BYTES).all(|byte| *byte == 0) {
        return Ok(true);
    }
    let is_unfinished = |error: &TxnError| {
        matches!(error, TxnError::Backup(BackupError::Unfinished | BackupError::Damaged { .. }))
    };
    Ok(has_mark(&**file, Kind::Backup).map_err(read_error)?
        && BackupFile::open(file.clone()).is_err_and(|error| is_unfinished(&error)))
}

fn has_mark(file: &dyn File, kind: Kind) -> io::Result<bool> {
    let (offset, mark) = kind.mark();
    Ok(file.size()? >= PAGE_SIZE as u64
        && first_page(file)?.get(offset..).is_some_and(|rest| rest.starts_with(mark)))
}

fn first_page(file: &dyn File) -> io::Result<AlignedBuffer> {
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    file.read_to(0, &mut page)?;
    Ok(page)
}

/// Whether a file is still what its name stands for. It may have been moved, and another file may have that name.
fn has_its_name(file: &dyn File) -> io::Result<bool> {
    let Some(path) = file.description().path else { return Ok(true) };
    Ok(named(&path, file)? == Named::Itself)
}

fn is_open_error(error: &VmError, kind: io::ErrorKind) -> bool {
    matches!(error, VmError::Open { source, .. } if source.kind() == kind)
}

fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}")
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read_error(source: io::Error) -> Error {
    Error::Backup(BackupError::Read { source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_vm::{FileOperation, SimulatedDisk};

    #[test]
    fn a_name_that_is_not_durable_is_told_as_that() {
        for kind in [Kind::Backup, Kind::Database] {
            let disk = SimulatedDisk::new(1);
            let target = Target::within(Arc::new(disk.clone()), "made", kind);
            let made = target.make(&FileOptions::default(), &|| Ok(())).unwrap();
            disk.fail_nth_of(FileOperation::Sync, 1);
            let error = made.finish().unwrap_err();
            assert!(matches!(error, Error::Backup(BackupError::NameNotDurable { .. })), "{error}");
            assert!(error.to_string().starts_with("made is there and whole"), "{error}");
            assert_eq!(disk.names().unwrap(), ["made"]);
        }
    }

    #[test]
    fn what_cannot_be_written_is_named_by_its_kind() {
        for (kind, wanted) in
            [(Kind::Backup, "write the backup"), (Kind::Database, "write the restored database")]
        {
            let disk = SimulatedDisk::new(1);
            let target = Target::within(Arc::new(disk.clone()), "made", kind);
            let made = target.make(&FileOptions::default(), &|| Ok(())).unwrap();
            disk.fail_nth_of(FileOperation::Name, 1);
            let error = made.finish().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_whole_file_that_an_interrupted_attempt_left_is_to_be_renamed() {
        let error = Error::UnfinishedExists { path: "made.vellum.unfinished".into() }.to_string();
        assert!(error.contains("rename it to made.vellum."), "{error}");
    }
}
