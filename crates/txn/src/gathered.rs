//! The changes of a part, gathered by their pages: each page is found and latched once for all that the part has of it.
//!
//! What is before a change that makes a page anew is needless, and left out.

use crate::{TxnError, shares::PartChange};
use vellum_access::RecordFault;
use vellum_base::{Lsn, PageId};

/// The least bytes that a change takes of a part: no encoding of a change is shorter than a page and a tag.
const CHANGE_BYTES_MIN: usize = 12 + 9;

/// The changes of one page in a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageChanges {
    pub page: PageId,
    /// Whether the first one makes the page anew.
    pub fresh: bool,
    /// The first and the last one, in [`Gathered::changes`].
    first: u32,
    last: u32,
}

/// A change of a page.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Where it begins in the part.
    at: u32,
    /// The next one of the same page, or [`NONE`].
    next: u32,
}

const NONE: u32 = u32::MAX;

/// What is gathered; it is used again for the next part, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct Gathered {
    pages: Vec<PageChanges>,
    changes: Vec<Change>,
    /// An open-addressing table: of a page, its index in `pages` plus one.
    table: Vec<u32>,
}

impl Gathered {
    /// Gathers the changes of a part.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn gather(&mut self, part: &[u8]) -> Result<(), TxnError> {
        self.pages.clear();
        self.changes.clear();
        self.table.clear();
        // Never more than half full.
        self.table.resize((part.len() / CHANGE_BYTES_MIN * 2 + 2).next_power_of_two(), 0);
        let mut rest = part;
        while !rest.is_empty() {
            let at = (part.len() - rest.len()) as u32;
            let malformed =
                |lsn| TxnError::Record { lsn, fault: RecordFault { left: part.len() - at as usize } };
            let change = PartChange::take(&mut rest).ok_or(malformed(Lsn(0)))?;
            let page = change.bytes.first_chunk().ok_or(malformed(change.lsn))?;
            self.add(PageId(u64::from_le_bytes(*page)), change.fresh, at);
        }
        Ok(())
    }

    #[inline]
    fn add(&mut self, page: PageId, fresh: bool, at: u32) {
        let number = self.changes.len() as u32;
        self.changes.push(Change { at, next: NONE });
        let mask = self.table.len().wrapping_sub(1);
        // The golden ratio: the pages of a share are an arithmetic progression.
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (hash >> 32) as usize & mask;
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
    }

    /// The pages, in the order of their first changes.
    pub fn pages(&self) -> &[PageChanges] {
        &self.pages
    }

    /// The changes of a page in their order.
    pub fn changes<'p>(&'p self, of: &PageChanges, part: &'p [u8]) -> impl Iterator<Item = PartChange<'p>> {
        let mut next = of.first;
        std::iter::from_fn(move || {
            let change = self.changes.get(next as usize)?;
            next = change.next;
            PartChange::take(&mut part.get(change.at as usize..)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;
    use vellum_access::PageRedo;

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
            gathered.gather(&part).unwrap();
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
        assert!(gathered.gather(&[]).is_ok() && gathered.pages().is_empty());
        assert!(gathered.gather(&[7; 11]).is_err());
        assert!(gathered.gather(&[[0; 8].as_slice(), &[7, 0, 0, 0], &[1; 7]].concat()).is_err());
        assert!(gathered.gather(&[[0; 8].as_slice(), &[8, 0, 0, 0], &[1; 7]].concat()).is_err());
    }

    #[test]
    fn no_change_is_shorter_than_the_table_is_made_for() {
        for tag in 0..=u8::MAX {
            assert!(PageRedo::decode(&mut &[&[0; 8][..], &[tag]].concat()[..]).is_err());
        }
    }
}
