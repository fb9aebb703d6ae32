//! The process of one engine: does what its parent commands, until it is told to finish or the parent ends.
//!
//! Here are the workloads on one table of tuples; those on records of several tables are in
//! [`record_worker`](crate::run::record_worker).

use crate::Result;
#[cfg(feature = "rocksdb")]
use crate::config::Durability;
use crate::config::{AnyEngineName, EngineName, KeyKind, Load, Order, Specification, Workload};
use crate::engines::bf_tree::BfTreeTable;
use crate::engines::by_name::{WithRecordEngine, with_engine};
use crate::engines::fjall::Fjall;
use crate::engines::fjall_table::FjallTable;
use crate::engines::hash_table::HashTable;
use crate::engines::lmdb::Lmdb;
use crate::engines::lmdb_store::LmdbStore;
use crate::engines::raw::Raw;
use crate::engines::record_store::RecordStore;
use crate::engines::records::RecordEngine;
use crate::engines::redb::Redb;
use crate::engines::redb_table::RedbTable;
use crate::engines::store::Store;
use crate::engines::vellum::Vellum;
use crate::engines::vellum_snapshots::VellumSnapshots;
use crate::engines::vellum_store::VellumStore;
use crate::engines::vellum_transactions::VellumTransactions;
use crate::engines::{Engine, EngineOptions};
use crate::keys::{self, Keys, TextKeys, U64Keys};
use crate::measure::machine::{self, StorageBytes};
use crate::measure::statistics::Spread;
use crate::report::contest::Measured;
use crate::run::protocol::{Command, Finished, Reply};
use crate::run::record_worker::RecordSession;
use crate::run::session::{Meter, Obey, converse, settle};
use crate::run::writing::Writing;
use crate::workloads::bank::Bank;
use crate::workloads::queue::Queue;
use crate::workloads::record_workload::RecordWorkload;
use crate::workloads::tpcc::Tpcc;
use crate::workloads::transactions::Transactions;
use crate::workloads::ycsb::Ycsb;
use crate::workloads::{Pace, Pass, SAMPLE_EVERY, SLOW_OPERATION, Table};
use crate::workloads::{batch, churn, delete, insert, lookup, scan, update};
use std::fs;
use std::io::{BufRead, Write};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lookups that check a table after it was inserted.
const CHECK_LOOKUPS: u64 = 1000;

/// Serves a parent that speaks on `input` and listens on `output`.
///
/// # Errors
/// If the parent cannot be understood or reached. Failures of the engine are told to the parent.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let specification: Specification = serde_json::from_str(&line)?;
    let engine = match specification.engine {
        AnyEngineName::Tables(engine) => engine,
        AnyEngineName::Records(engine) => {
            let sizes = (specification.workload.key_bytes(), specification.values.same());
            let serve = ServeRecords { specification, input: &mut input, output: &mut output };
            return match with_engine(engine, sizes.0, sizes.1, serve) {
                Ok(served) => served,
                Err(refused) => converse(Refused(refused.to_string()), input, output),
            };
        }
    };
    match engine {
        EngineName::Vellum => serve_engine::<Vellum, VellumStore>(specification, input, output),
        EngineName::VellumTx if specification.workload.changes_table() => {
            converse(Refused("it only reads a single table: take the engine vellum".into()), input, output)
        }
        EngineName::VellumTx => {
            serve_engine::<VellumSnapshots, VellumTransactions>(specification, input, output)
        }
        EngineName::Lmdb => serve_engine::<Lmdb, LmdbStore>(specification, input, output),
        engine if engine.has_one_table() && specification.workload.has_records() => {
            converse(Refused("it has a single table of tuples, and no records".into()), input, output)
        }
        EngineName::Redb => serve_engine::<RedbTable, Redb>(specification, input, output),
        EngineName::Fjall => serve_engine::<FjallTable, Fjall>(specification, input, output),
        EngineName::BfTree => serve_table::<BfTreeTable>(specification, input, output),
        #[cfg(feature = "rocksdb")]
        EngineName::Rocksdb => {
            use crate::engines::rocksdb::RocksDb;
            use crate::engines::rocksdb_transactions::RocksDbTransactions;
            match specification.transactions.durability {
                Durability::NoLog => serve_engine::<RocksDb, RocksDb>(specification, input, output),
                _ => serve_engine::<RocksDb, RocksDbTransactions>(specification, input, output),
            }
        }
        #[cfg(feature = "sqlite")]
        EngineName::Sqlite => {
            use crate::engines::sqlite::Sqlite;
            serve_engine::<Sqlite, Sqlite>(specification, input, output)
        }
        EngineName::HashTable => serve_table::<HashTable>(specification, input, output),
        EngineName::Raw => match specification.workload {
            Workload::Update | Workload::Delete | Workload::Churn => {
                let refused = "it is a file that is written once: nothing is changed or removed in it";
                converse(Refused(refused.into()), input, output)
            }
            _ => serve_table::<Raw>(specification, input, output),
        },
    }
}

