//! Copying a file while it is used, for a backup: what the copy begins with, and what it needs of the pool meanwhile.
//!
//! A copy is fuzzy: pages are copied from storage, each as it is at some moment after a checkpoint. What the log has since
//! the redo point of that checkpoint makes them those of one moment, as after a crash. So a page that is torn in the copy, or
//! was never copied, does no harm if the log tells of it from its beginning.

use crate::{
    error::PoolError,
    file::{
        lifecycle::{inspect, read_space_map, space_map_pages, write_buffer, write_superblocks},
        storage::Storage,
        superblock::{Decoded, SUPERBLOCKS, State, Superblock},
    },
    options::PoolOptions,
    pool::Pool,
    space::SpaceMap,
};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum};
use vellum_vm::{AlignedBuffer, File};

/// What a file was at a checkpoint: its superblock and its space map.
pub struct CopyBasis {
    superblock: Superblock,
    space: SpaceMap,
}

impl CopyBasis {
    /// Of the last checkpoint or close of a file. No checkpoint is taken meanwhile.
    fn read(storage: &Storage) -> Result<Self, PoolError> {
        let superblock = storage.lock_superblock().clone();
        let space = read_space_map(&*storage.file, &superblock, superblock.end.max(SUPERBLOCKS))?;
        Ok(Self { superblock, space })
    }

    /// Of a file whose space map is lost: see [`Remains`](crate::Remains).
    pub(crate) fn made_of(superblock: Superblock, space: SpaceMap) -> Self {
        Self { superblock, space }
    }

    /// All changes before this place of the log are in the copy.
    pub fn redo(&self) -> Lsn {
        self.superblock.redo
    }

    /// What was not committed at that place has its records from this one on. Not after it.
    pub fn undo(&self) -> Lsn {
        self.superblock.undo.min(self.superblock.redo)
    }

    /// The id of the database.
    pub fn database(&self) -> [u8; 16] {
        self.superblock.database
    }

    /// How many pages the space map covers.
    pub fn end(&self) -> u64 {
        self.superblock.end
    }

    /// How many pages are allocated.
    pub fn pages_allocated(&self) -> u64 {
        self.space.allocated_pages()
    }

    /// The first extent of the application that begins at page `from` or behind it.
    pub fn next_extent(&self, from: u64) -> Option<Extent> {
        let mut from = from.max(SUPERBLOCKS);
        loop {
            let extent = self.space.next_extent(from)?;
            if Some(extent) != self.superblock.space_map {
                return Some(extent);
            }
            from = extent.end().0;
        }
    }

    /// Whether exactly this extent was allocated to the application.
    pub fn is_extent(&self, extent: Extent) -> bool {
        Some(extent) != self.superblock.space_map && self.space.is_extent(extent)
    }

    /// The basis as whole pages: a superblock, and the image of the map.
    pub fn encode(&self) -> AlignedBuffer {
        let image = SpaceMap::image_bytes(self.superblock.end);
        let mut bytes = AlignedBuffer::new(PAGE_SIZE + image.next_multiple_of(PAGE_SIZE));
        let (superblock, map) = bytes.split_at_mut(PAGE_SIZE);
        self.superblock.encode(superblock);
        self.space.write_image(self.superblock.end, map.get_mut(..image).unwrap_or_default());
        bytes
    }

    /// What [`encode`](Self::encode) has made.
    ///
    /// # Errors
    /// If it was not made by that, or the system refuses memory.
    pub fn decode(bytes: &[u8]) -> Result<Self, PoolError> {
        let damaged = |what: &str| PoolError::contents(PageId(0), what);
        let (superblock, image) = bytes.split_at_checked(PAGE_SIZE).unwrap_or_default();
        // The generation tells the page, and is part of what the checksum covers.
        let decoded = (0..SUPERBLOCKS).find_map(|page| match Superblock::decode(superblock, PageId(page)) {
            Decoded::Valid(superblock) => Some(superblock),
            _ => None,
        });
        let superblock = decoded.ok_or_else(|| damaged("the superblock in the backup is damaged"))?;
        let space = SpaceMap::new(superblock.end.max(SUPERBLOCKS), 0)?;
        space.load_image(superblock.end, image).map_err(|what| damaged(&what))?;
        Ok(Self { superblock, space })
    }

