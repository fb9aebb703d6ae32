//! Updates of random tuples: each gets another value, of another size where the table has several sizes.
//!
//! Each value says which version it is, and its size and all its bytes follow from that. Threads change tuples of their own.
//! After a pass the last updates of each thread are looked up, so that none was lost; at the end all tuples are compared.

use super::{Pace, Pass, Table, drawn::Drawn, each_until_deadline, insert, run_threads};
use crate::Result;
use crate::config::ValueSizes;
use crate::engines::{Engine, Reader, Writer};
use crate::keys::{self, Generator, Keys};
use crate::measure::statistics::Latencies;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Mutex;

/// So many updates of a thread are looked up.
const KEPT: usize = 1024;

/// Versions of a round begin at a multiple of this.
const VERSIONS_A_ROUND: u64 = 1 << 40;

/// The updates of one thread in one pass.
struct Updates<'a> {
    table: &'a Table,
    thread: u64,
    version: u64,
    value: Vec<u8>,
    /// Which tuples got which versions of late, in turn.
    kept: Vec<(u64, u64)>,
}

/// Updates tuples until the time is over.
///
/// # Errors
/// What the engine says, or that an update was lost.
pub fn pass<E: Engine, K: Keys>(engine: &E, table: &Table, pace: &Pace) -> Result<Pass> {
    let threads = table.owners(insert::writers::<E>(pace.threads))?;
    let prepare = |thread: usize| {
        let updates = Updates::new(table, pace.round, thread as u64);
        Ok((updates, Latencies::new()?))
    };
    let done = Mutex::new(Vec::new());
    let pass = run_threads(threads, prepare, |(mut updates, latencies), start| {
        let mut writer = engine.writer()?;
        let (mut generator, owner) =
            (Generator::new(table.seed, updates.thread, pace.round), (updates.thread, threads as u64));
        let drawn = Drawn::<K, _>::new(std::iter::repeat_with(|| table.choose_own(&mut generator, owner)));
        let work = each_until_deadline(pace, start, latencies, drawn, |index, key| {
            updates.one(&mut writer, index, key.as_ref())
        })?;
        writer.finish()?;
        done.lock().map_err(|_| "another thread that updates panicked")?.push(updates);
        Ok(work)
    })?;
    let done = done.into_inner().map_err(|_| "a thread that updates panicked")?;
    done.iter().try_for_each(|updates| updates.check::<_, K>(engine))?;
    Ok(pass)
}

impl<'a> Updates<'a> {
    fn new(table: &'a Table, round: u64, thread: u64) -> Self {
        Self {
            table,
            thread,
            // The pass before the first round has the largest number, and comes to zero.
            version: round.wrapping_add(1).wrapping_mul(VERSIONS_A_ROUND),
            value: vec![0; table.values.max],
            kept: Vec::with_capacity(KEPT),
        }
    }

    #[inline]
    fn one(&mut self, writer: &mut impl Writer, index: u64, key: &[u8]) -> Result<()> {
        self.version += 1;
        let bytes = keys::fill_version(index, self.version, self.table.values, &mut self.value);
        writer.update(key, &self.value[..bytes])?;
        let update = (index, self.version);
        if self.kept.len() < KEPT {
            self.kept.push(update);
        } else {
            self.kept[(self.version - 1) as usize % KEPT] = update;
        }
        Ok(())
    }

    /// Looks up what was updated of late.
    fn check<E: Engine, K: Keys>(&self, engine: &E) -> Result<()> {
        let mut last_first = self.kept.clone();
        last_first.sort_unstable_by_key(|(_, version)| std::cmp::Reverse(*version));
        let (mut reader, mut seen) = (engine.reader()?, HashSet::new());
        let (mut found, mut expected) = (Vec::new(), vec![0; self.table.values.max]);
        for (index, version) in last_first.into_iter().filter(|(index, _)| seen.insert(*index)) {
            let bytes = keys::fill_version(index, version, self.table.values, &mut expected);
            if !reader.lookup(K::key(index).as_ref(), &mut found)? || found != expected[..bytes] {
                return Err(format!("the last update of tuple {index} is lost").into());
            }
        }
        Ok(())
    }
}

