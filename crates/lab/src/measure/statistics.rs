//! Medians over rounds and percentiles of latencies.

use crate::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The median and the extremes of what several rounds measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle value; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`, or `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// Latencies in nanoseconds, from 1 ns to 100 s, with three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// The percentiles that a report gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the samples took no longer, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 samples took no longer, in nanoseconds.
    pub p99_ns: u64,
    /// 999 of 1000 samples took no longer, in nanoseconds.
    pub p999_ns: u64,
    /// 9999 of 10,000 samples took no longer, in nanoseconds.
    pub p9999_ns: u64,
}

impl Latencies {
    /// No samples yet.
    ///
    /// # Errors
    /// If the histogram cannot be made, which its fixed bounds exclude.
    pub fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 100_000_000_000, 3)?))
    }

    /// Adds one sample; one outside the bounds counts as the nearest bound.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all samples of another thread or round.
    ///
    /// # Errors
    /// If the histograms differ in their bounds, which they never do.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.0.len()
    }

    /// The percentiles of all samples; zeroes if there are none.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            p9999_ns: self.0.value_at_quantile(0.9999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_rounds() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([4.0]), Some(Spread { median: 4.0, min: 4.0, max: 4.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 3.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 9.0]), Some(Spread { median: 3.5, min: 1.0, max: 9.0 }));
    }

    #[test]
    fn percentiles_of_known_samples() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.percentiles(), Percentiles::default());
        for n in 1..=1000 {
            latencies.record(Duration::from_nanos(n));
        }
        let mut doubled = latencies.clone();
        doubled.add(&latencies).unwrap();
        assert_eq!((latencies.samples(), doubled.samples()), (1000, 2000));
        assert_eq!(
            latencies.percentiles(),
            Percentiles { p50_ns: 500, p99_ns: 990, p999_ns: 999, p9999_ns: 1000 }
        );
        assert_eq!(doubled.percentiles(), latencies.percentiles());
        latencies.record(Duration::from_secs(1000));
        assert!(latencies.percentiles().p999_ns < 1_000_000, "one outlier is beyond the 99.9th percentile");
    }
}
