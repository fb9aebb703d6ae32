//! Which pages of the file are in use. In memory only: what the lab stores is not opened again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_pool::PoolError;
use vellum_vm::File;

/// The first page: none has the number zero, which means "no page".
const FIRST_PAGE: u64 = 2;

/// The file grows by an eighth of its size, and at least by so many pages.
const GROWTH_PAGES_MIN: u64 = 1024;

/// Pages of the file.
#[derive(Default)]
pub struct Space(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Pages from here on were never used; zero before the first.
    end: u64,
    /// Pages that the file has.
    in_file: u64,
    /// Single pages that are free again.
    free: Vec<u64>,
    /// One bit a page: whether it is in use by itself.
    single: Vec<u64>,
    /// Extents of several pages, by their heads.
    extents: HashMap<u64, u32>,
    /// Such that are free again, by their length.
    free_extents: HashMap<u32, Vec<u64>>,
}

impl Inner {
    fn is_single(&self, page: u64) -> bool {
        self.single.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    fn set_single(&mut self, page: u64, used: bool) {
        let index = (page / 64) as usize;
        if index >= self.single.len() {
            self.single.resize(index + 1, 0);
        }
        let bit = 1 << (page % 64);
        if used { self.single[index] |= bit } else { self.single[index] &= !bit }
    }
}

impl Space {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an extent into use.
    ///
    /// # Errors
    /// If the file cannot grow.
    pub fn allocate(&self, pages: u32, file: &dyn File) -> Result<Extent, PoolError> {
        let mut inner = self.lock();
        let again = match pages {
            1 => inner.free.pop(),
            _ => inner.free_extents.get_mut(&pages).and_then(Vec::pop),
        };
        let head = match again {
            Some(head) => head,
            None => {
                let head = inner.end.max(FIRST_PAGE);
                let end = head + u64::from(pages);
                if end > inner.in_file {
                    let wanted = (end + (end / 8).max(GROWTH_PAGES_MIN)) * PAGE_SIZE as u64;
                    file.grow(wanted).map_err(|source| PoolError::StorageFull { bytes: wanted, source })?;
                    inner.in_file = wanted / PAGE_SIZE as u64;
                }
                inner.end = end;
                head
            }
        };
        if pages == 1 {
            inner.set_single(head, true);
        } else {
            inner.extents.insert(head, pages);
        }
        Ok(Extent { head: PageId(head), pages })
    }

    /// Takes an extent out of use; `false` if there is none such.
    pub fn free(&self, extent: Extent) -> bool {
        let mut inner = self.lock();
        let head = extent.head.0;
        if extent.pages == 1 {
            let was = inner.is_single(head);
            if was {
                inner.set_single(head, false);
                inner.free.push(head);
            }
            return was;
        }
        let was = inner.extents.get(&head) == Some(&extent.pages);
        if was {
            inner.extents.remove(&head);
            inner.free_extents.entry(extent.pages).or_default().push(head);
        }
        was
    }

    /// Whether exactly this extent is in use.
    pub fn is_extent(&self, extent: Extent) -> bool {
        let inner = self.lock();
        match extent.pages {
            1 => inner.is_single(extent.head.0),
            pages => inner.extents.get(&extent.head.0) == Some(&pages),
        }
    }

    /// All extents in use.
    #[cfg(test)]
    pub fn extents(&self) -> Vec<Extent> {
        let inner = self.lock();
        let single =
            (0..inner.end).filter(|page| inner.is_single(*page)).map(|page| Extent::page(PageId(page)));
        let others = inner.extents.iter().map(|(head, pages)| Extent { head: PageId(*head), pages: *pages });
        single.chain(others).collect()
    }

    /// How many pages were ever used.
    pub fn pages(&self) -> u64 {
        self.lock().end
    }
}