    /// Makes a file, into which the pages were copied, one that a recovery opens: with a log, or as a closed one. `end` is a
    /// page behind all that the log allocates. Makes it durable.
    ///
    /// # Errors
    /// If it cannot be written, or the system refuses memory.
    pub fn install(&self, file: &dyn File, end: u64, with_log: bool) -> Result<(), PoolError> {
        let head = end.max(self.superblock.end);
        let map = Extent { head: PageId(head), pages: space_map_pages(head) };
        let end = map.end().0;
        let space = SpaceMap::new(end, 0)?;
        let bytes = SpaceMap::image_bytes(self.superblock.end);
        let mut image = AlignedBuffer::new(bytes.next_multiple_of(PAGE_SIZE));
        self.space.write_image(self.superblock.end, image.get_mut(..bytes).unwrap_or_default());
        let loaded = space.load_image(self.superblock.end, &image);
        loaded.map_err(|what| PoolError::contents(PageId(0), what))?;
        // The map lies behind everything, where the log allocates nothing.
        self.superblock.space_map.map(|before| space.free(before));
        space.note_allocated(map);
        let grown = file.grow(end * PAGE_SIZE as u64);
        grown.map_err(|source| PoolError::StorageFull { bytes: end * PAGE_SIZE as u64, source })?;
        let mut buffer = AlignedBuffer::new(map.bytes());
        let target = buffer.get_mut(HEADER_BYTES..).unwrap_or_default();
        space.write_image(end, target.get_mut(..SpaceMap::image_bytes(end)).unwrap_or_default());
        PageHeader { extent: map, lsn: Lsn(0), kind: PageKind::SPACE_MAP }.write(&mut buffer);
        stamp_checksum(&mut buffer);
        write_buffer(file, map, &buffer)?;
        file.sync().map_err(PoolError::Sync)?;
        let state = if with_log { State::Logged } else { State::Closed };
        let mut superblock = Superblock { state, space_map: Some(map), end, ..self.superblock.clone() };
        write_superblocks(file, &mut superblock)
    }
}

impl Pool {
    /// What a copy of the file begins with: its last checkpoint or close. The caller sees to it that no checkpoint is taken
    /// meanwhile.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn copy_basis(&self) -> Result<CopyBasis, PoolError> {
        CopyBasis::read(self.allocator().storage())
    }

    /// Whether the superblocks say that the file is in use: something was changed, or perhaps not.
    pub fn is_in_use(&self) -> bool {
        self.allocator().storage().is_in_use()
    }

    /// Makes the file say that it is in use, so that a checkpoint is taken even if nothing was changed since it was closed.
    ///
    /// # Errors
    /// If its superblocks cannot be written.
    pub fn mark_in_use(&self) -> Result<(), PoolError> {
        self.allocator().evictor().admit_changes()
    }

    /// Reads pages from storage past the pool, whatever is there. The buffer begins and ends at a multiple of a page.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read_stored(&self, first: PageId, buffer: &mut [u8]) -> Result<(), PoolError> {
        let extent = Extent { head: first, pages: (buffer.len() / PAGE_SIZE) as u32 };
        let read = self.allocator().storage().file.read_to(first.offset(), buffer);
        read.map_err(|source| PoolError::Read { extent, source })
    }

    /// What is freed from now on is not used again until the answer is dropped, or the file is full. One at a time.
    pub fn hold_space(&self) -> HeldSpace<'_> {
        let held = HeldSpace(self.allocator().storage());
        held.again();
        held
    }
}

/// Space that is freed and not used again, because a copy of it is being made.
#[must_use = "the space is used again at once"]
pub struct HeldSpace<'p>(&'p Storage);

impl HeldSpace<'_> {
    /// Whether nothing of it has been used again, because the file was full.
    pub fn is_intact(&self) -> bool {
        self.0.logged().is_none_or(|logged| logged.is_held())
    }

    /// Begins again.
    pub fn again(&self) {
        if let Some(logged) = self.0.logged() {
            logged.hold();
        }
    }
}

impl Drop for HeldSpace<'_> {
    fn drop(&mut self) {
        if let Some(logged) = self.0.logged() {
            logged.release_held();
        }
    }
}

/// Gives the database in a closed file another id: it has been restored, and what it was goes on elsewhere, or did.
///
/// # Errors
/// If the file was not closed, or cannot be written.
pub fn renew_database(file: &dyn File, options: &PoolOptions) -> Result<(), PoolError> {
    let path = file.description().path.unwrap_or_default();
    let mut superblock = inspect(file, path.clone(), &options.application)?;
    if superblock.state != State::Closed {
        return Err(PoolError::NotClosedCleanly { path, has_log: true });
    }
    superblock.renew_database();
    write_superblocks(file, &mut superblock)
}
