//! The first keys of removed records in a range, gathered from several places.

use std::ops::{Bound, RangeBounds as _};
use vellum_access::Removed;

/// Gathers keys of removed records, each place showing its own in ascending order.
///
/// A place that has more than are wanted *cuts* the range at a key up to which it has shown all. What is beyond is not
/// wanted of the others either. So an old snapshot that looks at the beginning of a queue does not gather all that was
/// removed since.
pub(crate) struct RemovedRange<'b> {
    lower: Bound<&'b [u8]>,
    upper: Bound<&'b [u8]>,
    /// How many keys are wanted of each place at most.
    most: usize,
    keys: Vec<Box<[u8]>>,
    /// Up to this key all that were asked have shown theirs; `None` if the range was not cut.
    cut: Option<Box<[u8]>>,
    /// Where in `keys` those of the present place begin.
    from: usize,
}

impl<'b> RemovedRange<'b> {
    pub fn new((lower, upper): (Bound<&'b [u8]>, Bound<&'b [u8]>), most: usize) -> Self {
        // At least one, so that a range which is cut leads further.
        Self { lower, upper, most: most.max(1), keys: Vec::new(), cut: None, from: 0 }
    }

    /// The next keys are those of another place.
    pub fn begin(&mut self) {
        self.from = self.keys.len();
    }

    pub fn lower(&self) -> Bound<&'b [u8]> {
        self.lower
    }

    /// The upper bound of what is still wanted.
    pub fn upper(&self) -> Bound<&[u8]> {
        self.cut.as_deref().map_or(self.upper, Bound::Included)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        (self.lower, self.upper()).contains(key)
    }

    /// Whether the present place has shown as many keys as are wanted.
    pub fn is_full(&self) -> bool {
        self.keys.len() - self.from >= self.most
    }

    /// Adds a key of the range, or else nothing.
    pub fn add(&mut self, key: &[u8]) {
        if self.contains(key) {
            self.keys.push(key.into());
        }
    }

    /// Adds a key of the range, the next one of its place, unless enough were added: then it cuts the range, and returns
    /// false.
    pub fn add_next(&mut self, key: &[u8]) -> bool {
        if self.is_full() {
            self.cut();
        } else {
            self.add(key);
            return true;
        }
        false
    }

    /// The last key that the present place has added.
    pub fn last(&self) -> Option<&[u8]> {
        self.keys.get(self.from..)?.last().map(|key| &**key)
    }

    /// Cuts the range at the greatest key of the present place, which has shown all up to there.
    pub fn cut(&mut self) {
        let greatest = self.keys.get(self.from..).and_then(|keys| keys.iter().max().cloned());
        if let Some(greatest) = greatest {
            self.cut = Some(greatest);
        }
    }

    /// Cuts the range at this key, if that leads further, and says whether it does. The present place has shown all up to
    /// there.
    pub fn cut_at(&mut self, key: &[u8]) -> bool {
        let leads_on = self.contains(key);
        if leads_on {
            self.cut = Some(key.into());
        }
        leads_on
    }

    /// The keys in ascending order.
    pub fn finish(self) -> Removed {
        let Self { mut keys, cut, .. } = self;
        if let Some(cut) = &cut {
            keys.retain(|key| key <= cut);
        }
        keys.sort_unstable();
        keys.dedup();
        Removed { keys, complete_to: cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    /// Going on from where each range was cut gives all keys, once and in order.
    #[test]
    fn ranges_that_are_cut_lead_to_all_keys() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let places: Vec<BTreeSet<u16>> = (0..random.random_range(1..5))
                .map(|_| (0..random.random_range(0..200)).map(|_| random.random_range(0..500)).collect())
                .collect();
            let (from, to) = (random.random_range(0..250_u16), random.random_range(250..600_u16));
            let (mut found, mut rounds) = (Vec::new(), 0);
            let mut lower = from.to_be_bytes().to_vec();
            let upper = to.to_be_bytes();
            loop {
                let bounds = (Bound::Excluded(&lower[..]), Bound::Included(&upper[..]));
                let mut range = RemovedRange::new(bounds, random.random_range(0..40));
                for place in &places {
                    range.begin();
                    let keys: Vec<_> = place.iter().map(|key| key.to_be_bytes()).collect();
                    let within: Vec<_> =
                        keys.iter().filter(|key| range.contains(&key[..])).copied().collect();
                    let _ = within.iter().try_for_each(|key| range.add_next(key).then_some(()));
                }
                let Removed { keys, complete_to } = range.finish();
                found.extend(keys);
                rounds += 1;
                match complete_to {
                    Some(cut) => lower = cut.into_vec(),
                    None => break,
                }
            }
            let all: BTreeSet<_> =
                places.into_iter().flatten().filter(|key| (from + 1..=to).contains(key)).collect();
            let all: Vec<Box<[u8]>> = all.into_iter().map(|key| Box::from(key.to_be_bytes())).collect();
            assert_eq!(found, all, "seed {seed}, {rounds} rounds");
        }
    }
}
