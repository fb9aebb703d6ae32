//! Several simulated files that fail and crash together.

use super::faults::{CrashModel, Faults, FileOperation, OperationCounts};
use super::file::{OpenLock, SimulatedFile, history, state};
use super::image::Image;
use super::state::{Disk, Fills, NameChange};
use crate::directory::Directory;
use crate::{CreateMode, File, FileOptions, LockHolder, VmError};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use vellum_base::primitive::{Mutex, MutexGuard};

/// A directory of [`SimulatedFile`]s that crashes as one, and counts operations across them.
///
/// Removals and new names that were not synced survive a crash in part: the first of them, up to any point. Creating a
/// file is durable at once, as it is for [`DiskFile`](crate::DiskFile).
///
/// # Examples
/// ```
/// use vellum_vm::{CreateMode, Directory, FileOptions, SimulatedDisk};
/// let disk = SimulatedDisk::new(42);
/// let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
/// let log = disk.open("log", &options)?;
/// log.grow(4096)?;
/// disk.fail_from(1); // the power goes
/// assert!(log.sync().is_err());
/// let after = disk.crash();
/// assert_eq!(after.names()?, ["log"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SimulatedDisk {
    disk: Arc<Mutex<Disk>>,
}

impl SimulatedDisk {
    /// An empty disk without faults.
    pub fn new(seed: u64) -> Self {
        Self { disk: Arc::new(Mutex::new(Disk::new(seed, Faults::default()))) }
    }

    /// The file of this name, created if necessary, whether or not it is open: for tests that set its faults or examine
    /// it.
    pub fn file(&self, name: &str) -> SimulatedFile {
        let mut state = self.state();
        let found = state.names.current.get(name).copied();
        let index = found.unwrap_or_else(|| create(&mut state, name));
        SimulatedFile::of(self.disk.clone(), index, None)
    }

    /// The seed from which everything random here comes.
    pub fn seed(&self) -> u64 {
        self.state().seed
    }

    /// Replaces the faults of all files, including files to be created.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state();
        state.files.iter_mut().for_each(|file| file.faults = faults.clone());
        state.faults = faults;
    }

    /// Lets files grow by no more than this many bytes in total from now on: then the disk is full, until it is healed.
    /// A crash or kill leaves a disk that has room.
    pub fn leave_free(&self, bytes: u64) {
        let mut state = self.state();
        state.capacity_bytes = Some(state.used_bytes().saturating_add(bytes));
    }

    /// From the `n`-th operation from now on that may take room (the next one is the first), the disk is full until it is
    /// healed: all of them fail with ENOSPC and change nothing. Those are growing and creating files, and, if
    /// `overwriting` takes room, all writes: on a file system that writes to another place each time.
    pub fn fill_from(&self, n: u64, overwriting: bool) {
        self.state().fills = Some(Fills { left: n.saturating_sub(1), overwriting });
    }

    /// Whether the disk [has become full](Self::fill_from).
    pub fn is_filled(&self) -> bool {
        self.state().fills.is_some_and(|fills| fills.left == 0)
    }

    /// Ends all faults and scheduled failures, except for the crash model.
    pub fn heal(&self) {
        let mut state = self.state();
        for file in &mut state.files {
            file.faults = file.faults.healed();
            file.schedule.clear();
        }
        state.faults = state.faults.healed();
        state.schedule.clear();
        state.capacity_bytes = None;
        state.fills = None;
    }

    /// Makes the `n`-th operation from now, on any file or name, fail with EIO; the next one is the first.
    pub fn fail_nth(&self, n: u64) {
        self.state().schedule.fail(None, n, false);
    }

    /// Makes the `n`-th operation from now, on any file or name, and all that follow it fail with EIO, as if the power
    /// had failed.
    pub fn fail_from(&self, n: u64) {
        self.state().schedule.fail(None, n, true);
    }

    /// Makes the `n`-th operation of one kind from now fail with EIO.
    pub fn fail_nth_of(&self, operation: FileOperation, n: u64) {
        self.state().schedule.fail(Some(operation), n, false);
    }

    /// Makes the `n`-th operation of one kind from now, and all of that kind that follow it, fail with EIO.
    pub fn fail_from_of(&self, operation: FileOperation, n: u64) {
        self.state().schedule.fail(Some(operation), n, true);
    }

    /// Counts of the operations on all files and names.
    pub fn counts(&self) -> OperationCounts {
        self.state().schedule.counts
    }

    /// The seed, and below it the last operations and faults, one per line.
    pub fn history(&self) -> String {
        history(&self.state(), None)
    }

    /// The disk that a crash at this moment leaves: all files are caught at once, each by the crash model among its
    /// faults. Each call draws anew. This disk continues as if nothing had happened.
    #[must_use]
    pub fn crash(&self) -> Self {
        Self { disk: Arc::new(Mutex::new(self.state().crash(None))) }
    }

    /// The disk that a crash by this model leaves.
    #[must_use]
    pub fn crash_with(&self, model: CrashModel) -> Self {
        Self { disk: Arc::new(Mutex::new(self.state().crash(Some(model)))) }
    }

    /// The disk as a process leaves it that is killed at this moment: all written data is there, and unsynced data may
    /// still be lost in a later crash. This disk continues as if nothing had happened.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self { disk: Arc::new(Mutex::new(self.state().kill())) }
    }

    fn state(&self) -> MutexGuard<'_, Disk> {
        state(&self.disk)
    }
}

impl Directory for SimulatedDisk {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        let failed = |source| VmError::Open { path: PathBuf::from(name), action: "open or create", source };
        let mut state = self.state();
        let found = state.names.current.get(name).copied();
        let index = match (found, options.create) {
            (Some(_), CreateMode::CreateNew) if !options.read_only => {
                return Err(failed(io::ErrorKind::AlreadyExists.into()));
            }
            (Some(index), _) => index,
            (None, CreateMode::CreateNew | CreateMode::OpenOrCreate) if !options.read_only => {
                state.begin_name(FileOperation::Name, "created").map_err(failed)?;
                if state.is_refused_room(false) {
                    return Err(failed(io::Error::from_raw_os_error(libc::ENOSPC)));
                }
                create(&mut state, name)
            }
            (None, _) => return Err(failed(io::ErrorKind::NotFound.into())),
        };
        let exclusive = !options.read_only;
        let holders = &mut state.files[index].holders;
        if *holders < 0 || (exclusive && *holders > 0) {
            let (path, holder) = (PathBuf::from(name), LockHolder::ThisProcess);
            return Err(VmError::Locked { path, holder, to_write: exclusive });
        }
        *holders = if exclusive { -1 } else { *holders + 1 };
        drop(state);
        let lock = Arc::new(OpenLock { disk: self.disk.clone(), index, exclusive });
        Ok(Arc::new(SimulatedFile::of(self.disk.clone(), index, Some(lock))))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.current.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.begin_name(FileOperation::Name, "removed")?;
        if !state.names.current.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.names.apply(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.begin_name(FileOperation::Name, "renamed")?;
        if !state.names.current.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.names.apply(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.begin_name(FileOperation::Sync, "done")?;
        state.names.sync();
        Ok(())
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "SimulatedDisk(seed {}, {} files)", state.seed, state.names.current.len())
    }
}

/// Adds an empty file with a durable name; earlier changes of names become durable with it, as when a directory is
/// synced.
fn create(disk: &mut Disk, name: &str) -> usize {
    let index = disk.add(name, Image::default());
    disk.names.apply(NameChange::Set(name.to_owned(), index));
    disk.names.sync();
    index
}
