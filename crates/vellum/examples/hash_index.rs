//! A persistent hash index on the pool alone: no tree, no tables, nothing but pages and the restart protocol.
//!
//! A directory page refers to one page a bucket. Entries go into that page; when it is full, its contents move
//! to an overflow page. Readers hold no latch: they look, follow references from page to page, and
//! find out by validation whether what they saw was one state. Writers latch the page of the bucket, which
//! makes them take turns, whichever overflow page they change.
//!
//! Run it by `cargo run -p vellum --example hash_index`.

use vellum::pool::{Bytes, HEADER_BYTES, OptimisticGuard, PAGE_SIZE, PageId, PageKind};
use vellum::pool::{ExclusiveGuard, Interrupt, Navigation, Pool, PoolError, PoolOptions};

const DIRECTORY: PageKind = PageKind(PageKind::USER.0);
const BUCKET: PageKind = PageKind(PageKind::USER.0 + 1);
const BUCKETS: usize = 50;
/// A bucket's page: the next overflow page or 0, the number of entries, entries of two numbers each.
const NEXT_AT: usize = HEADER_BYTES;
const COUNT_AT: usize = HEADER_BYTES + 8;
const ENTRIES_AT: usize = HEADER_BYTES + 16;
const ENTRIES_MAX: usize = (PAGE_SIZE - ENTRIES_AT) / 16;

/// A page that was looked at and where in it the entry stands, if there is one.
type Found<'p> = Option<(OptimisticGuard<'p>, usize)>;

struct HashIndex<'p> {
    pool: &'p Pool,
    directory: PageId,
}

impl<'p> HashIndex<'p> {
    fn create(pool: &'p Pool) -> Result<Self, PoolError> {
        let mut directory = pool.allocate(1, DIRECTORY)?;
        for bucket in 0..BUCKETS {
            let page = pool.allocate(1, BUCKET)?;
            set(directory.page_mut(), HEADER_BYTES + 8 * bucket, &[page.id().0]);
            drop(page.keep()); // without this it would be freed again
        }
        let directory = directory.keep().id();
        pool.set_root_slot(0, directory.0)?; // where to find it when the file is opened again
        Ok(Self { pool, directory })
    }

    fn open(pool: &'p Pool) -> Self {
        Self { pool, directory: PageId(pool.root_slot(0)) }
    }

