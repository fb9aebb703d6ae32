//! The memory of a pool's pages, by whatever method it comes and goes.
//!
//! Three things belong together and are chosen together: the address space, the releaser, which takes memory from pages
//! (and supplies it, where no page fault does), and the file that fills it. With `/dev/exmap` all three go through the
//! device; otherwise the address space is anonymous memory, and the file is used as it is.

use crate::exmap::Exmap;
use crate::exmap_file::ExmapFile;
use crate::{File, Mapping, ReleaseMethod, Releaser, VmError};
use std::sync::Arc;

/// The memory wanted for pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageMemoryOptions {
    /// The address space that is wanted, in bytes.
    pub wanted_bytes: usize,
    /// The least that suffices, if the kernel refuses more.
    pub least_bytes: usize,
    /// The most pages that will have memory at the same time.
    pub resident_pages_max: usize,
    /// The method by which memory comes and goes; if none is given, the best that works here.
    pub method: Option<ReleaseMethod>,
}

/// Address space for pages, and everything that supplies or releases their memory.
///
/// The mapping must outlive all use of the other two on its pages.
#[derive(Debug)]
pub struct PageMemory {
    /// Where the pages live.
    pub pages: Mapping,
    /// Supplies memory to pages and releases it.
    pub releaser: Releaser,
    /// The file, for reads into the pages and everything else.
    pub file: Arc<dyn File>,
}

impl PageMemory {
    /// Reserves address space for the pages of a file. A page's place in the file is also its place in the mapping.
    ///
    /// # Errors
    /// [`VmError::ReleaseUnavailable`] if the requested method does not work here; the errors of
    /// [`Mapping::reserve_up_to`] and [`Mapping::for_pages`].
    pub fn reserve(options: &PageMemoryOptions, file: Arc<dyn File>) -> Result<Self, VmError> {
        let PageMemoryOptions { wanted_bytes, least_bytes, resident_pages_max, method } = *options;
        const PURPOSE: &str = "the pages";
        if method.is_none_or(|method| method == ReleaseMethod::Exmap) {
            Mapping::check(wanted_bytes.max(least_bytes), PURPOSE)?;
            match Exmap::reserve(wanted_bytes, least_bytes, resident_pages_max, file.descriptor(), PURPOSE) {
                Ok((area, pages)) => {
                    let file = Arc::new(ExmapFile::new(file, area.clone()));
                    return Ok(Self { pages, releaser: Releaser::of_exmap(area), file });
                }
                Err(source) if method.is_some() => {
                    return Err(VmError::ReleaseUnavailable { method: ReleaseMethod::Exmap, source });
                }
                // There is no device, or it gives no memory: the other methods do not need it.
                Err(_) => {}
            }
        }
        let releaser = Releaser::new(method)?;
        let pages = Mapping::reserve_up_to(wanted_bytes, least_bytes, PURPOSE)?.for_pages()?;
        Ok(Self { pages, releaser, file })
    }
}
