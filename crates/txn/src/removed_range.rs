//! The first keys of removed records in a range, in either direction, gathered from several places.

use std::ops::{Bound, RangeBounds as _};
use vellum_access::{Direction, Removed};

/// Gathers keys of removed records, each place showing its own in the direction of the range.
///
/// A place that has more than are wanted *cuts* the range at a key up to which it has shown all. What is beyond is not
/// wanted of the others either. So an old snapshot that looks at one end of a queue does not gather all that was removed
/// since.
pub(crate) struct RemovedRange<'b> {
    bounds: (Bound<&'b [u8]>, Bound<&'b [u8]>),
    direction: Direction,
    /// How many keys are wanted of each place at most.
    most: usize,
    keys: Vec<Box<[u8]>>,
    /// Up to this key all that were asked have shown theirs; `None` if the range was not cut.
    cut: Option<Box<[u8]>>,
    /// Where in `keys` those of the present place begin.
    from: usize,
}

impl<'b> RemovedRange<'b> {
    pub fn new(bounds: (Bound<&'b [u8]>, Bound<&'b [u8]>), (direction, most): (Direction, usize)) -> Self {
        // At least one, so that a range which is cut leads further.
        Self { bounds, direction, most: most.max(1), keys: Vec::new(), cut: None, from: 0 }
    }

    /// The next keys are those of another place.
    pub fn begin(&mut self) {
        self.from = self.keys.len();
    }

    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The bounds of what is still wanted.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let (lower, upper) = self.bounds;
        match (self.cut.as_deref(), self.direction) {
            (None, _) => (lower, upper),
            (Some(cut), Direction::Forward) => (lower, Bound::Included(cut)),
            (Some(cut), Direction::Backward) => (Bound::Included(cut), upper),
        }
    }

    /// Whether the present place has shown as many keys as are wanted.
    pub fn is_full(&self) -> bool {
        self.keys.len() - self.from >= self.most
    }

    /// Adds a key of the range, or else nothing.
    pub fn add(&mut self, key: &[u8]) {
        if self.bounds().contains(key) {
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

    /// Cuts the range at the farthest key of the present place, which has shown all up to there.
    pub fn cut(&mut self) {
        let keys = self.keys.get(self.from..).unwrap_or_default().iter();
        let farthest = match self.direction {
            Direction::Forward => keys.max(),
            Direction::Backward => keys.min(),
        };
        if let Some(farthest) = farthest {
            self.cut = Some(farthest.clone());
        }
    }

    /// The keys in ascending order.
    pub fn finish(mut self) -> Removed {
        let mut keys = std::mem::take(&mut self.keys);
        keys.retain(|key| self.bounds().contains(&key[..]));
        let cut = self.cut;
        keys.sort_unstable();
        keys.dedup();
        Removed { keys, complete_to: cut }
    }
}

/// All keys within bounds, gathered in portions, each of which goes on where the one before was cut.
#[cfg(test)]
pub(crate) fn in_portions(
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    mut portion: impl FnMut((Bound<&[u8]>, Bound<&[u8]>)) -> Removed,
) -> Vec<Box<[u8]>> {
    let (mut found, mut cut) = (Vec::new(), None::<Box<[u8]>>);
    loop {
        let beyond = cut.as_deref().map(Bound::Excluded);
        let bounds = match direction {
            Direction::Forward => (beyond.unwrap_or(lower), upper),
            Direction::Backward => (lower, beyond.unwrap_or(upper)),
        };
        let Removed { keys, complete_to } = portion(bounds);
        assert!(keys.is_sorted() && keys.iter().all(|key| bounds.contains(&key[..])));
        let at = if direction == Direction::Forward { found.len() } else { 0 };
        found.splice(at..at, keys);
        let Some(to) = complete_to else { return found };
        assert!(bounds.contains(&to[..]), "it leads no further");
        cut = Some(to);
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
        for seed in 0..400 {
            let mut random = StdRng::seed_from_u64(seed);
            let places: Vec<BTreeSet<u16>> = (0..random.random_range(1..5))
                .map(|_| (0..random.random_range(0..200)).map(|_| random.random_range(0..500)).collect())
                .collect();
            let (from, to) = (random.random_range(0..250_u16), random.random_range(250..600_u16));
            let (lower, upper) = (from.to_be_bytes(), to.to_be_bytes());
            let bounds = (Bound::Excluded(&lower[..]), Bound::Included(&upper[..]));
            let direction = [Direction::Forward, Direction::Backward][seed as usize % 2];
            let mut rounds = 0;
            let found = in_portions(bounds, direction, |bounds| {
                rounds += 1;
                let mut range = RemovedRange::new(bounds, (direction, random.random_range(0..40)));
                for place in &places {
                    range.begin();
                    let keys = place.iter().map(|key| key.to_be_bytes());
                    let mut within: Vec<_> = keys.filter(|key| range.bounds().contains(&key[..])).collect();
                    if direction == Direction::Backward {
                        within.reverse();
                    }
                    let _ = within.iter().try_for_each(|key| range.add_next(key).then_some(()));
                }
                range.finish()
            });
            let all: BTreeSet<_> =
                places.into_iter().flatten().filter(|key| (from + 1..=to).contains(key)).collect();
            let all: Vec<Box<[u8]>> = all.into_iter().map(|key| Box::from(key.to_be_bytes())).collect();
            assert_eq!(found, all, "seed {seed}, {rounds} rounds");
        }
    }
}
