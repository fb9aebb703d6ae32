//! The lives of a database: each begins with an opening for changes, and has a random number. They tell histories apart: of
//! a database and its copy, each goes on with a life that the other does not have. A backup notes the lives up to its
//! own, and an increment is based only on a backup of a life that this database has had.

use vellum_base::{Bytes, Lsn, primitive::random_id};

/// How many lives are noted. The page of a superblock has room for no more.
pub(crate) const LIVES_MAX: usize = 238;
/// The length of a life, in bytes.
pub(crate) const LIFE_BYTES: usize = 16;

/// The latest lives of a database, the present one last.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Lives(Vec<Life>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    /// Random, and not zero.
    id: u64,
    /// Where the log of the life before ended.
    begin: Lsn,
}

impl Lives {
    /// Begins a life where the log of the one before ended.
    pub(crate) fn begin(&mut self, at: Lsn) {
        let id = random_id().as_slice().u64_at(0).max(1);
        if self.0.len() == LIVES_MAX {
            self.0.remove(0);
        }
        self.0.push(Life { id, begin: at });
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether none is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the present is what became of a state at place `end` of the log in the last of the `former` lives.
    pub(crate) fn continue_from(&self, former: &Self, end: Lsn) -> bool {
        let Some(last) = former.0.last() else { return false };
        let Some(at) = self.0.iter().position(|life| life == last) else { return false };
        self.0.get(at + 1).is_none_or(|next| end <= next.begin)
    }

    /// Writes them to zeroed bytes.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        for (life, target) in self.0.iter().zip(bytes.chunks_exact_mut(LIFE_BYTES)) {
            let (id, begin) = target.split_at_mut(8);
            id.copy_from_slice(&life.id.to_le_bytes());
            begin.copy_from_slice(&life.begin.0.to_le_bytes());
        }
    }

    /// What was written; none follows after zeroes.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let life = |bytes: &[u8]| Life { id: bytes.u64_at(0), begin: Lsn(bytes.u64_at(8)) };
        let lives = bytes.chunks_exact(LIFE_BYTES).take(LIVES_MAX).map(life);
        Self(lives.take_while(|life| life.id > 0).collect())
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
        let mut bytes = vec![0; (LIVES_MAX + 2) * LIFE_BYTES];
        lives.encode(&mut bytes);
        assert_eq!(Lives::decode(&bytes), lives);
        assert_eq!(Lives::decode(&[0; 64]), Lives::default());
        assert!(!lives.continue_from(&all[2], Lsn(0)) && lives.continue_from(&all[3], Lsn(0)));
    }
}
