//! Free blocks: handing them out, and returning the last ones to the file system.
//!
//! Only one word of this is persistent: how many blocks have ever been handed out, so that recovery need not examine
//! the rest of the file. It is raised, durably, before a block beyond it is used, by several blocks at a time.
//! Everything else follows from the contents of the blocks.
//!
//! Lock order: `growing`, then `inner`; never the other way.

use crate::{
    blocks::{BlockWord, State},
    cpu,
    error::Result,
    layout::{BLOCKS_END_AT, Geometry, checked_number},
    lock::LOCK_MASK,
    mapping::Mapping,
    medium::{Lane, Medium, Site},
    memory::WORD,
};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};
use vellum_base::PAGE_SIZE;

/// The medium grows ahead of writers that need no more time than this for a byte, in nanoseconds: 32 MiB a second.
const FAST_NANOS: u64 = 30;
/// For this long after a growth, room for another one is not returned to the system.
const SOON: Duration = Duration::from_secs(1);

/// A block that a client returned before it was full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partial {
    /// The block.
    pub block: u64,
    /// The format's record of its unused part.
    pub spare: Box<[u64]>,
}

/// The purpose for which a block is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A client, for new records.
    Write,
    /// Reclaiming, which frees more than it takes, and for which the last block is reserved.
    Reclaim,
}

/// The blocks of a store.
#[derive(Debug)]
pub struct Space {
    table: Mapping,
    geometry: Geometry,
    /// By how many blocks the number recorded on the medium is raised at a time.
    step: u64,
    growing: Mutex<LastGrowth>,
    inner: Mutex<Inner>,
    /// Blocks that were returned to the file system.
    returned: AtomicU64,
    /// The thread that grows the medium ahead of writers, if there is one.
    grower: OnceLock<Thread>,
    /// When a block that ends beyond this byte is handed out, it is time to ask that thread.
    scarce_from: AtomicU64,
    /// If that happens later than this, it is not asked. In nanoseconds since this began.
    fast_until: AtomicU64,
    is_asked: AtomicBool,
    begun: Instant,
}

/// When the medium last grew, and by how much.
#[derive(Debug, Default)]
struct LastGrowth {
    at: Option<Instant>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Inner {
    free: BTreeSet<u64>,
    partial: Vec<Partial>,
    /// The block after the last that was handed out.
    end: u64,
    /// The recorded value of `end`.
    recorded: u64,
    /// From this block on the medium has grown since it was opened, and nothing was written there.
    fresh_from: u64,
}

/// The numbers of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceCounts {
    /// Blocks handed out and not returned to the file system.
    pub blocks: u64,
    /// Of these, those that are not in use.
    pub free: u64,
    /// Blocks that clients returned before they were full.
    pub partial: u64,
    /// Blocks that were returned to the file system so far.
    pub returned: u64,
}

impl Space {
    /// The space of a store of at most `bytes_max` bytes, of which nothing is known yet.
    ///
    /// # Errors
    /// If there is not enough address space.
    pub fn new(geometry: Geometry, bytes_max: u64, step: u64) -> Result<Self> {
        let words = geometry.blocks_in(bytes_max) + 1;
        let bytes = usize::try_from(words * 8).unwrap_or(usize::MAX / 2).next_multiple_of(PAGE_SIZE);
        Ok(Self {
            table: Mapping::reserve(bytes, "the table of blocks")?,
            geometry,
            step,
            growing: Mutex::default(),
            inner: Mutex::default(),
            returned: AtomicU64::new(0),
            grower: OnceLock::new(),
            scarce_from: AtomicU64::new(u64::MAX),
            fast_until: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            begun: Instant::now(),
        })
    }

