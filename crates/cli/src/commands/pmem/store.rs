//! One interface to stores of persistent memory of any layout, and opening them.
//!
//! The sizes of records are fixed when the program is compiled. Stores with records of one size can be used here if
//! their sizes are among those of [`SIZES`]; stores with records of any size always can.

use crate::{
    arguments::General,
    failure::{Code, Failure, Result},
    progress::Progress,
    signals,
};
use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};
use vellum_pmem::{
    Fixed, Layout, Options, Persistence, PmemError, Put, Recovery, Shape, Statistics, Store, Variable,
};

/// The sizes of keys and values that this program knows, in bytes.
pub const SIZES: &[(u32, u32)] = &[(8, 8), (8, 100), (8, 200), (16, 16), (16, 100), (16, 200)];

/// Which store, and how it is used.
#[derive(clap::Args)]
pub struct StoreArguments {
    /// The file, or the device of persistent memory
    pub store: PathBuf,
    #[command(flatten)]
    pub how: PersistenceArguments,
}

/// How changes become durable.
#[derive(clap::Args, Clone, Copy)]
pub struct PersistenceArguments {
    /// How changes become durable: dax, flushless or msync; detected if not given
    #[arg(long, value_name = "WAY")]
    pub persistence: Option<Persistence>,
    /// Believe --persistence although the system does not confirm that the file is persistent memory. If it is not true,
    /// what was stored may be lost when the machine fails
    #[arg(long, requires = "persistence")]
    pub vouch_for_memory: bool,
}

impl PersistenceArguments {
    /// The resulting options.
    pub fn options(self) -> Options {
        Options {
            persistence: self.persistence,
            vouch_for_memory: self.vouch_for_memory,
            ..Options::default()
        }
    }
}

/// A callback for entries.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A store, whatever its layout.
pub trait AnyStore {
    /// Stores a value.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<Put>;
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Removes a key; returns whether it was there.
    fn delete(&self, key: &[u8]) -> Result<bool>;
    /// Calls `visit` with all entries.
    fn for_each(&self, visit: Visit<'_>) -> Result;
    /// The statistics.
    fn statistics(&self) -> Statistics;
    /// What recovery found when the store was opened.
    fn recovery(&self) -> &Recovery;
    /// How changes become durable, in words.
    fn persistence(&self) -> String;
}

/// Layouts whose keys and values may consist of any bytes.
pub trait FromBytes: Layout {
    /// A key, if the length is right.
    fn key(bytes: &[u8]) -> Result<&Self::Key>;
    /// A value, if the length is right.
    fn value(bytes: &[u8]) -> Result<&Self::Value>;
}

impl FromBytes for Variable {
    fn key(bytes: &[u8]) -> Result<&[u8]> {
        Ok(bytes)
    }

    fn value(bytes: &[u8]) -> Result<&[u8]> {
        Ok(bytes)
    }
}

impl<const K: usize, const V: usize> FromBytes for Fixed<K, V> {
    fn key(bytes: &[u8]) -> Result<&[u8; K]> {
        bytes.try_into().map_err(|_| wrong_length("keys", K, bytes.len()))
    }

    fn value(bytes: &[u8]) -> Result<&[u8; V]> {
        bytes.try_into().map_err(|_| wrong_length("values", V, bytes.len()))
    }
}

fn wrong_length(what: &str, wanted: usize, found: usize) -> Failure {
    Failure::usage(format!("the {what} of this store have {wanted} bytes, not {found}"))
}

impl<L: FromBytes> AnyStore for Store<L> {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<Put> {
        Ok(self.client()?.put(L::key(key)?, L::value(value)?)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.reader().get(L::key(key)?)?)
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(self.client()?.delete(L::key(key)?)?)
    }

    fn for_each(&self, visit: Visit<'_>) -> Result {
        Ok(self.reader().for_each(visit)?)
    }

    fn statistics(&self) -> Statistics {
        Store::statistics(self)
    }