/// Scans the table and checks that every tuple is there once, with a value that was loaded or is one of an update.
///
/// # Errors
/// What the engine says, or that a tuple is missing or wrong.
pub fn check<E: Engine, K: Keys>(engine: &E, table: &Table) -> Result<()> {
    let (mut next, mut expected) = (0, vec![0; table.values.max]);
    engine.reader()?.scan(K::key(0).as_ref(), |key, value| {
        if key != K::key(next).as_ref() || !is_of(next, value, table.values, &mut expected) {
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

/// Whether a value is one that a tuple may have.
fn is_of(index: u64, value: &[u8], sizes: ValueSizes, expected: &mut [u8]) -> bool {
    let loaded = keys::value_bytes(sizes, index);
    keys::fill_value(index, &mut expected[..loaded]);
    if value == &expected[..loaded] {
        return true;
    }
    match keys::version(value) {
        Some(version) => {
            let bytes = keys::fill_version(index, version, sizes, expected);
            value == &expected[..bytes]
        }
        // There was no room for a version.
        None => keys::matches(index, value, value.len()) && (sizes.min..=sizes.max).contains(&value.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Order, Skew};
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};
    use std::time::Duration;

    fn run<K: Keys>(values: ValueSizes, skew: Skew, threads: usize) {
        let table = Table::new(3000, values, 1, skew);
        let pace =
            Pace { clients: 1, threads, round: 0, duration: Duration::from_millis(20), sample_every: 8 };
        let engine = Memory::default();
        insert::load::<_, K>(&engine, &table, Order::Random, 1, 64).unwrap();
        let before = engine.map.read().unwrap().clone();
        let pass = super::pass::<_, K>(&engine, &table, &pace).unwrap();
        assert!(pass.operations > 100 && pass.elapsed >= pace.duration);
        check::<_, K>(&engine, &table).unwrap();
        let changed =
            engine.map.read().unwrap().iter().filter(|(key, value)| before[*key] != **value).count();
        assert!(changed > 100, "{changed} were changed");

        // Each of these is noticed: a byte that differs, a tuple that is missing, the value of another one.
        let key = K::key(50).as_ref().to_vec();
        let right = engine.map.read().unwrap()[&key].clone();
        for wrong in [right.len() - 1, 7] {
            engine.map.write().unwrap().get_mut(&key).unwrap()[wrong] ^= 1;
            assert!(check::<_, K>(&engine, &table).unwrap_err().to_string().contains("tuple 50 "));
            engine.map.write().unwrap().insert(key.clone(), right.clone());
        }
        let other = engine.map.read().unwrap()[K::key(51).as_ref()].clone();
        engine.map.write().unwrap().insert(key.clone(), other);
        assert!(check::<_, K>(&engine, &table).is_err());
        engine.map.write().unwrap().remove(&key);
        assert!(check::<_, K>(&engine, &table).is_err());
    }

    #[test]
    fn tuples_get_other_values_and_a_wrong_one_is_noticed() {
        for threads in [1, 3] {
            run::<U64Keys>(ValueSizes::one(24), Skew::Uniform, threads);
            run::<TextKeys>(ValueSizes { min: 20, max: 300 }, Skew::Zipfian(0.99), threads);
        }
    }

    #[test]
    fn a_lost_update_is_noticed() {
        let table = Table::new(100, ValueSizes { min: 16, max: 300 }, 1, Skew::Latest);
        let engine = Memory::default();
        insert::load::<_, TextKeys>(&engine, &table, Order::Sequential, 1, 64).unwrap();
        let mut updates = Updates::new(&table, 0, 0);
        let mut writer = engine.writer().unwrap();
        let mut generator = Generator::new(table.seed, 0, 0);
        let mut one = |updates: &mut Updates| {
            let index = table.choose(&mut generator);
            updates.one(&mut writer, index, TextKeys::key(index).as_ref()).unwrap();
        };
        (0..5000).for_each(|_| one(&mut updates));
        updates.check::<_, TextKeys>(&engine).unwrap();
        let (index, _) = *updates.kept.iter().max_by_key(|(_, version)| *version).unwrap();
        let before = engine.map.read().unwrap()[TextKeys::key(index).as_ref()].clone();
        one(&mut updates);
        while updates.kept.iter().max_by_key(|(_, version)| *version).unwrap().0 != index {
            one(&mut updates);
        }
        engine.map.write().unwrap().insert(TextKeys::key(index).as_ref().to_vec(), before);
        assert!(updates.check::<_, TextKeys>(&engine).unwrap_err().to_string().contains("lost"));
        check::<_, TextKeys>(&engine, &table).unwrap();
    }

    #[test]
    fn more_threads_than_tuples_are_refused() {
        let table = Table::new(2, ValueSizes::one(24), 1, Skew::Uniform);
        let pace = Pace { clients: 1, threads: 3, round: 0, duration: Duration::ZERO, sample_every: 8 };
        assert!(super::pass::<_, U64Keys>(&Memory::default(), &table, &pace).is_err());
    }
}
