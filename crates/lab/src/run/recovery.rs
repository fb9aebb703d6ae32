//! How long it takes to open what a killed process has left, by how much log there is.
//!
//! A process fills tables, takes a checkpoint, works until there is so much log behind that, and is killed. This process opens
//! the database, which reads the log, runs a first transaction, waits until all pages are redone, checks everything, closes the database, and
//! opens it once more.

use crate::config::{
    Choice, Durability, EngineName, EngineSettings, Load, RecoverySettings, RunSettings, Specification,
    TransactionSettings, Workload,
};
use crate::engines::store::{Access, Session, Store, Transaction};
use crate::engines::vellum_transactions::VellumTransactions;
use crate::engines::{EngineOptions, Instance as _};
use crate::measure::machine::{self, Manifest, StorageBytes};
use crate::measure::statistics::Spread;
use crate::report::recovery::Recovered;
use crate::report::reporter::Reporter;
use crate::run::coordinator::{Job, Worker, specification};
use crate::run::protocol::{Command, Reply};
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::tpcc::{self, Tpcc};
use crate::workloads::transactions::Transactions;
use crate::{Failure, Result};
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// So long transactions go on after the log was filled.
const GOES_ON: Duration = Duration::from_millis(200);

/// What is known to both processes.
struct Scene {
    specification: Specification,
    options: EngineOptions,
    tables: &'static [&'static str],
}

/// Measures each pool with each size of the log, in turn, for so many rounds.
///
/// # Errors
/// Whatever keeps the engine from doing its work, and what recovery has not brought back.
pub fn run(run: &RunSettings, settings: &RecoverySettings, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    let cases: Vec<_> =
        settings.pools.iter().flat_map(|pool| settings.log.iter().map(move |log| (*pool, *log))).collect();
    let mut all = vec![Vec::new(); cases.len()];
    for round in 0..run.rounds {
        for ((pool, log), recovered) in cases.iter().zip(&mut all) {
            let folder = folder.path().join("recovery");
            std::fs::create_dir_all(&folder)?;
            let one = one(run, settings, (*pool, *log, round), &folder)?;
            reporter.recovered(&one)?;
            recovered.push(one);
            std::fs::remove_dir_all(&folder)?;
        }
    }
    let medians: Vec<_> = all.iter().filter_map(|rounds| median(rounds)).collect();
    reporter.recoveries(&medians)
}

/// The middle of each figure.
fn median(rounds: &[Recovered]) -> Option<Recovered> {
    let of =
        |figure: fn(&Recovered) -> f64| Spread::of(rounds.iter().map(figure)).map(|spread| spread.median);
    Some(Recovered {
        kind: "recovery_summary",
        round: rounds.len(),
        open_seconds: of(|one| one.open_seconds)?,
        redone_seconds: of(|one| one.redone_seconds)?,
        processor_seconds: of(|one| one.processor_seconds)?,
        first_transaction_seconds: of(|one| one.first_transaction_seconds)?,
        close_seconds: of(|one| one.close_seconds)?,
        clean_open_seconds: of(|one| one.clean_open_seconds)?,
        mib_per_second: of(|one| one.mib_per_second)?,
        mib_per_processor_second: of(|one| one.mib_per_processor_second)?,
        ..rounds.last()?.clone()
    })
}

