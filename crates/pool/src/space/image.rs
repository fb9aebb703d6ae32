//! The space map as bytes, as a closed file stores it.
//!
//! For each 64 pages, two little-endian 64-bit words: the allocated bits, then the head bits; the lowest
//! bit is the first page.

use super::SpaceMap;
use vellum_base::Bytes;

impl SpaceMap {
    /// The size of an image of `pages` pages.
    pub(crate) fn image_bytes(pages: u64) -> usize {
        pages.div_ceil(64) as usize * 16
    }

    /// Writes the state of the first `pages` pages, and notes it as the state on storage. Pages that are only claimed
    /// are written as free: the stream that claimed them was leaked, or would be lost in a crash. No thread allocates
    /// or frees meanwhile.
    pub(crate) fn write_image(&self, pages: u64, target: &mut [u8]) {
        self.lock().changed = false;
        self.uses.write_image(pages, target);
    }

    /// Reads the image that [`write_image`](Self::write_image) wrote into an empty map that no other thread uses yet.
    /// An image that contradicts itself is an error, because the bits tell the pool how long an extent is.
    ///
    /// # Errors
    /// What is wrong with the image; the map must then not be used.
    pub(crate) fn load_image(&self, pages: u64, image: &[u8]) -> Result<(), String> {
        if pages > self.capacity_pages {
            return Err("the space map covers more pages than the address space holds".into());
        }
        let image = image.get(..Self::image_bytes(pages)).ok_or("the space map is cut off")?;
        let mut allocated_count = 0;
        let mut last_allocated = false;
        for (index, pair) in image.chunks_exact(16).enumerate() {
            let (allocated, heads) = (pair.u64_at(0), pair.u64_at(8));
            let beyond = pages - index as u64 * 64;
            let outside = if beyond < 64 { u64::MAX << beyond } else { 0 };
            // An allocated page that is not a head continues the page before it, which must be allocated.
            let orphans = allocated & !heads & !((allocated << 1) | last_allocated as u64);
            let wrong = (heads & !allocated) | ((allocated | heads) & outside) | orphans;
            if wrong != 0 {
                let page = index as u64 * 64 + wrong.trailing_zeros() as u64;
                return Err(format!("the space map contradicts itself at page {page}"));
            }
            allocated_count += allocated.count_ones() as u64;
            last_allocated = allocated >> 63 != 0;
            self.uses.store_pair(index, allocated, heads);
        }
        let mut cursor = self.lock();
        (cursor.end, cursor.free) = (pages, pages - allocated_count);
        Ok(())
    }
}
