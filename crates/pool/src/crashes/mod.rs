//! Tests of what a crash leaves of a pool with a log: the log is replayed on the remains of the file, and the result
//! compared with all durable records since the beginning.

mod full;
#[path = "../../tests/common/log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod log;
mod steps;
mod stress;

use crate::{AllocatedPage, Allocation, ChangeLog, ExclusivePage, ExtentWriter, Pool, PoolError, PoolFile};
use crate::{PoolOptions, Streams, plant::Plant};
use log::MemoryLog;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};
use vellum_base::{Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_lsn};
use vellum_vm::{File, FileDescription, Queue, Request, SimulatedFile};

const PAYLOAD: usize = PAGE_SIZE - HEADER_BYTES;

/// One statement of a record.
#[derive(Clone, PartialEq, Debug)]
enum Change {
    /// A page is new, and filled with contents derived from a number.
    Format(PageId, u64),
    /// A word of a page is set.
    Set(PageId, usize, u64),
    /// The contents of a page after the record's changes.
    Image(PageId, Vec<u8>),
    /// An extent was written past the log, with contents derived from a number.
    Write(Extent, u64),
    Free(Extent),
}

/// The payload of an extent that was filled from a number.
fn filled(extent: Extent, number: u64) -> Vec<u8> {
    let word = |place: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (extent.head.0 << 20) ^ place;
    (0..(extent.bytes() - HEADER_BYTES) as u64 / 8).flat_map(|place| word(place).to_le_bytes()).collect()
}

fn set(payload: &mut [u8], place: usize, value: u64) {
    payload[8 * place..8 * place + 8].copy_from_slice(&value.to_le_bytes());
}

impl Change {
    fn page(&self) -> Option<PageId> {
        match self {
            Self::Format(page, _) | Self::Set(page, ..) | Self::Image(page, _) => Some(*page),
            Self::Write(..) | Self::Free(_) => None,
        }
    }

    fn encode(&self, record: &mut Vec<u8>) {
        let (tag, extent, number, place) = match self {
            Self::Format(page, number) => (1, Extent::page(*page), *number, 0),
            Self::Set(page, place, value) => (2, Extent::page(*page), *value, *place),
            Self::Image(page, _) => (3, Extent::page(*page), 0, 0),
            Self::Write(extent, number) => (4, *extent, *number, 0),
            Self::Free(extent) => (5, *extent, 0, 0),
        };
        for word in [tag, extent.head.0, extent.pages.into(), number, place as u64] {
            record.extend_from_slice(&word.to_le_bytes());
        }
        if let Self::Image(_, payload) = self {
            record.extend_from_slice(payload);
        }
    }

    /// All changes of a record; none for a record that was cancelled.
    fn decode(mut record: &[u8]) -> Vec<Self> {
        let mut changes = Vec::new();
        while let Some((head, rest)) = record.split_at_checked(40) {
            let word = |at: usize| u64::from_le_bytes(head[8 * at..8 * at + 8].try_into().unwrap());
            let extent = Extent { head: PageId(word(1)), pages: word(2) as u32 };
            record = rest;
            changes.push(match word(0) {
                1 => Self::Format(extent.head, word(3)),
                2 => Self::Set(extent.head, word(4) as usize, word(3)),
                3 => {
                    let payload = rest[..PAYLOAD].to_vec();
                    record = &rest[PAYLOAD..];
                    Self::Image(extent.head, payload)
                }
                4 => Self::Write(extent, word(3)),
                5 => Self::Free(extent),
                _ => return Vec::new(),
            });
        }
        changes
    }
}

fn encode(changes: &[Change]) -> Vec<u8> {
    let mut record = Vec::new();
    changes.iter().for_each(|change| change.encode(&mut record));
    record
}

/// The allocated extents and their contents, according to the records alone.
#[derive(Default)]
struct Model(BTreeMap<Extent, Vec<u8>>);

