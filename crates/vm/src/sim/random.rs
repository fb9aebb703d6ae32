//! Random numbers that are determined by a seed for good.
//!
//! SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): eight
//! lines that never change, so that a seed printed by a failing test keeps its meaning.

#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end - 1`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a product: no modulo, and a bias that no test will notice.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// True with this probability; draws nothing if it is zero, so that unused faults change nothing.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        let mut random = Random::new(1_234_567);
        let found: Vec<_> = (0..3).map(|_| random.next()).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_keep_to_their_range_and_probability() {
        let mut random = Random::new(1);
        let mut seen = [0; 5];
        for _ in 0..5000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (900..1100).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        let hits = (0..10_000).filter(|_| random.chance(0.2)).count();
        assert!((1800..2200).contains(&hits), "{hits}");
        assert!((0..100).all(|_| random.chance(1.0) && !random.chance(0.0)));
    }
}
