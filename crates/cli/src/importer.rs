//! Storing the files of a directory tree in a table, by several threads.
//!
//! A file that changes while it is read is read again; one that cannot be read, or changes each time, is reported and
//! skipped, and what was stored of it earlier stays. Where the process has no descriptors or no memory left to read with,
//! the import ends: it would skip all that follows. A change of a file shows in its length and the time of its last change; a second change within one tick of the file system's clock
//! that keeps the length is not noticed. Any error of the database ends the import.

use crate::{
    failure::{Code, Failure, Result},
    files::{self, Attributes, Fault, Found, Job, Source, Tree},
    progress::Progress,
    signals, size, workers,
};
use std::{
    io,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use vellum::{ErrorKind, MAX_KEY_BYTES, MAX_VALUE_BYTES, Put, Table};
use vellum_base::shown;

/// How often a file is read if it changes each time.
const ATTEMPTS: usize = 3;
/// The message for a file that changes each time.
const UNSTEADY: &str = "it changed each time while it was being read; import it again when it is at rest";

/// A file that was not stored, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Omission {
    /// It cannot be read.
    Unreadable,
    /// It is too large, or its key would be too long.
    Unfit,
    /// It need not be stored.
    Skipped,
}

/// Called for files that are not stored.
pub type Observer<'o> = dyn Fn(Omission, &Path, &str) + Sync + 'o;

/// An import.
pub struct Importer<'i> {
    /// The table for the contents.
    pub table: &'i Table,
    /// The table for the length and the time of change of each file, if any.
    pub attributes: Option<&'i Table>,
    /// The prefix of keys, before the path.
    pub key_prefix: &'i [u8],
    /// Whether the first file that cannot be read or stored ends the import.
    pub strict: bool,
    /// How many threads read and store.
    pub threads: usize,
    /// Advanced by the bytes that were stored.
    pub progress: &'i Progress,
    /// Called for files that are not stored.
    pub observer: &'i Observer<'i>,
}

/// How much was imported.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Files that were stored.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them replaced a value.
    pub replaced: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// Files that were left out.
    pub skipped: u64,
}

/// Counters of a running import. All relaxed: they are only displayed.
#[derive(Default)]
struct Counters {
    files: AtomicU64,
    bytes: AtomicU64,
    replaced: AtomicU64,
    unreadable: AtomicU64,
    skipped: AtomicU64,
}

/// The state shared by the threads.
struct Shared<'i> {
    importer: &'i Importer<'i>,
    counters: Counters,
    stopped: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// Why a file was not stored.
enum Trouble {
    Omitted(Omission, String),
    /// It does not have the length that was reported, or changed while it was read: try again.
    Changed(&'static str),
    Fatal(Failure),
}

impl Importer<'_> {
    /// Imports a tree. Returns how much was imported, whether or not the import was completed.
    pub fn run(&self, tree: &Tree<'_>) -> (Tally, Result) {
        let shared = Shared {
            importer: self,
            counters: Counters::default(),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        let ran = workers::run(
            self.threads,
            |jobs| tree.walk(|found| !shared.is_over() && shared.visit(found, |job| jobs.give(job))),
            |job| shared.import(&job),
        );
        let failure = shared.failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result = ran.and_then(|()| failure.map_or_else(signals::check, Err));
        (shared.counters.tally(), result)
    }
}

impl Counters {
    fn tally(&self) -> Tally {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tally {
            files: get(&self.files),
            bytes: get(&self.bytes),
            replaced: get(&self.replaced),
            unreadable: get(&self.unreadable),
            skipped: get(&self.skipped),
        }
    }
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        // Relaxed: this only requests an early end; a lock protects the failure itself.
        self.stopped.load(Ordering::Relaxed) || signals::interrupted()
    }

    fn stop(&self, failure: Failure) {
        self.stopped.store(true, Ordering::Relaxed);
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(failure);
    }

    fn visit(&self, found: Found, give: impl FnOnce(Job) -> bool) -> bool {
        match found {
            Found::File(job) => return give(job),
            Found::Unreadable { path, reason } => self.omit(Omission::Unreadable, &path, &reason),
            Found::Refused { path, error } => self.stop(cannot_be_stored(files::used_up(&error), &path)),
            Found::Skipped { path, reason } => self.omit(Omission::Skipped, &path, reason),
        }
        true
    }

