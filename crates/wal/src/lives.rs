//! The lives of the database whose log this is: which of them wrote a part. They tell the log of a database from that of a
//! copy of it, which may have the same places and timelines.

use std::{ops::Range, sync::Arc};
use vellum_base::Lsn;
use vellum_base::primitive::{Mutex, MutexGuard};

/// Which lives of the database may have written the log that is read. By default any.
///
/// A life is in the superblocks of the database, durably in both, before it logs anything. Its first segment is begun before that, and
/// stays empty if the process ends in between. So what is refused are records of a life that the superblock does not know, and not
/// segments.
#[derive(Clone, Default, Debug)]
pub struct ReadableLives {
    numbers: Arc<[u64]>,
    /// Where in the log others are refused.
    places: Range<u64>,
}

impl ReadableLives {
    /// In segments that begin at these places nothing but these lives, and what is not known to be of any life, is read.
    pub fn only(numbers: Vec<u64>, places: Range<Lsn>) -> Self {
        Self { numbers: numbers.into(), places: places.start.0..places.end.0 }
    }

    /// Whether nothing is read that a life has written to the segment that begins there.
    pub(crate) fn refuse(&self, life: u64, start: u64) -> bool {
        life != 0 && self.places.contains(&start) && !self.numbers.contains(&life)
    }

    /// The last of them; zero if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.numbers.last().copied().unwrap_or(0)
    }
}

/// The lives that are known, in their order.
#[derive(Default)]
pub struct LogLives(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Where the log of the life before each ended, and its number, which is random and not zero.
    lives: Vec<(Lsn, u64)>,
    /// Whether there have been others, of which nothing is known.
    are_some_forgotten: bool,
}

impl LogLives {
    /// Notes a life of the database, by its number, which is not zero: it begins where the log of the life before ended. The
    /// archive says which life has written what.
    pub fn note(&self, begin: Lsn, number: u64) {
        self.lock().lives.push((begin, number));
    }

    /// Notes that there may have been lives that were not noted.
    pub fn note_forgotten(&self) {
        self.lock().are_some_forgotten = true;
    }

    /// The life that wrote what begins at a place; zero if it is unknown.
    pub(crate) fn of(&self, start: Lsn) -> u64 {
        let known = self.lock();
        known.lives.iter().rev().find(|(begin, _)| *begin <= start).map_or(0, |(_, number)| *number)
    }

    /// Whether a life may be one of this database: unless all of them are known, and it is none of them.
    pub(crate) fn may_have(&self, number: u64) -> bool {
        let known = self.lock();
        let is_known = || known.lives.iter().any(|(_, known)| *known == number);
        number == 0 || known.lives.is_empty() || known.are_some_forgotten || is_known()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
