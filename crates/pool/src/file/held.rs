//! Freed space that a backup still copies.
//!
//! A backup knows at first only from which place of the log on it needs what is freed, and then which pages it copies:
//! it [holds](Held) no others. It copies them in ascending order, and what has been copied is free at once.
//!
//! If the file is full, a change waits for that if the backup lets it wait, and otherwise takes what is held. Then the
//! backup has lost what it needed, and is told so.

use std::{collections::BTreeMap, mem, ops::Range, time::Duration};
use vellum_base::{Extent, Lsn, PageId};

/// What is held.
pub(crate) struct Held {
    /// What records before this place free is not held.
    from: Lsn,
    pages: Pages,
    /// Pages before this one have been copied.
    copied: u64,
    /// Freed extents that are held, by their first pages, and the records that free them. These are durable.
    kept: BTreeMap<u64, (Lsn, Extent)>,
    /// Whether something that was held has been taken.
    is_lost: bool,
    /// How long a change may wait.
    patience: Option<Duration>,
}

/// Which pages are held.
enum Pages {
    /// All. With extents that were taken before it was known whether they are needed.
    Any { taken: Vec<Extent> },
    /// Ascending ranges, none of which touches another.
    These(Vec<Range<u64>>),
}

impl Held {
    /// Holds all that records from a place on free.
    pub(crate) fn new(from: Lsn, patience: Option<Duration>) -> Self {
        let pages = Pages::Any { taken: Vec::new() };
        Self { from, pages, copied: 0, kept: BTreeMap::new(), is_lost: false, patience }
    }

    /// Holds no other pages from now on. Returns what becomes free.
    pub(crate) fn narrow(&mut self, mut ranges: Vec<Range<u64>>) -> Vec<(Lsn, Extent)> {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, before| {
            let touches = next.start <= before.end;
            before.end = if touches { before.end.max(next.end) } else { before.end };
            touches
        });
        let before = mem::replace(&mut self.pages, Pages::These(ranges));
        if let Pages::Any { taken } = before
            && taken.iter().any(|extent| self.is_needed(*extent))
        {
            return self.lose();
        }
        let all = mem::take(&mut self.kept);
        let (kept, free) = all.into_iter().partition(|(_, (_, extent))| self.is_needed(*extent));
        self.kept = kept;
        values(free)
    }

    /// Notes that the pages before one have been copied. Returns what becomes free.
    pub(crate) fn note_copied(&mut self, before: PageId) -> Vec<(Lsn, Extent)> {
        self.copied = self.copied.max(before.0);
        let rest = self.kept.split_off(&self.copied);
        values(mem::replace(&mut self.kept, rest))
    }

    /// Holds an extent that a durable record has freed, if it is needed.
    pub(crate) fn keep(&mut self, lsn: Lsn, extent: Extent) -> bool {
        let is_held = lsn >= self.from && self.is_needed(extent);
        if is_held {
            self.kept.insert(extent.head.0, (lsn, extent));
        }
        is_held
    }

    /// Whether there is anything that a change could wait for, or take.
    pub(crate) fn is_any_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// How long a change may wait.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// From now on no change waits.
    pub(crate) fn end_patience(&mut self) {
        self.patience = None;
    }

    /// Takes what is held. From now on no change waits: the copying thread is too slow for that, or stuck.
    pub(crate) fn take(&mut self) -> Vec<(Lsn, Extent)> {
        self.end_patience();
        match &mut self.pages {
            Pages::Any { taken } => {
                taken.extend(self.kept.values().map(|(_, extent)| *extent));
                values(mem::take(&mut self.kept))
            }
            Pages::These(_) => self.lose(),
        }
    }

    /// Whether nothing that is needed has been taken.
    pub(crate) fn is_intact(&self) -> bool {
        !self.is_lost
    }

    /// Ends the hold. Returns what becomes free.
    pub(crate) fn end(self) -> Vec<(Lsn, Extent)> {
        values(self.kept)
    }

    fn is_needed(&self, extent: Extent) -> bool {
        let head = extent.head.0;
        match &self.pages {
            Pages::Any { .. } => true,
            Pages::These(ranges) => {
                let next = ranges.partition_point(|range| range.start <= head);
                let range = next.checked_sub(1).and_then(|last| ranges.get(last));
                head >= self.copied && range.is_some_and(|range| head < range.end)
            }
        }
    }

    /// Something is lost, and what else is held is of no use either: what survives is never freed, and what was freed
    /// is not needed once more of the log has been copied.
    fn lose(&mut self) -> Vec<(Lsn, Extent)> {
        self.is_lost = true;
        self.pages = Pages::These(Vec::new());
        values(mem::take(&mut self.kept))
    }
}

fn values(extents: BTreeMap<u64, (Lsn, Extent)>) -> Vec<(Lsn, Extent)> {
    extents.into_values().collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn extent(head: u64, pages: u32) -> Extent {
        Extent { head: PageId(head), pages }
    }

    fn heads(free: Vec<(Lsn, Extent)>) -> Vec<u64> {
        free.into_iter().map(|(_, extent)| extent.head.0).collect()
    }

    #[test]
    fn what_is_not_copied_and_what_has_been_copied_is_free() {
        let mut held = Held::new(Lsn(100), None);
        assert!(!held.keep(Lsn(99), extent(5, 2)), "freed before");
        for head in [10, 20, 30, 40] {
            assert!(held.keep(Lsn(100), extent(head, 2)));
        }
        // Overlapping, and not in order.
        assert_eq!(heads(held.narrow(vec![40..42, 10..12, 28..31, 20..22, 29..32, 21..22])), [] as [u64; 0]);
        assert!(!held.keep(Lsn(200), extent(50, 1)), "not copied");
        assert!(!held.keep(Lsn(200), extent(12, 1)), "after the end of a range");
        assert!(held.keep(Lsn(200), extent(31, 1)), "where two ranges overlap");
        assert_eq!(heads(held.note_copied(PageId(21))), [10, 20]);
        assert!(!held.keep(Lsn(300), extent(11, 1)), "copied");
        assert!(held.is_intact() && held.is_any_kept());
        assert_eq!(heads(held.end()), [30, 31, 40]);
    }

    #[test]
    fn what_is_taken_is_lost_if_it_is_needed() {
        let mut held = Held::new(Lsn(100), Some(Duration::from_secs(1)));
        assert!(held.keep(Lsn(100), extent(10, 2)) && held.patience().is_some());
        assert_eq!(heads(held.take()), [10]);
        assert_eq!(held.patience(), None);
        assert!(held.keep(Lsn(101), extent(20, 2)));
        assert_eq!(heads(held.narrow(std::iter::once(12..22).collect())), [] as [u64; 0]);
        assert!(held.is_intact(), "what was taken was not needed");
        assert_eq!(heads(held.take()), [20]);
        assert!(!held.is_intact());
        assert!(!held.keep(Lsn(102), extent(13, 1)), "nothing is held any more");

        let mut held = Held::new(Lsn(100), None);
        assert!(held.keep(Lsn(100), extent(10, 2)));
        assert_eq!(heads(held.take()), [10]);
        assert!(held.keep(Lsn(101), extent(11, 1)));
        assert_eq!(heads(held.narrow(std::iter::once(10..12).collect())), [11]);
        assert!(!held.is_intact(), "it turned out to be needed");
    }
}
