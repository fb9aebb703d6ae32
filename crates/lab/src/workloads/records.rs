//! Single records: put all of them into an empty store, get or update random ones, delete all of them.
//!
//! Values that are read are checked. In `put` and `delete` each round has a store of its own, in `get` and `update`
//! all rounds use the one that was loaded before.

use super::{Pace, Pass, SAMPLE_EVERY, Work, run_threads, until_deadline};
use crate::Result;
use crate::config::Order;
use crate::engines::records::{RecordEngine, RecordHandle, RecordOptions};
use crate::keys::{self, Generator, Key, Share};
use crate::measure::statistics::Latencies;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// All records are put into an empty store, in random order.
    Put,
    /// Values of random keys are copied.
    Get,
    /// Eight bytes of the values of random keys are changed.
    Update,
    /// All records are deleted, in random order.
    Delete,
}

impl Verb {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// One engine in the course of a run, whichever it is.
pub trait Contestant {
    /// Prepares what all rounds share; remarks, and how long loading took.
    fn prepare(&mut self) -> Result<(String, Option<Duration>)>;

    /// Runs one round.
    fn round(&mut self, pace: &Pace) -> Result<Pass>;
}

/// A contestant with an engine.
pub struct Record<E> {
    verb: Verb,
    options: RecordOptions,
    seed: u64,
    threads: usize,
    folder: PathBuf,
    loaded: Option<E>,
}

impl<E: RecordEngine> Record<E> {
    /// One that uses this folder; `threads` load.
    pub fn new(verb: Verb, options: RecordOptions, seed: u64, threads: usize, folder: PathBuf) -> Self {
        Self { verb, options, seed, threads, folder, loaded: None }
    }

    fn create(&self, name: &str) -> Result<(E, PathBuf)> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok((E::create(&folder, &self.options)?, folder))
    }

    /// Goes through all records once, in random order, divided among threads.
    fn all(&self, engine: &E, verb: Verb, threads: usize) -> Result<Pass> {
        let options = self.options;
        let prepare = |thread: usize| {
            let share = Share::new(Order::Random, options.records, self.seed, thread as u64, threads as u64);
            Ok((engine.handle()?, share, vec![0; options.value_bytes], Latencies::new()?))
        };
        run_threads(threads, prepare, |(mut handle, share, mut value, mut latencies), _| {
            let mut operations = 0u64;
            for index in share {
                let key = Key::new(index, options.key_bytes);
                let timed = operations.is_multiple_of(SAMPLE_EVERY).then(Instant::now);
                if verb == Verb::Put {
                    keys::fill_value(index, &mut value);
                    handle.put(key.bytes(), &value)?;
                } else if !handle.delete(key.bytes())? {
                    return Err(format!("record {index} is missing").into());
                }
                if let Some(begin) = timed {
                    latencies.record(begin.elapsed());
                }
                operations += 1;
            }
            Ok(Work::new(operations, latencies))
        })
    }

    /// Gets or updates random records until the time is over.
    fn random(&self, engine: &E, pace: &Pace) -> Result<Pass> {
        let options = self.options;
        let prepare = |thread: usize| {
            let generator = Generator::new(self.seed, thread as u64, pace.round);
            Ok((engine.handle()?, generator, Vec::with_capacity(options.value_bytes), Latencies::new()?))
        };
        run_threads(pace.threads, prepare, |(mut handle, mut generator, mut value, latencies), start| {
            until_deadline(pace, start, latencies, || self.one(&mut handle, &mut generator, &mut value))
        })
    }

    #[inline]
    fn one(&self, handle: &mut E::Handle<'_>, generator: &mut Generator, value: &mut Vec<u8>) -> Result<()> {
        let index = generator.below(self.options.records);
        let key = Key::new(index, self.options.key_bytes);
        let found = if self.verb == Verb::Update {
            handle.update(key.bytes())?
        } else {
            handle.get(key.bytes(), value)? && keys::matches(index, value, self.options.value_bytes)
        };
        if found { Ok(()) } else { Err(format!("record {index} is missing or wrong").into()) }
    }
}

impl<E: RecordEngine> Contestant for Record<E> {
    fn prepare(&mut self) -> Result<(String, Option<Duration>)> {
        let (engine, folder) = self.create("loaded")?;
        let note = engine.note();
        if matches!(self.verb, Verb::Put | Verb::Delete) {
            drop(engine);
            std::fs::remove_dir_all(folder)?;
            return Ok((note, None));
        }
        let pass = self.all(&engine, Verb::Put, self.threads)?;
        engine.settle()?;
        self.loaded = Some(engine);
        Ok((note, Some(pass.elapsed)))
    }

    fn round(&mut self, pace: &Pace) -> Result<Pass> {
        if let Some(engine) = &self.loaded {
            return self.random(engine, pace);
        }
        let (engine, folder) = self.create(&format!("round-{}-{}", pace.round, pace.threads))?;
        let put = self.all(&engine, Verb::Put, pace.threads)?;
        let pass = if self.verb == Verb::Put { put } else { self.all(&engine, self.verb, pace.threads)? };
        check_removed(&engine, self.verb, &self.options)?;
        drop(engine);
        remove(&folder)?;
        Ok(pass)
    }
}

/// Looks at some records after a round, outside of the measurement.
fn check_removed<E: RecordEngine>(engine: &E, verb: Verb, options: &RecordOptions) -> Result<()> {
    let mut handle = engine.handle()?;
    let mut value = Vec::new();
    let step = (options.records / 100).max(1) as usize;
    for index in (0..options.records).step_by(step) {
        let found = handle.get(Key::new(index, options.key_bytes).bytes(), &mut value)?;
        if found != (verb == Verb::Put) {
            return Err(format!("record {index} should be {}", if found { "gone" } else { "there" }).into());
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    Ok(std::fs::remove_dir_all(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::dashmap::Dash;
    use crate::engines::papaya::Papaya;
    use crate::engines::pmem::Pmem;

    fn run<E: RecordEngine>(key_bytes: usize, value_bytes: usize) {
        let options = RecordOptions { records: 2000, key_bytes, value_bytes };
        for verb in [Verb::Put, Verb::Get, Verb::Update, Verb::Delete] {
            let folder = tempfile::tempdir().unwrap();
            let mut contestant = Record::<E>::new(verb, options, 1, 2, folder.path().to_owned());
            let (note, loaded) = contestant.prepare().unwrap();
            assert!(!note.is_empty());
            assert_eq!(loaded.is_some(), matches!(verb, Verb::Get | Verb::Update));
            for round in 0..2 {
                let duration = Duration::from_millis(10);
                let pass = contestant
                    .round(&Pace { clients: 1, threads: 2, round, duration, sample_every: 1 })
                    .unwrap();
                assert!(pass.operations >= if loaded.is_some() { 1 } else { 2000 }, "{verb:?}");
            }
        }
    }

    #[test]
    fn every_engine_does_every_workload() {
        run::<Dash<16, 200>>(16, 200);
        run::<Papaya<16, 200>>(16, 200);
        run::<Pmem<vellum_pmem::Fixed<16, 200>>>(16, 200);
        run::<Pmem<vellum_pmem::Fixed<8, 8>>>(8, 8);
        run::<Pmem<vellum_pmem::Variable>>(16, 100);
    }
}
