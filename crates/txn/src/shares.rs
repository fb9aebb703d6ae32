//! Changes of pages, dealt out by their pages to *shares*: what a share has of the log is redone without a look at the others.
//!
//! The analysis deals out what it reads, and [`Kept`] keeps it in memory, as far as there is room for it in the pool, where nothing is
//! yet. What comes after that is read again by the redo.

use std::convert::Infallible;
use vellum_access::{PageRedo, node::NODE_BYTES};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_wal::Record;

/// How many bytes of changes are redone at once: they stay in the processor's cache.
const PART_BYTES: usize = 32 << 10;
/// What a part takes: its last change may go beyond.
const ROOM_BYTES: usize = PART_BYTES + NODE_BYTES;
/// The most shares: each page of one is in the processor's cache when its next change comes, if there are 2 million pages or less.
const SHARES_MAX: usize = 512;
/// Shares may take so small a part of the pool's memory beside it, and what is kept so large a part of the pool.
const BESIDE_PART: usize = 32;
const KEPT_PART: usize = 4;

/// Changes in the order of the log, each preceded by its LSN.
pub(crate) type Part = Vec<u8>;

/// What has been dealt out, and makes no whole part yet.
pub(crate) struct Shares(Vec<Part>);

impl Shares {
    /// For a pool of so many pages.
    pub fn new(pool_pages: usize) -> Self {
        let count = pool_pages * PAGE_SIZE / BESIDE_PART / ROOM_BYTES;
        Self(vec![Part::new(); count.clamp(1, SHARES_MAX)])
    }

    /// Deals out a change of the record at `lsn`. If a part is whole then, `take` is given it, with the number of its share, and gives room for the
    /// next one.
    #[inline]
    pub fn deal<E>(
        &mut self,
        lsn: Lsn,
        PageRedo { page, bytes, .. }: &PageRedo<'_>,
        take: impl FnOnce(usize, Part) -> Result<Part, E>,
    ) -> Result<(), E> {
        // Neighbours often change together, so they are in different shares.
        let number = (page.0 % self.0.len() as u64) as usize;
        let Some(part) = self.0.get_mut(number) else { return Ok(()) };
        part.extend_from_slice(&lsn.0.to_le_bytes());
        part.extend_from_slice(bytes);
        if part.len() >= PART_BYTES {
            *part = take(number, std::mem::take(part))?;
        }
        Ok(())
    }

    /// What is left, by shares.
    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.0.into_iter()
    }
}

/// Room for a part.
pub(crate) fn room() -> Part {
    Part::with_capacity(ROOM_BYTES)
}

/// The changes that are kept in memory: all from the redo point on, up to where memory ends.
pub(crate) struct Kept {
    redo: Lsn,
    shares: Shares,
    /// By shares.
    parts: Vec<Vec<Part>>,
    /// For how many more parts there is room.
    left: usize,
    /// Nothing is kept of the log from here on.
    end: Option<Lsn>,
}

impl Kept {
    /// For a pool of so many pages.
    pub fn new(redo: Lsn, pool_pages: usize) -> Self {
        let shares = Shares::new(pool_pages);
        let left = pool_pages * PAGE_SIZE / KEPT_PART / ROOM_BYTES;
        Self { redo, parts: vec![Vec::new(); shares.0.len()], shares, left, end: None }
    }

    /// Keeps the next change, which is of this record, if there is room for all that the record has.
    #[inline]
    pub fn add(&mut self, record: Record<'_>, change: &PageRedo<'_>) {
        let Self { redo, shares, parts, left, end } = self;
        if record.lsn < *redo || end.is_some_and(|end| end <= record.lsn) {
            return;
        }
        let Ok(()) = shares.deal(record.lsn, change, |share, part| {
            if let Some(parts) = parts.get_mut(share) {
                parts.push(part);
            }
            *left = left.saturating_sub(1);
            let mut next = Part::new();
            // If the system refuses the memory, the log is read again.
            if *left == 0 || next.try_reserve_exact(ROOM_BYTES).is_err() {
                *end = Some(record.end());
            }
            Ok::<_, Infallible>(next)
        });
    }

    /// What each share has, and how many bytes of memory that takes; and from where on nothing is kept of the log.
    pub fn into_parts(self) -> (Vec<(Vec<Part>, usize)>, Option<Lsn>) {
        let with_last = self.parts.into_iter().zip(self.shares.into_parts());
        let shares = with_last.map(|(mut parts, last)| {
            // The last is beside the pool.
            let bytes = parts.len() * ROOM_BYTES;
            parts.push(last);
            (parts, bytes)
        });
        (shares.collect(), self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    /// A change of a page that can be told from others.
    fn change(page: u64, number: u32) -> Vec<u8> {
        /// The tag of freeing as many pages as four bytes say.
        const FREE: u8 = 14;
        [&page.to_le_bytes()[..], &[FREE], &number.to_le_bytes()].concat()
    }

    #[test]
    fn what_is_kept_is_what_was_added_up_to_the_end_in_the_order_of_each_share() {
        let mut random = StdRng::seed_from_u64(3);
        let (redo, pool_pages, payload) = (Lsn(16_000), 4096, [0; 16]);
        let mut kept = Kept::new(redo, pool_pages);
        let mut added = Vec::new();
        for number in 0..500_000 {
            let record = Record { lsn: Lsn(u64::from(number) * 32), payload: &payload };
            // A record may have several changes, and all of them are kept or none.
            for _ in 0..random.random_range(1..3) {
                let bytes = change(random.random_range(0..1000), number);
                let change = PageRedo::decode(&mut &bytes[..]).unwrap();
                kept.add(record, &change);
                added.push((record.lsn, bytes));
            }
        }
        let (shares, end) = kept.into_parts();
        let end = end.expect("a fourth of the pool holds less");
        assert!(end.0 % 32 == 0 && end > Lsn(1 << 20), "{end}");
        let taken: usize = shares.iter().map(|(_, bytes)| bytes).sum();
        let quarter = pool_pages * PAGE_SIZE / 4;
        assert!((quarter - ROOM_BYTES..=quarter).contains(&taken), "{taken}");
        let mut found = Vec::new();
        for (parts, _) in &shares {
            let mut last = Lsn(0);
            for mut part in parts.iter().map(Vec::as_slice) {
                while let Some(lsn) = part.split_off(..8) {
                    let lsn = Lsn(u64::from_le_bytes(lsn.try_into().unwrap()));
                    let change = PageRedo::decode(&mut part).unwrap();
                    assert!(last <= lsn);
                    last = lsn;
                    found.push((lsn, change.bytes.to_vec()));
                }
            }
        }
        added.retain(|(lsn, _)| (redo..end).contains(lsn));
        added.sort();
        found.sort();
        assert!(added == found, "{} were to be kept, {} are", added.len(), found.len());
        assert!(shares.len() > 8);
    }
}
