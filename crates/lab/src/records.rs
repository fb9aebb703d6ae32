//! The runs `lab put`, `get`, `update` and `delete`: all contestants in this process, in turn.

use crate::Result;
use crate::cli::RunArguments;
use crate::contest::{Contest, Setup};
use crate::device::Gauge;
use crate::engines::dashmap::Dash;
use crate::engines::papaya::Papaya;
use crate::engines::pmem::Pmem;
use crate::engines::records::RecordOptions;
#[cfg(feature = "rocksdb")]
use crate::engines::rocksdb_records::Rocks;
use crate::machine::Manifest;
use crate::parse;
use crate::report::Reporter;
use crate::workloads::Pace;
use crate::workloads::records::{Contestant, Record, Verb};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;
use vellum_pmem::{Fixed, Variable};

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
    /// The size of each value; keys of 16 bytes have values of 200 bytes, keys of 8 bytes of 8 or 200, where sizes must be
    /// known when the lab is built (dashmap, papaya)
    #[arg(long, default_value = "200", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    pub value_bytes: usize,
}

/// Engines that keep records, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum RecordEngineName {
    /// This project's store for persistent memory, with records of one size if the sizes are built in
    Pmem,
    /// The same, with records of any size
    PmemVariable,
    /// A hash table in memory
    Dashmap,
    /// Another, whose readers take no locks
    Papaya,
    /// RocksDB with synced writes
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl RecordEngineName {
    /// The name in reports.
    fn as_str(self) -> &'static str {
        match self {
            Self::Pmem => "pmem",
            Self::PmemVariable => "pmem_variable",
            Self::Dashmap => "dashmap",
            Self::Papaya => "papaya",
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => "rocksdb",
        }
    }

    fn contestant(self, new: &New) -> Result<Box<dyn Contestant>> {
        let sizes = (new.options.key_bytes, new.options.value_bytes);
        Ok(match (self, sizes) {
            (Self::Pmem, (8, 8)) => new.with::<Pmem<Fixed<8, 8>>>(),
            (Self::Pmem, (8, 200)) => new.with::<Pmem<Fixed<8, 200>>>(),
            (Self::Pmem, (16, 200)) => new.with::<Pmem<Fixed<16, 200>>>(),
            (Self::Pmem | Self::PmemVariable, _) => new.with::<Pmem<Variable>>(),
            (Self::Dashmap, (8, 8)) => new.with::<Dash<8, 8>>(),
            (Self::Dashmap, (8, 200)) => new.with::<Dash<8, 200>>(),
            (Self::Dashmap, (16, 200)) => new.with::<Dash<16, 200>>(),
            (Self::Papaya, (8, 8)) => new.with::<Papaya<8, 8>>(),
            (Self::Papaya, (8, 200)) => new.with::<Papaya<8, 200>>(),
            (Self::Papaya, (16, 200)) => new.with::<Papaya<16, 200>>(),
            (Self::Dashmap | Self::Papaya, _) => {
                return Err("hash tables are built with 8/8, 8/200 and 16/200 bytes only".into());
            }
            #[cfg(feature = "rocksdb")]
            (Self::Rocksdb, _) => new.with::<Rocks>(),
        })
    }
}

/// What contestants are made of.
struct New {
    verb: Verb,
    options: RecordOptions,
    seed: u64,
    threads: usize,
    folder: PathBuf,
}

impl New {
    fn with<E: crate::engines::records::RecordEngine + 'static>(&self) -> Box<dyn Contestant> {
        Box::new(Record::<E>::new(self.verb, self.options, self.seed, self.threads, self.folder.clone()))
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
        let mut contestant = engine.contestant(&new)?;
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
        let pace = Pace { threads, round: round as u64, duration: run.seconds, sample_every: 1 };
        gauge.measure(contestant, threads, || contestants[contestant].round(&pace))
    })?;
    let setup = |contestant: usize, _| Setup {
        tuples: options.records,
        pool_bytes: 0,
        load_seconds: load_seconds[contestant],
    };
    reporter.finish(&contest.ratios(&all), &contest.summaries(&all, setup))
}
