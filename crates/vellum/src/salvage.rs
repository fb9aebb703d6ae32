//! Inspecting a crashed or damaged database without changing it, and extracting what can be read.

use crate::{
    Database, Error, Options, Problem, Recovery, Result, TableInformation,
    catalog::{self, CATALOG_SLOT, TableRecord},
    in_memory::{Recovered, open_base, recover_in_memory},
    log_place,
    scan::{Scan, is_made_up_for},
    verify,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};
use vellum_access::{AccessError, Salvaged, Tree};
use vellum_base::{Extent, PageId, io_causes};
use vellum_pool::{Pool, PoolError, PoolFile, Remains};
use vellum_txn::{LogError, TxnError, is_segment};
use vellum_vm::{CreateMode, Directory, File, OverlayFile, shows_damage};

/// A database that is only inspected, whatever state it is in. See [`Salvage::open`].
pub struct Salvage {
    database: Database,
    damage: Vec<Error>,
    left: LeftBy,
    scanned: Option<Scanned>,
    damaged_superblocks: usize,
    /// The roots of tables whose names are lost, by the names given to them.
    nameless: BTreeMap<String, PageId>,
}

/// What can be found in a catalog.
#[derive(Default)]
struct Named {
    /// Its tables, each with its record, if that can be read.
    tables: Vec<(String, Option<TableRecord>)>,
    heaps: Vec<String>,
    lost: Vec<Error>,
}

/// How the pages were found of a database whose superblocks or space map are damaged.
#[derive(Debug)]
#[non_exhaustive]
pub struct Scanned {
    /// The error that shows the damage.
    pub error: Error,
    /// Whether both superblocks are damaged. In that case it is unknown where the catalog is and where the log
    /// continues.
    pub without_superblocks: bool,
    /// How many pages were examined.
    pub pages: u64,
    /// How many of them are sound nodes of tables. Some may no longer be in use: only those that tables refer to are
    /// shown.
    pub nodes: u64,
    /// How many large values are sound.
    pub values: u64,
}

/// How the last process left a database.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeftBy {
    /// The process closed it.
    Closing,
    /// The process was killed, or the power failed: the log was replayed in memory. Opening the database for writing
    /// does the same in its file.
    Crash(Recovery),
    /// The process was killed, or the power failed, and the log cannot be read: what is shown is the contents of the
    /// file, some of it from one moment and some from another.
    CrashWithoutLog(Error),
    /// A process closed it, and the log was written later: this file is an older copy of the one that belongs to the log. What is
    /// shown is the contents of this file.
    OlderCopy(Error),
    /// It is unknown how, because both superblocks are damaged. What is shown is the contents of the file; if the
    /// database was not closed, some of it is from one moment and some from another.
    Unknown {
        /// Whether there is a log. Its later changes are left out, because it is not known where in the log they begin.
        has_log: bool,
    },
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
        /// The error.
        error: Error,
    },
    /// A page cannot be read: all entries on it, and on the pages below it, are lost.
    LostRange {
        /// The lost keys are greater than this one; none means no lower bound.
        after: Option<&'s [u8]>,
        /// The lost keys are not greater than this one; none means no upper bound.
        upto: Option<&'s [u8]>,
        /// The error.
        error: Error,
    },
}

