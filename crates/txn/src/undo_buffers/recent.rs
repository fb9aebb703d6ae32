//! The slots of the last commits, by the times of these.

use vellum_base::primitive::{AtomicU64, Ordering};

/// Of how many commits the slots are known.
const COMMITS: usize = if cfg!(test) { 4 } else { 1024 };

/// The slots of the last commits: of each in turn its time and its slot, in one word.
pub(super) struct RecentCommits(Box<[AtomicU64]>);

/// The bits of a word for the slot. Those for the time last for a century of a million commits a second.
const SLOT_BITS: u32 = 12;
/// The slot of a commit that has none.
const NO_SLOT: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!(super::SLOTS < NO_SLOT as usize);

/// What is known of the commit at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recent {
    /// It was not made yet.
    None,
    /// It has, or had, this slot.
    Slot(usize),
    /// It never had a slot.
    WithoutSlot,
    /// It was too long ago.
    Unknown,
}

impl Default for RecentCommits {
    fn default() -> Self {
        Self((0..COMMITS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl RecentCommits {
    fn word(&self, time: u64) -> Option<&AtomicU64> {
        self.0.get((time % COMMITS as u64) as usize)
    }

    /// Notes the commit at this time, which is that of the last one or later.
    pub fn note(&self, time: u64, slot: Option<usize>) {
        let slot = slot.map_or(NO_SLOT, |number| number as u64);
        if let Some(word) = self.word(time) {
            // Release: pairs with `at`. The slot has the commit.
            word.store(time << SLOT_BITS | slot, Ordering::Release);
        }
    }

    #[inline]
    pub fn at(&self, time: u64) -> Recent {
        // Acquire: pairs with `note`.
        let word = self.word(time).map_or(0, |word| word.load(Ordering::Acquire));
        match (word >> SLOT_BITS).cmp(&time) {
            std::cmp::Ordering::Less => Recent::None,
            std::cmp::Ordering::Greater => Recent::Unknown,
            std::cmp::Ordering::Equal if word & NO_SLOT == NO_SLOT => Recent::WithoutSlot,
            std::cmp::Ordering::Equal => Recent::Slot((word & NO_SLOT) as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_commits_are_known() {
        let recent = RecentCommits::default();
        for time in 2..20 {
            assert_eq!(recent.at(time), Recent::None);
            let slot = |time: u64| (!time.is_multiple_of(3)).then_some(time as usize);
            recent.note(time, slot(time));
            for former in 2..=time {
                let expected = match slot(former) {
                    _ if former + COMMITS as u64 <= time => Recent::Unknown,
                    Some(number) => Recent::Slot(number),
                    None => Recent::WithoutSlot,
                };
                assert_eq!(recent.at(former), expected, "{former} at {time}");
            }
        }
    }
}
