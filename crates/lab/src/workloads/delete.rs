//! Removal of all tuples of a table, in a random order that is not the one in which they were inserted.
//!
//! Each tuple must have been there, and at the end none is left.

use super::{Pace, Pass, Table, Work, drawn::Drawn, insert, run_threads};
use crate::Result;
use crate::config::Order;
use crate::engines::{Engine, Reader, Writer};
use crate::keys::{Generator, Keys, Share};
use crate::measure::statistics::Latencies;
use std::ops::ControlFlow;
use std::time::Instant;

/// Removes all tuples.
///
/// # Errors
/// What the engine says, or that a tuple is not there.
pub fn pass<E: Engine, K: Keys>(engine: &E, table: &Table, pace: &Pace) -> Result<Pass> {
    let threads = insert::writers::<E>(pace.threads);
    let prepare = |thread: usize| {
        let seed = Generator::new(table.seed, 0, pace.round).next();
        let share = Share::new(Order::Random, table.tuples, seed, thread as u64, threads as u64);
        Ok((share, Latencies::new()?))
    };
    run_threads(threads, prepare, |(share, mut latencies), _| {
        let mut writer = engine.writer()?;
        let mut operations = 0u64;
        let mut drawn = Drawn::<K, _>::new(share);
        while let Some((index, key)) = drawn.next() {
            let begin = operations.is_multiple_of(pace.sample_every).then(Instant::now);
            if !writer.remove(key.as_ref())? {
                return Err(format!("key {index} was not there to be deleted").into());
            }
            begin.into_iter().for_each(|begin| latencies.record(begin.elapsed()));
            operations += 1;
        }
        writer.finish()?;
        Ok(Work { operations, latencies, making: drawn.making() })
    })
}

/// Checks that nothing is left, to a scan and to lookups of so many random keys.
///
/// # Errors
/// What the engine says, or that something is left.
pub fn check<E: Engine, K: Keys>(engine: &E, table: &Table, lookups: u64) -> Result<()> {
    let mut reader = engine.reader()?;
    let mut left = None;
    reader.scan(K::key(0).as_ref(), |key, _| {
        left = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    let (mut generator, mut value) = (Generator::new(table.seed, u64::MAX, 0), Vec::new());
    for _ in 0..lookups {
        let key = K::key(generator.below(table.tuples));
        if reader.lookup(key.as_ref(), &mut value)? {
            left = Some(key.as_ref().to_vec());
        }
    }
    left.map_or(Ok(()), |key| Err(format!("key {key:02x?} is there after all were deleted").into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Skew, ValueSizes};
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};
    use std::time::Duration;

    fn run<K: Keys>(threads: usize) {
        let table = Table::new(3000, ValueSizes { min: 8, max: 30 }, 3, Skew::Uniform);
        let pace = Pace { clients: 1, threads, round: 0, duration: Duration::ZERO, sample_every: 4 };
        let engine = Memory::default();
        insert::load::<_, K>(&engine, &table, Order::Random, 1, 64).unwrap();
        let kept = engine.map.read().unwrap().clone();
        let pass = super::pass::<_, K>(&engine, &table, &pace).unwrap();
        assert_eq!((pass.operations, pass.latencies.samples()), (3000, 750));
        check::<_, K>(&engine, &table, 1000).unwrap();

        // What is left is noticed, and what was not there.
        let (key, value) = kept.iter().next_back().unwrap();
        engine.map.write().unwrap().insert(key.clone(), value.clone());
        assert!(check::<_, K>(&engine, &table, 0).is_err());
        assert!(super::pass::<_, K>(&engine, &table, &pace).unwrap_err().to_string().contains("not there"));
    }

    #[test]
    fn every_tuple_is_removed_once() {
        for threads in [1, 3] {
            run::<U64Keys>(threads);
            run::<TextKeys>(threads);
        }
    }
}
