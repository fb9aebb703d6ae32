//! The tuples that a workload takes in turn, with their keys, some of which are made ahead of their use.
//!
//! Making keys is not the engine's work, and it may take as long: a path comes from a list of all, which is not in the
//! processor's cache. So it is timed apart, and no workload counts it.

use crate::keys::Keys;
use std::time::{Duration, Instant};

/// So many keys are made at a time: they fit into the processor's cache beside what the engine uses, and two looks at the
/// clock cost less than 1 ns each.
pub const AT_A_TIME: usize = 64;

/// Tuples in turn.
#[derive(Debug)]
pub struct Drawn<K: Keys, I> {
    indices: I,
    made: Vec<(u64, K::Key)>,
    used: usize,
    making: Duration,
}

impl<K: Keys, I: Iterator<Item = u64>> Drawn<K, I> {
    /// The tuples with these numbers.
    pub fn new(indices: I) -> Self {
        Self { indices, made: Vec::with_capacity(AT_A_TIME), used: 0, making: Duration::ZERO }
    }

    /// The number and the key of the next; none after the last.
    #[inline]
    pub fn next(&mut self) -> Option<(u64, &K::Key)> {
        if self.used == self.made.len() {
            self.make();
        }
        let (index, key) = self.made.get(self.used)?;
        self.used += 1;
        Some((*index, key))
    }

    /// How long the making of keys has taken until now.
    pub fn making(&self) -> Duration {
        self.making
    }

    #[cold]
    fn make(&mut self) {
        let begin = Instant::now();
        self.made.clear();
        self.made.extend(self.indices.by_ref().take(AT_A_TIME).map(|index| (index, K::key(index))));
        self.used = 0;
        self.making += begin.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{TextKeys, U64Keys};

    fn all<K: Keys>() {
        for count in [0, 1, 63, 64, 65, 1000] {
            let mut drawn = Drawn::<K, _>::new(0..count);
            for expected in 0..count {
                let (index, key) = drawn.next().unwrap();
                assert_eq!((index, key.as_ref()), (expected, K::key(expected).as_ref()));
            }
            assert!(drawn.next().is_none() && drawn.next().is_none());
            assert!(drawn.making() > Duration::ZERO);
        }
    }

    #[test]
    fn tuples_come_in_turn_and_each_has_its_key() {
        all::<U64Keys>();
        all::<TextKeys>();
    }
}
