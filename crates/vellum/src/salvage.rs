//! Looking at a database that crashed or is damaged without changing it, and taking out what can be read.

use crate::{
    Database, Error, Options, Recovery, Result, catalog,
    in_memory::{Recovered, open_base, recover_in_memory},
    log_place,
};
use std::{path::Path, sync::Arc};
use vellum_access::{Salvaged, Tree};
use vellum_pool::PoolFile;
use vellum_txn::TxnError;
use vellum_vm::{CreateMode, Directory, DiskDirectory, File};

/// A database that is only looked at, whatever state it is in. See [`Salvage::open`].
pub struct Salvage {
    database: Database,
    damage: Vec<Error>,
    left: LeftBy,
}

/// How the last process has left a database.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeftBy {
    /// It closed it.
    Closing,
    /// It was killed, or the power went: what the log had was done in memory. Opening the database for writing does so in its
    /// file.
    Crash(Recovery),
    /// The same, but the log cannot be read: what is shown is what the file holds, of which some is from one moment and some from
    /// another.
    CrashWithoutLog(Error),
}

/// A piece of a table, as [`Salvage::table`] finds it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Piece<'s> {
    /// An entry that can be read.
    Entry {
        /// Its key.
        key: &'s [u8],
        /// Its value.
        value: &'s [u8],
    },
    /// An entry whose large value cannot be read.
    LostValue {
        /// Its key.
        key: &'s [u8],
        /// What is wrong.
        error: Error,
    },
    /// A page cannot be read: all entries that it held are lost, and those of the pages below it.
    LostRange {
        /// Their keys are greater than this one; any, if it is none.
        after: Option<&'s [u8]>,
        /// And not greater than this one.
        upto: Option<&'s [u8]>,
        /// What is wrong.
        error: Error,
    },
}

impl Salvage {
    /// Opens a database to look at it, whether it was closed, has crashed or is damaged. Nothing of its files is changed. If it has
    /// crashed, what its log holds is done in memory, which takes about as much as the log is long.
    ///
    /// # Errors
    /// If there is no such file, it is not a database, another process changes it, or its superblocks or its space map are
    /// damaged.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let file = Arc::new(open_base(path, options)?);
        Self::open_on(file, Arc::new(DiskDirectory::new(&log_place::path_of(path))), options)
    }

    /// As [`open`](Self::open), in a directory that may be a simulated one.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_in(directory: Arc<dyn Directory>, name: &str, options: &Options) -> Result<Self> {
        let read_only = options.clone().read_only(true);
        let file = read_only.open_in(&*directory, name, CreateMode::OpenExisting)?;
        Self::open_on(file, directory, options)
    }

    fn open_on(file: Arc<dyn File>, log: Arc<dyn Directory>, options: &Options) -> Result<Self> {
        let read_only = options.clone().read_only(true);
        match recover_in_memory(&file, log, options, true) {
            Ok(Recovered { file, recovery, damage }) => {
                let file = PoolFile::open_on(file, &read_only.pool)?;
                let left = recovery.map_or(LeftBy::Closing, LeftBy::Crash);
                let damage = damage.into_iter().map(Error::from).collect();
                Ok(Self { database: Database::looked_at(file, recovery, options)?, damage, left })
            }
            Err(error @ Error::Log(TxnError::Log(_) | TxnError::Record { .. })) => {
                let file = PoolFile::open_unrecovered(file, &read_only.pool)?;
                let database = Database::looked_at(file, None, options)?;
                Ok(Self { database, damage: Vec::new(), left: LeftBy::CrashWithoutLog(error) })
            }
            Err(error) => Err(error),
        }
    }

    /// The database, which cannot be changed.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// How the last process has left it.
    pub fn left_by(&self) -> &LeftBy {
        &self.left
    }

    /// What could not be done again of what the log holds, because pages are damaged.
    pub fn damage(&self) -> &[Error] {
        &self.damage
    }

    /// The names of the tables that can be found, and what is lost of the catalog.
    pub fn tables(&self) -> (Vec<String>, Vec<Error>) {
        let (mut names, mut lost) = (Vec::new(), Vec::new());
        let found = catalog::tree(self.pool()).salvage(|piece| {
            match piece {
                Salvaged::Entry { key, .. } if key.starts_with(&catalog::DOOMED) => {}
                Salvaged::Entry { key, .. } => names.push(String::from_utf8_lossy(key).into_owned()),
                Salvaged::Lost { error, .. } => lost.push(error.into()),
                _ => {}
            }
            Ok::<_, Error>(())
        });
        lost.extend(found.err());
        (names, lost)
    }

    /// Shows all entries of a table that can be read, in the order of their keys, and between them what is lost.
    ///
    /// # Errors
    /// If there is no such table, and those of `visit`, which end it.
    pub fn table(&self, name: &str, mut visit: impl FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        let pool = self.pool();
        let record = catalog::find(catalog::tree(pool), name)?;
        let record = record.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        let tree = Tree::open(pool, record.root);
        tree.salvage(|piece| match piece {
            Salvaged::Entry { key, value: Some(value) } => visit(Piece::Entry { key, value }),
            Salvaged::Entry { key, value: None } => match tree.get(key) {
                Ok(value) => visit(Piece::Entry { key, value: &value.unwrap_or_default() }),
                Err(error) => visit(Piece::LostValue { key, error: error.into() }),
            },
            Salvaged::Lost { after, upto, error } => {
                visit(Piece::LostRange { after, upto, error: error.into() })
            }
            _ => Ok(()),
        })
    }

    fn pool(&self) -> &vellum_pool::Pool {
        self.database.inner().pool()
    }
}
