//! The process of one engine that runs a workload on records of several tables.
//!
//! What is stored is checked after it was loaded and again at the end, after all rounds; the run fails if it is
//! not what it should be.

use crate::Result;
use crate::config::Specification;
use crate::engines::EngineOptions;
use crate::engines::store::Store;
use crate::measure::machine::{self, StorageBytes};
use crate::report::contest::Measured;
use crate::run::protocol::{Command, Finished, Reply};
use crate::run::session::{Meter, Obey, settle};
use crate::workloads::record_workload::RecordWorkload;
use crate::workloads::{Pace, SAMPLE_EVERY, SLOW_OPERATION};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// One engine in the course of a run.
pub struct RecordSession<S, W> {
    specification: Specification,
    workload: W,
    store: Option<S>,
    sample_every: u64,
    meter: Meter,
    data_bytes: u64,
    data_bytes_loaded: u64,
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
            sample_every: SAMPLE_EVERY,
            meter: Meter::default(),
            data_bytes: 0,
            data_bytes_loaded: 0,
        })
    }

    fn create(&self) -> Result<S> {
        let specification = &self.specification;
        let directory = specification.directory.join("tables");
        fs::create_dir_all(&directory)?;
        let options = EngineOptions {
            directory,
            pool_bytes: specification.pool_bytes,
            tuples: specification.tuples,
            key_bytes: specification.workload.key_bytes(),
            value_bytes: specification.values.same(),
            payload_bytes: self.workload.payload_bytes(),
            threads_max: specification.threads_max * specification.workload.clients(),
            lmdb_write_map: specification.lmdb_write_map,
            durability: specification.durability,
            checkpoint_log: specification.checkpoint_log,
            isolation: specification.isolation,
            read_depth: specification.workload.read_depth(),
        };
        S::create(&options, self.workload.tables())
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
        let pace = Pace { threads: 1, round: u64::MAX, duration, sample_every: SAMPLE_EVERY };
        if self.workload.pass(&store, &pace)?.mean(1) > SLOW_OPERATION || W::TIMES_ALL {
            self.sample_every = 1;
        }
        let notes = store.notes();
        self.store = Some(store);
        Ok(Reply::Prepared { load_seconds, sample_every: self.sample_every, notes })
    }

    fn round(&mut self, threads: usize, round: usize) -> Result<Measured> {
        let store = self.store.as_ref().ok_or("a round before the engine is prepared")?;
        let duration = self.specification.duration;
        let pace = Pace { threads, round: round as u64, duration, sample_every: self.sample_every };
        let before = StorageBytes::now();
        let pass = self.workload.pass(store, &pace)?;
        let storage = StorageBytes::now().since(before);
        self.data_bytes = self.data_bytes.max(store.data_bytes()?);
        self.meter.measured(threads, &pass, storage)
    }

    fn finish(&mut self) -> Result<Finished> {
        let mut statistics = serde_json::Value::Null;
        let mut notes = Vec::new();
        if let Some(store) = self.store.take() {
            let findings = self.workload.check(&store)?;
            findings.judge("at the end")?;
            let (counts, remarks) = self.workload.summary()?;
            let name = self.specification.engine.as_str();
            notes = remarks.into_iter().map(|remark| format!("{name}: {remark}")).collect();
            notes.push(format!("{name}: checked at the end: {}", findings.checked));
            statistics = json!({ "engine": store.statistics()?, "workload": counts });
            store.close()?;
        }
        Ok(Finished {
            data_bytes: self.data_bytes,
            data_bytes_loaded: self.data_bytes_loaded,
            resident_bytes_max: machine::resident_bytes_max(),
            notes,
            statistics,
        })
    }
}

impl<S: Store, W: RecordWorkload> Obey for RecordSession<S, W> {
    fn obey(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Prepare => self.prepare(),
            Command::Round { threads, round } => self.round(threads, round).map(Reply::Round),
            Command::Finish => self.finish().map(Reply::Finished),
        }
    }
}
