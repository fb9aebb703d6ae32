//! The lives of a database: each begins with an opening for changes, and has a random number. They tell histories apart: of
//! a database and its copy, each goes on with a life that the other does not have. A backup notes the lives up to its
//! own, and an increment is based only on a backup of a life that this database has had.
//!
//! There is room for a limited number. So a life of which a backup was made is marked, and the others are forgotten first.

use vellum_base::{Bytes, Lsn, primitive::random_id};

/// How many lives are noted. The page of a superblock has room for no more.
pub(crate) const LIVES_MAX: usize = 238;
/// The length of a life, in bytes.
pub(crate) const LIFE_BYTES: usize = 16;

/// The bit of a life's second word that says that a backup was made. No LSN has it.
const BACKED_UP: u64 = 1 << 63;

/// The length of all that is written, in bytes: the lives, and where the log begins of which no life was forgotten.
pub(crate) const SINCE_END: usize = LIVES_MAX * LIFE_BYTES + 8;

/// The lives of a database in their order, the present one last.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Lives {
    noted: Vec<Life>,
    /// All lives that have logged something from here on are noted. Unknown if a version wrote the file last that does not
    /// write this: it may have forgotten any of them.
    since: Option<Lsn>,
    /// The number of the life that begins next, if that has been chosen. In memory only.
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    /// Random, and not zero.
    id: u64,
    /// Where the log of the life before it in the list ended.
    begin: Lsn,
    /// Whether a backup was made of it.
    backed_up: bool,
}

impl Lives {
    /// Chooses the number of the next life: the log carries it before the life begins.
    pub(crate) fn choose_next(&mut self) -> u64 {
        self.next = random_id().as_slice().u64_at(0).max(1);
        self.next
    }

    /// Begins a life where the log of the one before ended, and returns its number.
    pub(crate) fn begin(&mut self, at: Lsn) -> u64 {
        if self.next == 0 {
            self.choose_next();
        }
        let id = std::mem::take(&mut self.next);
        // Of what was logged before, another version may have forgotten the life.
        self.since.get_or_insert(at);
        self.noted.push(Life { id, begin: at, backed_up: false });
        if self.noted.len() > LIVES_MAX {
            self.forget_one();
        }
        id
    }

    /// Forgets the others, and begins a life that changes something without a log. The log goes on at this place, which a copy may also
    /// come to that is changed without a log: so what was before the place is not what any other life has had there.
    pub(crate) fn begin_without_log(&mut self, at: Lsn) {
        self.clear();
        self.since = at.0.checked_sub(1).map(Lsn);
        self.begin(at);
    }

    /// Where each of them began, and its number.
    pub(crate) fn all(&self) -> Vec<(Lsn, u64)> {
        self.noted.iter().map(|life| (life.begin, life.id)).collect()
    }

    /// Whether others may have been forgotten.
    pub(crate) fn is_full(&self) -> bool {
        self.noted.len() >= LIVES_MAX
    }

    /// Forgets the oldest former life of which no backup was made, or the oldest of all if there is none.
    fn forget_one(&mut self) {
        let former = self.noted.split_last().map_or(&[][..], |(_, former)| former);
        let forgotten = former.iter().position(|life| !life.backed_up).unwrap_or(0);
        let life = self.noted.remove(forgotten);
        // The life before it in the list still ended where this one began.
        if let Some(next) = self.noted.get_mut(forgotten) {
            self.since = self.since.max(Some(next.begin));
            next.begin = life.begin;
        }
    }

    /// Notes that a backup is made of the present life.
    pub(crate) fn note_backup(&mut self) {
        if let Some(life) = self.noted.last_mut() {
            life.backed_up = true;
        }
    }

    /// Notes that a backup was made of the last of the `former` lives. Whether that changes anything.
    pub(crate) fn note_backup_of(&mut self, former: &Self) -> bool {
        let Some(life) =
            former.noted.last().and_then(|last| self.noted.iter_mut().find(|life| life.id == last.id))
        else {
            return false;
        };
        !std::mem::replace(&mut life.backed_up, true)
    }

    /// Their numbers, and where the log begins of which all lives are noted, if that is known.
    pub(crate) fn known(&self) -> (Vec<u64>, Option<Lsn>) {
        (self.noted.iter().map(|life| life.id).collect(), self.since)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        (self.noted, self.since) = (Vec::new(), None);
    }

    /// Whether none is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// Whether the present is what became of a state at place `end` of the log in the last of the `former` lives.
    pub(crate) fn continue_from(&self, former: &Self, end: Lsn) -> bool {
        let Some(last) = former.noted.last() else { return false };
        let Some(at) = self.noted.iter().position(|life| life.id == last.id) else { return false };
        self.noted.get(at + 1).is_none_or(|next| end <= next.begin)
    }

