//! The parent of a run: starts a process for each engine, gives them their turns, and reports.

use crate::config::{
    AnyEngineName, Contestant, EngineName, EngineSettings, KeyKind, Order, RunSettings, Skew, Specification,
    TableSettings, ValueSizes, Workload,
};
use crate::measure::machine::Manifest;
use crate::report::contest::{Contest, Setup};
use crate::report::reporter::Reporter;
use crate::run::protocol::{Command, Finished, Reply};
use crate::workloads::tpcc;
use crate::{Failure, Result};
use bytesize::ByteSize;
use serde::Serialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// What every process may use beside its pool and the pool's tables.
const RESIDENT_ALLOWANCE_BYTES: u64 = 64 << 20;

/// What the pool's tables may use for each page of data.
const TABLE_BYTES_PER_PAGE: u64 = 16;

/// How much the data of a loaded table may grow by changes that do not add to it, in thousandths.
const GROWTH_PERMILLE_MAX: u64 = 100;

/// What is done, and with what data.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    workload: Workload,
    /// The order in which tuples are inserted.
    order: Order,
    /// Tuples in all tables, after loading.
    tuples: u64,
    keys: KeyKind,
    values: ValueSizes,
    skew: Skew,
}

impl Job {
    /// The workload's name in reports.
    #[cfg(test)]
    pub fn name(self) -> &'static str {
        self.workload.as_str()
    }

    /// A workload on one table of tuples.
    pub fn on_table(workload: Workload, table: TableSettings, order: Order) -> Self {
        let TableSettings { tuples, keys, values } = table;
        Self { workload, order, tuples, keys, values, skew: Skew::Uniform }
    }

    /// The same with tuples that are chosen in another way.
    ///
    /// # Errors
    /// If the workload chooses none.
    pub fn with_skew(self, skew: Skew) -> Result<Self> {
        match self.workload.without_choice() {
            Some(why) if skew != Skew::Uniform => {
                Err(format!("there is nothing to choose by --distribution: {why}").into())
            }
            _ => Ok(Self { skew, ..self }),
        }
    }

    /// A workload on records, of values of one size; zero where they differ.
    fn on_records(workload: Workload, order: Order, tuples: u64, value_bytes: usize) -> Self {
        let values = ValueSizes::one(value_bytes);
        Self { workload, order, tuples, keys: KeyKind::U64, values, skew: Skew::Uniform }
    }

    /// TPC-C with so many warehouses.
    pub fn tpcc(warehouses: u32) -> Self {
        let workload = Workload::Tpcc { warehouses };
        Self::on_records(workload, Order::Sequential, tpcc::tuples(warehouses), 0)
    }

    /// Transactions of reads and updates of values of so many bytes.
    pub fn transactions(workload: Workload, records: u64, value_bytes: usize) -> Self {
        Self::on_records(workload, Order::Sequential, records, value_bytes)
    }

    /// Transfers between so many accounts.
    pub fn bank(accounts: u32) -> Self {
        Self::on_records(Workload::Bank { accounts }, Order::Sequential, accounts.into(), 0)
    }

    /// Queues of so many records.
    pub fn queue(records: u64, is_snapshot_held: bool) -> Self {
        Self::on_records(Workload::Queue { records, is_snapshot_held }, Order::Sequential, records, 0)
    }

    /// A workload of YCSB on so many records.
    pub fn ycsb(workload: Workload, records: u64, value_bytes: usize) -> Self {
        Self::on_records(workload, Order::Random, records, value_bytes)
    }
}

