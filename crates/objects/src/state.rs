//! State that the handles on a heap share in memory: hints, none of which need be right.

use crate::{directory::Directory, error::ObjectError, page::ROOM};
use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use vellum_base::primitive::{AtomicU64, Mutex, MutexGuard, Ordering};
use vellum_base::{PageId, Precedence};
use vellum_pool::{AppendHints, Pager};

/// A page counts as having room when this many of its granules are free.
pub(crate) const ROOMY: usize = ROOM / 2;

/// The state that the handles on a heap share in memory.
#[derive(Default)]
pub struct HeapState {
    /// The page in which each thread allocates.
    pub(crate) current: AppendHints,
    /// The run of pages around each thread's last misses.
    pub(crate) missed: AppendHints,
    /// The object with the roots; zero while it is not known.
    pub(crate) anchor: AtomicU64,
    /// The fingerprints of types whose descriptions are known to be the same in the heap and in the program.
    known: Mutex<BTreeSet<u32>>,
    rooms: Mutex<Rooms>,
    /// Source of the first generations of new pages. Relaxed: nothing depends on their order.
    generations: AtomicU64,
    random: RandomState,
    /// The change that has failed several times, and goes first.
    pub(crate) precedence: Precedence,
}

/// Pages that have room.
#[derive(Default)]
struct Rooms {
    pages: VecDeque<PageId>,
    /// The last page that was taken from the directory.
    last: u64,
    is_exhausted: bool,
}

impl HeapState {
    pub(crate) fn knows(&self, fingerprint: u32) -> bool {
        lock(&self.known).contains(&fingerprint)
    }

    pub(crate) fn learn(&self, fingerprint: u32) {
        lock(&self.known).insert(fingerprint);
    }

    pub(crate) fn forget_types(&self) {
        lock(&self.known).clear();
    }

    /// The first generation of a new page: an arbitrary number, so that a reference to an object in the same place
    /// before the page was freed is most likely detected, in whichever heap that was.
    pub(crate) fn generation(&self) -> u16 {
        self.random.hash_one(self.generations.fetch_add(1, Ordering::Relaxed)) as u16
    }

    /// A page that has room, if one is known.
    pub(crate) fn take_room<P: Pager>(
        &self,
        directory: Directory<'_, P>,
    ) -> Result<Option<PageId>, ObjectError> {
        /// How many pages are taken from the directory at once.
        const MANY: usize = 64;
        let mut rooms = lock(&self.rooms);
        loop {
            while let Some(page) = rooms.pages.pop_front() {
                if directory.take_room(page)? {
                    return Ok(Some(page));
                }
            }
            if rooms.is_exhausted {
                return Ok(None);
            }
            let more = directory.rooms(PageId(rooms.last), MANY)?;
            rooms.pages.extend(more);
            match rooms.pages.back() {
                Some(last) => rooms.last = last.0,
                None => rooms.is_exhausted = true,
            }
        }
    }

    /// Notes that a page has room. This is a hint: if it cannot be noted, only space is lost.
    pub(crate) fn note_room<P: Pager>(&self, directory: Directory<'_, P>, page: PageId) {
        if let Ok(true) = directory.note_room(page) {
            lock(&self.rooms).pages.push_back(page);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The mutex protects only hints.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
