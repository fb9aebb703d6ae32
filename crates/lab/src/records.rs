//! The runs `lab put`, `get`, `update` and `delete`: all contestants in this process, in turn.

use crate::Result;
use crate::cli::RunArguments;
use crate::contest::{Contest, Setup};
use crate::device::Gauge;
use crate::engines::records::{RecordEngine, RecordEngineName, RecordOptions, WithRecordEngine};
use crate::machine::Manifest;
use crate::parse;
use crate::report::Reporter;
use crate::workloads::records::{Contestant, Record, Verb};
use crate::workloads::{Pace, SAMPLE_EVERY};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// What runs on records have.
#[derive(Clone, Debug, Args)]
pub struct RecordArguments {
    /// The engines, in the order of their turns; ratios are of the first to the others
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pmem,dashmap")]
    pub engines: Vec<RecordEngineName>,
    /// Records in the store
    #[arg(long, default_value = "1M", value_parser = parse::count)]
    pub records: u64,
    /// The size of each key: 8 or 16
    #[arg(long, default_value = "16", value_parser = clap::builder::PossibleValuesParser::new(["8", "16"]))]
    pub key_bytes: String,
    /// The size of each value; where sizes must be known when the lab is built (dashmap, papaya), 200 or 1000 bytes, and 8
    /// with keys of 8
    #[arg(long, default_value = "200", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    pub value_bytes: usize,
}

/// What contestants are made of.
struct New {
    verb: Verb,
    options: RecordOptions,
    seed: u64,
    threads: usize,
    folder: PathBuf,
}

impl WithRecordEngine for New {
    type Output = Box<dyn Contestant>;

    fn with<E: RecordEngine + 'static>(self) -> Box<dyn Contestant> {
        Box::new(Record::<E>::new(self.verb, self.options, self.seed, self.threads, self.folder))
    }
}

/// Runs a workload with all engines and reports.
///
/// # Errors
/// Whatever keeps an engine from doing its work.
pub fn run(run: &RunArguments, arguments: &RecordArguments, verb: Verb, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    let options = RecordOptions {
        records: arguments.records,
        key_bytes: arguments.key_bytes.parse()?,
        value_bytes: arguments.value_bytes,
    };
    let mut contestants = Vec::new();
    let mut load_seconds = Vec::new();
    for engine in &arguments.engines {
        let folder = folder.path().join(engine.as_str());
        std::fs::create_dir_all(&folder)?;
        let threads = run.threads.iter().copied().max().unwrap_or(1);
        let new = New { verb, options, seed: run.seed, threads, folder };
        let mut contestant = engine.with(options.key_bytes, options.value_bytes, new)?;
        let (note, loaded) = contestant.prepare()?;
        reporter.note(&note)?;
        load_seconds.push(loaded.map(|loaded| loaded.as_secs_f64()));
        contestants.push(contestant);
    }
    reporter.object(&json!({
        "kind": "configuration",
        "workload": verb.as_str(),
        "key_bytes": options.key_bytes,
        "value_bytes": options.value_bytes,
        "latency_of": "one operation",
    }))?;
    let contest = Contest {
        workload: verb.as_str(),
        names: arguments.engines.iter().map(|engine| engine.as_str().to_owned()).collect(),
        threads: &run.threads,
        rounds: run.rounds,
    };
    let mut gauge = Gauge::default();
    let all = contest.run(reporter, |contestant, threads, round| {
        let pace = Pace { threads, round: round as u64, duration: run.seconds, sample_every: SAMPLE_EVERY };
        gauge.measure(contestant, threads, || contestants[contestant].round(&pace))
    })?;
    let setup = |contestant: usize, _| Setup {
        tuples: options.records,
        pool_bytes: 0,
        load_seconds: load_seconds[contestant],
    };
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}
