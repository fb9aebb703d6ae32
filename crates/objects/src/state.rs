//! State that the handles on a heap share in memory: hints, none of which need be right.

use crate::{directory::Directory, error::ObjectError, page::ROOM};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use vellum_base::primitive::{AtomicU64, Mutex, MutexGuard, Ordering};
use vellum_base::{PageId, Precedence};
use vellum_pool::{AppendHints, Pager};

/// A page counts as having room when this many of its granules are free.
pub(crate) const ROOMY: usize = ROOM / 2;

/// How many pages are looked at for an object of more than half a page that may not fit, before it gets a new one.
pub(crate) const LARGE_TRIES: usize = 8;

/// Pages that have room are told apart by how much: half of a page, five eighths, and so on up to all of it.
const CLASSES: usize = 5;

/// How much room pages of a class have at least, as far as known.
const fn bound(class: usize) -> usize {
    ROOMY + (ROOM - ROOMY) * class / (CLASSES - 1)
}

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

impl std::fmt::Debug for HeapState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapState").finish_non_exhaustive()
    }
}

/// Pages that have room. All of them are noted in the directory, those in which threads allocate, too: when the last
/// handle on the heap is gone, nothing else leads to them.
#[derive(Default)]
struct Rooms {
    /// The pages that may be taken, by classes, in this order. A page may also be in a class in which it was before.
    waiting: [VecDeque<PageId>; CLASSES],
    /// The class that is looked at next for an object that may not fit.
    next: usize,
    /// These pages, and those that were taken.
    known: BTreeMap<PageId, Room>,
    /// The last page that was read from the directory.
    last: u64,
    is_exhausted: bool,
}

/// What is known of a page that has room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// It is in this class.
    Waiting(usize),
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

    /// Takes a page that has room, if one is known, for the calling thread to allocate an object of so many granules in.
    /// One of more than half a page may not fit.
    pub(crate) fn take_room<P: Pager>(
        &self,
        directory: Directory<'_, P>,
        granules: usize,
    ) -> Result<Option<PageId>, ObjectError> {
        /// How many pages are read from the directory at once.
        const MANY: usize = 64;
        let (mut rooms, mut has_read) = (lock(&self.rooms), false);
        loop {
            if let Some(page) = rooms.take(granules) {
                return Ok(Some(page));
            }
            // A large object does not wait until the whole directory has been read.
            if rooms.is_exhausted || has_read && granules > ROOMY {
                return Ok(rooms.take_any());
            }
            has_read = true;
            let more = directory.rooms(PageId(rooms.last), MANY)?;
            match more.last() {
                Some(last) => rooms.last = last.0,
                None => rooms.is_exhausted = true,
            }
            more.into_iter().for_each(|page| rooms.add(page, ROOMY));
        }
    }

    /// Takes a new page for the calling thread to allocate in.
    pub(crate) fn take_new<P: Pager>(&self, directory: Directory<'_, P>, page: PageId) {
        lock(&self.rooms).known.insert(page, Room::Taken);
        // As for `note_room`.
        let _ = directory.note_room(page);
    }

    /// A thread leaves the page in which it has allocated, for others if that has room.
    pub(crate) fn leave<P: Pager>(&self, directory: Directory<'_, P>, page: PageId, free: usize) {
        let mut rooms = lock(&self.rooms);
        if rooms.known.get(&page) != Some(&Room::Taken) {
            return;
        }
        rooms.known.remove(&page);
        if free >= ROOMY {
            rooms.add(page, free);
        } else {
            drop(rooms);
            // If the note stays, the page is tried once more.
            let _ = directory.forget_room(page);
        }
    }

    /// A thread leaves a page that it cannot read. No thread takes the page any more before the heap is opened again.
    pub(crate) fn pass_over(&self, page: PageId) {
        lock(&self.rooms).known.remove(&page);
    }

    /// Notes that so many granules of a page, in which the calling thread does not allocate, are free now, and how many were.
    /// This is a hint: if it cannot be noted, only space is lost.
    pub(crate) fn note_room<P: Pager>(
        &self,
        directory: Directory<'_, P>,
        page: PageId,
        before: usize,
        free: usize,
    ) {
        let mut rooms = lock(&self.rooms);
        match rooms.known.get(&page) {
            // Whoever took it may have lost sight of it: there are fewer hints than threads may be.
            Some(Room::Taken) if before < ROOMY => drop(rooms.known.remove(&page)),
            Some(Room::Taken) => return,
            Some(Room::Waiting(_)) => return rooms.add(page, free),
            None => {}
        }
        drop(rooms);
        if directory.note_room(page).is_ok() {
            lock(&self.rooms).add(page, free);
        }
    }

    pub(crate) fn forget_rooms(&self) {
        *lock(&self.rooms) = Rooms::default();
    }
}

impl Rooms {
    /// Lets threads take a page that has so much room, unless that is known, or another thread has taken it.
    fn add(&mut self, page: PageId, free: usize) {
        let class = (0..CLASSES).rfind(|class| bound(*class) <= free).unwrap_or_default();
        let is_news = match self.known.get(&page) {
            // That it has less is found when it is taken.
            Some(Room::Waiting(before)) => *before < class,
            Some(Room::Taken) => false,
            None => true,
        };
        if is_news && let Some(waiting) = self.waiting.get_mut(class) {
            waiting.push_back(page);
            self.known.insert(page, Room::Waiting(class));
        }
    }

    /// Takes a page that has room for an object. The fullest are taken first, and the others stay for larger objects.
    fn take(&mut self, granules: usize) -> Option<PageId> {
        (0..CLASSES).filter(|class| bound(*class) >= granules).find_map(|class| self.take_of(class))
    }

    /// Takes a page that may have more room than is known: changes that were not made had taken some of it.
    fn take_any(&mut self) -> Option<PageId> {
        (0..CLASSES).find_map(|_| {
            self.next = (self.next + 1) % CLASSES;
            self.take_of(self.next)
        })
    }

    fn take_of(&mut self, class: usize) -> Option<PageId> {
        let waiting = self.waiting.get_mut(class)?;
        while let Some(page) = waiting.pop_front() {
            if self.known.get(&page) == Some(&Room::Waiting(class)) {
                self.known.insert(page, Room::Taken);
                return Some(page);
            }
        }
        None
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The mutex protects only hints.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
