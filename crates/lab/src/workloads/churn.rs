//! Deletes and re-inserts: in each round every tuple is deleted once, in a random order, and inserted again
//! later with a value of another size.
//!
//! At any time a tenth of the tuples is absent, so that pages empty and fill up again. An operation is one
//! delete and one insert. What matters most is how much the stored data grows.
//!
//! Where tuples are not chosen alike, as many are drawn as there are, and each is inserted again at once: the frequent ones
//! would be absent most of the time.

use super::{Pace, Pass, Table, Work, insert, run_threads};
use crate::Result;
use crate::config::Order;
use crate::engines::{Engine, Reader, Writer};
use crate::keys::{self, Generator, Keys, Share};
use crate::measure::statistics::Latencies;
use std::ops::ControlFlow;
use std::time::Instant;

/// Of so many tuples, one is absent during a round.
const PRESENT_FOR_EACH_ABSENT: u64 = 10;

fn size(table: &Table, generator: &mut Generator) -> usize {
    let sizes = table.values.spread();
    sizes.min + generator.below((sizes.max - sizes.min + 1) as u64) as usize
}

/// Inserts all tuples, with values of random sizes.
///
/// # Errors
/// What the engine says.
pub fn load<E: Engine, K: Keys>(engine: &E, table: &Table, order: Order) -> Result<()> {
    let mut generator = Generator::new(table.seed, 0, u64::MAX);
    let mut value = vec![0; table.values.spread().max];
    let mut writer = engine.writer()?;
    for index in Share::new(order, table.tuples, table.seed, 0, 1) {
        let size = size(table, &mut generator);
        keys::fill_value(index, &mut value[..size]);
        writer.insert(K::key(index).as_ref(), &value[..size])?;
    }
    writer.finish()
}

/// Deletes and re-inserts every tuple once, or as many as there are.
///
/// # Errors
/// What the engine says, or that a tuple to be deleted is not there.
pub fn pass<E: Engine, K: Keys>(engine: &E, table: &Table, pace: &Pace) -> Result<Pass> {
    let threads = insert::writers::<E>(pace.threads);
    if !table.is_uniform() {
        table.owners(threads)?;
    }
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        let removals = removals(table, pace.round, (thread as u64, threads as u64));
        Ok((removals, generator, vec![0; table.values.spread().max], Latencies::new()?))
    };
    run_threads(threads, prepare, |(removals, mut generator, mut value, mut latencies), _| {
        let mut writer = engine.writer()?;
        let mut insertions = removals.clone();
        let absent_max =
            if table.is_uniform() { table.tuples / threads as u64 / PRESENT_FOR_EACH_ABSENT } else { 0 };
        let mut insert = |writer: &mut E::Writer<'_>, index| {
            let size = size(table, &mut generator);
            keys::fill_value(index, &mut value[..size]);
            writer.insert(K::key(index).as_ref(), &value[..size])
        };
        let (mut removed, mut operations) = (0u64, 0u64);
        for index in removals {
            let begin = removed.is_multiple_of(pace.sample_every).then(Instant::now);
            if !writer.remove(K::key(index).as_ref())? {
                return Err(format!("key {index} was not there to be deleted").into());
            }
            removed += 1;
            if removed > absent_max
                && let Some(index) = insertions.next()
            {
                insert(&mut writer, index)?;
                operations += 1;
                begin.into_iter().for_each(|begin| latencies.record(begin.elapsed()));
            }
        }
        for index in insertions {
            insert(&mut writer, index)?;
            operations += 1;
        }
        writer.finish()?;
        Ok(Work::new(operations, latencies))
    })
}

/// The tuples that one of several threads removes, in order.
fn removals(table: &Table, round: u64, (thread, threads): (u64, u64)) -> Removals<'_> {
    let seed = Generator::new(table.seed, 0, round).next();
    if table.is_uniform() {
        return Removals::Each(Share::new(Order::Random, table.tuples, seed, thread, threads));
    }
    let left = (table.tuples - thread).div_ceil(threads);
    Removals::Drawn { table, generator: Generator::new(seed, thread, round), left, owner: (thread, threads) }
}

