//! TPC-C in a process that is killed in the middle: what it has left must hold all consistency conditions, whatever was under way.

use crate::Result;
use crate::config::{Durability, EngineName, EngineSettings, Load, RunSettings};
use crate::engines::vellum_transactions::VellumTransactions;
use crate::engines::{EngineOptions, Instance as _};
use crate::keys::Generator;
use crate::measure::machine::Manifest;
use crate::report::reporter::Reporter;
use crate::run::coordinator::{Job, Worker, specification};
use crate::run::protocol::{Command, Reply};
use crate::workloads::record_workload::RecordWorkload;
use crate::workloads::tpcc::{self, Tpcc};
use serde_json::json;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// For each number of threads and each round, loads the tables anew, kills the process within the seconds of a round, and
/// checks what it has left.
///
/// # Errors
/// Whatever keeps the engine from doing its work, and a condition that does not hold.
pub fn run(run: &RunSettings, settings: &EngineSettings, warehouses: u32, reporter: &Reporter) -> Result<()> {
    if settings.transactions.durability == Durability::NoLog {
        let what = "a killed process leaves nothing of a database without a log: add `--durability deferred`, `buffered` or `synced`";
        return Err(what.into());
    }
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    for threads in &run.threads {
        for round in 0..run.rounds {
            let folder = folder.path().join(format!("{threads}-{round}"));
            kill_one(run, settings, (warehouses, *threads, round), &folder, reporter)?;
            std::fs::remove_dir_all(&folder)?;
        }
    }
    Ok(())
}

fn kill_one(
    run: &RunSettings,
    settings: &EngineSettings,
    (warehouses, threads, round): (u32, usize, usize),
    folder: &Path,
    reporter: &Reporter,
) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut specification =
        specification(run, settings, Job::tpcc(warehouses), EngineName::VellumTx.into(), folder);
    // It never ends by itself.
    specification.duration = run.seconds.max(Duration::from_secs(1)) * 100;
    specification.warm_up = Duration::ZERO;
    let workload = Tpcc::new(&specification)?;
    let mut worker = Worker::start("vellum-tx".to_owned(), &specification)?;
    let Reply::Prepared { .. } = worker.ask(Command::Prepare)? else {
        return Err("an unexpected reply to the preparation".into());
    };
    worker.say(&Command::Round { load: Load::threads(threads), round })?;
    let nanoseconds = u64::try_from(run.seconds.as_nanos())?.max(1);
    let after = Generator::new(run.seed, threads as u64, round as u64).below(nanoseconds);
    let after = Duration::from_nanos(after);
    thread::sleep(after);
    worker.kill()?;
    let begin = Instant::now();
    // As the worker has created it.
    let options = EngineOptions::new(&specification, folder.join("tables"), workload.payload_bytes());
    let (store, recovery) = VellumTransactions::reopen(&options, workload.tables())?;
    let recovery = recovery.ok_or("the database was closed, although its process was killed")?;
    let open_seconds = begin.elapsed().as_secs_f64();
    let findings = tpcc::check_remains(&store, warehouses)?;
    let when = format!("after a kill in round {round} of {threads} threads, {after:?} after its beginning");
    findings.judge(&when)?;
    store.close()?;
    reporter.object(&json!({
        "kind": "kill",
        "durability": settings.transactions.durability,
        "threads": threads,
        "round": round,
        "killed_after_seconds": after.as_secs_f64(),
        "open_seconds": open_seconds,
        "log_records": recovery.records,
        "checked": findings.checked,
    }))?;
    reporter.note(&format!("{when}: {} hold", findings.checked))
}
