//! Rounds that alternate between contestants, and the figures that come of them.
//!
//! In each round every number of threads and every contestant has its turn, so that a change in the state
//! of the machine during the run meets all alike.

use crate::Result;
use crate::config::Load;
use crate::measure::line::{LineTimes, line_ns};
use crate::measure::machine::StorageBytes;
use crate::measure::statistics::{Percentiles, Spread};
use crate::report::reporter::{Ratio, Reporter, Round, Summary};
use serde::{Deserialize, Serialize};

/// What one contestant did in one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Operations that were completed.
    pub operations: u64,
    /// How long it took.
    pub seconds: f64,
    /// Percentiles over all rounds with this load so far.
    pub percentiles: Percentiles,
    /// How many samples they rest on.
    pub latency_samples: u64,
    /// Read and written during the round.
    pub storage: StorageBytes,
    /// The largest resident size so far.
    pub resident_bytes_max: u64,
    /// How long cache lines took, if there were several threads and processors.
    #[serde(skip)]
    pub line: Option<LineTimes>,
}

impl Measured {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// What a contest is about.
pub struct Contest<'a> {
    /// The workload.
    pub workload: &'static str,
    /// The contestants by name.
    pub names: Vec<String>,
    /// The threads and clients that each is measured with.
    pub loads: &'a [Load],
    /// How many rounds there are.
    pub rounds: usize,
}

/// The rounds of one contestant with one load.
pub struct Series {
    /// Which contestant.
    pub contestant: usize,
    /// With how many threads and clients.
    pub load: Load,
    /// What it did, round by round.
    pub rounds: Vec<Measured>,
}

/// What a summary says beside what the rounds give.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Tuples in the table, or pages.
    pub tuples: u64,
    /// The limit of the pool.
    pub pool_bytes: u64,
    /// How long loading took; `None` if the rounds themselves are the loading.
    pub load_seconds: Option<f64>,
}

impl Contest<'_> {
    /// Runs all rounds; `measure` is given the contestant, its load and the round, from zero.
    ///
    /// # Errors
    /// The first error of a round.
    pub fn run(
        &self,
        reporter: &Reporter,
        mut measure: impl FnMut(usize, Load, usize) -> Result<Measured>,
    ) -> Result<Vec<Series>> {
        let mut all: Vec<Series> = (0..self.names.len())
            .flat_map(|contestant| {
                self.loads.iter().map(move |load| Series { contestant, load: *load, rounds: Vec::new() })
            })
            .collect();
        for round in 0..self.rounds {
            for load in self.loads {
                for series in all.iter_mut().filter(|series| series.load == *load) {
                    let measured = beside_line_times(*load, || measure(series.contestant, *load, round))?;
                    reporter.round(&self.round(series, round, &measured))?;
                    series.rounds.push(measured);
                }
            }
        }
        Ok(all)
    }

    fn round(&self, series: &Series, round: usize, measured: &Measured) -> Round {
        Round {
            kind: "round",
            workload: self.workload,
            engine: self.names[series.contestant].clone(),
            threads: series.load.threads,
            clients: series.load.clients,
            round: round + 1,
            operations: measured.operations,
            seconds: measured.seconds,
            ops_per_second: measured.rate(),
            latency_samples: measured.latency_samples,
            bytes_read: measured.storage.read,
            bytes_written: measured.storage.written,
            resident_bytes_max: measured.resident_bytes_max,
            line: measured.line,
        }
    }

    /// One summary a series; `setup` is given the contestant and its load.
    pub fn summaries(&self, all: &[Series], setup: impl Fn(usize, Load) -> Setup) -> Vec<Summary> {
        all.iter()
            .filter_map(|series| {
                let setup = setup(series.contestant, series.load);
                let rate = Spread::of(series.rounds.iter().map(Measured::rate))?;
                let seconds = Spread::of(series.rounds.iter().map(|measured| measured.seconds))?;
                let percentiles = series.rounds.last()?.percentiles;
                let lines = series.rounds.iter().filter_map(|measured| measured.line);
                let line = Spread::of(lines.flat_map(|line| [line.before_ns, line.after_ns]));
                Some(Summary {
                    kind: "summary",
                    workload: self.workload,
                    engine: self.names[series.contestant].clone(),
                    threads: series.load.threads,
                    clients: series.load.clients,
                    tuples: setup.tuples,
                    pool_bytes: setup.pool_bytes,
                    rounds: series.rounds.len(),
                    ops_per_second: rate.median,
                    ops_per_second_min: rate.min,
                    ops_per_second_max: rate.max,
                    p50_ns: percentiles.p50_ns,
                    p99_ns: percentiles.p99_ns,
                    p999_ns: percentiles.p999_ns,
                    p9999_ns: percentiles.p9999_ns,
                    load_seconds: setup.load_seconds.unwrap_or(seconds.median),
                    resident_bytes_max: series.rounds.iter().map(|m| m.resident_bytes_max).max()?,
                    bytes_read: series.rounds.iter().map(|m| m.storage.read).sum(),
                    bytes_written: series.rounds.iter().map(|m| m.storage.written).sum(),
                    line_ns: line.map(|line| line.median),
                    line_ns_min: line.map(|line| line.min),
                    line_ns_max: line.map(|line| line.max),
                })
            })
            .collect()
    }

    /// The first contestant to each other with the same load, and each with another load to itself with the first.
    pub fn ratios(&self, all: &[Series]) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        for below in all {
            for above in all {
                let across = above.contestant == 0 && below.contestant > 0 && above.load == below.load;
                let scaling = above.contestant == below.contestant
                    && Some(&below.load) == self.loads.first()
                    && above.load != below.load;
                if across || scaling {
                    ratios.extend(self.ratio(above, below));
                }
            }
        }
        ratios
    }

    fn ratio(&self, above: &Series, below: &Series) -> Option<Ratio> {
        let rates = |series: &Series| series.rounds.iter().map(Measured::rate).collect::<Vec<_>>();
        let spread = Ratio::of(&rates(above), &rates(below))?;
        let (slow, fast) = (above.rounds.last()?.percentiles, below.rounds.last()?.percentiles);
        let latency = |of: fn(&Percentiles) -> u64| of(&slow) as f64 / of(&fast).max(1) as f64;
        Some(Ratio {
            kind: "ratio",
            workload: self.workload,
            of: self.names[above.contestant].clone(),
            of_threads: above.load.threads,
            of_clients: above.load.clients,
            to: self.names[below.contestant].clone(),
            to_threads: below.load.threads,
            to_clients: below.load.clients,
            ratio: spread.median,
            ratio_min: spread.min,
            ratio_max: spread.max,
            p99: latency(|percentiles| percentiles.p99_ns),
            p999: latency(|percentiles| percentiles.p999_ns),
        })
    }
}