/// Serves a workload on one table of tuples.
fn serve_table<E: Engine>(
    specification: Specification,
    input: impl BufRead,
    output: impl Write,
) -> Result<()> {
    match specification.keys {
        _ if specification.transactions.is_snapshot_held => {
            converse(Refused("a snapshot is held by workloads on records only".into()), input, output)
        }
        KeyKind::U64 => converse(Session::<E, U64Keys>::new(specification), input, output),
        kind => {
            keys::choose(kind, specification.tuples)?;
            converse(Session::<E, TextKeys>::new(specification), input, output)
        }
    }
}

/// Serves with one engine, in the form that the workload uses.
fn serve_engine<E: Engine, S: Store>(
    specification: Specification,
    input: impl BufRead,
    output: impl Write,
) -> Result<()> {
    if specification.workload.has_records() {
        serve_store::<S>(specification, input, output)
    } else {
        serve_table::<E>(specification, input, output)
    }
}

/// Serves a workload on records.
fn serve_store<S: Store>(
    specification: Specification,
    input: impl BufRead,
    output: impl Write,
) -> Result<()> {
    match specification.workload {
        Workload::Tpcc { .. } => converse(records::<S, Tpcc>(specification)?, input, output),
        Workload::Transactions { .. } => converse(records::<S, Transactions>(specification)?, input, output),
        Workload::Bank { .. } => converse(records::<S, Bank>(specification)?, input, output),
        Workload::Queue { .. } => converse(records::<S, Queue>(specification)?, input, output),
        Workload::Ycsb { .. } => converse(records::<S, Ycsb>(specification)?, input, output),
        _ => converse(Refused("this is no workload on records".into()), input, output),
    }
}

/// A session on records.
fn records<S: Store, W: RecordWorkload>(specification: Specification) -> Result<RecordSession<S, W>> {
    RecordSession::new(specification)
}

/// An engine that cannot do what it is asked for, and says why.
struct Refused(String);

impl Obey for Refused {
    fn obey(&mut self, _: Command) -> Result<Reply> {
        Err(self.0.clone().into())
    }
}

/// Serves with an engine of single records.
struct ServeRecords<I, O> {
    specification: Specification,
    input: I,
    output: O,
}

impl<I: BufRead, O: Write> WithRecordEngine for ServeRecords<I, O> {
    type Output = Result<()>;

    fn with<E: RecordEngine + 'static>(self) -> Result<()> {
        match self.specification.workload {
            Workload::Ycsb { .. } => {
                let session = records::<RecordStore<E>, Ycsb>(self.specification)?;
                converse(session, self.input, self.output)
            }
            other => Err(format!("{} does not run on an engine of single records", other.as_str()).into()),
        }
    }
}

/// One engine in the course of a run.
struct Session<E, K> {
    specification: Specification,
    table: Table,
    engine: Option<E>,
    sample_every: u64,
    meter: Meter,
    data_bytes: u64,
    data_bytes_loaded: u64,
    statistics: serde_json::Value,
    /// How many times as fast as sequential inserts the bulk load of each round was.
    bulk_ratios: Vec<f64>,
    writing: Writing,
    closing_bytes: u64,
    kind: PhantomData<K>,
}

impl<E: Engine, K: Keys> Session<E, K> {
    fn new(specification: Specification) -> Self {
        let Specification { tuples, values, seed, skew, .. } = specification;
        Self {
            table: Table::new(tuples, values, seed, skew).inserted(specification.order),
            specification,
            engine: None,
            sample_every: SAMPLE_EVERY,
            meter: Meter::default(),
            data_bytes: 0,
            data_bytes_loaded: 0,
            statistics: serde_json::Value::Null,
            bulk_ratios: Vec::new(),
            writing: Writing::default(),
            closing_bytes: 0,
            kind: PhantomData,
        }
    }