/// See [`removals`].
#[derive(Clone)]
enum Removals<'a> {
    /// Each tuple once.
    Each(Share),
    /// So many, as they are drawn.
    Drawn { table: &'a Table, generator: Generator, left: u64, owner: (u64, u64) },
}

impl Iterator for Removals<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Each(share) => share.next(),
            Self::Drawn { table, generator, left, owner } => {
                *left = left.checked_sub(1)?;
                Some(table.choose_own(generator, *owner))
            }
        }
    }
}

/// Scans the table and checks that every tuple is there once, with a value that may be its.
///
/// # Errors
/// What the engine says, or that a tuple is missing or wrong.
pub fn check<E: Engine, K: Keys>(engine: &E, table: &Table) -> Result<()> {
    let sizes = table.values.spread();
    let mut next = 0;
    engine.reader()?.scan(K::key(0).as_ref(), |key, value| {
        let right = (sizes.min..=sizes.max).contains(&value.len()) && keys::matches(next, value, value.len());
        if !right || key != K::key(next).as_ref() {
            return ControlFlow::Break(());
        }
        next += 1;
        ControlFlow::Continue(())
    })?;
    if next == table.tuples {
        return Ok(());
    }
    Err(format!("tuple {next} of {} is missing or wrong", table.tuples).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Skew;
    use crate::config::ValueSizes;
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};
    use std::time::Duration;

    #[test]
    fn all_tuples_are_replaced_by_others_of_other_sizes() {
        for threads in [1, 3] {
            for tuples in [1, 5, 3000] {
                let table = Table::new(tuples, ValueSizes::one(100), 3, Skew::Uniform);
                let pace = Pace { clients: 1, threads, round: 0, duration: Duration::ZERO, sample_every: 4 };
                let engine = Memory::default();
                load::<_, U64Keys>(&engine, &table, Order::Random).unwrap();
                check::<_, U64Keys>(&engine, &table).unwrap();
                let before = engine.map.read().unwrap().clone();
                let pass = super::pass::<_, U64Keys>(&engine, &table, &pace).unwrap();
                assert_eq!(pass.operations, tuples);
                check::<_, U64Keys>(&engine, &table).unwrap();
                let after = engine.map.read().unwrap();
                let same = after.iter().filter(|(key, value)| before[*key].len() == value.len()).count();
                assert!(same as u64 <= tuples / 20 + 1, "{same} of {tuples} kept their size");
            }
        }
    }

    #[test]
    fn frequent_tuples_are_replaced_most_often() {
        for threads in [1, 3] {
            let table = Table::new(3000, ValueSizes { min: 8, max: 2000 }, 3, Skew::Zipfian(0.99));
            let pace = Pace { clients: 1, threads, round: 0, duration: Duration::ZERO, sample_every: 4 };
            let engine = Memory::default();
            load::<_, TextKeys>(&engine, &table, Order::Random).unwrap();
            let before = engine.map.read().unwrap().clone();
            let pass = super::pass::<_, TextKeys>(&engine, &table, &pace).unwrap();
            assert_eq!(pass.operations, 3000);
            check::<_, TextKeys>(&engine, &table).unwrap();
            let after = engine.map.read().unwrap();
            let same = after.iter().filter(|(key, value)| before[*key].len() == value.len()).count();
            assert!((1500..2800).contains(&same), "{same} of 3000 were never replaced");
        }
    }

    #[test]
    fn a_tuple_that_is_not_there_is_noticed() {
        let table = Table::new(100, ValueSizes::one(100), 3, Skew::Uniform);
        let pace = Pace { clients: 1, threads: 1, round: 0, duration: Duration::ZERO, sample_every: 4 };
        let engine = Memory::default();
        load::<_, U64Keys>(&engine, &table, Order::Random).unwrap();
        engine.map.write().unwrap().remove(keys::key(7).as_slice());
        assert!(check::<_, U64Keys>(&engine, &table).is_err());
        assert!(pass::<_, U64Keys>(&engine, &table, &pace).is_err());
    }
}