    /// The word of a block.
    #[inline]
    pub fn block(&self, block: u64) -> BlockWord<'_, AtomicU64> {
        assert!((block as usize) < self.table.len() / 8, "a block beyond the store");
        // SAFETY: the word lies in the mapping, is aligned, reads as zero until it is written, lives as long as this, and is
        // only ever accessed atomically.
        BlockWord(unsafe { &*self.table.base().as_ptr().cast::<AtomicU64>().add(block as usize) })
    }

    /// Prefetches the word of a block that is about to be changed.
    #[inline]
    pub fn prefetch(&self, block: u64) {
        cpu::prefetch_to_write(self.block(block).0.as_ptr().cast());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Changes of the lists are single operations: after a panic elsewhere the lists are right, or a block stays
        // unused.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_growing(&self) -> MutexGuard<'_, LastGrowth> {
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what recovery found; `held_bytes` is the size of the medium before anything grew.
    pub fn restore(
        &self,
        end: u64,
        free: impl IntoIterator<Item = u64>,
        partial: Vec<Partial>,
        held_bytes: u64,
    ) {
        let mut inner = self.lock();
        inner.fresh_from = end.max(held_bytes.div_ceil(self.geometry.block_bytes()));
        inner.end = end;
        inner.recorded = end;
        inner.free = free.into_iter().collect();
        inner.partial = partial;
    }

    /// The block after the last that was handed out.
    pub fn end(&self) -> u64 {
        self.lock().end
    }

    /// The present numbers of blocks.
    pub fn counts(&self) -> SpaceCounts {
        let inner = self.lock();
        SpaceCounts {
            blocks: inner.end.saturating_sub(self.geometry.first_block()),
            free: inner.free.len() as u64,
            partial: inner.partial.len() as u64,
            returned: self.returned.load(Ordering::Relaxed),
        }
    }

    /// Takes a block that a client returned before it was full.
    pub fn take_partial(&self) -> Option<Partial> {
        self.lock().partial.pop()
    }

    /// Closes unfinished blocks that are worth it, so that they are compacted, or free.
    pub fn close_partial(&self, is_worth_it: impl Fn(u64) -> bool) {
        let mut inner = self.lock();
        let (close, keep) =
            std::mem::take(&mut inner.partial).into_iter().partition(|p| is_worth_it(p.block));
        inner.partial = keep;
        drop(inner);
        let close: Vec<Partial> = close;
        close.iter().for_each(|partial| self.close(partial.block));
    }

    /// Closes a block if it waits for another client.
    pub fn close_partial_at(&self, block: u64) {
        let mut inner = self.lock();
        let before = inner.partial.len();
        inner.partial.retain(|partial| partial.block != block);
        let found = inner.partial.len() < before;
        drop(inner);
        if found {
            self.close(block);
        }
    }

    /// The last block that is not free, and how many free ones there are before it.
    pub fn last_used(&self) -> Option<(u64, u64)> {
        let inner = self.lock();
        let trailing = inner.trailing();
        let last =
            (inner.end - trailing).checked_sub(1).filter(|last| *last >= self.geometry.first_block())?;
        Some((last, inner.free.len() as u64 - trailing))
    }

    /// Returns a block that is not full, if it still belongs to the client.
    pub fn give_back_partial(&self, partial: Partial, client: u16) {
        if self.block(partial.block).leave(client) {
            self.lock().partial.push(partial);
        }
    }

    /// Hands out `count` consecutive blocks, still marked as free; also returns whether they are known to read as
    /// zeroes.
    ///
    /// # Errors
    /// [`PmemError::Full`](crate::PmemError::Full), or if the end cannot be made durable.
    pub fn take_run<M: Medium>(
        &self,
        medium: &M,
        lane: &mut Lane,
        count: u64,
        purpose: Purpose,
    ) -> Result<(u64, bool)> {
        // Writers leave one block, without which reclaiming could not start when space has run out.
        let left = u64::from(purpose == Purpose::Write);
        loop {
            let mut inner = self.lock();
            let room = self.geometry.blocks_in(medium.capacity()).saturating_sub(inner.end);
            if inner.free.len() as u64 + room >= count + left {
                if let Some(first) = inner.take_free(count) {
                    return Ok((first, false));
                }
                let trailing = inner.trailing();
                let start = inner.end - trailing;
                if trailing + room >= count && inner.free.len() as u64 + room >= count + left {
                    let end = inner.end;
                    inner.remove_run(start, end);
                    inner.end = start + count;
                    let is_fresh = start >= inner.fresh_from;
                    self.record_end(&mut inner, medium, lane)?;
                    inner.fresh_from = inner.fresh_from.max(inner.end);
                    self.ask_for_room(inner.end);
                    return Ok((start, is_fresh));
                }
            }
            let needed = self.geometry.block_at(inner.end - inner.trailing() + count + left);
            let needed = needed.max(medium.capacity() + 1);
            drop(inner);
            self.grow(medium, needed)?;
        }
    }

    /// Grows the medium to at least `to` bytes.
    fn grow<M: Medium>(&self, medium: &M, to: u64) -> Result<()> {
        let mut last = self.lock_growing();
        let before = medium.capacity();
        medium.grow(to)?;
        let capacity = medium.capacity();
        if capacity > before {
            let bytes = capacity - before;
            *last = LastGrowth { at: Some(Instant::now()), bytes };
            self.watch_room(capacity);
        }
        Ok(())
    }

    /// Begins to watch how fast what is left of a medium of `capacity` bytes is used up.
    pub fn watch_room(&self, capacity: u64) {
        let half = capacity.saturating_sub(self.geometry.block_at(self.end())) / 2;
        let now = self.begun.elapsed().as_nanos() as u64;
        // Relaxed: hints.
        self.fast_until.store(now + half * FAST_NANOS, Ordering::Relaxed);
        self.scarce_from.store(capacity - half, Ordering::Relaxed);
    }

    /// Asks for more room if writers have used up half of it fast, now that the blocks before `end` are handed out.
    fn ask_for_room(&self, end: u64) {
        // Relaxed, here and where the thread is asked: waking a thread and being woken order what was stored before.
        let scarce_from = self.scarce_from.load(Ordering::Relaxed);
        if self.geometry.block_at(end) <= scarce_from {
            return;
        }
        let Some(thread) = self.grower.get() else { return };
        let order = Ordering::Relaxed;
        // Once for each growth.
        if self.scarce_from.compare_exchange(scarce_from, u64::MAX, order, order).is_ok()
            && self.begun.elapsed().as_nanos() < u128::from(self.fast_until.load(order))
        {
            self.is_asked.store(true, Ordering::Relaxed);
            thread.unpark();
        }
    }

    /// Grows the medium ahead of writers whenever room becomes scarce, until `stops` says so, which is asked whenever the
    /// thread wakes up. No other thread does this for the same space.
    ///
    /// `watch` is told how each attempt ends. Failures have no other consequence: a writer that needs the room meets them
    /// itself.
    pub fn grow_ahead<M: Medium>(&self, medium: &M, stops: impl Fn() -> bool, watch: impl Fn(Result<()>)) {
        if self.grower.set(thread::current()).is_err() {
            return;
        }
        while !stops() {
            if self.is_asked.swap(false, Ordering::Relaxed) {
                // By a whole step or, where there is no room for that, by a block.
                let next = self.geometry.blocks_in(medium.capacity()) + 1;
                watch(self.grow(medium, self.geometry.block_at(next)));
            }
            thread::park();
        }
    }

    /// Raises the recorded end if blocks beyond it are handed out. Called with the lists locked, so that no thread uses a
    /// block before this is durable.
    fn record_end<M: Medium>(&self, inner: &mut Inner, medium: &M, lane: &mut Lane) -> Result<()> {
        if inner.end <= inner.recorded {
            return Ok(());
        }
        let most = self.geometry.blocks_in(medium.capacity());
        let recorded = (inner.end + self.step - 1).min(most).max(inner.end);
        self.unformat(medium, lane, inner.recorded..recorded.min(inner.fresh_from))?;
        self.store_end(medium, lane, recorded)?;
        inner.recorded = recorded;
        Ok(())
    }

    /// Durably makes unused blocks into ones that recovery does not look into. Where a file was cut and has grown again,
    /// the first pages of a block may be from before and the others zero: its head says nothing about them.
    fn unformat<M: Medium>(&self, medium: &M, lane: &mut Lane, blocks: Range<u64>) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        for at in blocks.map(|block| self.geometry.block_at(block)) {
            let head = medium.memory().word(at);
            if head.load(Ordering::Relaxed) & !LOCK_MASK != 0 {
                // No thread waits for its lock. The version stays, so that a reader of a former record notices.
                head.fetch_and(LOCK_MASK, Ordering::Relaxed);
                medium.touched(at, WORD);
            }
            // Also what reads as zero: a process that was killed may have cleared it in the caches alone.
            medium.flush(lane, Site::UnusedBlocks, at, WORD);
        }
        medium.fence(lane, Site::UnusedBlocks)
    }

    fn store_end<M: Medium>(&self, medium: &M, lane: &mut Lane, end: u64) -> Result<()> {
        let word = checked_number(BLOCKS_END_AT, end);
        medium.memory().word(BLOCKS_END_AT).store(word, Ordering::Relaxed);
        medium.touched(BLOCKS_END_AT, 8);
        medium.flush(lane, Site::BlocksEnd, BLOCKS_END_AT, 8);
        medium.fence(lane, Site::BlocksEnd)
    }

    /// Takes back a block that [`BlockWord`] reported as free.
    pub fn release(&self, block: u64) {
        self.lock().free.insert(block);
    }

    /// Takes back consecutive blocks.
    pub fn release_run(&self, first: u64, count: u64) {
        let mut inner = self.lock();
        for block in first..first + count {
            self.block(block).set(State::Free, 0, 0);
            inner.free.insert(block);
        }
    }

    /// Returns the free blocks at the end of the file to the file system; returns their number.
    ///
    /// # Errors
    /// If the new end cannot be recorded, or the file system fails.
    pub fn cut<M: Medium>(&self, medium: &M, lane: &mut Lane, slack: u64) -> Result<u64> {
        let last = self.lock_growing();
        let mut inner = self.lock();
        let end = inner.end - inner.trailing();
        let before = medium.capacity();
        if inner.end > end {
            let before = inner.end;
            inner.remove_run(end, before);
            inner.end = end;
        }
        let ahead = last.at.filter(|at| at.elapsed() < SOON).map_or(0, |_| last.bytes);
        let keep = self.geometry.block_at(end + slack) + ahead;
        if keep >= before {
            return Ok(0);
        }
        // The recorded end first: a file that is shorter than it says is damaged.
        if inner.recorded > end {
            self.store_end(medium, lane, end)?;
            inner.recorded = end;
        }
        medium.shrink(keep)?;
        // If the medium grows there again, it reads as zeroes.
        inner.fresh_from = inner.fresh_from.min(medium.capacity().div_ceil(self.geometry.block_bytes()));
        let returned = self.geometry.blocks_in(before - medium.capacity());
        self.returned.fetch_add(returned, Ordering::Relaxed);
        Ok(returned)
    }

    /// Closes a block, and frees it if nothing in it is live.
    pub fn close(&self, block: u64) {
        if self.block(block).close() {
            self.release(block);
        }
    }

    /// Closes a block for a client, if it still belongs to the client.
    pub fn close_by(&self, block: u64, client: u16) {
        if self.block(block).close_by(client) {
            self.release(block);
        }
    }

    /// Notes that a record of this many units was retracted; frees its block if that was the last record and no thread
    /// writes to the block.
    pub fn retracted(&self, block: u64, units: u32) {
        if self.block(block).retracted(units) {
            self.release(block);
        }
    }
}