    fn create(&self, directory: PathBuf) -> Result<E> {
        let specification = &self.specification;
        fs::create_dir_all(&directory)?;
        let payload_bytes = specification.tuples * self.tuple_bytes_mean();
        E::create(&EngineOptions::new(specification, directory, payload_bytes))
    }

    fn tuple_bytes_mean(&self) -> u64 {
        self.specification.keys.bytes_mean() + self.specification.values.mean()
    }

    fn prepare(&mut self) -> Result<Reply> {
        if self.specification.workload.has_table_each_round() {
            let directory = self.specification.directory.join("probe");
            let engine = self.create(directory.clone())?;
            let notes = engine.notes();
            engine.close()?;
            fs::remove_dir_all(directory)?;
            return Ok(Reply::Prepared { load_seconds: None, sample_every: self.sample_every, notes });
        }
        let engine = self.create(self.specification.directory.join("table"))?;
        let begin = Instant::now();
        if self.specification.workload == Workload::Churn {
            churn::load::<_, K>(&engine, &self.table, self.specification.order)?;
        } else {
            insert::load::<_, K>(&engine, &self.table, self.specification.order, 1, SAMPLE_EVERY)?;
        }
        let load_seconds = Some(begin.elapsed().as_secs_f64());
        // What was written must not go on being written during the rounds of another engine.
        settle(&self.specification.directory)?;
        self.data_bytes = engine.data_bytes()?;
        self.data_bytes_loaded = self.data_bytes;
        if self.specification.workload == Workload::Churn {
            churn::check::<_, K>(&engine, &self.table)?;
        } else {
            self.warm_up(&engine)?;
        }
        let notes = engine.notes();
        self.engine = Some(engine);
        Ok(Reply::Prepared { load_seconds, sample_every: self.sample_every, notes })
    }

    /// Brings the engine to the state in which it will be measured: a scan of the whole table, which also
    /// checks it, if it can hold it in memory; then the workload for a while.
    fn warm_up(&mut self, engine: &E) -> Result<()> {
        let mut duration = self.specification.warm_up;
        if self.data_bytes <= engine.cache_bytes_max() {
            scan::check::<_, K>(engine, &self.table)?;
            duration = duration.min(Duration::from_secs(1));
        }
        let pace = Pace { clients: 1, threads: 1, round: u64::MAX, duration, sample_every: SAMPLE_EVERY };
        let pass = self.pass(engine, &pace)?;
        if pass.mean(1) > SLOW_OPERATION {
            self.sample_every = 1;
        }
        Ok(())
    }

    fn pass(&self, engine: &E, pace: &Pace) -> Result<Pass> {
        match self.specification.workload {
            Workload::Lookup => lookup::pass::<_, K>(engine, &self.table, pace),
            Workload::Batch { size, updates_percent, .. } => {
                batch::pass::<_, K>(engine, &self.table, pace, size, updates_percent)
            }
            Workload::Scan { length } => scan::pass::<_, K>(engine, &self.table, pace, (length, false)),
            Workload::Range { length } => scan::pass::<_, K>(engine, &self.table, pace, (length, true)),
            Workload::Update => update::pass::<_, K>(engine, &self.table, pace),
            Workload::Delete => delete::pass::<_, K>(engine, &self.table, pace),
            Workload::Churn => churn::pass::<_, K>(engine, &self.table, pace),
            Workload::Insert => {
                let order = self.specification.order;
                insert::load::<_, K>(engine, &self.table, order, pace.threads, pace.sample_every)
            }
            Workload::Tpcc { .. }
            | Workload::Bank { .. }
            | Workload::Queue { .. }
            | Workload::Transactions { .. }
            | Workload::Ycsb { .. } => Err("a workload on records has a session of its own".into()),
        }
    }