    fn recovery(&self) -> &Recovery {
        Store::recovery(self)
    }

    fn persistence(&self) -> String {
        let way = Store::persistence(self);
        let by = self.instruction().map(|name| format!(", by {name}")).unwrap_or_default();
        let doubt = if self.is_confirmed() { "" } else { ", not confirmed by the system" };
        format!("{way}{by}{doubt}")
    }
}

/// An operation that is generic over the layout of a shape.
pub trait WithLayout {
    /// The result.
    type Output;
    /// Runs the operation.
    fn run<L: FromBytes>(self) -> Result<Self::Output>;
}

/// Calls `with` with the layout of a shape.
pub fn with_layout<W: WithLayout>(shape: Shape, with: W) -> Result<W::Output> {
    match shape {
        Shape::Variable => with.run::<Variable>(),
        Shape::Fixed { key_bytes: 8, value_bytes: 8 } => with.run::<Fixed<8, 8>>(),
        Shape::Fixed { key_bytes: 8, value_bytes: 100 } => with.run::<Fixed<8, 100>>(),
        Shape::Fixed { key_bytes: 8, value_bytes: 200 } => with.run::<Fixed<8, 200>>(),
        Shape::Fixed { key_bytes: 16, value_bytes: 16 } => with.run::<Fixed<16, 16>>(),
        Shape::Fixed { key_bytes: 16, value_bytes: 100 } => with.run::<Fixed<16, 100>>(),
        Shape::Fixed { key_bytes: 16, value_bytes: 200 } => with.run::<Fixed<16, 200>>(),
        Shape::Fixed { .. } => {
            let known: Vec<String> = SIZES.iter().map(|(key, value)| format!("{key}/{value}")).collect();
            let message = format!(
                "a store for {shape} cannot be worked with from the command line, which knows the sizes {} and \
                 any size; use the library",
                known.join(", ")
            );
            Err(Failure::usage(message))
        }
    }
}

struct Open<'a> {
    path: &'a Path,
    options: Options,
    quiet: bool,
}

impl WithLayout for Open<'_> {
    type Output = Box<dyn AnyStore>;

    fn run<L: FromBytes>(self) -> Result<Self::Output> {
        let progress = Progress::steps(self.quiet, "reading blocks", Some(0));
        let told = |done, total| progress.set(done, total);
        Ok(Box::new(Store::<L>::open_with_progress(self.path, &self.options, &told)?))
    }
}

/// Opens a store, whatever its layout.
pub fn open(
    arguments: &StoreArguments,
    general: &General,
    change: impl FnOnce(&mut Options),
) -> Result<Box<dyn AnyStore>> {
    let mut options = arguments.how.options();
    change(&mut options);
    if !options.read_only {
        signals::watch();
    }
    // A command ends before there is much to reclaim.
    options.reclaim.background = false;
    let shape = vellum_pmem::describe(&arguments.store)?.shape;
    with_layout(shape, Open { path: &arguments.store, options, quiet: general.quiet })
}

impl From<PmemError> for Failure {
    fn from(error: PmemError) -> Self {
        let code = match &error {
            PmemError::Locked { .. } => Code::Busy,
            PmemError::NotAStore { .. } | PmemError::Version { .. } | PmemError::Damaged(_) => Code::Damaged,
            PmemError::Full { .. } | PmemError::Vm(_) => Code::Full,
            PmemError::Shape { .. }
            | PmemError::Options(_)
            | PmemError::TooLong { .. }
            | PmemError::OtherLength { .. }
            | PmemError::Occupied { .. }
            | PmemError::NotPersistent { .. } => Code::Usage,
            PmemError::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => Code::Usage,
            _ => Code::Io,
        };
        let hint = match &error {
            PmemError::Damaged(_) => " (scan --tolerate-damage)",
            PmemError::NotPersistent { .. } => " (--vouch-for-memory)",
            PmemError::Occupied { .. } => " (--overwrite)",
            _ => "",
        };
        Self::new(code, format!("{error}{hint}"))
    }
}
