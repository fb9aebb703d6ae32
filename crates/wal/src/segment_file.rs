//! The file of a segment. It is open only while something reads or writes it.
//!
//! A log that is kept for long has thousands of segments, and a process may have few files open. A file is locked while
//! it is open, so all that use it at one time share one opening.
//!
//! # Invariants
//! - What may not be durable stays open until a sync of it has succeeded. The system reports that it could not write
//!   something only to those that had the file open.
//! - The name leads to this file as long as something refers to it: it is renamed and removed only by the owner of the
//!   last reference.
//!
//! # Lock order
//! The state is locked after everything else, also while the file is being opened or closed. So an opening never meets
//! the lock of a file that is about to be closed.

use crate::{LogError, segment::name};
use std::{fmt, io, ops::Deref, sync::Arc};
use vellum_base::{
    Lsn,
    primitive::{Mutex, MutexGuard},
};
use vellum_vm::{CreateMode, Directory, File, FileOptions, IoEngine, VmError};

/// The file of a segment, open or not.
pub(crate) struct SegmentFile {
    directory: Arc<dyn Directory>,
    number: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Present if and only if there are users.
    file: Option<Arc<dyn File>>,
    users: usize,
}

/// The file of a segment, which stays open until this is dropped.
#[must_use = "the file is closed once this is dropped"]
pub(crate) struct OpenSegment {
    // Dropped before the user: the last reference to an open file is dropped under the lock of the state.
    file: Arc<dyn File>,
    user: User,
}

struct User(Arc<SegmentFile>);

impl SegmentFile {
    /// The file that has the name of segment `number` in a directory. It is not opened yet.
    pub fn new(directory: &Arc<dyn Directory>, number: u64) -> Arc<Self> {
        Arc::new(Self { directory: directory.clone(), number, state: Mutex::default() })
    }

    /// Opens the file, unless it is open.
    ///
    /// # Errors
    /// As for [`Directory::open`]. Nothing has changed then, and it may be tried again.
    pub fn open(self: &Arc<Self>) -> Result<OpenSegment, VmError> {
        let mut state = self.lock();
        let file = match &state.file {
            Some(file) => file.clone(),
            None => self.directory.open(&name(self.number), &file_options(CreateMode::OpenExisting))?,
        };
        state.file = Some(file.clone());
        state.users += 1;
        drop(state);
        Ok(OpenSegment { file, user: User(self.clone()) })
    }

    /// Opens the file to read the log at a place.
    ///
    /// # Errors
    /// [`LogError::Missing`] if there is no file of that name any more; others as for [`open`](Self::open).
    pub fn open_at(self: &Arc<Self>, at: Lsn) -> Result<OpenSegment, LogError> {
        self.open().map_err(|error| {
            if is_missing(&error) { LogError::Missing { from: at, oldest: Lsn(0) } } else { error.into() }
        })
    }

    /// Why nothing could be read from it.
    pub fn not_read(&self, source: io::Error) -> LogError {
        let name = name(self.number);
        let file = self.directory.path().map_or_else(|| name.clone().into(), |path| path.join(&name));
        LogError::Unread { file, source }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl OpenSegment {
    /// An open file that has the name of segment `number`.
    pub fn named(directory: &Arc<dyn Directory>, number: u64, file: Arc<dyn File>) -> Self {
        let segment = SegmentFile::new(directory, number);
        *segment.lock() = State { file: Some(file.clone()), users: 1 };
        Self { file, user: User(segment) }
    }

    /// The same file, which has got the name of another segment.
    pub fn renamed(self, number: u64) -> Self {
        Self::named(&self.user.0.directory, number, self.file.clone())
    }

    /// The file, for what opens it later.
    pub fn segment(&self) -> &Arc<SegmentFile> {
        &self.user.0
    }
}

impl Deref for OpenSegment {
    type Target = dyn File;

    fn deref(&self) -> &Self::Target {
        &*self.file
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.users -= 1;
        if state.users == 0 {
            state.file = None;
        }
    }
}

impl fmt::Debug for SegmentFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentFile({})", name(self.number))
    }
}

/// Whether a file could not be opened because there is none of that name.
pub(crate) fn is_missing(error: &VmError) -> bool {
    matches!(error, VmError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// How the files of a log and of its archive are opened. They are read and written by single requests, which need no ring
/// of io_uring; each ring would take another descriptor of the process.
pub(crate) fn file_options(create: CreateMode) -> FileOptions {
    FileOptions { create, engine: Some(IoEngine::Pread), ..FileOptions::default() }
}