    fn round(&mut self, load: Load, round: usize) -> Result<Measured> {
        let duration = self.specification.duration;
        let Load { threads, clients } = load;
        let pace = Pace { clients, threads, round: round as u64, duration, sample_every: self.sample_every };
        let (pass, storage) = if self.specification.workload.has_table_each_round() {
            self.round_of_its_own(&pace)?
        } else {
            let engine = self.engine.as_ref().ok_or("a round before the engine is prepared")?;
            let before = StorageBytes::now();
            let counted = engine.statistics()?;
            let pass = self.pass(engine, &pace)?;
            let storage = StorageBytes::now().since(before);
            if self.specification.workload.changes_table() {
                // In churn a tuple is removed, and inserted again.
                let is_churn = self.specification.workload == Workload::Churn;
                let removed = if is_churn { self.specification.keys.bytes_mean() } else { 0 };
                let changed = (pass.operations, pass.operations * (self.tuple_bytes_mean() + removed));
                self.writing.add(changed, storage, (&counted, &engine.statistics()?));
            }
            self.data_bytes = self.data_bytes.max(engine.data_bytes()?);
            (pass, storage)
        };
        self.meter.measured(load, &pass, storage)
    }

    /// Inserts the tuples of a bulk load one by one into a table of its own, for comparison.
    fn insert_beside(&self, pace: &Pace) -> Result<f64> {
        let directory = self.specification.directory.join(format!("beside-{}-{}", pace.round, pace.threads));
        let engine = self.create(directory.clone())?;
        let pass = insert::load::<_, K>(&engine, &self.table, Order::Sequential, 1, pace.sample_every)?;
        engine.close()?;
        fs::remove_dir_all(directory)?;
        settle(&self.specification.directory)?;
        Ok(pass.elapsed.as_secs_f64())
    }

    /// A round that has a new table, checks it, and removes it again.
    fn round_of_its_own(&mut self, pace: &Pace) -> Result<(Pass, StorageBytes)> {
        let is_delete = self.specification.workload == Workload::Delete;
        let is_bulk = self.specification.order == Order::Bulk && !is_delete;
        let beside = if is_bulk { Some(self.insert_beside(pace)?) } else { None };
        let directory = self.specification.directory.join(format!("round-{}-{}", pace.round, pace.threads));
        let engine = self.create(directory.clone())?;
        if is_delete {
            insert::load::<_, K>(&engine, &self.table, self.specification.order, 1, SAMPLE_EVERY)?;
            settle(&self.specification.directory)?;
        }
        let (before, counted) = (StorageBytes::now(), engine.statistics()?);
        let pass = self.pass(&engine, pace)?;
        let storage = StorageBytes::now().since(before);
        if pass.operations != self.specification.tuples {
            return Err(format!("{} tuples were inserted or deleted", pass.operations).into());
        }
        self.bulk_ratios.extend(beside.map(|seconds| seconds / pass.elapsed.as_secs_f64()));
        if is_delete {
            delete::check::<_, K>(&engine, &self.table, CHECK_LOOKUPS)?;
        } else {
            lookup::check::<_, K>(&engine, &self.table, CHECK_LOOKUPS)?;
        }
        self.data_bytes = self.data_bytes.max(engine.data_bytes()?);
        self.statistics = engine.statistics()?;
        let bytes = if is_delete { self.specification.keys.bytes_mean() } else { self.tuple_bytes_mean() };
        let changed = (pass.operations, pass.operations * bytes);
        self.writing.add(changed, storage, (&counted, &self.statistics));
        let open = StorageBytes::now();
        engine.close()?;
        self.closing_bytes += StorageBytes::now().since(open).written;
        fs::remove_dir_all(directory)?;
        settle(&self.specification.directory)?;
        Ok((pass, storage))
    }

    /// How the bulk loads compare with sequential inserts.
    fn bulk_notes(&self) -> Vec<String> {
        let Some(Spread { median, min, max }) = Spread::of(self.bulk_ratios.iter().copied()) else {
            return Vec::new();
        };
        let engine = self.specification.engine.as_str();
        vec![format!(
            "{engine}: a bulk load is {median:.2} times as fast as inserting the same tuples in order, one by one, \
             just before ({min:.2} to {max:.2})"
        )]
    }

