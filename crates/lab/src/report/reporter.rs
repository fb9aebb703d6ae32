//! What a run prints: one JSON object a line, or tables for people.

use crate::measure::line::LineTimes;
use crate::measure::machine::Manifest;
use crate::measure::statistics::Spread;
use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{self, Write};

/// The figures of one engine (or method) with so many threads, over all rounds of a run.
///
/// Readers of the JSON rely on the fields and their order.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Always `summary`.
    pub kind: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// The engine, or the method where there is none.
    pub engine: String,
    /// How many threads were asked for.
    pub threads: usize,
    /// How many clients each serves.
    pub clients: usize,
    /// Tuples in the table; pages in the mapping or file where there is no table.
    pub tuples: u64,
    /// The limit of the pool that the run was given.
    pub pool_bytes: u64,
    /// How many rounds there were.
    pub rounds: usize,
    /// The median over the rounds.
    pub ops_per_second: f64,
    /// The slowest round.
    pub ops_per_second_min: f64,
    /// The fastest round.
    pub ops_per_second_max: f64,
    /// Of all timed operations in all rounds, as `p99_ns` and `p999_ns`.
    pub p50_ns: u64,
    /// See `p50_ns`.
    pub p99_ns: u64,
    /// See `p50_ns`.
    pub p999_ns: u64,
    /// See `p50_ns`.
    pub p9999_ns: u64,
    /// How long it took to make what the workload works on.
    pub load_seconds: f64,
    /// The largest resident size of the process that ran the engine, through its whole life.
    pub resident_bytes_max: u64,
    /// Read from storage in all rounds together.
    pub bytes_read: u64,
    /// Written to storage in all rounds together.
    pub bytes_written: u64,
    /// How long a cache line took from one processor to another before and after each round: the median; none if there was one
    /// thread.
    pub line_ns: Option<f64>,
    /// The shortest such time.
    pub line_ns_min: Option<f64>,
    /// The longest.
    pub line_ns_max: Option<f64>,
}

/// One round of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Always `round`.
    pub kind: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// The engine or method.
    pub engine: String,
    /// How many threads were asked for.
    pub threads: usize,
    /// How many clients each serves.
    pub clients: usize,
    /// The number of the round, from 1.
    pub round: usize,
    /// What was done.
    pub operations: u64,
    /// In this time.
    pub seconds: f64,
    /// The one by the other.
    pub ops_per_second: f64,
    /// Timed operations so far.
    pub latency_samples: u64,
    /// Read from storage in this round.
    pub bytes_read: u64,
    /// Written to storage in this round.
    pub bytes_written: u64,
    /// The largest resident size so far.
    pub resident_bytes_max: u64,
    /// How long a cache line took from one processor to another before and after it; none if there was one thread.
    pub line: Option<LineTimes>,
}

/// How many times as fast one is as the other: the quotient of the medians, and the extremes of the
/// quotients round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Always `ratio`.
    pub kind: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// The engine or method above the line.
    pub of: String,
    /// Its threads.
    pub of_threads: usize,
    /// The clients of each.
    pub of_clients: usize,
    /// The engine or method below the line.
    pub to: String,
    /// Its threads.
    pub to_threads: usize,
    /// The clients of each.
    pub to_clients: usize,
    /// The quotient of the medians.
    pub ratio: f64,
    /// The smallest quotient of a round.
    pub ratio_min: f64,
    /// The largest quotient of a round.
    pub ratio_max: f64,
    /// The quotient of the latencies that 99 of 100 operations do not exceed.
    pub p99: f64,
    /// The quotient of those that 999 of 1000 do not exceed.
    pub p999: f64,
}

impl Ratio {
    /// The ratio of two series of rounds, or `None` if one of them is empty.
    pub fn of(above: &[f64], below: &[f64]) -> Option<Spread> {
        let quotients = Spread::of(above.iter().zip(below).map(|(above, below)| above / below))?;
        let median = Spread::of(above.iter().copied())?.median / Spread::of(below.iter().copied())?.median;
        Some(Spread { median, ..quotients })
    }
}

/// A remark that belongs to the figures.
#[derive(Clone, Debug, Serialize)]
struct Note<'a> {
    kind: &'static str,
    text: &'a str,
}

/// Writes the report of one run to standard output, and progress to standard error.
#[derive(Clone, Copy, Debug)]
pub struct Reporter {
    /// Whether to print JSON.
    pub json: bool,
}

impl Reporter {
    /// Prints one object, if JSON is wanted.
    ///
    /// # Errors
    /// If standard output does not take it.
    pub fn object(&self, object: &impl Serialize) -> crate::Result<()> {
        if self.json {
            let mut output = io::stdout().lock();
            serde_json::to_writer(&mut output, object)?;
            output.write_all(b"\n")?;
            output.flush()?;
        }
        Ok(())
    }

