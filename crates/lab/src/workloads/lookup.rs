//! Point lookups of random keys, all of which exist.
//!
//! Each value is copied into the caller's buffer and checked: that it is there, its length, and that it
//! begins with its tuple's number.

use super::{Pace, Pass, Table, drawn::Drawn, each_until_deadline, run_threads};
use crate::Result;
use crate::engines::{Engine, Reader};
use crate::keys::{Generator, Keys};
use crate::measure::statistics::Latencies;

/// Looks up keys until the time is over.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn pass<E: Engine, K: Keys>(engine: &E, table: &Table, pace: &Pace) -> Result<Pass> {
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        Ok((engine.reader()?, generator, Vec::with_capacity(table.values.max), Latencies::new()?))
    };
    run_threads(pace.threads, prepare, |(mut reader, mut generator, mut value, latencies), start| {
        let drawn = Drawn::<K, _>::new(std::iter::repeat_with(|| table.choose(&mut generator)));
        each_until_deadline(pace, start, latencies, drawn, |index, key| {
            one(&mut reader, table, (index, key.as_ref()), &mut value)
        })
    })
}

/// Looks up so many random keys, outside any measurement, to see that a table is what it should be.
///
/// # Errors
/// What the engine says, or that a value is missing or wrong.
pub fn check<E: Engine, K: Keys>(engine: &E, table: &Table, lookups: u64) -> Result<()> {
    let mut generator = Generator::new(table.seed, u64::MAX, 0);
    let mut reader = engine.reader()?;
    let mut value = Vec::new();
    (0..lookups).try_for_each(|_| {
        let index = table.choose(&mut generator);
        one(&mut reader, table, (index, K::key(index).as_ref()), &mut value)
    })
}

#[inline]
fn one<R: Reader>(
    reader: &mut R,
    table: &Table,
    (index, key): (u64, &[u8]),
    value: &mut Vec<u8>,
) -> Result<()> {
    if reader.lookup(key, value)? && table.matches(index, value) { Ok(()) } else { Err(wrong(index, value)) }
}

#[cold]
fn wrong(index: u64, value: &[u8]) -> crate::Error {
    format!(
        "the value of tuple {index} is missing or wrong: its {} bytes begin with {:02x?}",
        value.len(),
        &value[..value.len().min(8)]
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Skew;
    use crate::config::{Order, ValueSizes};
    use crate::engines::memory::Memory;
    use crate::keys::{self, TextKeys, U64Keys};
    use crate::workloads::insert;
    use std::time::Duration;

    fn run<K: Keys>(values: ValueSizes, skew: Skew) {
        let table = Table::new(100, values, 1, skew);
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 8 };
        let engine = Memory::default();
        insert::load::<_, K>(&engine, &table, Order::Sequential, 1, 64).unwrap();
        let pass = super::pass::<_, K>(&engine, &table, &pace).unwrap();
        assert!(pass.operations > 100 && pass.elapsed >= pace.duration);
        // Each thread ends with a timed operation.
        assert_eq!(pass.latencies.samples(), (pass.operations - 2) / 8 + 2);
        check::<_, K>(&engine, &table, 1000).unwrap();

        let key = K::key(50);
        engine.map.write().unwrap().get_mut(key.as_ref()).unwrap()[7] ^= 1;
        let failed = super::pass::<_, K>(&engine, &table, &pace).unwrap_err();
        assert!(failed.to_string().contains("tuple 50"), "{failed}");
        engine.map.write().unwrap().remove(key.as_ref());
        assert!(check::<_, K>(&engine, &table, 10_000).unwrap_err().to_string().contains("tuple 50"));
        let mut short = vec![0; keys::value_bytes(values, 50) - 1];
        keys::fill_value(50, &mut short);
        engine.map.write().unwrap().insert(key.as_ref().to_vec(), short);
        assert!(check::<_, K>(&engine, &table, 10_000).is_err(), "a value that is too short");
    }

    #[test]
    fn lookups_are_counted_and_a_missing_or_damaged_value_is_an_error() {
        run::<U64Keys>(ValueSizes::one(24), Skew::Uniform);
        run::<TextKeys>(ValueSizes { min: 10, max: 300 }, Skew::Zipfian(0.99));
    }
}