/// Does each job with its engines, one job after the other, and reports; `notes` are remarks on all of it.
///
/// # Errors
/// Whatever keeps an engine from doing its work, what it stored wrongly, or, if asked for, a resident size
/// beyond its limit.
pub fn run(
    run: &RunSettings,
    settings: &EngineSettings,
    jobs: &[(Job, Vec<Contestant>)],
    notes: &[String],
    reporter: &Reporter,
) -> Result<()> {
    let has_vellum = |(_, engines): &(Job, Vec<Contestant>)| {
        engines.iter().any(|engine| engine.engine == EngineName::Vellum.into())
    };
    if settings.check && !jobs.iter().any(has_vellum) {
        return Err("--check is about vellum, which is not among the engines".into());
    }
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    notes.iter().try_for_each(|note| reporter.note(note))?;
    for (job, engines) in jobs {
        let folder = folder.path().join(job.workload.as_str());
        run_one(run, settings, (*job, engines), &folder, reporter)?;
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// Does one job in a new folder.
fn run_one(
    run: &RunSettings,
    settings: &EngineSettings,
    (job, engines): (Job, &[Contestant]),
    folder: &Path,
    reporter: &Reporter,
) -> Result<()> {
    let workload = job.workload;
    let mut workers = Vec::new();
    for engine in engines {
        let directory = folder.join(engine.name());
        std::fs::create_dir_all(&directory)?;
        workers.push(Worker::start(engine.name(), &specification(run, settings, job, *engine, &directory))?);
    }
    let contest = Contest {
        workload: workload.as_str(),
        names: engines.iter().map(|engine| engine.name()).collect(),
        loads: &run.loads(),
        rounds: run.rounds,
    };
    let load_seconds = prepare(&mut workers, (job, engines), reporter)?;
    let all = contest.run(reporter, |contestant, load, round| {
        match workers[contestant].ask(Command::Round { load, round })? {
            Reply::Round(measured) => Ok(measured),
            other => Err(format!("an unexpected reply to a round: {other:?}").into()),
        }
    })?;
    let mut ends = Vec::new();
    for (worker, engine) in workers.into_iter().zip(engines) {
        let finished = worker.finish()?;
        reporter.object(&Statistics::new(workload, *engine, &finished))?;
        if matches!(workload, Workload::Churn | Workload::Update) {
            reporter.note(&growth_text(*engine, &finished))?;
        }
        finished.notes.iter().try_for_each(|note| reporter.note(&named(*engine, note)))?;
        ends.push((*engine, finished));
    }
    let setup = |contestant: usize, _| Setup {
        tuples: job.tuples,
        // Engines of single records have no pool.
        pool_bytes: if matches!(engines[contestant].engine, AnyEngineName::Tables(_)) {
            settings.pool
        } else {
            0
        },
        load_seconds: load_seconds[contestant],
    };
    let mut summaries = contest.summaries(&all, setup);
    for summary in &mut summaries {
        // The process has one life, whatever the number of threads, and closing the engine belongs to it.
        let end = ends.iter().find(|(engine, _)| engine.name() == summary.engine);
        summary.resident_bytes_max = end.map_or(0, |(_, finished)| finished.resident_bytes_max);
    }
    reporter.finish(&contest.ratios(&all), &summaries)?;
    if settings.check { check(&ends, settings.pool, workload.grows(), reporter) } else { Ok(()) }
}

pub(super) fn specification(
    run: &RunSettings,
    settings: &EngineSettings,
    job: Job,
    contestant: Contestant,
    directory: &Path,
) -> Specification {
    Specification {
        engine: contestant.engine,
        workload: job.workload,
        tuples: job.tuples,
        keys: job.keys,
        values: job.values,
        skew: job.skew,
        pool_bytes: settings.pool,
        threads_max: run.threads.iter().copied().max().unwrap_or(1),
        clients_max: run.clients.iter().copied().max().unwrap_or(1),
        duration: run.seconds,
        warm_up: settings.warm_up.unwrap_or(run.seconds),
        seed: run.seed,
        order: job.order,
        lmdb_write_map: settings.lmdb_write_map,
        transactions: contestant.settings(settings.transactions),
        directory: directory.to_owned(),
    }
}

/// Lets every engine load its table, one after the other; gives their load times.
fn prepare(
    workers: &mut [Worker],
    (job, engines): (Job, &[Contestant]),
    reporter: &Reporter,
) -> Result<Vec<Option<f64>>> {
    let mut all = Vec::new();
    for (worker, engine) in workers.iter_mut().zip(engines) {
        let reply = worker.ask(Command::Prepare)?;
        let Reply::Prepared { load_seconds, sample_every, notes } = reply else {
            return Err(format!("an unexpected reply to the preparation: {reply:?}").into());
        };
        notes.iter().try_for_each(|note| reporter.note(&named(*engine, note)))?;
        reporter.object(&json!({
            "kind": "configuration",
            "workload": job.workload,
            "engine": engine.name(),
            "order": job.order,
            "keys": job.keys,
            "value_bytes_min": job.values.min,
            "value_bytes_max": job.values.max,
            "distribution": job.skew,
            "latency_sample_every": sample_every,
            "latency_of": latency_of(job.workload),
        }))?;
        all.push(load_seconds);
    }
    Ok(all)
}

/// A note that may begin with the engine's name, of a contestant.
fn named(contestant: Contestant, note: &str) -> String {
    match note.strip_prefix(contestant.engine.as_str()) {
        Some(rest) => format!("{}{rest}", contestant.name()),
        None => note.to_owned(),
    }
}

/// What one latency is the time of.
fn latency_of(workload: Workload) -> &'static str {
    match workload {
        Workload::Lookup => "one lookup",
        Workload::Batch { .. } => "one batch of operations",
        Workload::Insert => "one insert",
        Workload::Update => "one update",
        Workload::Delete => "one delete",
        Workload::Churn => "one delete and one insert",
        Workload::Scan { length: 0 } => "1024 consecutive tuples",
        Workload::Scan { .. } | Workload::Range { .. } => "one scan",
        Workload::Tpcc { .. } => "one transaction, from its begin until it is as durable as asked for",
        Workload::Transactions { .. } | Workload::Bank { .. } | Workload::Queue { .. } => "one transaction",
        Workload::Ycsb { .. } => "one operation",
    }
}

/// An engine's own figures at the end of a run.
#[derive(Serialize)]
struct Statistics<'a> {
    kind: &'static str,
    workload: &'static str,
    engine: String,
    data_bytes: u64,
    data_bytes_loaded: u64,
    statistics: &'a serde_json::Value,
    writing: &'a serde_json::Value,
}