    fn omit(&self, omission: Omission, path: &Path, reason: &str) {
        let counter = match omission {
            Omission::Unreadable => &self.counters.unreadable,
            Omission::Unfit | Omission::Skipped => &self.counters.skipped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.importer.strict && omission != Omission::Skipped {
            let what = if omission == Omission::Unreadable { "read" } else { "store" };
            let message = format!("cannot {what} {}: {reason}", shown(path));
            self.stop(Failure::new(Code::Io, message));
        } else {
            (self.importer.observer)(omission, path, reason);
        }
    }

    fn import(&self, job: &Job) {
        if self.is_over() {
            return;
        }
        let mut key = self.importer.key_prefix.to_vec();
        key.extend_from_slice(&job.key);
        if key.len() > MAX_KEY_BYTES {
            let reason = format!("its key has {} bytes, and the longest has {MAX_KEY_BYTES}", key.len());
            return self.omit(Omission::Unfit, &job.path, &reason);
        }
        let mut change = "";
        for _ in 0..ATTEMPTS {
            match self.store(&key, &job.path) {
                Ok(()) | Err(Trouble::Fatal(Failure { code: Code::Interrupted, .. })) => {
                    return;
                }
                Err(Trouble::Changed(how)) => change = how,
                Err(Trouble::Omitted(omission, reason)) => return self.omit(omission, &job.path, &reason),
                Err(Trouble::Fatal(failure)) => {
                    return self.stop(cannot_be_stored(failure, &job.path));
                }
            }
        }
        // Nothing unsteady was stored: a value of an earlier import is still there.
        self.omit(Omission::Unreadable, &job.path, change);
    }

    /// Stores a file, once.
    fn store(&self, key: &[u8], path: &Path) -> Result<(), Trouble> {
        let (file, metadata) = files::open(path).map_err(cannot_read)?;
        let attributes = Attributes::of(&metadata);
        if attributes.length > MAX_VALUE_BYTES {
            let (length, most) = (size::bytes(attributes.length), size::bytes(MAX_VALUE_BYTES));
            let reason = format!("it is {length} long, and the longest value is {most}");
            return Err(Trouble::Omitted(Omission::Unfit, reason));
        }
        let mut source = Source::of_file(&file, attributes);
        let stored = match source.check_end() {
            Ok(()) => self.importer.table.put_from(key, attributes.length, &mut source).map_err(cannot_store),
            Err(error) => Err(Failure::io("read it", &error)),
        };
        let put = match source.fault.take() {
            None => stored.map_err(Trouble::Fatal)?,
            Some(Fault::Io(error)) => return Err(cannot_read(error)),
            Some(Fault::Grown) if attributes.length == 0 => {
                return Err(Trouble::Changed(
                    "it is said to be empty and is not, as files of the kernel are",
                ));
            }
            Some(Fault::Shrunk | Fault::Grown | Fault::Changed) => return Err(Trouble::Changed(UNSTEADY)),
            Some(Fault::Interrupted) => {
                return Err(Trouble::Fatal(Failure::new(Code::Interrupted, "interrupted")));
            }
        };
        if let Some(table) = self.importer.attributes {
            table.put(key, attributes.encode()).map_err(|error| Trouble::Fatal(error.into()))?;
        }
        let counters = &self.counters;
        counters.files.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(attributes.length, Ordering::Relaxed);
        counters.replaced.fetch_add(u64::from(put == Put::Replaced), Ordering::Relaxed);
        self.importer.progress.advance(attributes.length);
        Ok(())
    }
}

fn cannot_be_stored(failure: Failure, path: &Path) -> Failure {
    failure.after(format_args!("cannot store {}", shown(path)))
}

fn cannot_store(error: vellum::Error) -> Failure {
    let is_crowded = error.kind() == ErrorKind::OutOfMemory;
    let failure = Failure::from(error);
    if is_crowded { failure.and("Use a larger --pool or fewer --threads") } else { failure }
}

fn cannot_read(error: io::Error) -> Trouble {
    if error.kind() == io::ErrorKind::NotFound {
        return Trouble::Omitted(Omission::Skipped, "it was removed before it could be read".to_owned());
    }
    if files::is_used_up(&error) {
        return Trouble::Fatal(files::used_up(&error));
    }
    Trouble::Omitted(Omission::Unreadable, error.to_string())
}
