//! The runs `lab put`, `get`, `update` and `delete`: all contestants in this process, in turn.

use crate::Result;
use crate::config::{Load, Named, RecordSettings, RunSettings};
use crate::engines::by_name::{WithRecordEngine, with_engine};
use crate::engines::records::{RecordEngine, RecordOptions};
use crate::measure::machine::Manifest;
use crate::report::contest::{Contest, Setup};
use crate::report::reporter::Reporter;
use crate::run::device::Gauge;
use crate::workloads::records::{Contestant, Record, Verb};
use crate::workloads::{Pace, SAMPLE_EVERY};
use serde_json::json;
use std::path::PathBuf;

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
pub fn run(run: &RunSettings, arguments: &RecordSettings, verb: Verb, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    let options = RecordOptions {
        records: arguments.records,
        key_bytes: arguments.key_bytes,
        value_bytes: arguments.value_bytes,
    };
    let mut contestants = Vec::new();
    let mut load_seconds = Vec::new();
    for engine in &arguments.engines {
        let folder = folder.path().join(engine.as_str());
        std::fs::create_dir_all(&folder)?;
        let threads = run.threads.iter().copied().max().unwrap_or(1);
        let new = New { verb, options, seed: run.seed, threads, folder };
        let mut contestant = with_engine(*engine, options.key_bytes, options.value_bytes, new)?;
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
        loads: &run.loads(),
        rounds: run.rounds,
    };
    let mut gauge = Gauge::default();
    let all = contest.run(reporter, |contestant, Load { threads, .. }, round| {
        let pace = Pace {
            clients: 1,
            threads,
            round: round as u64,
            duration: run.seconds,
            sample_every: SAMPLE_EVERY,
        };
        gauge.measure(contestant, threads, || contestants[contestant].round(&pace))
    })?;
    let setup = |contestant: usize, _| Setup {
        tuples: options.records,
        pool_bytes: 0,
        load_seconds: load_seconds[contestant],
    };
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}
