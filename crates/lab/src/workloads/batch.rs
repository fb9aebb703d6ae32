//! Point lookups of uniformly random keys, and updates among them, many in one call.
//!
//! An operation is one key, a latency that of a whole call. Values are checked as in single lookups; an update
//! stores the value that the tuple has, so that later lookups find what they expect.

use super::{Pace, Pass, Table, Work, run_threads};
use crate::Result;
use crate::engines::{Engine, Operation, Reader};
use crate::keys::{self, Generator};
use crate::statistics::Latencies;
use std::time::Instant;

/// Runs batches until the time is over.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn pass<E: Engine>(
    engine: &E,
    table: &Table,
    pace: &Pace,
    size: u64,
    updates_percent: u64,
) -> Result<Pass> {
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        let operations: Vec<Operation> = vec![([0; 8], None); usize::try_from(size)?];
        Ok((engine.reader()?, generator, operations, Latencies::new()?))
    };
    run_threads(pace.threads, prepare, |(mut reader, mut generator, mut operations, mut latencies), start| {
        let deadline = start + pace.duration;
        let mut done = 0;
        loop {
            let begin = Instant::now();
            for operation in &mut operations {
                draw(operation, table, &mut generator, updates_percent);
            }
            reader.batch(&operations, |key, value| match value {
                Some(value) if keys::matches(key, value, table.value_bytes) => Ok(()),
                _ => Err(wrong(key, value)),
            })?;
            done += size;
            let end = Instant::now();
            latencies.record(end - begin);
            if end >= deadline {
                return Ok(Work { operations: done, latencies });
            }
        }
    })
}

/// Chooses what to do next.
#[inline]
fn draw((key, update): &mut Operation, table: &Table, generator: &mut Generator, updates_percent: u64) {
    let index = generator.below(table.tuples);
    *key = keys::key(index);
    if updates_percent == 0 || generator.below(100) >= updates_percent {
        *update = None;
        return;
    }
    let value = update.get_or_insert_default();
    value.resize(table.value_bytes, 0);
    keys::fill_value(index, value);
}

#[cold]
fn wrong(key: &[u8; 8], value: Option<&[u8]>) -> crate::Error {
    let found = value.map_or("nothing".to_owned(), |value| format!("{} other bytes", value.len()));
    format!("the value of key {} is wrong: there are {found}", u64::from_be_bytes(*key)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::memory::Memory;
    use std::time::Duration;

    #[test]
    fn operations_are_counted_and_a_damaged_value_is_an_error() {
        let table = Table { tuples: 100, value_bytes: 24, seed: 1 };
        let pace = Pace { threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 8 };
        let engine = Memory::default();
        crate::workloads::insert::load(&engine, &table, keys::Order::Sequential, 1, 64).unwrap();
        let done = pass(&engine, &table, &pace, 16, 0).unwrap();
        assert!(done.operations > 100 && done.elapsed >= pace.duration);
        assert_eq!(done.latencies.samples() * 16, done.operations);
        assert!(pass(&engine, &table, &pace, 16, 50).is_err(), "it has no updates in batches");
        engine.map.write().unwrap().get_mut(keys::key(50).as_slice()).unwrap()[7] ^= 1;
        assert!(pass(&engine, &table, &pace, 16, 0).unwrap_err().to_string().contains("key 50"));
    }
}