impl Model {
    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Format(page, number) => {
                    let extent = Extent::page(*page);
                    self.0.insert(extent, filled(extent, *number));
                }
                Change::Set(page, place, value) => {
                    set(self.0.get_mut(&Extent::page(*page)).unwrap(), *place, *value);
                }
                Change::Image(page, payload) => assert_eq!(&self.0[&Extent::page(*page)], payload),
                Change::Write(extent, number) => {
                    self.0.insert(*extent, filled(*extent, *number));
                }
                Change::Free(extent) => assert!(self.0.remove(extent).is_some()),
            }
        }
    }

    /// Compares the model with the contents of a pool.
    fn check(&self, pool: &Pool) -> Result<(), String> {
        let (own, mut found) = (pool.own_extents(), Vec::new());
        pool.for_each_extent(|extent| found.push(extent));
        found.retain(|extent| !own.contains(extent));
        let expected: Vec<Extent> = self.0.keys().copied().collect();
        if found != expected {
            let (found, expected) = (HashSet::from_iter(found), HashSet::<Extent>::from_iter(expected));
            let leaked: Vec<_> = found.difference(&expected).collect();
            let lost: Vec<_> = expected.difference(&found).collect();
            return Err(format!("leaked: {leaked:?}; lost: {lost:?}"));
        }
        for (extent, payload) in &self.0 {
            let guard = pool.shared(*extent).map_err(|error| error.to_string())?;
            if guard.payload() != payload {
                return Err(format!("{extent} does not hold what the log says"));
            }
        }
        Ok(())
    }
}

/// A simulated file to which nothing is written at the moment of a crash.
#[derive(Clone, Debug)]
struct Gated {
    file: SimulatedFile,
    gate: Arc<RwLock<()>>,
    /// How long a write takes.
    delay: Duration,
}

impl File for Gated {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: passed on from the caller.
        unsafe { self.file.read(offset, address, bytes) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        std::thread::sleep(self.delay);
        let _gate = self.gate.read().unwrap();
        // SAFETY: passed on from the caller.
        unsafe { self.file.write(offset, address, bytes) }
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        for request in requests.chunks_mut(1) {
            std::thread::sleep(self.delay);
            let _gate = self.gate.read().unwrap();
            // SAFETY: passed on from the caller.
            unsafe { self.file.run(request) };
        }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        self.file.queue(depth)
    }

    fn sync(&self) -> io::Result<()> {
        std::thread::sleep(self.delay);
        let _gate = self.gate.read().unwrap();
        self.file.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        let _gate = self.gate.read().unwrap();
        self.file.grow(to)
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        let _gate = self.gate.read().unwrap();
        self.file.truncate(to)
    }

    fn description(&self) -> FileDescription {
        self.file.description()
    }
}

fn options() -> PoolOptions {
    PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 26).background_eviction(false)
}

/// A pool with a log, and what a crash would leave of it.
struct World {
    file: Gated,
    log: Arc<MemoryLog>,
    pool: Pool,
}

impl World {
    fn new(seed: u64, bug: Option<Plant>, delay: Duration, options: &PoolOptions) -> Self {
        let mut log = MemoryLog::new(Lsn(0));
        log.delay = delay;
        let log = Arc::new(log);
        let file = Gated { file: SimulatedFile::new(seed), gate: log.gate.clone(), delay: delay / 4 };
        let new = PoolFile::create_on(Arc::new(file.clone()), options).unwrap();
        let pool = new.start(Some(log.clone())).unwrap();
        *pool.allocator().storage().logged().unwrap().planted.lock().unwrap() = bug;
        Self { file, log, pool }
    }

    /// Takes a checkpoint as the owner of a pool does.
    fn checkpoint(&self) -> Result<(), PoolError> {
        self.log.set_images_from(Lsn(u64::MAX));
        let redo = self.log.end();
        self.log.set_images_from(redo);
        self.log.make_durable_before(redo).map_err(PoolError::Log)?;
        self.pool.checkpoint_at(redo)
    }

