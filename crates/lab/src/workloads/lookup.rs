//! Point lookups of uniformly random keys, all of which exist.
//!
//! Each value is copied into the caller's buffer and checked: that it is there, its length, and that it
//! begins with its key.

use super::{Pace, Pass, Table, Work, run_threads};
use crate::Result;
use crate::engines::{Engine, Reader};
use crate::keys::{self, Generator};
use crate::statistics::Latencies;
use std::time::Instant;

/// Looks up keys until the time is over.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn pass<E: Engine>(engine: &E, table: &Table, pace: &Pace) -> Result<Pass> {
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        Ok((engine.reader()?, generator, Vec::with_capacity(table.value_bytes), Latencies::new()?))
    };
    run_threads(pace.threads, prepare, |(mut reader, mut generator, mut value, mut latencies), start| {
        let deadline = start + pace.duration;
        let mut operations = 0;
        loop {
            let begin = Instant::now();
            one(&mut reader, table, &mut generator, &mut value)?;
            let end = Instant::now();
            latencies.record(end - begin);
            if end >= deadline {
                return Ok(Work { operations: operations + 1, latencies });
            }
            for _ in 1..pace.sample_every {
                one(&mut reader, table, &mut generator, &mut value)?;
            }
            operations += pace.sample_every.max(1);
        }
    })
}

/// Looks up so many random keys, outside any measurement, to see that a table is what it should be.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn check<E: Engine>(engine: &E, table: &Table, lookups: u64) -> Result<()> {
    let mut generator = Generator::new(table.seed, u64::MAX, 0);
    let mut reader = engine.reader()?;
    let mut value = Vec::new();
    (0..lookups).try_for_each(|_| one(&mut reader, table, &mut generator, &mut value))
}

#[inline]
fn one<R: Reader>(
    reader: &mut R,
    table: &Table,
    generator: &mut Generator,
    value: &mut Vec<u8>,
) -> Result<()> {
    let key = keys::key(generator.below(table.tuples));
    if reader.lookup(&key, value)? && keys::matches(&key, value, table.value_bytes) {
        Ok(())
    } else {
        Err(wrong(key, value))
    }
}

#[cold]
fn wrong(key: [u8; 8], value: &[u8]) -> crate::Error {
    format!(
        "the value of key {} is missing or wrong: its {} bytes begin with {:02x?}",
        u64::from_be_bytes(key),
        value.len(),
        &value[..value.len().min(8)]
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::memory::Memory;
    use std::time::Duration;

    #[test]
    fn lookups_are_counted_and_a_missing_or_damaged_value_is_an_error() {
        let table = Table { tuples: 100, value_bytes: 24, seed: 1 };
        let pace = Pace { threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 8 };
        let engine = Memory::default();
        crate::workloads::insert::load(&engine, &table, keys::Order::Sequential, 1, 64).unwrap();
        let pass = super::pass(&engine, &table, &pace).unwrap();
        assert!(pass.operations > 100 && pass.elapsed >= pace.duration);
        // Each thread ends with a timed operation.
        assert_eq!(pass.latencies.samples(), (pass.operations - 2) / 8 + 2);
        check(&engine, &table, 1000).unwrap();

        engine.map.write().unwrap().get_mut(keys::key(50).as_slice()).unwrap()[7] ^= 1;
        assert!(super::pass(&engine, &table, &pace).unwrap_err().to_string().contains("key 50"));
        engine.map.write().unwrap().remove(keys::key(50).as_slice());
        assert!(check(&engine, &table, 10_000).unwrap_err().to_string().contains("key 50"));
    }
}