/// A round of several threads with the times of cache lines before and after it.
fn beside_line_times(load: Load, measure: impl FnOnce() -> Result<Measured>) -> Result<Measured> {
    if load.threads < 2 {
        return measure();
    }
    let before = line_ns();
    let measured = measure()?;
    let line = before.and_then(|before_ns| Some(LineTimes { before_ns, after_ns: line_ns()? }));
    Ok(Measured { line, ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(operations: u64) -> Measured {
        Measured {
            operations,
            seconds: 1.0,
            percentiles: Percentiles { p50_ns: operations, p99_ns: 2, p999_ns: 3, p9999_ns: 4 },
            latency_samples: 1,
            storage: StorageBytes { read: 10, written: 1 },
            resident_bytes_max: operations,
            line: None,
        }
    }

    #[test]
    fn turns_alternate_and_medians_ratios_and_sums_come_out() {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let loads = [Load::threads(1), Load { threads: 2, clients: 3 }];
        let contest = Contest { workload: "test", names, loads: &loads, rounds: 3 };
        let mut turns = Vec::new();
        let all = contest
            .run(&Reporter { json: false }, |contestant, load, round| {
                turns.push((round, load.threads, contestant));
                Ok(measured([100, 10][contestant] * load.threads as u64 + round as u64))
            })
            .unwrap();
        let expected: Vec<_> =
            (0..3).flat_map(|r| [1, 2].into_iter().flat_map(move |t| [(r, t, 0), (r, t, 1)])).collect();
        assert_eq!(turns, expected);

        let setup = |_, _| Setup { tuples: 5, pool_bytes: 6, load_seconds: None };
        let summaries = contest.summaries(&all, setup);
        assert_eq!(summaries.len(), 4);
        let first = &summaries[0];
        assert_eq!((first.engine.as_str(), first.threads, first.rounds), ("a", 1, 3));
        assert_eq!((first.ops_per_second, first.ops_per_second_min), (101.0, 100.0));
        assert_eq!((first.ops_per_second_max, first.p50_ns, first.resident_bytes_max), (102.0, 102, 102));
        assert_eq!((first.bytes_read, first.bytes_written, first.load_seconds), (30, 3, 1.0));
        // Lines matter where there are several threads, and can be timed where there are several processors.
        let has_several = line_ns().is_some();
        assert_eq!(
            summaries.iter().map(|s| s.line_ns.is_some()).collect::<Vec<_>>(),
            [false, has_several, false, has_several]
        );

        let ratios = contest.ratios(&all);
        let named: Vec<_> = ratios.iter().map(|r| (r.of.as_str(), r.of_threads, r.to.as_str())).collect();
        assert_eq!(named, [("a", 2, "a"), ("a", 1, "b"), ("b", 2, "b"), ("a", 2, "b")]);
        assert!((ratios[1].ratio - 101.0 / 11.0).abs() < 1e-9);
        assert_eq!((ratios[0].of_clients, ratios[0].to_clients, ratios[0].p999), (3, 1, 1.0));
    }
}
