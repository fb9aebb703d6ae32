//! A step of the tour, in figures.

use serde::Serialize;
use std::time::Duration;
use vellum::Statistics;

/// A step of the tour.
#[derive(Clone, Serialize)]
pub struct Phase {
    pub kind: &'static str,
    pub phase: &'static str,
    pub entries: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub misses: u64,
    pub pages_evicted: u64,
    pub pages_written: u64,
}

impl Phase {
    /// A step, with the statistics before and after it.
    pub fn new(
        phase: &'static str,
        entries: u64,
        bytes: u64,
        time: Duration,
        before: Option<&Statistics>,
        after: &Statistics,
    ) -> Self {
        let since = |count: fn(&Statistics) -> u64| count(after).saturating_sub(before.map_or(0, count));
        Self {
            kind: "phase",
            phase,
            entries,
            bytes,
            seconds: time.as_secs_f64(),
            misses: since(|statistics| statistics.misses),
            pages_evicted: since(|statistics| statistics.pages_evicted),
            pages_written: since(|statistics| statistics.pages_written),
        }
    }
}
