//! Point lookups of random keys, and updates among them, many in one call.
//!
//! An operation is one key, a latency that of a whole call. Values are checked as in single lookups; an update
//! stores the value that the tuple has, so that later lookups find what they expect.

use super::{Pace, Pass, Table, Work, run_threads};
use crate::Result;
use crate::engines::{Engine, Operation, Reader};
use crate::keys::{self, Generator, Keys};
use crate::measure::statistics::Latencies;
use std::time::{Duration, Instant};

/// Runs batches until the time is over.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn pass<E: Engine, K: Keys>(
    engine: &E,
    table: &Table,
    pace: &Pace,
    size: u64,
    updates_percent: u64,
) -> Result<Pass> {
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        let size = usize::try_from(size)?;
        let operations: Vec<Operation<K::Key>> = vec![(K::key(0), None); size];
        Ok((engine.reader()?, generator, vec![0; size], operations, Latencies::new()?))
    };
    run_threads(pace.threads, prepare, |prepared, start| {
        let (mut reader, mut generator, mut indices, mut operations, mut latencies) = prepared;
        let deadline = start + pace.duration;
        let (mut done, mut making) = (0, Duration::ZERO);
        let mut before = Instant::now();
        loop {
            for (index, (key, update)) in indices.iter_mut().zip(&mut operations) {
                *index = table.choose(&mut generator);
                *key = K::key(*index);
                draw(*index, update, table, &mut generator, updates_percent);
            }
            let begin = Instant::now();
            making += begin - before;
            reader.batch(&operations, |place, value| match value {
                Some(value) if table.matches(indices[place], value) => Ok(()),
                _ => Err(wrong(indices[place], value)),
            })?;
            done += size;
            let end = Instant::now();
            latencies.record(end - begin);
            if end >= deadline + making {
                return Ok(Work { operations: done, latencies, making });
            }
            before = end;
        }
    })
}

/// Chooses what to do with tuple `index`.
#[inline]
fn draw(
    index: u64,
    update: &mut Option<Vec<u8>>,
    table: &Table,
    generator: &mut Generator,
    updates_percent: u64,
) {
    if updates_percent == 0 || generator.below(100) >= updates_percent {
        *update = None;
        return;
    }
    let value = update.get_or_insert_default();
    value.resize(keys::value_bytes(table.values, index), 0);
    keys::fill_value(index, value);
}

#[cold]
fn wrong(index: u64, value: Option<&[u8]>) -> crate::Error {
    let found = value.map_or("nothing".to_owned(), |value| format!("{} other bytes", value.len()));
    format!("the value of tuple {index} is wrong: there are {found}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Skew;
    use crate::config::{Order, ValueSizes};
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};
    use crate::workloads::insert;
    use std::time::Duration;

    fn run<K: Keys>(values: ValueSizes, skew: Skew) {
        let table = Table::new(100, values, 1, skew);
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 8 };
        let engine = Memory::default();
        insert::load::<_, K>(&engine, &table, Order::Sequential, 1, 64).unwrap();
        let done = pass::<_, K>(&engine, &table, &pace, 16, 0).unwrap();
        assert!(done.operations > 100 && done.elapsed >= pace.duration);
        assert_eq!(done.latencies.samples() * 16, done.operations);
        assert!(pass::<_, K>(&engine, &table, &pace, 16, 50).is_err(), "it has no updates in batches");
        engine.map.write().unwrap().get_mut(K::key(50).as_ref()).unwrap()[7] ^= 1;
        let failed = pass::<_, K>(&engine, &table, &pace, 16, 0).unwrap_err();
        assert!(failed.to_string().contains("tuple 50"), "{failed}");
    }

    #[test]
    fn operations_are_counted_and_a_damaged_value_is_an_error() {
        run::<U64Keys>(ValueSizes::one(24), Skew::Uniform);
        run::<TextKeys>(ValueSizes { min: 10, max: 300 }, Skew::Zipfian(0.99));
    }
}
