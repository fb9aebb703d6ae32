//! State that the handles on a heap share in memory: hints, none of which need be right.

use crate::{directory::Directory, error::ObjectError, page::ROOM};
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};
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

/// Pages that have room. All of them are noted in the directory, those in which threads allocate, too: when the last
/// handle on the heap is gone, nothing else leads to them.
#[derive(Default)]
struct Rooms {
    /// The pages that may be taken, in this order.
    waiting: VecDeque<PageId>,
    /// These pages, and those that were taken.
    known: BTreeMap<PageId, Room>,
    /// The last page that was read from the directory.
    last: u64,
    is_exhausted: bool,
}

/// What is known of a page that has room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    Waiting,
    /// A thread allocates in it.
    Taken,
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

    /// Takes a page that has room, if one is known, for the calling thread to allocate in.
    pub(crate) fn take_room<P: Pager>(
        &self,
        directory: Directory<'_, P>,
    ) -> Result<Option<PageId>, ObjectError> {
        /// How many pages are read from the directory at once.
        const MANY: usize = 64;
        let mut rooms = lock(&self.rooms);
        loop {
            if let Some(page) = rooms.waiting.pop_front() {
                rooms.known.insert(page, Room::Taken);
                return Ok(Some(page));
            }
            if rooms.is_exhausted {
                return Ok(None);
            }
            let more = directory.rooms(PageId(rooms.last), MANY)?;
            match more.last() {
                Some(last) => rooms.last = last.0,
                None => rooms.is_exhausted = true,
            }
            more.into_iter().for_each(|page| rooms.add(page));
        }
    }

    /// Takes a new page for the calling thread to allocate in.
    pub(crate) fn take_new<P: Pager>(&self, directory: Directory<'_, P>, page: PageId) {
        lock(&self.rooms).known.insert(page, Room::Taken);
        // As for `note_room`.
        let _ = directory.note_room(page);
    }

    /// A thread leaves the page in which it has allocated, for others if it has room.
    pub(crate) fn leave<P: Pager>(&self, directory: Directory<'_, P>, page: PageId, has_room: bool) {
        let mut rooms = lock(&self.rooms);
        if rooms.known.get(&page) != Some(&Room::Taken) {
            return;
        }
        rooms.known.remove(&page);
        if has_room {
            rooms.add(page);
        } else {
            drop(rooms);
            // If the note stays, the page is tried once more.
            let _ = directory.forget_room(page);
        }
    }

    /// Notes that a page, in which the calling thread does not allocate, has room, unless that is known; `is_news` says
    /// that it had less a moment ago. This is a hint: if it cannot be noted, only space is lost.
    pub(crate) fn note_room<P: Pager>(&self, directory: Directory<'_, P>, page: PageId, is_news: bool) {
        let mut rooms = lock(&self.rooms);
        match rooms.known.get(&page) {
            // Whoever took it may have lost sight of it: there are fewer hints than threads may be.
            Some(Room::Taken) if is_news => drop(rooms.known.remove(&page)),
            Some(_) => return,
            None => {}
        }
        drop(rooms);
        if directory.note_room(page).is_ok() {
            lock(&self.rooms).add(page);
        }
    }

    pub(crate) fn forget_rooms(&self) {
        *lock(&self.rooms) = Rooms::default();
    }
}

impl Rooms {
    /// Lets threads take a page, unless it is known.
    fn add(&mut self, page: PageId) {
        if let Entry::Vacant(place) = self.known.entry(page) {
            place.insert(Room::Waiting);
            self.waiting.push_back(page);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The mutex protects only hints.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
