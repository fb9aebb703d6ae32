//! A log in memory, of which a crash leaves what was made durable.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use vellum_base::Lsn;
use vellum_pool::ChangeLog;

/// The first LSN.
const FIRST: u64 = 64;

#[derive(Default)]
struct Inner {
    /// By their LSNs: how long they are, and their bytes when they are filled.
    records: BTreeMap<u64, (usize, Option<Vec<u8>>)>,
    end: u64,
    /// All before it is filled.
    filled: u64,
    durable: u64,
}

/// The log. Nothing becomes durable unless it is asked for.
pub struct MemoryLog {
    inner: Mutex<Inner>,
    filled: Condvar,
    images_from: AtomicU64,
    groups: AtomicU64,
    /// Held while something becomes durable, and by the thread that takes the moment of a crash.
    pub gate: Arc<RwLock<()>>,
    /// What happens, once, when a thread waits for durability the next time.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// How long it takes until something is durable.
    pub delay: Duration,
    /// How often a thread has waited for durability, or asked for it.
    pub waits: AtomicU64,
    pub requests: AtomicU64,
    pub broken: AtomicBool,
}

impl MemoryLog {
    /// An empty log that goes on at `from`.
    pub fn new(from: Lsn) -> Self {
        let start = from.0.max(FIRST);
        Self {
            inner: Mutex::new(Inner { end: start, filled: start, durable: start, ..Inner::default() }),
            filled: Condvar::new(),
            images_from: AtomicU64::new(start),
            groups: AtomicU64::new(1),
            gate: Arc::default(),
            meanwhile: Mutex::default(),
            delay: Duration::ZERO,
            waits: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// What a crash leaves: the durable records, and where they end.
    pub fn crash(&self) -> (Vec<(Lsn, Vec<u8>)>, Lsn) {
        let inner = self.lock();
        let durable = inner.records.range(..inner.durable);
        let records = durable.filter_map(|(lsn, (_, bytes))| Some((Lsn(*lsn), bytes.clone()?))).collect();
        (records, Lsn(inner.durable))
    }

    /// All records are durable, of those that are reserved now.
    pub fn make_all_durable(&self) {
        let end = self.lock().end;
        self.make_durable_before(Lsn(end)).unwrap();
    }

    /// All records before a place are durable.
    pub fn make_durable_before(&self, end: Lsn) -> io::Result<()> {
        let last = self.lock().records.range(..end.0).next_back().map(|(lsn, _)| Lsn(*lsn));
        last.map_or(Ok(()), |last| self.make_durable(last))
    }

    pub fn set_images_from(&self, lsn: Lsn) {
        self.images_from.store(lsn.0, Ordering::SeqCst);
    }

    /// Adds a record.
    pub fn append(&self, record: &[u8]) -> Lsn {
        let lsn = self.reserve(record.len());
        self.fill(lsn, record);
        lsn
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl ChangeLog for MemoryLog {
    fn reserve(&self, bytes: usize) -> Lsn {
        let mut inner = self.lock();
        let lsn = inner.end;
        inner.end += bytes as u64 + 8;
        inner.records.insert(lsn, (bytes, None));
        Lsn(lsn)
    }

    fn cancel(&self, at: Lsn, bytes: usize) {
        self.fill(at, &vec![0; bytes]);
    }

    fn fill(&self, at: Lsn, record: &[u8]) {
        let mut inner = self.lock();
        let place = inner.records.get_mut(&at.0).unwrap();
        assert_eq!((place.0, place.1.is_none()), (record.len(), true));
        place.1 = Some(record.to_vec());
        let first_empty = inner.records.range(inner.filled..).find(|(_, (_, bytes))| bytes.is_none());
        inner.filled = first_empty.map_or(inner.end, |(lsn, _)| *lsn);
        self.filled.notify_all();
    }

    fn begin_group(&self) -> u64 {
        self.groups.fetch_add(1, Ordering::SeqCst)
    }

    fn end_group(&self) {}

    fn images_from(&self) -> Lsn {
        Lsn(self.images_from.load(Ordering::SeqCst))
    }

    fn end(&self) -> Lsn {
        Lsn(self.lock().end)
    }

    fn durable(&self) -> Lsn {
        Lsn(self.lock().durable)
    }

    fn request_durable(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    fn make_durable(&self, lsn: Lsn) -> io::Result<()> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("the log is gone"));
        }
        let mut inner = self.lock();
        assert!(lsn.0 < inner.end, "there is no record {lsn}");
        while inner.filled <= lsn.0 {
            inner = self.filled.wait(inner).unwrap();
        }
        drop(inner);
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        let _gate = self.gate.read().unwrap();
        let mut inner = self.lock();
        inner.durable = inner.durable.max(inner.filled);
        Ok(())
    }
}
