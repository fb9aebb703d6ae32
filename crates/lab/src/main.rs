//! The lab: workloads that measure Vellum beside other engines, and what the kernel and the device give.
//!
//! Each part uses those below it only:
//! - [`cli`]: what is asked for; it becomes settings, and nothing below knows of it;
//! - [`run`]: each engine in a process of its own, in turn;
//! - [`workloads`]: what is done, by several threads for a time; [`report`]: rounds, medians, ratios, what is printed;
//! - [`engines`]: the engines and their one interface;
//! - [`measure`]: latencies, medians, the machine; [`keys`]: keys, values and the orders in which they are visited;
//! - [`config`]: what a run is told.
//!
//! Nothing here is part of the engine, and nothing asserts speed: figures depend on the machine, which the
//! manifest names.

mod cli;
mod config;
mod engines;
mod keys;
mod measure;
mod report;
mod run;
mod workloads;

use clap::Parser;
use cli::{
    ChoiceArguments, Cli, Command, EngineArguments, OnRecords, RecordArguments, RunArguments, TableArguments,
};
use config::{Order, RunSettings, Workload};
use measure::machine::Manifest;
use report::reporter::Reporter;
use run::coordinator::{self, Job};
use run::{device, kills, limited_oo7, oo7, records, recovery, worker, ycsb};
use std::fmt;
use std::process::ExitCode;
use workloads::records::Verb;

/// Anything that ends a run.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// A failure with an exit code of its own.
#[derive(Debug)]
enum Failure {
    /// What was to be checked does not hold.
    Check(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Check(what) => write!(f, "check failed: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            match error.downcast_ref() {
                Some(Failure::Check(_)) => ExitCode::from(3),
                None => ExitCode::from(1),
            }
        }
    }
}

fn execute(command: Command) -> Result<()> {
    match command {
        Command::Lookup { run, engines, table, batch, load, chosen } => {
            on_table(run, engines, batch.workload(), table, load, chosen)
        }
        Command::Scan { run, engines, table, load, length, chosen } => {
            let workload = Workload::Scan { length: length.unwrap_or(0) };
            on_table(run, engines, workload, table, load, chosen)
        }
        Command::Range { run, engines, table, load, length, chosen } => {
            on_table(run, engines, Workload::Range { length }, table, load, chosen)
        }
        Command::Insert { run, engines, table, order, chosen } => {
            on_table(run, engines, Workload::Insert, table, order, chosen)
        }
        Command::Churn { run, engines, table, load, chosen } => {
            on_table(run, engines, Workload::Churn, table, load, chosen)
        }
        Command::Tpcc { run, engines, warehouses, kill: true, .. } => {
            let reporter = Reporter { json: run.json };
            kills::run(&run.settings(), &engines.settings.settings(), warehouses, &reporter)
        }
        Command::Tpcc { run, engines, warehouses, clients, kill: false } => {
            on_tables_for(run, clients, engines, Job::tpcc(warehouses))
        }
        Command::Transactions { run, engines, records } => on_tables(
            run,
            engines,
            Job::transactions(records.workload(), records.records, records.value_bytes),
        ),
        Command::Recovery { run, recovery: settings } => {
            let reporter = Reporter { json: run.json };
            recovery::run(&run.settings(), &settings.settings(), &reporter)
        }
        Command::Bank { run, engines, accounts } => on_tables(run, engines, Job::bank(accounts)),
        Command::Queue { run, engines, records, snapshot } => {
            on_tables(run, engines, Job::queue(records, snapshot))
        }
        Command::Oo7 { run, oo7: settings } => {
            let reporter = Reporter { json: run.json };
            let (run, settings) = (run.settings(), settings.settings());
            match settings.memory_limit {
                Some(limit) => limited_oo7::run(&run, &settings, limit, &reporter),
                None => oo7::run(&run, &settings, &reporter),
            }
        }
        Command::Ycsb { run, settings, ycsb } => {
            let reporter = Reporter { json: run.json };
            ycsb::run(&run.settings(), &settings.settings(), &ycsb.settings(), &reporter)
        }
        Command::Put { run, records } => on_records(run, records, Verb::Put),
        Command::Get { run, records } => on_records(run, records, Verb::Get),
        Command::Update { run, records } => on_records(run, records, Verb::Update),
        Command::Delete { run, records } => on_records(run, records, Verb::Delete),
        Command::Evict { run, evict } => {
            let reporter = Reporter { json: run.json };
            device::evict(&run.settings(), &evict.settings(), &reporter)
        }
        Command::Io { run, io } => {
            let reporter = Reporter { json: run.json };
            device::io(&run.settings(), &io.settings(), &reporter)
        }
        Command::Log { run, log } => {
            let reporter = Reporter { json: run.json };
            device::log(&run.settings(), &log.settings(), &reporter)
        }
        Command::Manifest { dir } => {
            let directory = dir.unwrap_or_else(std::env::temp_dir);
            Reporter { json: true }.manifest(&Manifest::collect(&directory))
        }
        Command::Oo7Worker => limited_oo7::serve(std::io::stdin().lock(), std::io::stdout().lock()),
        Command::Worker => worker::serve(std::io::stdin().lock(), std::io::stdout().lock()),
    }
}

/// Does a workload on one table of tuples.
fn on_table(
    run: RunArguments,
    engines: EngineArguments,
    workload: Workload,
    table: TableArguments,
    order: Order,
    chosen: ChoiceArguments,
) -> Result<()> {
    let job = Job::on_table(workload, table.settings(), order).with_skew(chosen.distribution)?;
    on_tables(run, engines, job)
}

/// Does a job with engines that keep tables.
fn on_tables(run: RunArguments, engines: EngineArguments, job: Job) -> Result<()> {
    on_tables_for(run, vec![1], engines, job)
}

/// The same with so many clients a thread.
fn on_tables_for(run: RunArguments, clients: Vec<usize>, engines: EngineArguments, job: Job) -> Result<()> {
    let (reporter, EngineArguments { engines, settings }) = (Reporter { json: run.json }, engines);
    let run = RunSettings { clients, ..run.settings() };
    coordinator::run(&run, &settings.settings(), &[(job, engines)], &[], &reporter)
}

/// Runs a workload on single records, or on a table.
fn on_records(run: RunArguments, records: RecordArguments, verb: Verb) -> Result<()> {
    let (run, reporter) = (run.clone().settings(), Reporter { json: run.json });
    match records.settings()? {
        OnRecords::Single(records) => records::run(&run, &records, verb, &reporter),
        OnRecords::Table { engines, settings, table, load, skew } => {
            let workload = match verb {
                Verb::Put => Workload::Insert,
                Verb::Get => Workload::Lookup,
                Verb::Update => Workload::Update,
                Verb::Delete => Workload::Delete,
            };
            let job = Job::on_table(workload, table, load).with_skew(skew)?;
            coordinator::run(&run, &settings, &[(job, engines)], &[], &reporter)
        }
    }
}