    /// Reserves a record, with the images of the latched pages that it needs. Returns its LSN and its bytes.
    fn reserve(&self, mut changes: Vec<Change>, latched: &[(PageId, &[u8])]) -> (Lsn, Vec<u8>) {
        let mut last = PageId(0);
        loop {
            for (page, bytes) in latched {
                if PageHeader::read(bytes).lsn < self.log.images_from() && *page != last {
                    changes.push(Change::Image(*page, bytes[HEADER_BYTES..].to_vec()));
                    last = *page;
                }
            }
            let record = encode(&changes);
            let lsn = self.log.reserve(record.len());
            let from = self.log.images_from();
            if latched.iter().all(|(page, bytes)| *page == last || PageHeader::read(bytes).lsn >= from) {
                return (lsn, record);
            }
            self.log.cancel(lsn, record.len());
        }
    }

    /// How often a thread has waited for the log.
    fn waits(&self) -> u64 {
        self.log.waits.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// A new page, filled from a number.
    fn new_page(&self, number: u64) -> Result<PageId, PoolError> {
        let mut guard = self.pool.allocate(1, PageKind::TREE_NODE)?;
        let page = guard.id();
        guard.payload_mut().copy_from_slice(&filled(Extent::page(page), number));
        let (lsn, record) = self.reserve(vec![Change::Format(page, number)], &[]);
        let mut guard = AllocatedPage::keep(guard, lsn);
        guard.set_lsn(lsn);
        drop(guard);
        self.log.fill(lsn, &record);
        Ok(page)
    }

    fn set_word(&self, page: PageId, place: usize, value: u64) -> Result<(), PoolError> {
        let mut guard = self.pool.exclusive(Extent::page(page))?;
        set(guard.payload_mut(), place, value);
        let (lsn, record) = self.reserve(vec![Change::Set(page, place, value)], &[(page, guard.page())]);
        guard.set_lsn(lsn);
        drop(guard);
        self.log.fill(lsn, &record);
        Ok(())
    }

    fn free_page(&self, page: PageId) -> Result<(), PoolError> {
        let guard = self.pool.exclusive(Extent::page(page))?;
        let (lsn, record) = self.reserve(vec![Change::Free(Extent::page(page))], &[]);
        ExclusivePage::free(guard, lsn);
        self.log.fill(lsn, &record);
        Ok(())
    }

    /// Stores a new large value in place of an old one, in memory or past it.
    fn replace(
        &self,
        old: Option<Extent>,
        pages: u32,
        number: u64,
        streamed: bool,
    ) -> Result<Extent, PoolError> {
        let extent = if streamed {
            let mut stream = self.pool.stream(pages, PageKind::BLOB)?;
            let extent = stream.extent();
            stream.append(&filled(extent, number))?;
            stream.finish()?;
            extent
        } else {
            let mut guard = self.pool.allocate(pages, PageKind::BLOB)?;
            let extent = guard.extent();
            guard.payload_mut().copy_from_slice(&filled(extent, number));
            drop(AllocatedPage::keep(guard, Lsn(0)));
            extent
        };
        if let Err(error) = self.pool.persist(&[extent]) {
            self.pool.discard(extent, Lsn(0))?;
            return Err(error);
        }
        let mut changes = vec![Change::Write(extent, number)];
        changes.extend(old.map(Change::Free));
        let (lsn, record) = self.reserve(changes, &[]);
        self.pool.note_allocated(extent, lsn);
        let discarded = old.map_or(Ok(()), |old| Allocation::discard(&self.pool, old, lsn));
        self.log.fill(lsn, &record);
        discarded.map(|()| extent)
    }

    /// The remains after a crash at this moment.
    fn crash(&self) -> Crashed {
        let _gate = self.log.gate.write().unwrap();
        let (records, end) = self.log.crash();
        Crashed { file: self.file.file.crash(), records, end }
    }
}

/// The remains after a crash.
struct Crashed {
    file: SimulatedFile,
    records: Vec<(Lsn, Vec<u8>)>,
    end: Lsn,
}

impl Crashed {
    /// Recovers, and compares the result with the log. Then follow a crash at once, a checkpoint, a crash after it, and
    /// a close.
    fn check(&self) -> Result<(), String> {
        let mut model = Model::default();
        let records: Vec<_> =
            self.records.iter().map(|(lsn, record)| (*lsn, Change::decode(record))).collect();
        records.iter().for_each(|(_, changes)| model.apply(changes));
        let shown = |error: PoolError| error.to_string();
        let open = |file: &SimulatedFile| PoolFile::open_on(Arc::new(file.clone()), &options());
        let opened = match open(&self.file) {
            // Nothing had been changed.
            Err(PoolError::Unfinished { .. }) if records.is_empty() => return Ok(()),
            opened => opened.map_err(shown)?,
        };
        let pool = recover(opened, &records, self.end)?;
        model.check(&pool).map_err(|error| format!("after the recovery, {error}"))?;
        if pool.allocator().storage().is_in_use() {
            let again = recover(open(&self.file.crash()).map_err(shown)?, &records, self.end)?;
            model.check(&again).map_err(|error| format!("after a second recovery, {error}"))?;
        }
        pool.checkpoint_at(self.end).map_err(shown)?;
        let again = recover(open(&self.file.crash()).map_err(shown)?, &[], self.end)?;
        model.check(&again).map_err(|error| format!("after its checkpoint, {error}"))?;
        again.close().map_err(shown)?;
        drop(pool);
        pool_of(open(&self.file).map_err(shown)?).and_then(|pool| {
            model.check(&pool).map_err(|error| format!("after a crash without a change, {error}"))?;
            pool.close().map_err(shown)
        })?;
        let pool = Pool::open_on(Arc::new(self.file.clone()), &options()).map_err(shown)?;
        model.check(&pool).map_err(|error| format!("after the close, {error}"))
    }
}

/// A pool of a file for which the log has no records.
fn pool_of(file: PoolFile) -> Result<Pool, String> {
    let end = file.redo();
    recover(file, &[], end)
}

/// Recovers a file from the records of a log that ends at `end`.
fn recover(file: PoolFile, records: &[(Lsn, Vec<Change>)], end: Lsn) -> Result<Pool, String> {
    recover_with(file, records, Arc::new(MemoryLog::new(end)))
}

/// Recovers a file from the records before those of a log that goes on.
fn recover_with(
    mut file: PoolFile,
    records: &[(Lsn, Vec<Change>)],
    log: Arc<MemoryLog>,
) -> Result<Pool, String> {
    let shown = |error: PoolError| error.to_string();
    let redo = if file.needs_recovery() { file.redo() } else { Lsn(u64::MAX) };
    let records = &records[records.partition_point(|(lsn, _)| *lsn < redo)..];
    let mut life: HashMap<PageId, Lsn> = HashMap::new();
    for (lsn, changes) in records {
        for change in changes {
            let extent = match change {
                Change::Format(page, _) => Extent::page(*page),
                Change::Write(extent, _) | Change::Free(extent) => *extent,
                _ => continue,
            };
            if matches!(change, Change::Free(_)) {
                file.note_freed(extent);
            } else {
                file.note_allocated(extent).map_err(shown)?;
            }
            life.extend((extent.head.0..extent.end().0).map(|page| (PageId(page), *lsn)));
        }
    }
    let pool = file.start(Some(log)).map_err(shown)?;
    for (lsn, changes) in records {
        let imaged = |page| changes.iter().any(|change| matches!(change, Change::Image(p, _) if *p == page));
        for change in changes {
            let Some(page) = change.page() else { continue };
            let counts = life.get(&page).is_none_or(|life| lsn >= life);
            let fresh = !matches!(change, Change::Set(..));
            if !counts || !pool.is_extent(Extent::page(page)) || (!fresh && imaged(page)) {
                continue;
            }
            let redo = |bytes: &mut [u8]| {
                if PageHeader::read(bytes).lsn >= *lsn {
                    return Ok(false);
                }
                let payload = &mut bytes[HEADER_BYTES..];
                match change {
                    Change::Format(page, number) => {
                        payload.copy_from_slice(&filled(Extent::page(*page), *number));
                    }
                    Change::Image(_, image) => payload.copy_from_slice(image),
                    Change::Set(_, place, value) => set(payload, *place, *value),
                    Change::Write(..) | Change::Free(_) => return Err("no change of a page".into()),
                }
                stamp_lsn(bytes, *lsn);
                Ok(true)
            };
            pool.redo(page, fresh, redo).map_err(|error| format!("{lsn}, {change:?}: {error}"))?;
        }
    }
    Ok(pool)
}
