//! Changes of pages, dealt out by page to *shares*: each share of the log is redone independently of the others.
//!
//! The analysis deals out what it reads. [`Kept`] keeps that in memory, as far as the pool, which is still empty, has
//! room for it. The redo reads the rest again.
//!
//! A *part* is some changes of a share, in log order and in one piece. Each change is its LSN (8 bytes), its length and
//! whether it initializes its page (4 bytes), and its encoding, without the value before, which redo does not need.

use std::ops::Range;
use vellum_access::{PageRedo, RedoBytes, node::NODE_BYTES};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_pool::{Pool, SetAside};
use vellum_vm::{LargeBuffer, prefetch_to_write};
use vellum_wal::Record;

/// How many bytes of changes are redone at once: so many stay in the processor's cache.
const PART_BYTES: usize = 32 << 10;
/// The room of a part: its last change may go beyond `PART_BYTES`.
const ROOM_BYTES: usize = PART_BYTES + NODE_BYTES;
/// The most shares: up to 2 million pages, a page of a share is still in the processor's cache at its next change.
const SHARES_MAX: usize = 512;
/// The fewest shares, in the smallest pool: a page that is needed does not wait for all others.
const SHARES_MIN: usize = 8;
/// What unfinished parts may take, as a fraction of the pool, on top of it; and what is kept, out of the pool.
const BESIDE_PART: usize = 32;
const KEPT_PART: usize = 4;
/// Most changes take fewer bytes.
const NEXT_BYTES: usize = 128;

/// The bytes of a change before its encoding.
const HEAD_BYTES: usize = 12;
/// The bit of the length that says that a change initializes its page.
const FRESH: u32 = 1 << 31;

/// A change in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartChange<'p> {
    pub lsn: Lsn,
    /// Whether it initializes its page.
    pub fresh: bool,
    /// Its encoding, which [`PageRedo::decode`] reads.
    pub bytes: &'p [u8],
}

impl<'p> PartChange<'p> {
    fn head(lsn: Lsn, change: &PageRedo<'_>, bytes: &RedoBytes<'_>) -> [u8; HEAD_BYTES] {
        let length = bytes.len() as u32 | if change.fresh { FRESH } else { 0 };
        let mut head = [0; HEAD_BYTES];
        let (first, last) = head.split_at_mut(size_of::<u64>());
        first.copy_from_slice(&lsn.0.to_le_bytes());
        last.copy_from_slice(&length.to_le_bytes());
        head
    }

    /// Takes the first change off a part; `None` at its end.
    #[inline]
    pub fn take(part: &mut &'p [u8]) -> Option<Self> {
        let (lsn, rest) = part.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = u32::from_le_bytes(*length);
        let (bytes, rest) = rest.split_at_checked((length & !FRESH) as usize)?;
        *part = rest;
        Some(Self { lsn: Lsn(u64::from_le_bytes(*lsn)), fresh: length & FRESH != 0, bytes })
    }
}

/// How many shares a pool of `pool_pages` has.
fn count(pool_pages: usize) -> usize {
    (pool_pages * PAGE_SIZE / BESIDE_PART / ROOM_BYTES).clamp(SHARES_MIN, SHARES_MAX)
}

/// The share of a change, out of `shares`.
fn share_of(change: &PageRedo<'_>, shares: usize) -> usize {
    // Neighbours often change together, so they are put into different shares.
    (change.page.0 % shares as u64) as usize
}

/// What has been dealt out and does not fill a part yet.
pub(crate) struct Shares(Vec<Vec<u8>>);

impl Shares {
    /// For a pool of `pool_pages`.
    pub fn new(pool_pages: usize) -> Self {
        Self(vec![Vec::new(); count(pool_pages)])
    }

