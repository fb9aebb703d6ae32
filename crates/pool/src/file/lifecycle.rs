//! A file's life: created, opened, marked as in use before its first change, closed cleanly. This module writes a new
//! file's first bytes and decides whether an existing one can be opened; `storage` is the open file.
//!
//! The superblocks say "in use" from before the first change until everything, including the space map, has been
//! written. A file that says so when it is opened was not closed: some of its pages are from one moment and some from
//! another, and it is refused.
//!
//! Both superblocks are written at each change of state, one after the other with a sync in between, so that later
//! damage to either of them is not mistaken for an older state.

use crate::{
    error::{Fault, PoolError},
    file::superblock::{
        APPLICATION_BYTES, DATABASE_BYTES, Decoded, FORMAT_VERSION, SUPERBLOCKS, State, Superblock,
    },
    space::SpaceMap,
};
use std::path::PathBuf;
use vellum_base::{
    Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageId, PageKind, primitive::random_id, verify_header,
};
use vellum_vm::{AlignedBuffer, File};

/// Writes two superblocks with the next two generations, and makes them durable. The generation grows even if that
/// fails, so that later superblocks count as newer than any that this may have left behind. The next attempt then begins
/// with the copy that failed: the other one is intact.
pub(crate) fn write_superblocks(file: &dyn File, superblock: &mut Superblock) -> Result<(), PoolError> {
    let mut buffer = AlignedBuffer::new(PAGE_SIZE);
    superblock.generation += SUPERBLOCKS;
    let last = superblock.generation;
    for generation in last + 1 - SUPERBLOCKS..=last {
        let copy = Superblock { generation, ..superblock.clone() };
        copy.encode(&mut buffer);
        let written = write_buffer(file, Extent::page(copy.page()), &buffer)
            .and_then(|()| file.sync().map_err(PoolError::Sync));
        if written.is_err() {
            superblock.generation += u64::from(generation == last);
            return written;
        }
    }
    Ok(())
}

pub(crate) fn write_buffer(file: &dyn File, extent: Extent, buffer: &AlignedBuffer) -> Result<(), PoolError> {
    // SAFETY: the buffer is borrowed for the duration, and as long as the extent.
    let written = unsafe { file.write(extent.head.offset(), buffer.as_ptr(), extent.bytes()) };
    written.map_err(|source| PoolError::Write { extent, source })
}

fn read_buffer(file: &dyn File, extent: Extent) -> Result<AlignedBuffer, PoolError> {
    let mut buffer = AlignedBuffer::new(extent.bytes());
    // SAFETY: the buffer is this function's own, and as long as the extent.
    let read = unsafe { file.read(extent.head.offset(), buffer.as_mut_ptr(), extent.bytes()) };
    read.map_err(|source| PoolError::Read { extent, source })?;
    Ok(buffer)
}

/// The length of a map that lies among the pages of a file of `end` pages, in pages.
pub(crate) fn image_pages(end: u64) -> u64 {
    (HEADER_BYTES + SpaceMap::image_bytes(end)).div_ceil(PAGE_SIZE) as u64
}

/// The length of the map of a file of `end` pages, in pages. It has room for its own pages too: it may lie after
/// everything else, and then covers itself.
pub(crate) fn space_map_pages(end: u64) -> u32 {
    let mut pages = image_pages(end);
    while image_pages(end + pages) > pages {
        pages += 1;
    }
    pages as u32
}

/// The length of a place at the end of a file of `end` pages that suffices for the map of the file even when a second
/// such place follows it.
pub(crate) fn map_place_pages(end: u64) -> u64 {
    let mut pages = image_pages(end);
    while image_pages(end + 2 * pages) > pages {
        pages += 1;
    }
    pages
}

/// The name of an application, padded.
fn application_bytes(name: &str) -> [u8; APPLICATION_BYTES] {
    let mut bytes = name.bytes();
    std::array::from_fn(|_| bytes.next().unwrap_or(0))
}

impl Superblock {
    /// A superblock for a new database, with only the application known.
    pub(crate) fn of_new(application: &str) -> Self {
        Self { application: application_bytes(application), database: random_id(), ..Self::default() }
    }

    /// Makes it the superblock of another database.
    pub(crate) fn renew_database(&mut self) {
        self.database = random_id();
        self.lives.clear();
    }

    /// Makes it that of a database that is restored up to a place in the log, and is another one than that of the backup. It has
    /// a life from there on: a backup can be based on it that is made before anything is changed, and what the lost database
    /// has logged after that place is none of it.
    pub(crate) fn finish_restore(&mut self, end: Lsn) {
        self.renew_database();
        self.lives.begin(end);
        (self.is_being_restored, self.is_log_archived, self.archives_log) = (false, false, false);
    }
}

