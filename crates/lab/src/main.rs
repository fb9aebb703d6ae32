//! The lab: workloads that measure Vellum beside other engines, and what the kernel and the device give.
//!
//! - [`cli`], [`parse`]: what is asked for;
//! - [`engines`]: the engines and their one interface; [`keys`]: the tuples and their orders;
//! - [`workloads`]: what is done, by several threads for a time;
//! - [`contest`]: rounds that alternate between contestants, medians and ratios; [`statistics`];
//! - [`coordinator`], [`worker`], [`record_worker`], [`protocol`]: each engine in a process of its own, so that its memory and
//!   its I/O are its alone, but all in one run, in turn;
//! - [`device`]: the runs without an engine; [`records`]: those on single durable records; [`ycsb`]: YCSB, on engines of
//!   both kinds;
//! - [`machine`]: the manifest, resident sizes, bytes read and written; [`report`]: what is printed.
//!
//! Nothing here is part of the engine, and nothing asserts speed: figures depend on the machine, which the
//! manifest names.

mod cli;
mod contest;
mod coordinator;
mod device;
mod engines;
mod keys;
mod machine;
mod parse;
mod protocol;
mod record_worker;
mod records;
mod report;
mod statistics;
mod worker;
mod workloads;
mod ycsb;

use clap::Parser;
use cli::{Cli, Command, EngineArguments, RunArguments};
use coordinator::Job;
use machine::Manifest;
use protocol::Workload;
use report::Reporter;
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
    match run(Cli::parse().command) {
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

fn run(command: Command) -> Result<()> {
    match command {
        Command::Lookup { run, engines, table, batch, load, chosen } => {
            let job = Job::on_table(batch.workload(), table, load).with_skew(chosen.distribution);
            on_tables(&run, &engines, job)
        }
        Command::Scan { run, engines, table, load, length, chosen } => {
            let workload = Workload::Scan { length: length.unwrap_or(0) };
            let job = Job::on_table(workload, table, load).with_skew(chosen.distribution);
            on_tables(&run, &engines, job)
        }
        Command::Insert { run, engines, table, order } => {
            let job = Job::on_table(Workload::Insert, table, order);
            on_tables(&run, &engines, job)
        }
        Command::Churn { run, engines, table, load } => {
            let job = Job::on_table(Workload::Churn, table, load);
            on_tables(&run, &engines, job)
        }
        Command::Tpcc { run, engines, warehouses } => on_tables(&run, &engines, Job::tpcc(warehouses)),
        Command::Ycsb { run, settings, ycsb } => {
            ycsb::run(&run, &settings, &ycsb, &Reporter { json: run.json })
        }
        Command::Put { run, records } => {
            records::run(&run, &records, Verb::Put, &Reporter { json: run.json })
        }
        Command::Get { run, records } => {
            records::run(&run, &records, Verb::Get, &Reporter { json: run.json })
        }
        Command::Update { run, records } => {
            records::run(&run, &records, Verb::Update, &Reporter { json: run.json })
        }
        Command::Delete { run, records } => {
            records::run(&run, &records, Verb::Delete, &Reporter { json: run.json })
        }
        Command::Evict { run, evict } => device::evict(&run, &evict, &Reporter { json: run.json }),
        Command::Io { run, io } => device::io(&run, &io, &Reporter { json: run.json }),
        Command::Manifest { dir } => {
            let directory = dir.unwrap_or_else(std::env::temp_dir);
            Reporter { json: true }.manifest(&Manifest::collect(&directory))
        }
        Command::Worker => worker::serve(std::io::stdin().lock(), std::io::stdout().lock()),
    }
}

/// Does a job with engines that keep tables.
fn on_tables(run: &RunArguments, engines: &EngineArguments, job: Job) -> Result<()> {
    coordinator::run(run, &engines.settings, &[(job, engines.names())], &[], &Reporter { json: run.json })
}
