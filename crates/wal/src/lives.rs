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
    ends: LifeEnds,
}

impl ReadableLives {
    /// In segments that begin at these places nothing but these lives, and what is not known to be of any life, is read.
    pub fn only(numbers: Vec<u64>, places: Range<Lsn>) -> Self {
        Self { numbers: numbers.into(), places: places.start.0..places.end.0, ends: LifeEnds::default() }
    }

    /// And none of them has logged anything after its end: a copy did that in its name.
    pub fn that_end(self, ends: LifeEnds) -> Self {
        Self { ends, ..self }
    }

    /// From where on in the log nothing is read that a life has written.
    pub(crate) fn end(&self, life: u64) -> u64 {
        self.ends.end(life).0
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

/// Where lives ended: all but the last one.
#[derive(Clone, Default, Debug)]
pub struct LifeEnds(Arc<[(u64, Lsn)]>);

impl LifeEnds {
    /// Those of lives in their order, each with where it began.
    pub fn of(lives: &[(Lsn, u64)]) -> Self {
        let ends = lives.iter().zip(lives.iter().skip(1)).map(|((_, life), (end, _))| (*life, *end));
        Self(ends.collect())
    }

    /// Where a life ended; the largest place if it is unknown, or has not ended.
    pub(crate) fn end(&self, life: u64) -> Lsn {
        self.0.iter().find(|(number, _)| *number == life).map_or(Lsn(u64::MAX), |(_, end)| *end)
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
    /// All that have logged something from here on are known.
    known_from: Lsn,
}

impl LogLives {
    /// Notes a life of the database, by its number, which is not zero: it begins where the log of the life before ended. The
    /// archive says which life has written what.
    pub fn note(&self, begin: Lsn, number: u64) {
        let mut known = self.lock();
        if known.lives.is_empty() {
            known.known_from = begin;
        }
        known.lives.push((begin, number));
    }

    /// Notes that there may have been lives that were not noted.
    pub fn note_forgotten(&self) {
        self.lock().are_some_forgotten = true;
    }

    /// Notes from where on in the log all lives were noted.
    pub fn note_known_from(&self, begin: Lsn) {
        self.lock().known_from = begin;
    }

    /// The life that wrote what begins at a place; zero if it is unknown.
    pub(crate) fn of(&self, start: Lsn) -> u64 {
        let known = self.lock();
        known.lives.iter().rev().find(|(begin, _)| *begin <= start).map_or(0, |(_, number)| *number)
    }

    /// The life that has logged what ends at a place, where one has logged something since the log was opened, or the log had ended. Where
    /// the first one begins, it is that one, which tells this database from others that have come there. Zero if it is unknown.
    pub fn before(&self, place: Lsn) -> u64 {
        let known = self.lock();
        let life = known.lives.iter().rev().find(|(begin, _)| *begin < place);
        let life = life.or_else(|| known.lives.first().filter(|(begin, _)| *begin == place));
        life.map_or(0, |(_, number)| *number)
    }

    /// Whether this database has what a life had logged before a place: false if it has left that life earlier, as when it was
    /// restored, or has never had it. Of what is unknown, also a life of number zero, true.
    pub fn have(&self, place: Lsn, number: u64) -> bool {
        let known = self.lock();
        match known.lives.iter().position(|(_, known)| *known == number) {
            Some(at) => known.lives.get(at + 1).is_none_or(|(end, _)| place <= *end),
            None => number == 0 || place <= known.known_from,
        }
    }

    /// Whether one of them begins at a place.
    pub(crate) fn begin_at(&self, place: Lsn) -> bool {
        self.lock().lives.iter().any(|(begin, _)| *begin == place)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_another_history_are_told_apart() {
        let lives = LogLives::default();
        assert_eq!(lives.before(Lsn(5)), 0);
        assert!(lives.have(Lsn(0), 7) && !lives.have(Lsn(1), 7), "everything is known");
        for (begin, number) in [(0, 1), (100, 2), (200, 3)] {
            lives.note(Lsn(begin), number);
        }
        assert!(!lives.have(Lsn(1), 9), "nothing comes before the first life");
        lives.note_known_from(Lsn(100));
        for (place, number) in [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3), (1 << 40, 3)] {
            assert_eq!(lives.before(Lsn(place)), number, "{place}");
            assert!(lives.have(Lsn(place), number), "{place}");
            assert!(lives.have(Lsn(place), 0), "{place}: where a life is not known, it may be any");
        }
        // The lost one went on.
        assert!(!lives.have(Lsn(101), 1) && !lives.have(Lsn(201), 2));
        lives.note(Lsn(300), 4);
        assert_eq!((lives.before(Lsn(300)), lives.before(Lsn(301))), (3, 4));
        // A life may have been forgotten only before the place from which on all are known.
        assert!(lives.have(Lsn(100), 9) && !lives.have(Lsn(101), 9));
    }
}
