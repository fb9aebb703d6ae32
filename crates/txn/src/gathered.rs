//! The changes of some parts, gathered by page: each page is found and latched once for all its changes in the parts.
//!
//! Changes before one that initializes a page are not needed, and are left out.

use crate::{TxnError, shares::PartChange};
use std::ops::Range;
use vellum_access::RecordFault;
use vellum_base::{Lsn, PageId};

/// The changes of one page in the parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageChanges {
    pub page: PageId,
    /// Whether the first change initializes the page.
    pub fresh: bool,
    /// The first and the last change, in [`Gathered::changes`].
    first: u32,
    last: u32,
}

/// A change of a page.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Where the change begins in the memory of the parts.
    at: usize,
    /// The next change of the same page, or [`NONE`].
    next: u32,
}

const NONE: u32 = u32::MAX;

/// The gathered changes; reused for the next parts, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct Gathered {
    pages: Vec<PageChanges>,
    changes: Vec<Change>,
    /// An open-addressing table, never more than half full: maps a page to its index in `pages` plus one.
    table: Vec<u32>,
}

impl Gathered {
    /// Gathers the changes of parts, which lie in this memory.
    ///
    /// # Errors
    /// If a change is malformed.
    pub fn gather(
        &mut self,
        memory: &[u8],
        parts: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), TxnError> {
        /// Enough for the pages of most parts.
        const PLACES: usize = 1024;
        self.pages.clear();
        self.changes.clear();
        self.table.clear();
        self.table.resize(PLACES, 0);
        for part in parts {
            let end = part.end;
            let mut rest = memory.get(part).unwrap_or_default();
            while !rest.is_empty() {
                let left = rest.len();
                let malformed = |lsn| TxnError::Record { lsn, fault: RecordFault { left } };
                let change = PartChange::take(&mut rest).ok_or(malformed(Lsn(0)))?;
                let page = change.bytes.first_chunk().ok_or(malformed(change.lsn))?;
                self.add(PageId(u64::from_le_bytes(*page)), change.fresh, end - left);
            }
        }
        Ok(())
    }

    #[inline]
    fn add(&mut self, page: PageId, fresh: bool, at: usize) {
        let number = self.changes.len() as u32;
        self.changes.push(Change { at, next: NONE });
        let (mut slot, mask) = self.slot(page);
        while let Some(index) = self.table.get(slot).and_then(|index| index.checked_sub(1)) {
            match self.pages.get_mut(index as usize) {
                Some(known) if known.page == page => {
                    if fresh {
                        *known = PageChanges { page, fresh, first: number, last: number };
                        return;
                    }
                    let last = std::mem::replace(&mut known.last, number);
                    if let Some(last) = self.changes.get_mut(last as usize) {
                        last.next = number;
                    }
                    return;
                }
                _ => slot = (slot + 1) & mask,
            }
        }
        self.pages.push(PageChanges { page, fresh, first: number, last: number });
        if let Some(slot) = self.table.get_mut(slot) {
            *slot = self.pages.len() as u32;
        }
        if self.pages.len() * 2 > self.table.len() {
            self.grow();
        }
    }

    /// Where the search for a page begins in the table, and the mask of its places.
    #[inline]
    fn slot(&self, page: PageId) -> (usize, usize) {
        let mask = self.table.len().wrapping_sub(1);
        // The golden ratio: the pages of a share are an arithmetic progression.
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> 32) as usize & mask, mask)
    }

    #[cold]
    fn grow(&mut self) {
        let places = self.table.len() * 4;
        self.table.clear();
        self.table.resize(places, 0);
        for (index, of) in self.pages.iter().enumerate() {
            let (mut slot, mask) = self.slot(of.page);
            while self.table.get(slot).is_some_and(|taken| *taken > 0) {
                slot = (slot + 1) & mask;
            }
            if let Some(slot) = self.table.get_mut(slot) {
                *slot = index as u32 + 1;
            }
        }
    }

    /// The pages, ordered by their first changes.
    pub fn pages(&self) -> &[PageChanges] {
        &self.pages
    }

    /// The changes of a page, in order. The memory is that of the parts.
    pub fn changes<'p>(&'p self, of: &PageChanges, memory: &'p [u8]) -> impl Iterator<Item = PartChange<'p>> {
        let mut next = of.first;
        std::iter::from_fn(move || {
            let change = self.changes.get(next as usize)?;
            next = change.next;
            PartChange::take(&mut memory.get(change.at..)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    #[test]
    fn each_page_has_its_changes_in_order_from_the_last_that_makes_it_anew() {
        let mut random = StdRng::seed_from_u64(9);
        let mut gathered = Gathered::default();
        for round in 0..300u64 {
            let (mut part, mut wanted) = (Vec::new(), BTreeMap::<u64, Vec<(u64, bool)>>::new());
            let pages = random.random_range(1..2000);
            for lsn in 0..random.random_range(0..1700) {
                let (page, fresh) = (random.random_range(0..pages) * 512 + round, random.random_ratio(1, 5));
                part.extend_from_slice(&u64::to_le_bytes(lsn));
                part.extend_from_slice(&(9u32 | u32::from(fresh) << 31).to_le_bytes());
                part.extend_from_slice(&page.to_le_bytes());
                part.push(14);
                let of = wanted.entry(page).or_default();
                if fresh {
                    of.clear();
                }
                of.push((lsn, fresh));
            }
            // In two parts, with something else in between.
            let middle = part.len() / 21 / 2 * 21;
            let part = [&part[..middle], &[9; 100], &part[middle..]].concat();
            gathered.gather(&part, [0..middle, middle + 100..part.len()]).unwrap();
            let found = gathered.pages().iter().map(|page| {
                let changes: Vec<_> =
                    gathered.changes(page, &part).map(|change| (change.lsn.0, change.fresh)).collect();
                assert_eq!(changes[0].1, page.fresh);
                (page.page.0, changes)
            });
            let found: Vec<_> = found.collect();
            assert_eq!(found.len(), wanted.len());
            assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), wanted);
        }
    }

    #[test]
    fn a_malformed_part_is_an_error() {
        let mut gathered = Gathered::default();
        let mut gather = |part: &[u8]| {
            gathered.gather(part, std::iter::once(0..part.len())).map(|()| gathered.pages().len())
        };
        assert_eq!(gather(&[]).unwrap(), 0);
        assert!(gather(&[7; 11]).is_err());
        assert!(gather(&[[0; 8].as_slice(), &[7, 0, 0, 0], &[1; 7]].concat()).is_err());
        assert!(gather(&[[0; 8].as_slice(), &[8, 0, 0, 0], &[1; 7]].concat()).is_err());
    }
}
