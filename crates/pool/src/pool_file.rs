//! A file that is open, locked and inspected, but not yet a pool: what recovery needs before pages can be read.

use crate::{
    error::PoolError,
    file::copy_basis::CopyBasis,
    file::lifecycle,
    file::superblock::{APPLICATION_BYTES, SUPERBLOCKS, State, Superblock},
    limits::PAGE_ID_MAX,
    options::{CAPACITY_BYTES_MIN, POOL_BYTES_MIN, PoolOptions},
    space::SpaceMap,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId};
use vellum_vm::{CreateMode, DiskFile, File, PageMemory, PageMemoryOptions, physical_bytes};

/// A pool's file before the pool is started: it is open and locked, and its superblocks and space map have been read.
///
/// A file that was not closed and has a log is recovered as follows: [`redo`](Self::redo) says where in the log to
/// begin, [`note_allocated`](Self::note_allocated) and [`note_freed`](Self::note_freed) take the space events of the
/// log, in order, [`start`](Self::start) makes the pool, and [`Pool::redo`](crate::Pool::redo) redoes its pages.
#[must_use = "the file is closed at once"]
pub struct PoolFile {
    pub(crate) options: PoolOptions,
    pub(crate) memory: PageMemory,
    pub(crate) space: SpaceMap,
    pub(crate) superblock: Superblock,
    /// Whether it was created just now.
    pub(crate) fresh: bool,
    /// The file and its path, if it was created just now on disk.
    pub(crate) created: Option<(Arc<DiskFile>, PathBuf)>,
}

