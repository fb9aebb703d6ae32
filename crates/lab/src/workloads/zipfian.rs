//! Numbers drawn after Zipf's law: the `k`-th most frequent of `n` is drawn with a probability proportional to
//! `1 / k^theta`.
//!
//! The method is that of Gray, Sundaresan, Englert, Baclawski, Weinberger: *Quickly generating billion-record
//! synthetic databases* (SIGMOD 1994), section 3, which YCSB uses too: a uniform number is turned into a
//! rank by a formula that is exact for the first two ranks and close for the others.

use crate::keys::Generator;

/// The skew of the standard workloads.
pub const THETA: f64 = 0.99;

/// Draws ranks from zero on, the most frequent first.
#[derive(Clone, Debug)]
pub struct Zipfian {
    count: u64,
    theta: f64,
    /// The sum of `1 / k^theta` over all ranks.
    zeta: f64,
    /// The same over the first two.
    zeta_of_two: f64,
}

impl Zipfian {
    /// Ranks `0..count`, of which there is at least one; takes time proportional to their number.
    pub fn new(count: u64, theta: f64) -> Self {
        let count = count.max(1);
        let zeta = sum(0, count, theta);
        Self { count, theta, zeta, zeta_of_two: sum(0, 2, theta) }
    }

    /// Lets there be more ranks; takes time proportional to what is added.
    pub fn grow(&mut self, count: u64) {
        if count > self.count {
            self.zeta += sum(self.count, count, self.theta);
            self.count = count;
        }
    }

    /// How many ranks there are.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Draws a rank.
    #[inline]
    pub fn draw(&self, generator: &mut Generator) -> u64 {
        let uniform = (generator.next() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_of_two {
            return 1.min(self.count - 1);
        }
        let alpha = 1.0 / (1.0 - self.theta);
        let eta =
            (1.0 - (2.0 / self.count as f64).powf(1.0 - self.theta)) / (1.0 - self.zeta_of_two / self.zeta);
        let rank = self.count as f64 * (eta * uniform - eta + 1.0).powf(alpha);
        (rank as u64).min(self.count - 1)
    }
}

/// The sum of `1 / k^theta` for the ranks `from..to`, of which the first has `k = 1`.
fn sum(from: u64, to: u64, theta: f64) -> f64 {
    (from..to).map(|rank| ((rank + 1) as f64).powf(-theta)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 1_000_000;

    fn frequencies(zipfian: &Zipfian) -> Vec<f64> {
        let mut generator = Generator::new(3, 0, 0);
        let mut counts = vec![0u64; zipfian.count() as usize];
        for _ in 0..DRAWS {
            counts[zipfian.draw(&mut generator) as usize] += 1;
        }
        counts.into_iter().map(|count| count as f64 / DRAWS as f64).collect()
    }

    #[test]
    fn the_first_ranks_are_as_frequent_as_the_law_says() {
        for (count, theta) in [(1000, THETA), (100_000, THETA), (1000, 0.5)] {
            let zipfian = Zipfian::new(count, theta);
            let measured = frequencies(&zipfian);
            for rank in [0, 1] {
                let expected = 1.0 / ((rank + 1) as f64).powf(theta) / zipfian.zeta;
                let error = (measured[rank] / expected - 1.0).abs();
                assert!(error < 0.03, "{count} {theta}: rank {rank}: {} for {expected}", measured[rank]);
            }
        }
    }

    #[test]
    fn so_are_ranges_of_ranks() {
        let zipfian = Zipfian::new(100_000, THETA);
        let measured = frequencies(&zipfian);
        for range in [0..10, 10..100, 100..1000, 1000..10_000, 10_000..100_000] {
            let expected = sum(range.start, range.end, THETA) / zipfian.zeta;
            let found: f64 = measured[range.start as usize..range.end as usize].iter().sum();
            let error = (found / expected - 1.0).abs();
            // The formula is an approximation, coarsest for the first ranks.
            assert!(error < 0.1, "{range:?}: {found} for {expected}");
        }
        assert!((measured.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn growing_is_the_same_as_beginning_anew() {
        let mut grown = Zipfian::new(10, THETA);
        grown.grow(5);
        assert_eq!(grown.count(), 10);
        grown.grow(1000);
        let anew = Zipfian::new(1000, THETA);
        assert!((grown.zeta - anew.zeta).abs() < 1e-9 && grown.count() == anew.count());
    }

    #[test]
    fn few_ranks_are_all_drawn_and_no_other() {
        for count in [1, 2, 3, 5] {
            let measured = frequencies(&Zipfian::new(count, THETA));
            assert!(measured.iter().all(|frequency| *frequency > 0.0), "{count}: {measured:?}");
            assert!(measured.is_sorted_by(|a, b| a >= b), "{count}: {measured:?}");
        }
    }
}
