//! Insertion of tuples into an empty table, in the order of their keys or in a random one, or by bulk load.
//!
//! It also loads the tables of the other workloads. What is measured ends when the engine has made all
//! tuples visible (LMDB: when the transaction is committed); none of the engines is asked to sync.

use super::{Pass, Table, Work, drawn::Drawn, run_threads};
use crate::Result;
use crate::config::Order;
use crate::engines::{Engine, Writer};
use crate::keys::{self, Keys, Share};
use crate::measure::statistics::Latencies;
use std::time::Instant;

/// How many threads insert when `threads` are asked for: one, where the engine has only one writer.
pub fn writers<E: Engine>(threads: usize) -> usize {
    if E::CONCURRENT_WRITERS { threads } else { 1 }
}

/// Inserts all tuples of `table`, timing one insert in `sample_every`.
///
/// # Errors
/// What the engine says.
pub fn load<E: Engine, K: Keys>(
    engine: &E,
    table: &Table,
    order: Order,
    threads: usize,
    sample_every: u64,
) -> Result<Pass> {
    let is_bulk = order == Order::Bulk;
    let threads = if is_bulk { 1 } else { writers::<E>(threads) };
    let prepare = |thread: usize| {
        let share = Share::new(order, table.tuples, table.seed, thread as u64, threads as u64);
        Ok((share, vec![0; table.values.max], Latencies::new()?))
    };
    let is_fixed = table.values.min == table.values.max;
    run_threads(threads, prepare, |(share, value, latencies), _| match (is_bulk, is_fixed) {
        (true, true) => insert_all::<K, true>(engine.loader()?, table, share, value, latencies, sample_every),
        (true, false) => {
            insert_all::<K, false>(engine.loader()?, table, share, value, latencies, sample_every)
        }
        (false, true) => {
            insert_all::<K, true>(engine.writer()?, table, share, value, latencies, sample_every)
        }
        (false, false) => {
            insert_all::<K, false>(engine.writer()?, table, share, value, latencies, sample_every)
        }
    })
}

/// Inserts all tuples of a share. Whether values have one size is known to the compiler: an instruction here counts as the
/// engine's.
fn insert_all<K: Keys, const FIXED: bool>(
    mut writer: impl Writer,
    table: &Table,
    share: Share,
    mut value: Vec<u8>,
    mut latencies: Latencies,
    sample_every: u64,
) -> Result<Work> {
    let (mut operations, sizes) = (0u64, table.values);
    // Counted down: a division would cost as much as some engines take for a tuple.
    let mut untimed = 0;
    let mut drawn = Drawn::<K, _>::new(share);
    while let Some((index, key)) = drawn.next() {
        let bytes = if FIXED { sizes.max } else { keys::value_bytes(sizes, index) };
        let value = &mut value[..bytes];
        keys::fill_value(index, value);
        if untimed == 0 {
            untimed = sample_every;
            let begin = Instant::now();
            writer.insert(key.as_ref(), value)?;
            latencies.record(begin.elapsed());
        } else {
            writer.insert(key.as_ref(), value)?;
        }
        untimed = untimed.saturating_sub(1);
        operations += 1;
    }
    writer.finish()?;
    Ok(Work { operations, latencies, making: drawn.making() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Skew;
    use crate::config::ValueSizes;
    use crate::engines::memory::Memory;
    use crate::keys::{TextKeys, U64Keys};

    fn run<K: Keys>(values: ValueSizes) {
        for order in [Order::Sequential, Order::Random, Order::Bulk] {
            for threads in [1, 3] {
                let table = Table::new(1000, values, 9, Skew::Uniform);
                let engine = Memory::default();
                let pass = load::<_, K>(&engine, &table, order, threads, 10).unwrap();
                assert_eq!(pass.operations, 1000);
                assert!(pass.latencies.samples() >= 100);
                crate::workloads::scan::check::<_, K>(&engine, &table).unwrap();
            }
        }
    }

    #[test]
    fn all_orders_insert_every_tuple_once() {
        run::<U64Keys>(ValueSizes::one(16));
        run::<TextKeys>(ValueSizes { min: 8, max: 500 });
    }
}