impl PoolFile {
    /// Creates a file, which must not exist yet. See [`Pool::create`](crate::Pool::create).
    ///
    /// # Errors
    /// If the file exists or cannot be written, an option makes no sense, or the system refuses memory.
    pub fn create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        let path = path.as_ref();
        check_creation(options)?;
        Self::create_in(Arc::new(open_file(path, options, CreateMode::CreateNew)?), path, options, None)
    }

    /// Opens a file, or creates it: see [`Pool::open_or_create`](crate::Pool::open_or_create).
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: impl AsRef<Path>, options: &PoolOptions) -> Result<(Self, bool), PoolError> {
        let path = path.as_ref();
        if options.read_only {
            return Ok((Self::open(path, options)?, false));
        }
        check(options)?;
        let file = Arc::new(open_file(path, options, CreateMode::OpenOrCreate)?);
        if !lifecycle::is_unfinished(&*file, &options.application)? {
            return Ok((Self::open_on(file, options)?, false));
        }
        // A log begun for the file belongs to this database too. So its id survives, however often this is interrupted.
        let database = lifecycle::begun_database(&*file)?;
        if database.is_none() {
            let unfinished = |source| PoolError::Write { extent: Extent::page(PageId(0)), source };
            file.truncate(0).map_err(unfinished)?;
        }
        Ok((Self::create_in(file, path, options, database)?, true))
    }

    fn create_in(
        file: Arc<DiskFile>,
        path: &Path,
        options: &PoolOptions,
        database: Option<[u8; 16]>,
    ) -> Result<Self, PoolError> {
        let created = Some((file.clone(), path.to_owned()));
        match Self::create_as(file, options, database) {
            Ok(made) => Ok(Self { created, ..made }),
            Err(error) => {
                remove(created);
                Err(error)
            }
        }
    }

    /// Opens a file that was closed cleanly, or has a log.
    ///
    /// # Errors
    /// If the file does not exist, is not Vellum's, belongs to another application or a later version, is damaged,
    /// truncated, or in use by another process, or was not closed cleanly and has no log or is opened read-only; or the
    /// system refuses memory.
    pub fn open(path: impl AsRef<Path>, options: &PoolOptions) -> Result<Self, PoolError> {
        check(options)?;
        let file = open_file(path.as_ref(), options, CreateMode::OpenExisting)?;
        Self::open_on(Arc::new(file), options)
    }

    /// Like [`create`](Self::create), on any empty file, such as a simulated one.
    ///
    /// # Errors
    /// As for `create`; [`PoolError::NotEmpty`] if the file is not empty.
    pub fn create_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::create_as(file, options, None)
    }

    fn create_as(
        file: Arc<dyn File>,
        options: &PoolOptions,
        database: Option<[u8; 16]>,
    ) -> Result<Self, PoolError> {
        check_creation(options)?;
        let (memory, capacity_pages) = reserve(options, SUPERBLOCKS * PAGE_SIZE as u64, file.clone())?;
        let space = SpaceMap::new(capacity_pages, SUPERBLOCKS)?;
        let superblock = lifecycle::create(&*file, &options.application, database)?;
        Ok(Self::of(options.clone(), (memory, space, superblock), true))
    }

    /// Like [`open`](Self::open), on any file.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_on(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        let opened = Self::open_any(file, options, false)?;
        if opened.superblock.is_being_restored {
            return Err(PoolError::BeingRestored { path: opened.path() });
        }
        Ok(opened)
    }

    /// Like [`open_on`](Self::open_on), for a file into which a database is being restored.
    ///
    /// # Errors
    /// As for `open_on`.
    pub fn open_restored(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::open_any(file, options, false)
    }

    /// Like [`open_on`](Self::open_on), for reading only: a file that was not closed is treated as if it had been
    /// closed at its last checkpoint. Its pages are from different moments.
    ///
    /// # Errors
    /// As for `open_on`.
    pub fn open_unrecovered(file: Arc<dyn File>, options: &PoolOptions) -> Result<Self, PoolError> {
        let opened = Self::open_any(file, options, true)?;
        let superblock = Superblock { state: State::Closed, ..opened.superblock };
        Ok(Self { superblock, ..opened })
    }

    fn open_any(file: Arc<dyn File>, options: &PoolOptions, unrecovered: bool) -> Result<Self, PoolError> {
        check(options)?;
        let path = file.description().path.unwrap_or_default();
        let superblock = lifecycle::inspect(&*file, path.clone(), &options.application)?;
        let mut bytes = superblock.end.saturating_mul(PAGE_SIZE as u64);
        if superblock.state == State::Logged {
            if options.read_only && !unrecovered {
                return Err(PoolError::NotClosedCleanly { path, has_log: true });
            }
            // Extents that the log allocates lie within the size to which the file has grown.
            let size = file.size();
            bytes = bytes
                .max(size.map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?);
        }
        let (memory, capacity_pages) = reserve(options, bytes, file.clone())?;
        let space = lifecycle::read_space_map(&*file, &superblock, capacity_pages)?;
        Ok(Self::of(options.clone(), (memory, space, superblock), false))
    }

    fn of(
        options: PoolOptions,
        (memory, space, superblock): (PageMemory, SpaceMap, Superblock),
        fresh: bool,
    ) -> Self {
        Self { options, memory, space, superblock, fresh, created: None }
    }

    /// Makes sure that storage holds the superblocks that were read: they may be only in the system's cache, because a
    /// sync failed, or the process was killed before it. Do this before discarding a log, or reusing space, that an
    /// older superblock needs.
    ///
    /// # Errors
    /// If the superblocks cannot be written.
    pub fn confirm(&mut self) -> Result<(), PoolError> {
        lifecycle::write_superblocks(&*self.memory.file, &mut self.superblock)
    }

    /// Notes that the log ended at `end` before the database was opened: it has another history from there on than a copy
    /// of it. [`confirm`](Self::confirm) makes this durable.
    pub fn begin_life(&mut self, end: Lsn) {
        self.superblock.lives.begin(end);
    }

    /// The lives of the database, each with where the log of the one before ended and its number, and whether there may
    /// have been others.
    pub fn lives(&self) -> (Vec<(Lsn, u64)>, bool) {
        (self.superblock.lives.all(), self.superblock.lives.is_full())
    }

    /// Chooses the number of the life that begins next, which the log carries already before.
    pub fn choose_life(&mut self) -> u64 {
        self.superblock.lives.choose_next()
    }

    /// The numbers of the lives of the database, and from where on in the log all lives that have logged something are among them;
    /// unknown if another version has changed the file.
    pub fn known_lives(&self) -> (Vec<u64>, Option<Lsn>) {
        self.superblock.lives.known()
    }

    /// Whether the log was archived when the file was last changed.
    pub fn is_log_archived(&self) -> bool {
        self.superblock.is_log_archived
    }

    /// Says whether the log is archived from now on. The first change makes this durable, before it is logged.
    pub fn set_log_archived(&mut self, is_archived: bool) {
        self.superblock.archives_log = is_archived;
        // Until it is changed, a file that was closed lacks nothing that another archive has.
        if self.needs_recovery() {
            self.superblock.is_log_archived = is_archived;
        }
    }

    /// The id of the database, which its log carries too: random, and the same as long as the file exists. A file of
    /// version 1 gets a new one at each opening until it is changed.
    pub fn database(&self) -> [u8; 16] {
        self.superblock.database
    }

    /// The most pages that may be in memory.
    pub fn pool_pages(&self) -> usize {
        (self.options.pool_bytes / PAGE_SIZE as u64) as usize
    }

    /// All changes whose records lie before this place of the log are in the file. The log continues at this place or
    /// beyond, even if the file was closed.
    pub fn redo(&self) -> Lsn {
        self.superblock.redo
    }

    /// The records of everything not committed at the redo point begin here or later. Not after the redo point.
    pub fn undo(&self) -> Lsn {
        self.superblock.undo.min(self.superblock.redo)
    }

    /// Whether the file was not closed, so that changes which it lacks are in its log.
    pub fn needs_recovery(&self) -> bool {
        self.superblock.state == State::Logged
    }

    /// Whether it was created just now.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Whether it is open for reading only.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Whether the file itself was created just now, on disk. Otherwise an empty one was there.
    pub fn was_created(&self) -> bool {
        self.created.as_ref().is_some_and(|(file, _)| file.was_created())
    }

    /// Keeps the file locked as long as what is returned exists. A file that was created is not removed any more if it
    /// cannot be started: that is left to the caller, to be done before the lock is released.
    pub fn hold(&mut self) -> Arc<dyn File> {
        self.created = None;
        self.memory.file.clone()
    }

    /// The file's path; empty for a file that has none.
    pub fn path(&self) -> PathBuf {
        self.memory.file.description().path.unwrap_or_default()
    }

    /// Whether exactly this extent is allocated, as far as known.
    pub fn is_extent(&self, extent: Extent) -> bool {
        !self.is_own(extent) && self.space.is_extent(extent)
    }

    /// Whether an extent lies in the reserved address space.
    pub fn has_address(&self, extent: Extent) -> bool {
        extent.head.0.saturating_add(extent.pages.into()) <= self.memory.pages.len() as u64 / PAGE_SIZE as u64
    }

    /// Notes that, according to the log, an extent was allocated. Events are noted in the order of the log; the map may
    /// already include some of them, and for each page the last event counts.
    ///
    /// # Errors
    /// [`PoolError::CapacityExhausted`] if it lies beyond the reserved address space.
    pub fn note_allocated(&mut self, extent: Extent) -> Result<(), PoolError> {
        if extent.pages == 0 || self.is_own(extent) || self.space.note_allocated(extent) {
            return Ok(());
        }
        Err(PoolError::CapacityExhausted { bytes: self.memory.pages.len() as u64 })
    }

    /// Notes that, according to the log, an extent was freed. See [`note_allocated`](Self::note_allocated).
    pub fn note_freed(&mut self, extent: Extent) {
        if !self.is_own(extent) {
            self.space.free(extent);
        }
    }

    /// Whether an extent overlaps what belongs to the pool. The map of a checkpoint may lie where an extent of the
    /// application lay that the log frees: freeing it was durable before the map was written there.
    fn is_own(&self, extent: Extent) -> bool {
        let meets = |own: Extent| own.head < extent.end() && extent.head < own.end();
        extent.head.0 < SUPERBLOCKS || self.superblock.space_map.is_some_and(meets)
    }
}

