//! Scans in key order: over the whole table again and again, or of some length from random places.
//!
//! An operation is one tuple, or one range. Each tuple must be the one that follows the one before: its value is checked as in
//! a lookup, and the keys of some are compared. All bytes of keys and values are read.

use super::{Pace, Pass, Table, Work, drawn::Drawn, each_until_deadline, run_threads};
use crate::Result;
use crate::config::ValueSizes;
use crate::engines::{Engine, Reader};
use crate::keys::{self, Generator, Keys};
use crate::measure::statistics::Latencies;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::time::Instant;

/// In a scan of the whole table, the time of so many consecutive tuples is one sample.
pub const TUPLES_PER_SAMPLE: u64 = 1024;

/// Scans until the time is over: the whole table if `length` is zero (thread `t` of `n` begins at `t/n` of
/// it), otherwise `length` tuples from random keys, which are one operation if it counts ranges.
///
/// # Errors
/// What the engine says, or that a tuple is missing, wrong or out of order.
pub fn pass<E: Engine, K: Keys>(
    engine: &E,
    table: &Table,
    pace: &Pace,
    (length, counts_ranges): (u64, bool),
) -> Result<Pass> {
    let prepare = |thread: usize| {
        let generator = Generator::new(table.seed, thread as u64, pace.round);
        let first = (u128::from(table.tuples) * thread as u128 / pace.threads as u128) as u64;
        Ok((engine.reader()?, generator, first, Latencies::new()?))
    };
    // Whether values have one size is known to the compiler: an instruction for each tuple counts as the engine's.
    let is_fixed = table.values.min == table.values.max;
    run_threads(pace.threads, prepare, |(mut reader, mut generator, first, latencies), start| {
        let lengths = (length, counts_ranges);
        match (length == 0, is_fixed) {
            (true, true) => {
                whole::<_, K, true>(&mut reader, table, &mut generator, first, pace, start, latencies)
            }
            (true, false) => {
                whole::<_, K, false>(&mut reader, table, &mut generator, first, pace, start, latencies)
            }
            (false, true) => {
                ranges::<_, K, true>(&mut reader, table, pace, lengths, &mut generator, start, latencies)
            }
            (false, false) => {
                ranges::<_, K, false>(&mut reader, table, pace, lengths, &mut generator, start, latencies)
            }
        }
    })
}

/// Scans the table once from its beginning to its end.
///
/// # Errors
/// As [`pass`].
pub fn check<E: Engine, K: Keys>(engine: &E, table: &Table) -> Result<()> {
    let mut visit = Visit::<K, false> { compared_mask: 0, ..Visit::new(table, 0, 0) };
    engine.reader()?.scan(K::key(0).as_ref(), |key, value| visit.tuple(key, value))?;
    visit.done()?;
    if visit.next == table.tuples {
        return Ok(());
    }
    Err(format!("the scan ended after {} of {} tuples", visit.next, table.tuples).into())
}