    fn finish(&mut self) -> Result<Finished> {
        if let Some(engine) = self.engine.take() {
            match self.specification.workload {
                Workload::Churn => churn::check::<_, K>(&engine, &self.table)?,
                Workload::Update => update::check::<_, K>(&engine, &self.table)?,
                _ => {}
            }
            self.statistics = engine.statistics()?;
            let open = StorageBytes::now();
            engine.close()?;
            self.closing_bytes += StorageBytes::now().since(open).written;
        }
        let mut notes = self.bulk_notes();
        let name = self.specification.engine.as_str();
        notes.extend(self.writing.remark(self.closing_bytes).map(|remark| format!("{name}: {remark}")));
        Ok(Finished {
            data_bytes: self.data_bytes,
            data_bytes_loaded: self.data_bytes_loaded,
            resident_bytes_max: machine::resident_bytes_max(),
            notes,
            statistics: std::mem::take(&mut self.statistics),
            writing: self.writing.to_json(self.closing_bytes),
        })
    }
}

impl<E: Engine, K: Keys> Obey for Session<E, K> {
    fn obey(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Prepare => self.prepare(),
            Command::Round { load, round } => self.round(load, round).map(Reply::Round),
            Command::FillLog { .. } => Err("a table of tuples has no transactions".into()),
            Command::Finish => self.finish().map(Reply::Finished),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Skew;
    use crate::config::{Choice, TransactionSettings, ValueSizes};
    use crate::engines::memory::Memory;

    fn specification(workload: Workload, keys: KeyKind, directory: PathBuf) -> Specification {
        Specification {
            engine: EngineName::Lmdb.into(),
            workload,
            tuples: 3000,
            keys,
            values: ValueSizes::one(40),
            skew: Skew::Zipfian(0.99),
            pool_bytes: 1 << 30,
            threads_max: 2,
            clients_max: 1,
            duration: Duration::from_millis(20),
            warm_up: Duration::from_millis(10),
            seed: 1,
            order: Order::Random,
            lmdb_write_map: Choice::Auto,
            transactions: TransactionSettings::default(),
            directory,
        }
    }

    /// Speaks to a session as a parent would.
    fn converse<E: Engine>(specification: Specification, commands: &[Command]) -> Vec<Reply> {
        let input: String =
            commands.iter().map(|command| serde_json::to_string(command).unwrap() + "\n").collect();
        let mut output = Vec::new();
        serve_table::<E>(specification, input.as_bytes(), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_session_prepares_runs_rounds_and_finishes() {
        let batch = Workload::Batch { size: 16, updates_percent: 0, depth: 8 };
        let all = [Workload::Lookup, batch, Workload::Scan { length: 0 }, Workload::Scan { length: 5 }];
        let all = all.into_iter().chain([Workload::Range { length: 5 }, Workload::Insert, Workload::Update]);
        let all = all.chain([Workload::Delete, Workload::Churn]);
        for (workload, keys) in all.flat_map(|workload| [(workload, KeyKind::U64), (workload, KeyKind::Url)])
        {
            let folder = tempfile::tempdir().unwrap();
            let round = |threads, round| Command::Round { load: Load::threads(threads), round };
            let commands = [Command::Prepare, round(1, 0), round(2, 0), round(1, 1), Command::Finish];
            let replies =
                converse::<Memory>(specification(workload, keys, folder.path().to_owned()), &commands);
            let [
                Reply::Prepared { load_seconds, .. },
                Reply::Round(first),
                Reply::Round(_),
                Reply::Round(third),
                Reply::Finished(finished),
            ] = replies.as_slice()
            else {
                panic!("{replies:?}");
            };
            assert_eq!(load_seconds.is_none(), workload.has_table_each_round());
            assert!(first.operations > 0 && first.latency_samples > 0);
            assert!(third.latency_samples > first.latency_samples, "samples of all rounds are kept");
            assert!(finished.resident_bytes_max >= 1 << 20);
            let fixed = keys == KeyKind::U64 && workload != Workload::Churn;
            assert!(match workload {
                // It is looked at when all tuples are gone.
                Workload::Delete => finished.data_bytes == 0,
                _ if fixed => finished.data_bytes == 3000 * 48,
                _ => finished.data_bytes > 3000 * 30,
            });
        }
    }

    #[test]
    fn a_failure_is_told_to_the_parent_and_ends_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let specification = specification(Workload::Lookup, KeyKind::U64, folder.path().to_owned());
        let commands = [Command::Round { load: Load::threads(1), round: 0 }, Command::Finish];
        let replies = converse::<Memory>(specification, &commands);
        assert!(matches!(replies.as_slice(), [Reply::Failed { .. }]), "{replies:?}");
    }
}