/// Ends a restore up to the place `end` of the log: gives the database in a closed file a new id, because the original goes on
/// elsewhere, or did, and takes the mark away that it is being restored.
///
/// # Errors
/// If the file was not closed, or cannot be written.
pub fn renew_database(file: &dyn File, options: &PoolOptions, end: Lsn) -> Result<(), PoolError> {
    let path = file.description().path.unwrap_or_default();
    let mut superblock = lifecycle::inspect(file, path.clone(), &options.application)?;
    if superblock.state != State::Closed {
        return Err(PoolError::NotClosedCleanly { path, has_log: true });
    }
    superblock.finish_restore(end);
    lifecycle::write_superblocks(file, &mut superblock)
}

/// Notes in a file that a copy was made of it, with this basis, if it is the same database and not known yet: increments
/// can be based on the copy for longer. No pool may have the file open.
///
/// # Errors
/// If the file is not a pool's of this application, or cannot be read or written.
pub fn note_backup(file: &dyn File, options: &PoolOptions, basis: &CopyBasis) -> Result<(), PoolError> {
    let path = file.description().path.unwrap_or_default();
    let mut superblock = lifecycle::inspect(file, path, &options.application)?;
    if basis.note_in(&mut superblock) {
        lifecycle::write_superblocks(file, &mut superblock)?;
    }
    Ok(())
}