    /// Writes them to zeroed bytes.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        for (life, target) in self.noted.iter().take(LIVES_MAX).zip(bytes.chunks_exact_mut(LIFE_BYTES)) {
            let (id, begin) = target.split_at_mut(8);
            id.copy_from_slice(&life.id.to_le_bytes());
            let mark = if life.backed_up { BACKED_UP } else { 0 };
            begin.copy_from_slice(&(life.begin.0 | mark).to_le_bytes());
        }
        if let (Some(since), Some(target)) = (self.since, bytes.get_mut(LIVES_MAX * LIFE_BYTES..SINCE_END)) {
            target.copy_from_slice(&(since.0 + 1).to_le_bytes());
        }
    }

    /// What was written; none follows after zeroes.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let life = |bytes: &[u8]| {
            let (id, word) = (bytes.u64_at(0), bytes.u64_at(8));
            Life { id, begin: Lsn(word & !BACKED_UP), backed_up: word & BACKED_UP > 0 }
        };
        let lives = bytes.chunks_exact(LIFE_BYTES).take(LIVES_MAX).map(life);
        let since = bytes.get(LIVES_MAX * LIFE_BYTES..SINCE_END).map_or(0, |word| word.u64_at(0));
        Self {
            noted: lives.take_while(|life| life.id > 0).collect(),
            since: since.checked_sub(1).map(Lsn),
            next: 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_continue_what_the_original_did_since() {
        let mut lives = Lives::default();
        assert!(!lives.continue_from(&lives, Lsn(0)), "nothing is known");
        lives.begin(Lsn(0));
        lives.begin(Lsn(100));
        let before = lives.clone();
        let mut copy = lives.clone();
        lives.begin(Lsn(300));
        copy.begin(Lsn(200));
        for end in [100, 200, 300] {
            assert!(lives.continue_from(&before, Lsn(end)));
            assert_eq!(copy.continue_from(&before, Lsn(end)), end <= 200);
        }
        assert!(!lives.continue_from(&before, Lsn(301)));
        assert!(lives.continue_from(&lives, Lsn(1 << 40)));
        assert!(!copy.continue_from(&lives, Lsn(0)) && !lives.continue_from(&copy, Lsn(0)));
        assert!(!before.continue_from(&lives, Lsn(0)));
    }

    #[test]
    fn the_latest_are_kept_and_come_back() {
        let (mut lives, mut all) = (Lives::default(), Vec::new());
        for number in 0..LIVES_MAX as u64 + 3 {
            lives.begin(Lsn(number));
            all.push(lives.clone());
        }
        lives.note_backup();
        let mut bytes = vec![0; (LIVES_MAX + 2) * LIFE_BYTES];
        lives.encode(&mut bytes);
        assert_eq!(Lives::decode(&bytes), lives);
        assert_eq!(Lives::decode(&[0; 64]), Lives::default());
        assert!(!lives.continue_from(&all[2], Lsn(0)) && lives.continue_from(&all[3], Lsn(0)));
    }

    #[test]
    fn those_with_backups_are_kept_longest() {
        let each = 100;
        let (mut lives, mut backups) = (Lives::default(), Vec::new());
        for number in 0..(LIVES_MAX * each) as u64 {
            lives.begin(Lsn(10 * number));
            if number % each as u64 == 7 {
                lives.note_backup();
                backups.push((lives.clone(), Lsn(10 * number + 10)));
            }
        }
        // The one after the last backup has room, too.
        assert_eq!(lives.noted.len(), LIVES_MAX);
        let known =
            |lives: &Lives| backups.iter().filter(|(former, end)| lives.continue_from(former, *end)).count();
        assert_eq!(known(&lives), LIVES_MAX - 1);
        for (former, end) in &backups[1..] {
            assert!(
                !lives.continue_from(former, Lsn(end.0 + 1)),
                "the life ended there, whatever was forgotten"
            );
        }
        for _ in 0..3 * LIVES_MAX {
            lives.begin(Lsn(1 << 40));
        }
        assert_eq!(known(&lives), LIVES_MAX - 1);
    }

    #[test]
    fn what_was_forgotten_lies_before_where_all_lives_are_noted() {
        let (mut lives, mut all) = (Lives::default(), Vec::new());
        for number in 1..3 * LIVES_MAX as u64 {
            let at = Lsn(16 * number);
            all.push((at, lives.choose_next()));
            assert_eq!(lives.begin(at), all.last().unwrap().1);
            if number < LIVES_MAX as u64 {
                // In the end the last former life is the only one without a backup.
                lives.note_backup();
            }
            let (known, since) = lives.known();
            // A life has logged between where the one before ended and where it ended itself.
            let ends = all.iter().skip(1).map(|(begin, _)| *begin).chain([Lsn(u64::MAX)]);
            for ((_, id), end) in all.iter().zip(ends) {
                assert!(known.contains(id) || end <= since.unwrap());
            }
            let mut bytes = vec![0; SINCE_END];
            lives.encode(&mut bytes);
            assert_eq!(Lives::decode(&bytes), lives);
            // Another version writes no such place. Then nothing is known up to here.
            bytes[LIVES_MAX * LIFE_BYTES..].fill(0);
            let mut other = Lives::decode(&bytes);
            assert_eq!(other.known().1, None);
            other.begin(Lsn(1 << 30));
            assert_eq!(other.known().1, Some(Lsn(1 << 30)));
        }
        lives.clear();
        assert_eq!(lives.known(), (vec![], None));
    }

    #[test]
    fn a_backup_is_noted_later_where_its_life_is_known() {
        let mut lives = Lives::default();
        lives.begin(Lsn(0));
        let (former, mut copy) = (lives.clone(), lives.clone());
        lives.begin(Lsn(5));
        assert!(lives.note_backup_of(&former) && !lives.note_backup_of(&former));
        copy.begin(Lsn(4));
        assert!(!lives.note_backup_of(&copy) && !lives.note_backup_of(&Lives::default()));
        for _ in 0..2 * LIVES_MAX {
            lives.begin(Lsn(9));
        }
        assert!(lives.continue_from(&former, Lsn(5)) && !lives.continue_from(&former, Lsn(6)));
    }
}