fn one(
    run: &RunSettings,
    settings: &RecoverySettings,
    (pool, log, round): (u64, u64, usize),
    folder: &Path,
) -> Result<Recovered> {
    let scene = scene(run, settings, pool, folder)?;
    kill(&scene, run.threads.first().copied().unwrap_or(1), log)?;
    if settings.is_cold {
        machine::forget_files(folder)?;
    }
    let (storage, processor, begin) = (StorageBytes::now(), machine::processor_time(), Instant::now());
    let (store, recovery) = VellumTransactions::reopen(&scene.options, scene.tables)?;
    let open = begin.elapsed();
    let recovery = recovery.ok_or("the database was closed, although its process was killed")?;
    let first_transaction = touch(&store)?;
    store.finish_recovery()?;
    let redone = begin.elapsed();
    let processor = machine::processor_time().saturating_sub(processor);
    let storage = StorageBytes::now().since(storage);
    let data_bytes = store.data_bytes()?;
    check(&scene.specification, &store)?.judge("after recovery")?;
    let begin = Instant::now();
    store.close()?;
    let close = begin.elapsed();
    if settings.is_cold {
        machine::forget_files(folder)?;
    }
    let begin = Instant::now();
    let (store, recovery_again) = VellumTransactions::reopen(&scene.options, scene.tables)?;
    let clean_open = begin.elapsed();
    if recovery_again.is_some() {
        return Err(Failure::Check("a closed database was recovered".to_owned()).into());
    }
    touch(&store)?;
    store.close()?;
    let mib = recovery.log_bytes as f64 / f64::from(1 << 20);
    Ok(Recovered {
        kind: "recovery",
        workload: scene.specification.workload.as_str(),
        round: round + 1,
        pool_bytes: pool,
        data_bytes,
        log_bytes: recovery.log_bytes,
        log_records: recovery.records,
        undone_changes: recovery.undone_changes,
        is_cold: settings.is_cold,
        open_seconds: open.as_secs_f64(),
        redone_seconds: redone.as_secs_f64(),
        processor_seconds: processor.as_secs_f64(),
        mib_per_second: mib / redone.as_secs_f64(),
        mib_per_processor_second: mib / processor.as_secs_f64().max(1e-9),
        bytes_read: storage.read,
        bytes_written: storage.written,
        first_transaction_seconds: first_transaction.as_secs_f64(),
        close_seconds: close.as_secs_f64(),
        clean_open_seconds: clean_open.as_secs_f64(),
    })
}

fn scene(run: &RunSettings, settings: &RecoverySettings, pool: u64, folder: &Path) -> Result<Scene> {
    let job = match settings.workload {
        Workload::Tpcc { warehouses } => Job::tpcc(warehouses),
        workload @ Workload::Transactions { records, .. } => {
            Job::transactions(workload, records, settings.value_bytes)
        }
        other => return Err(format!("{} makes no log of a chosen size", other.as_str()).into()),
    };
    let transactions = TransactionSettings {
        durability: Durability::Deferred,
        // None after that of the filled tables.
        checkpoint_log: Some(u64::MAX),
        ..TransactionSettings::default()
    };
    let (warm_up, check, lmdb_write_map) = (Some(Duration::ZERO), false, Choice::Auto);
    let base = EngineSettings { pool, warm_up, check, lmdb_write_map, transactions };
    let specification = specification(run, &base, job, EngineName::VellumTx.into(), folder);
    let (payload_bytes, tables) = match settings.workload {
        Workload::Tpcc { .. } => {
            let workload = Tpcc::new(&specification)?;
            (workload.payload_bytes(), workload.tables())
        }
        _ => {
            let workload = Transactions::new(&specification)?;
            (workload.payload_bytes(), workload.tables())
        }
    };
    let options = EngineOptions::new(&specification, folder.join("tables"), payload_bytes);
    Ok(Scene { specification, options, tables })
}

/// Has a process leave so much log.
fn kill(scene: &Scene, threads: usize, bytes: u64) -> Result<()> {
    let mut worker = Worker::start("vellum-tx".to_owned(), &scene.specification)?;
    let Reply::Prepared { .. } = worker.ask(Command::Prepare)? else {
        return Err("an unexpected reply to the preparation".into());
    };
    let Reply::FilledLog { .. } = worker.ask(Command::FillLog { threads, bytes })? else {
        return Err("an unexpected reply to the filling of the log".into());
    };
    // It goes on, so that transactions are open when it is killed.
    worker.say(&Command::Round { load: Load::threads(threads), round: 1 })?;
    thread::sleep(GOES_ON);
    worker.kill()
}

/// Runs a first transaction, and gives how long that took.
fn touch(store: &VellumTransactions) -> Result<Duration> {
    let begin = Instant::now();
    let mut session = store.session()?;
    let mut transaction = session.begin(Access::Read)?;
    let mut is_empty = true;
    transaction.scan(0, &[], |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    })?;
    transaction.commit()?;
    if is_empty {
        Err(Failure::Check("the first table is empty".to_owned()).into())
    } else {
        Ok(begin.elapsed())
    }
}

fn check(specification: &Specification, store: &VellumTransactions) -> Result<Findings> {
    match specification.workload {
        Workload::Tpcc { warehouses } => tpcc::check_remains(store, warehouses),
        _ => Transactions::new(specification)?.check_remains(store),
    }
}