    /// Deals out a change of the record at `lsn`. If that fills a part, `take` is given the part and its share's
    /// number.
    #[inline]
    pub fn deal<E>(
        &mut self,
        lsn: Lsn,
        change: &PageRedo<'_>,
        take: impl FnOnce(usize, Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let number = share_of(change, self.0.len());
        let Some(part) = self.0.get_mut(number) else { return Ok(()) };
        let bytes = change.redo_bytes();
        part.extend_from_slice(&PartChange::head(lsn, change, &bytes));
        part.extend_from_slice(bytes.first);
        part.extend_from_slice(bytes.last);
        if part.len() >= PART_BYTES {
            take(number, std::mem::replace(part, Vec::with_capacity(ROOM_BYTES)))?;
        }
        Ok(())
    }

    /// The unfinished parts, by share.
    pub fn into_parts(self) -> impl Iterator<Item = Vec<u8>> {
        self.0.into_iter()
    }
}

/// The changes that are kept in memory: all from the redo point on, as far as memory goes.
pub(crate) struct Kept {
    redo: Lsn,
    /// Rooms for parts, one after the other; `None` if the system refuses the memory.
    memory: Option<LargeBuffer>,
    /// By share: the room of the unfinished part, and how many bytes it has.
    open: Vec<(usize, usize)>,
    /// The share of each full part, and the part.
    whole: Vec<(usize, KeptPart)>,
    /// How many rooms there are.
    rooms: usize,
    /// Nothing is kept of the log from here on.
    end: Option<Lsn>,
}

/// Where a kept part lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPart {
    room: usize,
    bytes: usize,
}

/// What was kept, by share.
pub(crate) struct KeptParts {
    /// The parts of each share, in order.
    pub shares: Vec<Vec<KeptPart>>,
    /// Their memory, and how many bytes of it are not in [addition](BESIDE_PART) to the pool.
    pub memory: Option<(LargeBuffer, usize)>,
    /// Nothing is kept of the log from here on.
    pub end: Option<Lsn>,
}