/// Removes a file whose creation failed: it is empty, and would be in the way. No other process can open it while it is
/// locked.
pub(crate) fn remove(created: Option<(Arc<DiskFile>, PathBuf)>) {
    if let Some((file, path)) = created
        && file.was_created()
    {
        // If that is refused, `open_or_create` will create the file anew.
        let _ = std::fs::remove_file(path);
    }
}

fn check(options: &PoolOptions) -> Result<(), PoolError> {
    if options.pool_bytes < POOL_BYTES_MIN {
        return Err(PoolError::PoolTooSmall { bytes: options.pool_bytes, least: POOL_BYTES_MIN });
    }
    let most = physical_bytes().unwrap_or(u64::MAX);
    if options.pool_bytes > most {
        return Err(PoolError::PoolTooLarge { bytes: options.pool_bytes, most });
    }
    if options.capacity_bytes < CAPACITY_BYTES_MIN {
        return Err(PoolError::CapacityTooSmall { bytes: options.capacity_bytes, least: CAPACITY_BYTES_MIN });
    }
    let name = &options.application;
    if name.len() > APPLICATION_BYTES || name.contains('\0') {
        return Err(PoolError::ApplicationName { name: name.clone(), most: APPLICATION_BYTES });
    }
    Ok(())
}

fn check_creation(options: &PoolOptions) -> Result<(), PoolError> {
    if options.read_only { Err(PoolError::ReadOnly) } else { check(options) }
}

fn open_file(path: &Path, options: &PoolOptions, create: CreateMode) -> Result<DiskFile, PoolError> {
    Ok(DiskFile::open(path, &options.file_options(create))?)
}

/// Reserves the address space for a file whose present size is `file_bytes`.
fn reserve(
    options: &PoolOptions,
    file_bytes: u64,
    file: Arc<dyn File>,
) -> Result<(PageMemory, u64), PoolError> {
    let page = PAGE_SIZE as u64;
    let largest = (PAGE_ID_MAX + 1) * page;
    let twice = |bytes: u64| bytes.saturating_mul(2).saturating_add(page).min(largest);
    let wanted = options.capacity_bytes.max(twice(file_bytes)).min(largest);
    let least = twice(file_bytes.max(options.pool_bytes)).min(wanted);
    let round = |bytes: u64| (bytes.next_multiple_of(page)) as usize;
    let wanted = PageMemoryOptions {
        wanted_bytes: round(wanted),
        least_bytes: round(least),
        resident_pages_max: (options.pool_bytes / page) as usize,
        method: options.release,
    };
    let memory = PageMemory::reserve(&wanted, file)?;
    let capacity_pages = (memory.pages.len() / PAGE_SIZE) as u64;
    Ok((memory, capacity_pages))
}