impl Salvage {
    /// Opens a database to inspect it, whether it was closed, has crashed or is damaged. Its files are not changed. If
    /// it has crashed, its log is replayed in memory, which takes about as much memory as the log is long. If its
    /// superblocks or its space map are damaged, the whole file is read to find its pages: see
    /// [`scanned`](Self::scanned).
    ///
    /// # Errors
    /// If there is no such file, it is not a database, or another process has it open for writing; if the system denies
    /// permission for its log, memory, or descriptors.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let file = Arc::new(open_base(path, options)?);
        Self::open_on(file, Arc::new(log_place::directory_of(path)), options)
    }

    /// As [`open`](Self::open), in a directory that may be simulated.
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
        let opened = match Self::open_known(&file, log.clone(), options) {
            Err(error)
                if is_made_up_for(&error)
                    && PoolFile::open_unrecovered(file.clone(), &read_only.pool).is_err() =>
            {
                Self::open_scanned(&file, log, options, error)
            }
            opened => opened,
        };
        Ok(Self { damaged_superblocks: Remains::damaged_superblocks(&*file).len(), ..opened? })
    }

    /// Opens a database whose superblocks and space map are sound.
    fn open_known(file: &Arc<dyn File>, log: Arc<dyn Directory>, options: &Options) -> Result<Self> {
        match recover_in_memory(file, log, options, true) {
            Ok(Recovered { file, recovery, damage, older, .. }) => {
                let closing = older.map_or(LeftBy::Closing, |error| LeftBy::OlderCopy(error.into()));
                let left = recovery.map_or(closing, LeftBy::Crash);
                let damage = damage.into_iter().map(Error::from).collect();
                let opened = PoolFile::open_on(file.clone(), &options.clone().read_only(true).pool)?;
                Self::of(&file, opened, options, (recovery, left, damage))
            }
            Err(error @ Error::Log(TxnError::Log(_) | TxnError::Record { .. })) if !is_refused(&error) => {
                Self::open_without_log(file, options, error)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a database whose log cannot be used: only what the file holds.
    fn open_without_log(file: &Arc<dyn File>, options: &Options, error: Error) -> Result<Self> {
        let read_only = options.clone().read_only(true);
        let opened = PoolFile::open_unrecovered(file.clone(), &read_only.pool)?;
        Self::of(file, opened, options, (None, LeftBy::CrashWithoutLog(error), Vec::new()))
    }

    /// Opens a database whose superblocks or space map are damaged: new ones are made in memory.
    fn open_scanned(
        file: &Arc<dyn File>,
        log: Arc<dyn Directory>,
        options: &Options,
        error: Error,
    ) -> Result<Self> {
        let (remains, first) = (Remains::of(&**file, &options.pool)?, Remains::first_page());
        let mut scan = Scan::of(&**file, first, |_| true)?;
        if scan.nodes == 0 {
            return Err(error);
        }
        let known = remains.root_slot(CATALOG_SLOT).filter(|root| *root != 0).map(PageId);
        let catalog = known.or_else(|| scan.catalog(&**file, first)).unwrap_or(first);
        let failed = |source| PoolError::Read { extent: Extent::page(PageId(0)), source };
        let rebuilt: Arc<dyn File> = Arc::new(OverlayFile::over(file.clone()).map_err(failed)?);
        remains.rebuild(&*rebuilt, std::mem::take(&mut scan.extents), catalog)?;
        let has_log = match log.names() {
            Err(source) if !shows_damage(&source) => return Err(log_error(&*log, source)),
            names => names.is_ok_and(|names| names.iter().any(|name| is_segment(name))),
        };
        let mut salvage = match Self::open_known(&rebuilt, log, options) {
            Err(error) if is_refused(&error) => return Err(error),
            // The log may not fit pages that are damaged.
            Err(error) => Self::open_without_log(&rebuilt, options, error)?,
            Ok(salvage) => salvage,
        };
        let without_superblocks = !remains.has_superblock();
        if without_superblocks {
            salvage.left = LeftBy::Unknown { has_log };
        }
        let Scan { pages, nodes, values, .. } = scan;
        salvage.scanned = Some(Scanned { error, without_superblocks, pages, nodes, values });
        Ok(salvage)
    }

    fn of(
        file: &Arc<dyn File>,
        opened: PoolFile,
        options: &Options,
        (recovery, left, damage): (Option<Recovery>, LeftBy, Vec<Error>),
    ) -> Result<Self> {
        let database = Database::looked_at(opened, recovery, options)?;
        let mut salvage =
            Self { database, damage, left, scanned: None, damaged_superblocks: 0, nameless: BTreeMap::new() };
        salvage.find_nameless(&**file)?;
        Ok(salvage)
    }

    /// Finds the tables that a damaged catalog does not name.
    fn find_nameless(&mut self, file: &dyn File) -> Result<()> {
        let catalog = catalog::tree(self.pool());
        let (mut names, mut roots, mut is_whole) = (BTreeSet::new(), BTreeSet::from([catalog.root()]), true);
        let walked = catalog.salvage(|piece| {
            match piece {
                Salvaged::Entry { key, value: Some(value) } => {
                    names.insert(String::from_utf8_lossy(key).into_owned());
                    roots.extend(TableRecord::decode(value).map(|record| record.root));
                }
                _ => is_whole = false,
            }
            Ok::<_, Error>(())
        });
        walked?;
        if is_whole {
            return Ok(());
        }
        let scan = Scan::of(file, Remains::first_page(), |extent| self.pool().is_extent(extent))?;
        let mut numbers = 1u64..;
        for root in scan.roots.into_iter().filter(|root| !roots.contains(root)) {
            let name =
                numbers.by_ref().map(|number| format!("lost-{number}")).find(|name| !names.contains(name));
            self.nameless.extend(name.map(|name| (name, root)));
        }
        Ok(())
    }

    /// The database, which cannot be changed.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// How the last process left it.
    pub fn left_by(&self) -> &LeftBy {
        &self.left
    }

    /// The errors of log records that could not be redone because pages are damaged.
    pub fn damage(&self) -> &[Error] {
        &self.damage
    }

    /// How the pages were found, if the superblocks or the space map are damaged; otherwise none.
    ///
    /// In that case the whole file was read, and a new map was made in memory. If one superblock is left, the log is
    /// used as usual, and the superblock says where the catalog is. Otherwise the catalog is the first tree of the
    /// file, or the first that looks like a catalog.
    pub fn scanned(&self) -> Option<&Scanned> {
        self.scanned.as_ref()
    }

    /// How many of the two copies of the superblock are damaged. Nothing is lost with one: see
    /// [`Database::mend_superblocks`].
    pub fn damaged_superblocks(&self) -> usize {
        self.damaged_superblocks
    }

    /// The tables whose names were lost with a part of the catalog. They are called `lost-1` and so on, and their keys
    /// and values are bytes, whatever types they had. If the space map is damaged too, dropped tables may be among
    /// them.
    pub fn nameless(&self) -> impl Iterator<Item = &str> {
        self.nameless.keys().map(String::as_str)
    }

    /// The names of the tables that can be found, including the [nameless](Self::nameless) ones, and what is lost of
    /// the catalog.
    pub fn tables(&self) -> (Vec<String>, Vec<Error>) {
        let Named { tables, lost, .. } = self.named();
        let mut names: Vec<String> = tables.into_iter().map(|(name, _)| name).collect();
        names.extend(self.nameless().map(str::to_owned));
        (names, lost)
    }

    /// The tables that the catalog describes, with their types, in the order of their names' bytes. Of the other
    /// [tables](Self::tables) it is not known which types they have, and whether they keep versions.
    pub fn described(&self) -> Vec<TableInformation> {
        let tables = self.named().tables.into_iter();
        tables.filter_map(|(name, record)| Some(TableInformation::from((name, record?)))).collect()
    }

    /// The names of the heaps of objects that can be found. Their objects are not extracted.
    pub fn heaps(&self) -> Vec<String> {
        self.named().heaps
    }

    /// Reads all of a heap of objects, and returns what is wrong with it, as [`Database::verify`] does. `None` if that is
    /// unknown: without the space map of the file ([`scanned`](Self::scanned)) it is not known which pages belong together.
    ///
    /// # Errors
    /// If there is no such heap.
    pub fn verify_heap(&self, name: &str) -> Result<Option<Vec<Problem>>> {
        let record = catalog::find(catalog::tree(self.pool()), name)?.filter(|record| record.is_heap);
        let record = record.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        Ok(self.scanned.is_none().then(|| verify::heap(self.pool(), record.root, name)))
    }

    /// The tables and the heaps that the catalog names, and what is lost of it.
    fn named(&self) -> Named {
        let Named { mut tables, mut heaps, mut lost } = Named::default();
        let found = catalog::tree(self.pool()).salvage(|piece| {
            match piece {
                Salvaged::Entry { key, .. } if key.starts_with(&catalog::DOOMED) => {}
                Salvaged::Entry { key, value, .. } => {
                    let name = String::from_utf8_lossy(key).into_owned();
                    match value.and_then(TableRecord::decode) {
                        Some(record) if record.is_heap => heaps.push(name),
                        record => tables.push((name, record)),
                    }
                }
                Salvaged::Lost { error, .. } => lost.push(error.into()),
                _ => {}
            }
            Ok::<_, Error>(())
        });
        lost.extend(found.err());
        Named { tables, heaps, lost }
    }

    /// Calls `visit` with all readable entries of a table, in key order, and between them with what is lost.
    ///
    /// # Errors
    /// If there is no such table; an error of `visit` ends the walk and is returned.
    pub fn table(&self, name: &str, mut visit: impl FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        let pool = self.pool();
        let root = match self.nameless.get(name) {
            Some(root) => *root,
            None => {
                let record = catalog::find(catalog::tree(pool), name)?;
                record.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?.root
            }
        };
        let tree = Tree::open(pool, root);
        tree.salvage(|piece| match piece {
            Salvaged::Entry { key, value: Some(value) } => visit(Piece::Entry { key, value }),
            Salvaged::Entry { key, value: None } => match large_value(&tree, key) {
                Ok(value) => visit(Piece::Entry { key, value: &value }),
                Err(error) => visit(Piece::LostValue { key, error: error.into() }),
            },
            Salvaged::Lost { after, upto, error } => {
                visit(Piece::LostRange { after, upto, error: error.into() })
            }
            _ => Ok(()),
        })
    }

    fn pool(&self) -> &Pool {
        self.database.inner().pool()
    }
}

/// The value of a key that a walk has found, and that has pages of its own.
///
/// [`Tree::get`] wants all of the extent to be sound. If the damage lies behind the value, its parts can still be read, as
/// [`Table::reader`](crate::Table::reader) reads them.
fn large_value(tree: &Tree<'_, Pool>, key: &[u8]) -> std::result::Result<Vec<u8>, AccessError> {
    match tree.get(key) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => {
            let what = "a key that one of its leaves holds is not found from the root";
            Err(PoolError::contents(tree.root(), what).into())
        }
        // The first error tells more than that of the part.
        Err(error) => in_parts(tree, key).ok_or(error),
    }
}

fn in_parts(tree: &Tree<'_, Pool>, key: &[u8]) -> Option<Vec<u8>> {
    let mut reader = tree.reader(key).ok()??;
    let length = usize::try_from(reader.length()).ok()?;
    let mut value = Vec::new();
    value.try_reserve_exact(length).ok()?;
    value.resize(length, 0);
    let done = reader.read_at(0, &mut value).ok()?;
    (done == length).then_some(value)
}

/// Whether the log is perhaps whole, and only cannot be read now, because the system denies permission, memory or
/// descriptors. What a device fails to read counts as damaged.
fn is_refused(error: &Error) -> bool {
    io_causes(error).any(|cause| !shows_damage(cause))
}

fn log_error(log: &dyn Directory, source: io::Error) -> Error {
    TxnError::from(LogError::NotListed { directory: log.path().map(Into::into), source }).into()
}

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "salvage of {}, with {} damages", self.database.path().display(), self.damage.len())
    }
}