impl KeptPart {
    /// Where the part lies in the memory of all parts.
    pub fn range(&self) -> Range<usize> {
        let from = self.room * ROOM_BYTES;
        from..from + self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// The memory of what was kept. The pool must do without it until this is dropped; the memory is freed first.
pub(crate) struct KeptMemory {
    parts: Option<LargeBuffer>,
    _aside: Option<SetAside>,
}

impl KeptMemory {
    /// This memory, and how many bytes of it the pool must do without.
    pub fn of(pool: &Pool, memory: Option<(LargeBuffer, usize)>) -> Self {
        let (parts, aside) = memory.map(|(parts, bytes)| (parts, pool.set_aside(bytes))).unzip();
        Self { parts, _aside: aside.flatten() }
    }

    pub fn bytes(&self) -> &[u8] {
        self.parts.as_deref().unwrap_or_default()
    }
}

impl Kept {
    /// For a pool of `pool_pages`.
    pub fn new(redo: Lsn, pool_pages: usize) -> Self {
        let shares = count(pool_pages);
        let rooms = shares + pool_pages * PAGE_SIZE / KEPT_PART / ROOM_BYTES;
        Self {
            redo,
            memory: None,
            open: (0..shares).map(|room| (room, 0)).collect(),
            whole: Vec::new(),
            rooms,
            end: None,
        }
    }

    /// Keeps the next change, one of this record, if there is room for all changes of the record.
    #[inline]
    pub fn add(&mut self, record: Record<'_>, change: &PageRedo<'_>) {
        if record.lsn < self.redo || self.end.is_some_and(|end| end <= record.lsn) {
            return;
        }
        let share = share_of(change, self.open.len());
        if self.memory.is_none() {
            self.memory = LargeBuffer::new(self.rooms * ROOM_BYTES, "the log that is redone").ok();
            if self.memory.is_none() {
                // The log will be read again.
                self.end = Some(record.lsn);
                return;
            }
        }
        let bytes = change.redo_bytes();
        let pieces = [&PartChange::head(record.lsn, change, &bytes)[..], bytes.first, bytes.last];
        let length = HEAD_BYTES + bytes.len();
        if self.open.get(share).is_some_and(|(_, used)| used + length > ROOM_BYTES) {
            self.close(share);
        }
        let Some(((room, used), memory)) = self.open.get_mut(share).zip(self.memory.as_mut()) else { return };
        let from = *room * ROOM_BYTES;
        let mut place = memory.get_mut(from + *used..from + ROOM_BYTES).unwrap_or_default();
        if place.len() < length {
            // There is no other room. What was kept of the record is redone twice, which the pages' LSNs show.
            self.end = Some(record.lsn);
            return;
        }
        for piece in pieces {
            let Some((target, rest)) = place.split_at_mut_checked(piece.len()) else { break };
            target.copy_from_slice(piece);
            place = rest;
        }
        *used += length;
        // Memory answers before the share's next change comes.
        let next = memory.get(from + *used..from + ROOM_BYTES).unwrap_or_default();
        prefetch_to_write(next.as_ptr(), NEXT_BYTES.min(next.len()));
        if *used >= PART_BYTES && self.end.is_none() && !self.close(share) {
            self.end = Some(record.end());
        }
    }

    /// Ends the part of a share, and begins the next one in another room; false if there is none.
    fn close(&mut self, share: usize) -> bool {
        let next = self.open.len() + self.whole.len();
        let Some((room, bytes)) = self.open.get_mut(share).filter(|_| next < self.rooms) else {
            return false;
        };
        self.whole.push((share, KeptPart { room: *room, bytes: *bytes }));
        (*room, *bytes) = (next, 0);
        true
    }

    /// What was kept.
    pub fn into_parts(self) -> KeptParts {
        let bytes = self.whole.len() * ROOM_BYTES;
        let mut shares = vec![Vec::new(); self.open.len()];
        for (share, part) in self.whole {
            shares.get_mut(share).into_iter().for_each(|parts: &mut Vec<_>| parts.push(part));
        }
        for (parts, (room, bytes)) in shares.iter_mut().zip(self.open) {
            parts.push(KeptPart { room, bytes });
        }
        KeptParts { shares, memory: self.memory.map(|memory| (memory, bytes)), end: self.end }
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
        let KeptParts { shares, memory, end } = kept.into_parts();
        let end = end.expect("a fourth of the pool holds less");
        assert!(end.0 % 32 == 0 && end > Lsn(1 << 20), "{end}");
        let (memory, taken) = memory.unwrap();
        let quarter = pool_pages * PAGE_SIZE / 4;
        assert!((quarter - ROOM_BYTES..=quarter).contains(&taken), "{taken}");
        let mut found = Vec::new();
        for parts in &shares {
            let mut last = Lsn(0);
            for mut part in parts.iter().map(|part| &memory[part.range()]) {
                while let Some(PartChange { lsn, fresh: false, bytes }) = PartChange::take(&mut part) {
                    assert!(last <= lsn);
                    last = lsn;
                    found.push((lsn, bytes.to_vec()));
                }
                assert!(part.is_empty());
            }
        }
        added.retain(|(lsn, _)| (redo..end).contains(lsn));
        added.sort();
        found.sort();
        assert!(added == found, "{} were to be kept, {} are", added.len(), found.len());
        assert!(shares.len() > 8);
    }

    /// A node that is made anew.
    pub(crate) fn format(page: u64, bytes: usize) -> Vec<u8> {
        const FORMAT: u8 = 12;
        let run = |bytes: usize| [&(bytes as u16).to_le_bytes()[..], &vec![7; bytes]].concat();
        [&page.to_le_bytes()[..], &[FORMAT], &run(100), &run(bytes)].concat()
    }

    #[test]
    fn a_record_that_does_not_fit_is_kept_in_part_and_read_again() {
        let (pool_pages, payload) = (64, [0; 16]);
        let mut kept = Kept::new(Lsn(0), pool_pages);
        let bytes = format(1, 3000);
        let change = PageRedo::decode(&mut &bytes[..]).unwrap();
        for number in 0..1000 {
            let record = Record { lsn: Lsn(number * 32), payload: &payload };
            (0..4).for_each(|_| kept.add(record, &change));
        }
        let KeptParts { shares, memory, end } = kept.into_parts();
        let (memory, end) = (memory.unwrap().0, end.unwrap());
        let mut counts = std::collections::BTreeMap::new();
        for mut part in shares.iter().flatten().map(|part| &memory[part.range()]) {
            while let Some(PartChange { lsn, fresh, bytes: kept }) = PartChange::take(&mut part) {
                assert!(fresh && kept == bytes);
                *counts.entry(lsn).or_insert(0) += 1;
            }
        }
        assert!(end.0 > 0 && counts.range(..end).all(|(_, count)| *count == 4), "{end}: {counts:?}");
        assert_eq!(counts.range(..end).count() as u64, end.0 / 32);
    }
}