fn whole<R: Reader, K: Keys, const FIXED: bool>(
    reader: &mut R,
    table: &Table,
    generator: &mut Generator,
    first: u64,
    pace: &Pace,
    start: Instant,
    mut latencies: Latencies,
) -> Result<Work> {
    let mut operations = 0;
    let (deadline, compared) = (start + pace.duration, generator.next());
    let mut before = start;
    let mut next = first;
    loop {
        let mut visit = Visit::<K, FIXED>::new(table, next, compared);
        let mut over = false;
        reader.scan(K::key(next).as_ref(), |key, value| {
            visit.tuple(key, value)?;
            if visit.count.is_multiple_of(TUPLES_PER_SAMPLE) {
                let now = Instant::now();
                latencies.record(now - before);
                before = now;
                if now >= deadline {
                    over = true;
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        visit.done()?;
        operations += visit.count;
        if over {
            return Ok(Work::new(operations, latencies));
        }
        if visit.next != table.tuples {
            return Err(format!("a scan ended before tuple {} of {}", visit.next, table.tuples).into());
        }
        next = 0;
        // A table shorter than a sample would otherwise never look at the clock.
        if Instant::now() >= deadline {
            return Ok(Work::new(operations, latencies));
        }
    }
}

fn ranges<R: Reader, K: Keys, const FIXED: bool>(
    reader: &mut R,
    table: &Table,
    pace: &Pace,
    (length, counts_ranges): (u64, bool),
    generator: &mut Generator,
    start: Instant,
    latencies: Latencies,
) -> Result<Work> {
    let pace = Pace { sample_every: (pace.sample_every / length).max(1), ..*pace };
    let (mut tuples, compared) = (0, generator.next());
    let drawn = Drawn::<K, _>::new(std::iter::repeat_with(|| table.choose(generator)));
    let work = each_until_deadline(&pace, start, latencies, drawn, |first, key| {
        let visit = Visit::<K, FIXED>::new(table, first, compared);
        tuples += range(reader, table, length, key.as_ref(), visit)?;
        Ok(())
    })?;
    Ok(if counts_ranges { work } else { Work { operations: tuples, ..work } })
}

#[inline]
fn range<R: Reader, K: Keys, const FIXED: bool>(
    reader: &mut R,
    table: &Table,
    length: u64,
    key: &[u8],
    mut visit: Visit<K, FIXED>,
) -> Result<u64> {
    let first = visit.next;
    let wanted = length.min(table.tuples - first);
    reader.scan_some(key, length, |key, value| {
        visit.tuple(key, value)?;
        if visit.count == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    visit.done()?;
    if visit.count != wanted {
        return Err(format!("a scan of {wanted} tuples from {first} ended after {}", visit.count).into());
    }
    Ok(wanted)
}

/// One tuple in so many is compared with a key that is made for it, which takes as long as an engine for a tuple; of others
/// the key's bytes are read, and the value says which tuple it is. Which are compared differs from pass to pass.
const COMPARED_EVERY: u64 = 64;
const _: () = assert!(COMPARED_EVERY.is_power_of_two());

/// Checks the tuples of one scan. If sizes are `FIXED`, all values have one.
struct Visit<K, const FIXED: bool> {
    next: u64,
    count: u64,
    compared_mask: u64,
    compared: u64,
    values: ValueSizes,
    folded: u64,
    wrong: Option<String>,
    keys: PhantomData<K>,
}

impl<K: Keys, const FIXED: bool> Visit<K, FIXED> {
    fn new(table: &Table, first: u64, compared: u64) -> Self {
        let (values, compared_mask) = (table.values, COMPARED_EVERY - 1);
        Self {
            next: first,
            count: 0,
            compared_mask,
            compared,
            values,
            folded: 0,
            wrong: None,
            keys: PhantomData,
        }
    }

    #[inline(always)]
    fn tuple(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        let size = if FIXED { self.values.max } else { keys::value_bytes(self.values, self.next) };
        let is_compared = K::ARE_NUMBERS || self.next.wrapping_add(self.compared) & self.compared_mask == 0;
        if is_compared && key != K::key(self.next).as_ref() || !keys::matches(self.next, value, size) {
            self.refuse(key, value);
            return ControlFlow::Break(());
        }
        if !is_compared {
            self.read(key);
        }
        self.read(value);
        self.next += 1;
        self.count += 1;
        ControlFlow::Continue(())
    }

    /// Reads all words.
    #[inline(always)]
    fn read(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(8) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            self.folded ^= u64::from_le_bytes(bytes);
        }
    }

    #[cold]
    fn refuse(&mut self, key: &[u8], value: &[u8]) {
        self.wrong = Some(format!(
            "a scan found key {key:02x?} with a value of {} bytes where tuple {} should be",
            value.len(),
            self.next
        ));
    }

    fn done(&mut self) -> Result<()> {
        std::hint::black_box(self.folded);
        self.wrong.take().map_or(Ok(()), |wrong| Err(wrong.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Order;
    use crate::config::Skew;
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};
    use crate::workloads::insert;
    use std::time::Duration;

    fn loaded<K: Keys>(tuples: u64, values: ValueSizes) -> (Memory, Table) {
        let table = Table::new(tuples, values, 1, Skew::Zipfian(0.9));
        let engine = Memory::default();
        insert::load::<_, K>(&engine, &table, Order::Random, 2, 64).unwrap();
        (engine, table)
    }

    fn scans_are_counted<K: Keys>(values: ValueSizes) {
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 64 };
        for tuples in [1, 100, 5000] {
            let (engine, table) = loaded::<K>(tuples, values);
            check::<_, K>(&engine, &table).unwrap();
            for length in [0, 1, 10, 10_000] {
                let pass = pass::<_, K>(&engine, &table, &pace, (length, false)).unwrap();
                assert!(pass.operations >= 2, "{tuples} {length}");
                assert!(pass.elapsed >= pace.duration);
                assert!(pass.latencies.samples() > 0 || length == 0 && tuples < TUPLES_PER_SAMPLE);
            }
        }
    }

    #[test]
    fn scans_are_counted_in_tuples() {
        scans_are_counted::<U64Keys>(ValueSizes::one(24));
        scans_are_counted::<TextKeys>(ValueSizes { min: 8, max: 100 });
    }

    #[test]
    fn ranges_are_counted_as_such() {
        let pace =
            Pace { clients: 1, threads: 2, round: 0, duration: Duration::from_millis(20), sample_every: 1 };
        let (engine, table) = loaded::<U64Keys>(5000, ValueSizes::one(24));
        let pass = pass::<_, U64Keys>(&engine, &table, &pace, (10, true)).unwrap();
        assert_eq!(pass.operations, pass.latencies.samples());
    }

    #[test]
    fn a_key_that_is_another_one_is_noticed_by_the_pass_that_compares_it() {
        let (engine, table) = loaded::<TextKeys>(COMPARED_EVERY, ValueSizes::one(24));
        let mut wrong = TextKeys::key(7).as_ref().to_vec();
        let value = engine.map.write().unwrap().remove(&wrong).unwrap();
        wrong.push(b' ');
        engine.map.write().unwrap().insert(wrong, value);
        assert!(check::<_, TextKeys>(&engine, &table).is_err());
        for length in [0, COMPARED_EVERY] {
            let refuses = |round| {
                let duration = Duration::from_millis(1);
                let pace = Pace { clients: 1, threads: 1, round, duration, sample_every: 64 };
                pass::<_, TextKeys>(&engine, &table, &pace, (length, false)).is_err()
            };
            let refused = (0..20 * COMPARED_EVERY).filter(|round| refuses(*round)).count();
            assert!((1..60).contains(&refused), "{refused} passes of {length}");
        }
    }

    #[test]
    fn a_tuple_that_is_missing_damaged_or_too_many_is_an_error() {
        let pace =
            Pace { clients: 1, threads: 1, round: 0, duration: Duration::from_millis(20), sample_every: 64 };
        let loaded = || loaded::<U64Keys>(3000, ValueSizes::one(24));
        let (engine, table) = loaded();
        engine.map.write().unwrap().remove(keys::key(2999).as_slice());
        assert!(check::<_, U64Keys>(&engine, &table).is_err());
        for length in [0, 3000] {
            assert!(pass::<_, U64Keys>(&engine, &table, &pace, (length, false)).is_err(), "{length}");
        }
        let (engine, table) = loaded();
        engine.map.write().unwrap().get_mut(keys::key(7).as_slice()).unwrap().push(0);
        assert!(check::<_, U64Keys>(&engine, &table).is_err());
        let (engine, table) = loaded();
        engine.map.write().unwrap().insert(b"\0\0\0\0\0\0\0\x07\0".to_vec(), vec![0; 24]);
        assert!(check::<_, U64Keys>(&engine, &table).is_err());
    }
}
