//! The process of one engine that runs a workload on records of several tables.
//!
//! What is stored is checked after it was loaded and again at the end, after all rounds; the run fails if it is
//! not what it should be.

use crate::Result;
use crate::config::{Load, Specification};
use crate::engines::counted::Counted;
use crate::engines::store::Store;
use crate::engines::{EngineOptions, Instance as _};
use crate::measure::machine::{self, StorageBytes};
use crate::report::contest::Measured;
use crate::run::held_snapshot::HeldSnapshot;
use crate::run::protocol::{Command, Finished, Reply};
use crate::run::session::{Meter, Obey, settle};
use crate::run::writing::Writing;
use crate::workloads::record_workload::RecordWorkload;
use crate::workloads::{Pace, SAMPLE_EVERY, SLOW_OPERATION};
use bytesize::ByteSize;
use serde_json::json;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One engine in the course of a run.
pub struct RecordSession<S, W> {
    specification: Specification,
    workload: W,
    store: Option<Arc<Counted<S>>>,
    held: Option<HeldSnapshot>,
    sample_every: u64,
    meter: Meter,
    data_bytes: u64,
    data_bytes_loaded: u64,
    writing: Writing,
}

impl<S: Store, W: RecordWorkload> RecordSession<S, W> {
    /// A session that has done nothing yet.
    ///
    /// # Errors
    /// If the specification is of another workload.
    pub fn new(specification: Specification) -> Result<Self> {
        let workload = W::new(&specification)?;
        Ok(Self {
            specification,
            workload,
            store: None,
            held: None,
            sample_every: SAMPLE_EVERY,
            meter: Meter::default(),
            data_bytes: 0,
            data_bytes_loaded: 0,
            writing: Writing::default(),
        })
    }

    fn create(&self) -> Result<Counted<S>> {
        let directory = self.specification.directory.join("tables");
        fs::create_dir_all(&directory)?;
        let options = EngineOptions::new(&self.specification, directory, self.workload.payload_bytes());
        Counted::create(&options, self.workload.tables())
    }

    fn prepare(&mut self) -> Result<Reply> {
        let store = self.create()?;
        let begin = Instant::now();
        self.workload.load(&store)?;
        store.settle()?;
        let load_seconds = Some(begin.elapsed().as_secs_f64());
        // What was written must not go on being written during the rounds of another engine.
        settle(&self.specification.directory)?;
        self.data_bytes = store.data_bytes()?;
        self.data_bytes_loaded = self.data_bytes;
        self.workload.check(&store)?.judge("after loading")?;
        let mut duration = self.specification.warm_up;
        if self.data_bytes <= store.cache_bytes_max() {
            duration = duration.min(Duration::from_secs(1));
        }
        let pace = Pace { clients: 1, threads: 1, round: u64::MAX, duration, sample_every: SAMPLE_EVERY };
        if self.workload.pass(&store, &pace)?.mean(1) > SLOW_OPERATION || W::TIMES_ALL {
            self.sample_every = 1;
        }
        let notes = store.notes();
        let store = Arc::new(store);
        if self.specification.transactions.is_snapshot_held {
            self.held = Some(HeldSnapshot::begin(&store, self.workload.tables().len())?);
        }
        self.store = Some(store);
        Ok(Reply::Prepared { load_seconds, sample_every: self.sample_every, notes })
    }

    fn round(&mut self, load: Load, round: usize) -> Result<Measured> {
        let store = self.store.as_deref().ok_or("a round before the engine is prepared")?;
        let duration = self.specification.duration;
        let Load { threads, clients } = load;
        let pace = Pace { clients, threads, round: round as u64, duration, sample_every: self.sample_every };
        let (before, counted, changed) = (StorageBytes::now(), store.statistics()?, store.changed_bytes());
        let pass = self.workload.pass(store, &pace)?;
        let storage = StorageBytes::now().since(before);
        let changed = (pass.operations, store.changed_bytes() - changed);
        self.writing.add(changed, storage, (&counted, &store.statistics()?));
        self.data_bytes = self.data_bytes.max(store.data_bytes()?);
        self.meter.measured(load, &pass, storage)
    }

    /// Works until so much log has come together that a crash would leave it to be redone.
    fn fill_log(&mut self, threads: usize, bytes: u64) -> Result<Reply> {
        let store = self.store.as_deref().ok_or("there is no log before the engine is prepared")?;
        let duration = Duration::from_millis(20);
        let (mut operations, begin) = (0, Instant::now());
        for round in 0.. {
            let log_bytes = store.statistics()?["log_bytes"].as_u64().ok_or("the engine has no log")?;
            if log_bytes >= bytes {
                // A kill that follows must leave as much.
                store.sync()?;
                return Ok(Reply::FilledLog {
                    operations,
                    seconds: begin.elapsed().as_secs_f64(),
                    log_bytes,
                });
            }
            let pace = Pace { clients: 1, threads, round, duration, sample_every: self.sample_every };
            operations += self.workload.pass(store, &pace)?.operations;
        }
        Err("the log does not grow".into())
    }

    /// Ends the snapshot that was held; says what the engine kept for it.
    fn release(&mut self, store: &Counted<S>) -> Result<Option<String>> {
        let Some(held) = self.held.take() else { return Ok(None) };
        let statistics = store.statistics()?;
        let unnamed = machine::unnamed_files_bytes();
        let mut text = format!("a snapshot was held for {:.1} s", held.end()?.as_secs_f64());
        if let (Some(versions), Some(bytes)) =
            (statistics["versions"].as_u64(), statistics["version_bytes"].as_u64())
        {
            text += &format!(
                ", and kept {versions} versions of {} in memory, {} in files without a name",
                ByteSize(bytes),
                ByteSize(unnamed)
            );
        }
        Ok(Some(text))
    }

    fn finish(&mut self) -> Result<Finished> {
        let mut statistics = serde_json::Value::Null;
        let (mut notes, mut closing_bytes) = (Vec::new(), 0);
        if let Some(store) = self.store.take() {
            let released = self.release(&store)?;
            let findings = self.workload.check(&*store)?;
            findings.judge("at the end")?;
            let (counts, remarks) = self.workload.summary()?;
            let name = self.specification.engine.as_str();
            statistics = json!({ "engine": store.statistics()?, "workload": counts });
            let open = StorageBytes::now();
            Arc::into_inner(store).ok_or("the engine is still in use")?.close()?;
            closing_bytes = StorageBytes::now().since(open).written;
            let checked = format!("checked at the end: {}", findings.checked);
            let remarks = remarks.into_iter().chain(released).chain(self.writing.remark(closing_bytes));
            notes = remarks.chain([checked]).map(|remark| format!("{name}: {remark}")).collect();
        }
        Ok(Finished {
            data_bytes: self.data_bytes,
            data_bytes_loaded: self.data_bytes_loaded,
            resident_bytes_max: machine::resident_bytes_max(),
            notes,
            statistics,
            writing: self.writing.to_json(closing_bytes),
        })
    }
}

impl<S: Store, W: RecordWorkload> Obey for RecordSession<S, W> {
    fn obey(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Prepare => self.prepare(),
            Command::Round { load, round } => self.round(load, round).map(Reply::Round),
            Command::FillLog { threads, bytes } => self.fill_log(threads, bytes),
            Command::Finish => self.finish().map(Reply::Finished),
        }
    }
}
