//! The basis of a copy of a file: its superblock and its space map. A copy into which the pages were copied becomes a
//! file that can be opened.

use crate::{
    error::PoolError,
    file::{
        lifecycle::{read_space_map, space_map_pages, write_buffer, write_superblocks},
        storage::Storage,
        superblock::{Decoded, SUPERBLOCKS, State, Superblock},
    },
    space::SpaceMap,
};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum};
use vellum_vm::{AlignedBuffer, File};

/// The state of a file at a checkpoint: its superblock and its space map.
pub struct CopyBasis {
    superblock: Superblock,
    space: SpaceMap,
}

impl CopyBasis {
    /// The basis at the last checkpoint or close of a file. No checkpoint may be taken meanwhile.
    pub(crate) fn read(storage: &Storage) -> Result<Self, PoolError> {
        let superblock = storage.lock_superblock().clone();
        let space = read_space_map(&*storage.file, &superblock, superblock.end.max(SUPERBLOCKS))?;
        Ok(Self { superblock, space })
    }

    /// The basis of a file whose space map is lost: see [`Remains`](crate::Remains).
    pub(crate) fn made_of(superblock: Superblock, space: SpaceMap) -> Self {
        Self { superblock, space }
    }

    /// All changes before this place of the log are in the copy.
    pub fn redo(&self) -> Lsn {
        self.superblock.redo
    }

    /// The records of everything not committed at the redo point begin at this place or later. Not after the redo
    /// point.
    pub fn undo(&self) -> Lsn {
        self.superblock.undo.min(self.superblock.redo)
    }

    /// The id of the database.
    pub fn database(&self) -> [u8; 16] {
        self.superblock.database
    }

    /// The lives of the database up to now, as far as known: where the log of the one before ended, and its number.
    pub fn lives(&self) -> Vec<(Lsn, u64)> {
        self.superblock.lives.all()
    }

    /// As [`PoolFile::known_lives`](crate::PoolFile::known_lives).
    pub fn known_lives(&self) -> (Vec<u64>, Option<Lsn>) {
        self.superblock.lives.known()
    }

    /// Whether it is known to which history of the database this belongs.
    pub fn knows_history(&self) -> bool {
        !self.superblock.lives.is_empty()
    }

    /// Whether the database has become this from a copy with the basis `former` that holds what was done before `end`: it
    /// is not an older copy of the database that was put back since, or a copy that went on elsewhere.
    pub fn continues(&self, former: &Self, end: Lsn) -> bool {
        self.database() == former.database()
            && self.superblock.lives.continue_from(&former.superblock.lives, end)
    }

    /// Notes in the superblock of the database that it was copied. Whether that changes anything.
    pub(crate) fn note_in(&self, superblock: &mut Superblock) -> bool {
        self.database() == superblock.database && superblock.lives.note_backup_of(&self.superblock.lives)
    }

    /// The number of pages that the space map covers.
    pub fn end(&self) -> u64 {
        self.superblock.end
    }

    /// The number of allocated pages.
    pub fn pages_allocated(&self) -> u64 {
        self.space.allocated_pages()
    }

    /// The first extent of the application that begins at page `from` or later.
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

    /// Whether a page belonged to no extent.
    pub fn is_free(&self, page: PageId) -> bool {
        page.0 >= self.superblock.end || self.space.is_free(page)
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

    /// Decodes the bytes that [`encode`](Self::encode) has made.
    ///
    /// # Errors
    /// If `encode` did not make them, or the system refuses memory.
    pub fn decode(bytes: &[u8]) -> Result<Self, PoolError> {
        let damaged = |what: &str| PoolError::contents(PageId(0), what);
        let (superblock, image) = bytes.split_at_checked(PAGE_SIZE).unwrap_or_default();
        // The generation determines the page, and is covered by the checksum.
        let decoded = (0..SUPERBLOCKS).find_map(|page| match Superblock::decode(superblock, PageId(page)) {
            Decoded::Valid(superblock) => Some(superblock),
            _ => None,
        });
        let superblock = decoded.ok_or_else(|| damaged("the superblock in the backup is damaged"))?;
        let space = SpaceMap::new(superblock.end.max(SUPERBLOCKS), 0)?;
        space.load_image(superblock.end, image).map_err(|what| damaged(&what))?;
        Ok(Self { superblock, space })
    }

    /// Turns a file into which the pages were copied into one that recovery opens: with a log, or as a closed one.
    /// `end` is a page after everything that the log allocates. Makes the file durable. Until
    /// [`renew_database`](crate::renew_database) it is marked as being restored, and only
    /// [`PoolFile::open_restored`](crate::PoolFile::open_restored) opens it.
    ///
    /// # Errors
    /// If it cannot be written, or the system refuses memory.
    pub fn install(&self, file: &dyn File, end: u64, with_log: bool) -> Result<(), PoolError> {
        self.install_as(file, end, with_log, true)
    }

    /// The same, marked or not.
    pub(crate) fn install_as(
        &self,
        file: &dyn File,
        end: u64,
        with_log: bool,
        is_being_restored: bool,
    ) -> Result<(), PoolError> {
        let head = end.max(self.superblock.end);
        let map = Extent { head: PageId(head), pages: space_map_pages(head) };
        let end = map.end().0;
        let space = SpaceMap::new(end, 0)?;
        let bytes = SpaceMap::image_bytes(self.superblock.end);
        let mut image = AlignedBuffer::new(bytes.next_multiple_of(PAGE_SIZE));
        self.space.write_image(self.superblock.end, image.get_mut(..bytes).unwrap_or_default());
        let loaded = space.load_image(self.superblock.end, &image);
        loaded.map_err(|what| PoolError::contents(PageId(0), what))?;
        // The map lies after everything else, where the log allocates nothing.
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
        let mut superblock =
            Superblock { state, space_map: Some(map), end, is_being_restored, ..self.superblock.clone() };
        write_superblocks(file, &mut superblock)
    }
}