/// Turns an empty file into a pool's file of a new database, or an unfinished one into that of the given database.
pub(crate) fn create(
    file: &dyn File,
    application: &str,
    database: Option<[u8; DATABASE_BYTES]>,
) -> Result<Superblock, PoolError> {
    let bytes = SUPERBLOCKS * PAGE_SIZE as u64;
    let held = file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
    if held > 0 && database.is_none() {
        return Err(PoolError::NotEmpty { bytes: held });
    }
    file.grow(bytes).map_err(|source| PoolError::StorageFull { bytes, source })?;
    let application = application_bytes(application);
    let database = database.unwrap_or_else(random_id);
    let mut superblock = Superblock { application, end: SUPERBLOCKS, database, ..Superblock::default() };
    write_superblocks(file, &mut superblock)?;
    Ok(superblock)
}

/// Whether a file holds nothing: it is empty, or its creation was interrupted before its first page was allocated. Its
/// superblocks may have been written several times, because a creation that finds the log of an interrupted one
/// confirms them.
pub(crate) fn is_unfinished(file: &dyn File, application: &str) -> Result<bool, PoolError> {
    let size = file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
    if size != SUPERBLOCKS * PAGE_SIZE as u64 {
        return Ok(size == 0);
    }
    for page in (0..SUPERBLOCKS).map(PageId) {
        let buffer = read_buffer(file, Extent::page(page))?;
        let is_blank = buffer.iter().all(|byte| *byte == 0);
        let is_first = matches!(Superblock::decode(&buffer, page), Decoded::Valid(superblock)
            if superblock.end == SUPERBLOCKS
                && superblock.state == State::InUse
                && superblock.application == application_bytes(application));
        if !is_blank && !is_first {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file is what an interrupted restore may leave: it is empty, or each of its superblocks is marked, torn or
/// not, or was not written yet.
///
/// # Errors
/// If it cannot be read.
pub fn is_left_by_restore(file: &dyn File) -> Result<bool, PoolError> {
    /// As much of a page is written at once, if the power fails.
    const SECTOR_BYTES: usize = 512;
    let size = file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
    if size < SUPERBLOCKS * PAGE_SIZE as u64 {
        return Ok(size == 0);
    }
    for page in (0..SUPERBLOCKS).map(PageId) {
        let buffer = read_buffer(file, Extent::page(page))?;
        let is_blank = buffer.iter().take(SECTOR_BYTES).all(|byte| *byte == 0);
        if !is_blank && !Superblock::is_marked(&buffer) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The id of the database for which an unfinished file was begun, if its superblocks have it.
pub(crate) fn begun_database(file: &dyn File) -> Result<Option<[u8; DATABASE_BYTES]>, PoolError> {
    let size = file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
    if size < SUPERBLOCKS * PAGE_SIZE as u64 {
        return Ok(None);
    }
    Ok(find_superblocks(file)?.newest.map(|superblock| superblock.database))
}

/// The state of the two superblocks.
#[derive(Default)]
struct Found {
    newest: Option<Superblock>,
    /// Copies that are damaged, or cannot be read.
    damaged: Vec<PageId>,
    /// The version, if the format is a later one.
    too_new: Option<u32>,
    /// Whether neither was ever a superblock.
    foreign: bool,
}

/// The newer of the sound superblocks, if any.
///
/// # Errors
/// If it belongs to another application or a later version.
pub(crate) fn left_superblock(file: &dyn File, application: &str) -> Result<Option<Superblock>, PoolError> {
    let path = file.description().path.unwrap_or_default();
    // A superblock that cannot be read counts as damaged.
    let Found { newest, too_new, .. } = find_superblocks(file).unwrap_or_default();
    match (newest, too_new) {
        (_, Some(found)) => Err(PoolError::FormatTooNew { path, found, supported: FORMAT_VERSION }),
        (Some(superblock), _) if superblock.application != application_bytes(application) => {
            Err(other_application(path, &superblock, application))
        }
        (newest, None) => Ok(newest),
    }
}

fn other_application(path: PathBuf, superblock: &Superblock, expected: &str) -> PoolError {
    let found = String::from_utf8_lossy(&superblock.application).trim_end_matches('\0').to_owned();
    PoolError::OtherApplication { path, found, expected: expected.to_owned() }
}

/// The copies of the superblock that are damaged, or cannot be read.
pub(crate) fn damaged_superblocks(file: &dyn File) -> Vec<PageId> {
    let found = find_superblocks(file);
    found.map_or_else(|_| (0..SUPERBLOCKS).map(PageId).collect(), |found| found.damaged)
}

fn find_superblocks(file: &dyn File) -> Result<Found, PoolError> {
    let mut found = Found { foreign: true, ..Found::default() };
    let mut perhaps_too_new = None;
    let mut failure = None;
    for page in (0..SUPERBLOCKS).map(PageId) {
        // A superblock that cannot be read counts as damaged, if the other one can be read. One beyond the end of a
        // truncated file tells nothing.
        let decoded = read_buffer(file, Extent::page(page)).map(|buffer| Superblock::decode(&buffer, page));
        let beyond = matches!(&decoded, Err(PoolError::Read { source, .. })
            if source.kind() == std::io::ErrorKind::UnexpectedEof);
        found.foreign &= beyond || matches!(decoded, Ok(Decoded::Foreign));
        match decoded {
            Ok(Decoded::Valid(superblock)) => {
                if found.newest.as_ref().is_none_or(|other| other.generation < superblock.generation) {
                    found.newest = Some(superblock);
                }
                continue;
            }
            Ok(Decoded::TooNew { version, sound: true }) => found.too_new = Some(version),
            Ok(Decoded::TooNew { version, sound: false }) => perhaps_too_new = Some(version),
            Ok(Decoded::Damaged | Decoded::Foreign) => {}
            Err(_) if beyond => {}
            Err(error) => failure = Some(error),
        }
        found.damaged.push(page);
    }
    if found.newest.is_none() {
        found.too_new = found.too_new.or(perhaps_too_new);
        return failure.map_or(Ok(found), Err);
    }
    Ok(found)
}

fn begins_with(file: &dyn File, magic: &[u8]) -> bool {
    read_buffer(file, Extent::page(PageId(0))).is_ok_and(|page| page.starts_with(magic))
}

/// Reads the superblocks of a file and decides whether it can be opened. Returns the newer superblock.
pub(crate) fn inspect(file: &dyn File, path: PathBuf, application: &str) -> Result<Superblock, PoolError> {
    let not_vellum = |why| PoolError::NotVellum { path: path.clone(), why };
    let size = file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
    if is_unfinished(file, application)? {
        return Err(PoolError::Unfinished { path });
    }
    if size < PAGE_SIZE as u64 {
        return Err(not_vellum("it is shorter than a page"));
    }
    // Its second page is a superblock.
    if begins_with(file, b"VELLUMBK") {
        return Err(PoolError::Backup { path });
    }
    let Found { newest, too_new, foreign, .. } = find_superblocks(file)?;
    if let Some(found) = too_new {
        return Err(PoolError::FormatTooNew { path, found, supported: FORMAT_VERSION });
    }
    let Some(mut superblock) = newest else {
        if foreign && begins_with(file, b"VELLUMBK") {
            return Err(not_vellum(
                "it is a backup, of which `vellum restore BACKUP DATABASE`, or `Backup::restore`, makes a database",
            ));
        }
        if foreign {
            return Err(not_vellum("it does not begin with Vellum's superblock"));
        }
        return Err(PoolError::contents(PageId(0), "neither copy of the superblock is intact"));
    };
    if superblock.application != application_bytes(application) {
        return Err(other_application(path, &superblock, application));
    }
    if superblock.state == State::InUse {
        return Err(PoolError::NotClosedCleanly { path, has_log: false });
    }
    if superblock.database == [0; DATABASE_BYTES] {
        // A file of version 1: the first change writes the id.
        superblock.database = random_id();
    }
    let expected = superblock.end.saturating_mul(PAGE_SIZE as u64);
    if size < expected {
        return Err(PoolError::Truncated { path, found: size, expected });
    }
    Ok(superblock)
}

/// Reads the space map of a file that was closed, or that has a log.
pub(crate) fn read_space_map(
    file: &dyn File,
    superblock: &Superblock,
    capacity_pages: u64,
) -> Result<SpaceMap, PoolError> {
    let Some(extent) = superblock.space_map else {
        if superblock.state == State::Logged {
            // Its first checkpoint is still to come.
            return Ok(SpaceMap::new(capacity_pages, SUPERBLOCKS)?);
        }
        return Err(PoolError::contents(superblock.page(), "it names no space map"));
    };
    let contents = |what: String| PoolError::Corruption { extent, fault: Fault::Contents(what) };
    if extent.head.0 < SUPERBLOCKS || extent.head.0.saturating_add(extent.pages as u64) > superblock.end {
        return Err(contents("the superblock says that the space map is here, where it cannot be".into()));
    }
    if extent.pages > space_map_pages(superblock.end) {
        return Err(contents("the superblock says that the space map is here, but that is too long".into()));
    }
    let buffer = read_buffer(file, extent)?;
    let header = verify_header(&buffer, extent)
        .map_err(|fault| PoolError::Corruption { extent, fault: Fault::Header(fault) })?;
    if header.kind != PageKind::SPACE_MAP {
        return Err(contents("the space map should be here".into()));
    }
    let image = buffer.get(HEADER_BYTES..).unwrap_or_default();
    let map = SpaceMap::new(capacity_pages, 0)?;
    map.load_image(superblock.end, image).map_err(contents)?;
    let superblocks = (0..SUPERBLOCKS).all(|page| map.is_extent(Extent::page(PageId(page))));
    if !superblocks || !map.is_extent(extent) {
        return Err(contents("the space map leaves out the superblocks or itself".into()));
    }
    Ok(map)
}

#[cfg(all(test, not(loom)))]
mod tests;