impl<'a> Statistics<'a> {
    fn new(workload: Workload, engine: Contestant, finished: &'a Finished) -> Self {
        Self {
            kind: "statistics",
            workload: workload.as_str(),
            engine: engine.name(),
            data_bytes: finished.data_bytes,
            data_bytes_loaded: finished.data_bytes_loaded,
            statistics: &finished.statistics,
            writing: &finished.writing,
        }
    }
}

/// The most that a process with such a pool and so much data may have resident, in bytes.
fn resident_bytes_limit(pool_bytes: u64, data_bytes: u64) -> u64 {
    pool_bytes + data_bytes.div_ceil(4096) * TABLE_BYTES_PER_PAGE + RESIDENT_ALLOWANCE_BYTES
}

/// How much the data grew after loading, in thousandths; zero if it was not loaded beforehand.
fn growth_permille(finished: &Finished) -> u64 {
    let grown = finished.data_bytes.saturating_sub(finished.data_bytes_loaded);
    (grown * 1000).checked_div(finished.data_bytes_loaded).unwrap_or(0)
}

fn growth_text(engine: Contestant, finished: &Finished) -> String {
    format!(
        "{}: the data grew from {} to {}, by {:.1} %",
        engine.name(),
        ByteSize(finished.data_bytes_loaded),
        ByteSize(finished.data_bytes),
        growth_permille(finished) as f64 / 10.0
    )
}

