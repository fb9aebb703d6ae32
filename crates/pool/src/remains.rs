//! What is left of damaged superblocks and space maps of a file, and new ones made from the results of a scan.
//!
//! Nothing here changes the damaged file: the new ones are written over it in memory (`OverlayFile`).

use crate::{
    error::PoolError,
    file::{
        copy_basis::CopyBasis,
        lifecycle::{damaged_superblocks, left_superblock},
        superblock::{ROOTS, State, Superblock},
    },
    options::PoolOptions,
    space::SpaceMap,
};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_vm::File;

/// The remains of a file's superblocks.
pub struct Remains {
    /// The newer of the sound superblocks.
    superblock: Option<Superblock>,
    application: String,
}

impl Remains {
    /// Reads the superblocks.
    ///
    /// # Errors
    /// If one belongs to another application or a later version, or the file is no database; or they cannot be read.
    pub fn of(file: &dyn File, options: &PoolOptions) -> Result<Self, PoolError> {
        let superblock = left_superblock(file, &options.application)?;
        Ok(Self { superblock, application: options.application.clone() })
    }

    /// The copies of the superblock in a file that are damaged, or cannot be read.
    pub fn damaged_superblocks(file: &dyn File) -> Vec<PageId> {
        damaged_superblocks(file)
    }

    /// Whether a superblock is sound: then the application's roots are known, and whether the file was closed.
    pub fn has_superblock(&self) -> bool {
        self.superblock.is_some()
    }

    /// A root of the application, if known.
    pub fn root_slot(&self, slot: usize) -> Option<u64> {
        self.superblock.as_ref().and_then(|superblock| superblock.roots.get(slot)).copied()
    }

    /// The first page that a new file allocates.
    pub fn first_page() -> PageId {
        PageId(crate::file::superblock::SUPERBLOCKS)
    }

    /// Writes superblocks, and after all pages of the file a space map in which these extents are allocated. If no
    /// superblock is left, the file becomes a closed one, with one root, in slot 0.
    ///
    /// # Errors
    /// If they cannot be written, or the system refuses memory.
    pub fn rebuild(
        &self,
        file: &dyn File,
        allocated: impl IntoIterator<Item = Extent>,
        root: PageId,
    ) -> Result<(), PoolError> {
        let size =
            file.size().map_err(|source| PoolError::Read { extent: Extent::page(PageId(0)), source })?;
        let end = size / PAGE_SIZE as u64;
        let space = SpaceMap::new(end, 0)?;
        for extent in (0..Self::first_page().0).map(|page| Extent::page(PageId(page))).chain(allocated) {
            space.note_allocated(extent);
        }
        let (state, mut roots) = (State::Closed, [0; ROOTS]);
        if let Some(first) = roots.first_mut() {
            *first = root.0;
        }
        let known = self.superblock.clone();
        let with_log = known.as_ref().is_some_and(|superblock| superblock.state == State::Logged);
        let mut superblock = known.unwrap_or_else(|| Superblock::of_new(&self.application));
        if self.superblock.is_none() {
            superblock = Superblock { state, roots, ..superblock };
        }
        CopyBasis::made_of(Superblock { space_map: None, end, ..superblock }, space)
            .install_as(file, end, with_log, false)
    }
}