impl Inner {
    /// Takes `count` consecutive free blocks, the lowest ones.
    fn take_free(&mut self, count: u64) -> Option<u64> {
        if count == 1 {
            return self.free.pop_first();
        }
        let (mut first, mut length) = (0, 0);
        for block in &self.free {
            if length > 0 && *block == first + length {
                length += 1;
            } else {
                (first, length) = (*block, 1);
            }
            if length == count {
                break;
            }
        }
        (length == count).then(|| {
            self.remove_run(first, first + count);
            first
        })
    }

    fn remove_run(&mut self, from: u64, to: u64) {
        (from..to).for_each(|block| {
            self.free.remove(&block);
        });
    }

    /// How many of the last blocks are free.
    fn trailing(&self) -> u64 {
        let mut from = self.end;
        for block in self.free.iter().rev() {
            if *block + 1 != from {
                break;
            }
            from = *block;
        }
        self.end - from
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        file::{FileMedium, Opening},
        options::{Options, Persistence},
    };

    const MIB: u64 = 1 << 20;

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the thread that grows the file, also if the test fails.
    struct Stop<'a>(&'a AtomicBool, Thread);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.unpark();
        }
    }

    #[test]
    fn the_file_grows_ahead_of_fast_writers_only_and_is_not_cut_at_once() {
        let options = Options {
            chunk_bytes: MIB,
            growth_bytes: MIB,
            capacity_bytes: 8 * MIB,
            persistence: Some(Persistence::Dax),
            vouch_for_memory: true,
            ..Options::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let medium = match FileMedium::open(&folder.path().join("store"), Opening::Create, &options) {
            Ok(medium) => medium,
            Err(error) => return eprintln!("not tested: {error}"),
        };
        let geometry = Geometry::new(4);
        let space = Space::new(geometry, medium.memory().bytes(), 8).unwrap();
        medium.grow(MIB).unwrap();
        space.restore(geometry.first_block(), [], Vec::new(), MIB);
        let (stopped, lane) = (AtomicBool::new(false), &mut Lane::default());
        let take = |lane: &mut Lane| space.take_run(&medium, lane, 1, Purpose::Write).map(|(block, _)| block);
        // As if the last growth was long ago, or just now.
        let set = |at, until| {
            space.lock_growing().at = at;
            space.fast_until.store(until, Ordering::Relaxed);
        };
        let long_ago = || set(None, 0);
        let just_now = || set(Some(Instant::now()), u64::MAX);
        let room = || medium.capacity() - geometry.block_at(space.end());
        thread::scope(|scope| {
            let grower = scope.spawn(|| {
                let stops = || stopped.load(Ordering::Relaxed);
                let is_expected =
                    |outcome: &Result<()>| matches!(outcome, Ok(()) | Err(crate::PmemError::Full { .. }));
                space.grow_ahead(&medium, stops, |outcome| assert!(is_expected(&outcome), "{outcome:?}"));
            });
            let _stop = Stop(&stopped, grower.thread().clone());
            wait_until("no thread grows the file", || space.grower.get().is_some());
            // Slow writers make the file longer themselves, when they need it.
            for megabytes in [1, 2, 3] {
                while medium.capacity() < megabytes * MIB {
                    take(lane).unwrap();
                }
                while room() > MIB / 8 {
                    long_ago();
                    take(lane).unwrap();
                }
                assert!(!space.is_asked.load(Ordering::Relaxed));
                assert_eq!(medium.capacity(), megabytes * MIB);
            }
            // Fast ones always find room, from the next growth on.
            while medium.capacity() < 4 * MIB {
                take(lane).unwrap();
            }
            just_now();
            for _ in 0..MIB / geometry.block_bytes() {
                wait_until("the file did not grow ahead", || room() >= MIB / 2);
                just_now();
                take(lane).unwrap();
            }
            let before = medium.capacity();
            while medium.capacity() == before {
                wait_until("the file did not grow ahead", || room() >= MIB / 2);
                just_now();
                take(lane).unwrap();
            }
            let capacity = medium.capacity();
            assert!(room() > MIB);
            just_now();
            assert_eq!(space.cut(&medium, lane, 0).unwrap(), 0, "the room is wanted");
            assert_eq!(medium.capacity(), capacity);
            long_ago();
            assert!(space.cut(&medium, lane, 0).unwrap() > 0);
            assert_eq!(medium.capacity(), before);
            // Beyond the capacity it cannot grow, and a writer is told so.
            let full = loop {
                if let Err(error) = take(lane) {
                    break error;
                }
            };
            assert!(matches!(full, crate::PmemError::Full { .. }), "{full}");
        });
    }
}