/// Compares Vellum's largest resident size, and the growth of its data unless it is meant to grow, with their
/// limits.
fn check(ends: &[(Contestant, Finished)], pool_bytes: u64, grows: bool, reporter: &Reporter) -> Result<()> {
    let vellum = EngineName::Vellum.into();
    for (engine, finished) in ends.iter().filter(|(engine, _)| engine.engine == vellum) {
        let limit = resident_bytes_limit(pool_bytes, finished.data_bytes);
        let text = format!(
            "vellum: at most {} resident; the limit is {}: pool {} + 16 bytes for each 4 KiB of {} + 64 MiB",
            ByteSize(finished.resident_bytes_max),
            ByteSize(limit),
            ByteSize(pool_bytes),
            ByteSize(finished.data_bytes),
        );
        if finished.resident_bytes_max > limit {
            return Err(Failure::Check(text).into());
        }
        if !grows && growth_permille(finished) > GROWTH_PERMILLE_MAX {
            return Err(Failure::Check(growth_text(*engine, finished)).into());
        }
        // People see it after the table; the summaries stay the last lines for programs.
        if !reporter.json {
            println!("check passed: {text}");
        }
    }
    Ok(())
}

/// The process of one engine.
pub(super) struct Worker {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub(super) fn start(name: String, specification: &Specification) -> Result<Self> {
        let mut child = std::process::Command::new(std::env::current_exe()?)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the engine's process has no pipes".into());
        };
        let mut worker = Self { name, child, input: Some(input), output: BufReader::new(output) };
        worker.say(specification)?;
        Ok(worker)
    }

    pub(super) fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let input = self.input.as_mut().ok_or("the engine's process was told to end")?;
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        input.write_all(&line)?;
        Ok(input.flush()?)
    }

    pub(super) fn ask(&mut self, command: Command) -> Result<Reply> {
        let told = self.say(&command);
        let name = &self.name;
        let mut line = String::new();
        if told.is_err() || self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("{name}: its process ended before its time ({status})").into());
        }
        match serde_json::from_str(&line)? {
            Reply::Failed { message, check: false } => Err(format!("{name}: {message}").into()),
            Reply::Failed { message, check: true } => {
                Err(Failure::Check(format!("{name}: {message}")).into())
            }
            reply => Ok(reply),
        }
    }

    /// Kills the process: it does nothing more, and hears of nothing.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        Ok(self.child.wait().map(drop)?)
    }

    fn finish(mut self) -> Result<Finished> {
        let reply = self.ask(Command::Finish)?;
        let Reply::Finished(finished) = reply else {
            return Err(format!("an unexpected reply to the end: {reply:?}").into());
        };
        Ok(finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input ends the process; wait for it, so that its folder can be removed.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(data_bytes_loaded: u64, data_bytes: u64, resident_bytes_max: u64) -> Finished {
        Finished {
            data_bytes,
            data_bytes_loaded,
            resident_bytes_max,
            notes: Vec::new(),
            statistics: serde_json::Value::Null,
            writing: serde_json::Value::Null,
        }
    }

    #[test]
    fn the_growth_of_the_data_is_checked() {
        let end = |loaded, grown| [(EngineName::Vellum.into(), finished(loaded, grown, 0))];
        let reporter = Reporter { json: true };
        for (loaded, grown, fine) in
            [(1000, 1100, true), (1000, 1101, false), (0, 5000, true), (1000, 900, true)]
        {
            assert_eq!(check(&end(loaded, grown), 0, false, &reporter).is_ok(), fine, "{loaded} {grown}");
            assert!(check(&end(loaded, grown), 0, true, &reporter).is_ok(), "{loaded} {grown}");
        }
    }

    #[test]
    fn the_limit_of_the_resident_size_is_checked() {
        assert_eq!(resident_bytes_limit(1 << 20, 4097), (1 << 20) + 32 + (64 << 20));
        let end =
            |resident_bytes_max| [(EngineName::Vellum.into(), finished(4096, 4096, resident_bytes_max))];
        let reporter = Reporter { json: true };
        assert!(check(&end((65 << 20) + 16), 1 << 20, false, &reporter).is_ok());
        let error = check(&end((65 << 20) + 17), 1 << 20, false, &reporter).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Failure::Check(_))), "{error}");
    }
}