    /// The first page of a key's bucket, looked at without a latch.
    fn bucket(&self, key: u64) -> Result<OptimisticGuard<'p>, Interrupt> {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let directory = self.pool.root(self.directory)?;
        self.pool.child(&directory, HEADER_BYTES + 8 * (hash as usize % BUCKETS))
    }

    /// Looks for a key in `page` and its overflow pages. The `?` after each step is the whole of the restart
    /// protocol: whatever goes wrong, `Navigation::run` waits for it and retries.
    fn find_from(&self, mut page: OptimisticGuard<'p>, key: u64) -> Result<Found<'p>, Interrupt> {
        loop {
            if let Some(at) = find(page.bytes(), key) {
                return Ok(Some((page, at))); // not validated yet: the caller reads on, or latches
            }
            if page.bytes().u64_at(NEXT_AT) == 0 {
                page.validate()?;
                return Ok(None);
            }
            page = self.pool.child(&page, NEXT_AT)?;
        }
    }

    fn get(&self, key: u64) -> Result<Option<u64>, PoolError> {
        self.pool.run(|| {
            let Some((page, at)) = self.find_from(self.bucket(key)?, key)? else { return Ok(None) };
            let value = page.bytes().u64_at(at + 8);
            page.validate()?; // only now does the value mean anything
            Ok(Some(value))
        })
    }

    /// As `find_from`, in the overflow pages of a first page that the caller has latched.
    fn find_behind(&self, first: &ExclusiveGuard<'p>, key: u64) -> Result<Found<'p>, Interrupt> {
        match first.page().u64_at(NEXT_AT) {
            0 => Ok(None),
            _ => self.find_from(self.pool.child_of_latched(first, NEXT_AT)?, key),
        }
    }

    fn put(&self, key: u64, value: u64) -> Result<(), PoolError> {
        self.pool.run(|| {
            let mut first = self.bucket(key)?.upgrade()?;
            if let Some(at) = find(first.page(), key) {
                set(first.page_mut(), at + 8, &[value]);
                return Ok(());
            }
            if let Some((page, at)) = self.find_behind(&first, key)? {
                set(page.upgrade()?.page_mut(), at + 8, &[value]);
                return Ok(());
            }
            let mut count = first.page().u64_at(COUNT_AT) as usize;
            if count == ENTRIES_MAX {
                let mut overflow = self.pool.allocate(1, BUCKET)?;
                overflow.payload_mut().copy_from_slice(first.payload());
                set(first.page_mut(), NEXT_AT, &[overflow.keep().id().0]);
                count = 0;
            }
            set(first.page_mut(), ENTRIES_AT + 16 * count, &[key, value]);
            set(first.page_mut(), COUNT_AT, &[count as u64 + 1]);
            Ok(())
        })
    }

    fn remove(&self, key: u64) -> Result<bool, PoolError> {
        self.pool.run(|| {
            let mut first = self.bucket(key)?.upgrade()?;
            if first.page().u64_at(COUNT_AT) == 0 && first.page().u64_at(NEXT_AT) != 0 {
                // The overflow page's contents move up and its space is free again. This changes the index
                // and is complete in itself, so what follows may still be interrupted.
                let next = self.pool.child_of_latched(&first, NEXT_AT)?.upgrade()?;
                first.payload_mut().copy_from_slice(next.payload());
                next.free();
            }
            let mut behind = None;
            let at = if let Some(at) = find(first.page(), key) {
                at
            } else {
                let Some((page, at)) = self.find_behind(&first, key)? else { return Ok(false) };
                behind = Some(page.upgrade()?);
                at
            };
            // The last entry of the first page fills the hole: overflow pages are always full.
            let last = first.page().u64_at(COUNT_AT) - 1;
            let last_at = ENTRIES_AT + 16 * last as usize;
            let moved = [first.page().u64_at(last_at), first.page().u64_at(last_at + 8)];
            set(behind.as_mut().unwrap_or(&mut first).page_mut(), at, &moved);
            set(first.page_mut(), COUNT_AT, &[last]);
            Ok(true)
        })
    }
}

/// Where the entry of a key is. The same for latched pages and for pages that change while they are read,
/// where the count may be anything.
fn find(page: impl Bytes, key: u64) -> Option<usize> {
    let count = (page.u64_at(COUNT_AT) as usize).min(ENTRIES_MAX);
    (0..count).map(|index| ENTRIES_AT + 16 * index).find(|at| page.u64_at(*at) == key)
}

fn set(page: &mut [u8], at: usize, values: &[u64]) {
    for (target, value) in page[at..].chunks_exact_mut(8).zip(values) {
        target.copy_from_slice(&value.to_le_bytes());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const KEYS: u64 = 30_000;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("index");
    let options = PoolOptions::default().pool_bytes(256 << 10).application("hash index");
    let pool = Pool::create(&path, &options)?;
    let index = HashIndex::create(&pool)?;
    // Two writers, each with every other key, of which it removes every fifth; two readers meanwhile.
    let write = |writer: u64| -> Result<(), PoolError> {
        for key in (writer..KEYS).step_by(2) {
            index.put(key, !key)?;
            assert!(key % 5 != 0 || index.remove(key)?, "key {key} was just stored");
        }
        Ok(())
    };
    let read = |reader: u64| -> Result<(), PoolError> {
        for key in (0..KEYS).map(|step| (step * 7919 + reader) % KEYS) {
            assert!(index.get(key)?.is_none_or(|value| value == !key), "a torn entry");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|number| scope.spawn(move || write(number)));
        let readers = [0, 1].map(|number| scope.spawn(move || read(number)));
        let mut threads = writers.into_iter().chain(readers);
        threads.try_for_each(|thread| thread.join().expect("a thread panicked"))
    })?;
    let now = pool.statistics();
    println!(
        "{} of {} pages in memory, the limit is {}",
        now.pages_resident, now.pages_in_file, now.pages_limit
    );
    println!("{} misses, {} pages evicted, {} restarts", now.misses, now.pages_evicted, now.restarts);
    assert!(now.pages_resident <= now.pages_limit && now.pages_in_file > now.pages_limit);
    pool.close()?;

    let pool = Pool::open(&path, &options)?;
    let index = HashIndex::open(&pool);
    for key in 0..KEYS {
        assert_eq!(index.get(key)?, (key % 5 != 0).then_some(!key), "key {key}");
    }
    println!("closed, opened again: {} keys are there, {} are gone", KEYS / 5 * 4, KEYS / 5);
    (0..KEYS).try_for_each(|key| index.remove(key).map(|found| assert_eq!(found, key % 5 != 0)))?;
    // Without entries, the overflow pages are free again.
    assert_eq!(pool.statistics().pages_allocated, pool.own_extents().len() as u64 + BUCKETS as u64 + 1);
    Ok(())
}