    /// The first line of a run.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn manifest(&self, manifest: &Manifest) -> crate::Result<()> {
        self.object(manifest)
    }

    /// A remark; people get it on standard error.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn note(&self, text: &str) -> crate::Result<()> {
        if !self.json {
            eprintln!("note: {text}");
        }
        self.object(&Note { kind: "note", text })
    }

    /// A round as soon as it is done.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn round(&self, round: &Round) -> crate::Result<()> {
        if !self.json {
            eprintln!(
                "round {} {} {}: {}/s{}",
                round.round,
                round.engine,
                load(round.threads, round.clients),
                number(round.ops_per_second),
                round.line.map_or_else(String::new, |LineTimes { before_ns, after_ns }| {
                    format!(", a cache line takes {before_ns:.0} ns before, {after_ns:.0} ns after")
                })
            );
        }
        self.object(round)
    }

    /// The end of a run: the ratios, then, as the last lines, the summaries.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn finish(&self, ratios: &[Ratio], summaries: &[Summary]) -> crate::Result<()> {
        if self.json {
            ratios.iter().try_for_each(|ratio| self.object(ratio))?;
            return summaries.iter().try_for_each(|summary| self.object(summary));
        }
        let mut output = io::stdout().lock();
        writeln!(output, "{}", summary_table(summaries))?;
        if !ratios.is_empty() {
            writeln!(output, "{}", ratio_table(ratios))?;
        }
        Ok(())
    }
}

fn summary_table(summaries: &[Summary]) -> Table {
    let mut table = table(&[
        "engine", "threads", "clients", "ops/s", "min", "max", "p50", "p99", "p99.9", "p99.99", "load",
        "resident", "read", "written", "line",
    ]);
    for summary in summaries {
        table.add_row([
            summary.engine.clone(),
            summary.threads.to_string(),
            summary.clients.to_string(),
            number(summary.ops_per_second),
            number(summary.ops_per_second_min),
            number(summary.ops_per_second_max),
            nanoseconds(summary.p50_ns),
            nanoseconds(summary.p99_ns),
            nanoseconds(summary.p999_ns),
            nanoseconds(summary.p9999_ns),
            format!("{:.1} s", summary.load_seconds),
            ByteSize(summary.resident_bytes_max).to_string(),
            ByteSize(summary.bytes_read).to_string(),
            ByteSize(summary.bytes_written).to_string(),
            line(summary.line_ns_min, summary.line_ns_max),
        ]);
    }
    align(table)
}

fn ratio_table(ratios: &[Ratio]) -> Table {
    let mut table = table(&["ratio", "median", "min", "max", "p99", "p99.9"]);
    for ratio in ratios {
        table.add_row([
            format!(
                "{} {} / {} {}",
                ratio.of,
                load(ratio.of_threads, ratio.of_clients),
                ratio.to,
                load(ratio.to_threads, ratio.to_clients)
            ),
            format!("{:.2}", ratio.ratio),
            format!("{:.2}", ratio.ratio_min),
            format!("{:.2}", ratio.ratio_max),
            format!("{:.2}", ratio.p99),
            format!("{:.2}", ratio.p999),
        ]);
    }
    align(table)
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.iter().copied());
    table
}

/// Everything but the first column is numbers, which stand at the right.
pub(super) fn align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn load(threads: usize, clients: usize) -> String {
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    if clients == 1 { threads } else { format!("{threads} of {clients} clients") }
}

/// A rate with three or four digits.
pub(super) fn number(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{:.3} M", value / 1e6),
        _ if value >= 999.5 => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.1}"),
    }
}

/// The shortest and the longest time of a cache line.
fn line(min: Option<f64>, max: Option<f64>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!("{min:.0} to {max:.0} ns"),
        _ => "-".to_owned(),
    }
}

fn nanoseconds(value: u64) -> String {
    match value {
        0..10_000 => format!("{value} ns"),
        10_000..10_000_000 => format!("{:.1} us", value as f64 / 1e3),
        _ => format!("{:.1} ms", value as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_the_medians_with_the_extremes_of_the_rounds() {
        let ratio = Ratio::of(&[2.0, 6.0, 4.0], &[1.0, 2.0, 4.0]).unwrap();
        assert_eq!(ratio, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert!(Ratio::of(&[], &[1.0]).is_none());
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(number(1_234_567.0), "1.235 M");
        assert_eq!(number(23_456.0), "23.5 k");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(nanoseconds(873), "873 ns");
        assert_eq!(nanoseconds(45_600), "45.6 us");
        assert_eq!(nanoseconds(12_300_000), "12.3 ms");
        assert_eq!((line(Some(27.4), Some(151.0)), line(None, None)), ("27 to 151 ns".into(), "-".into()));
    }
}
