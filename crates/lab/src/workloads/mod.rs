//! The workloads: what is done with an engine (`lookup`, `scan`, `insert`, `update` and so on) or with the kernel (`evict`,
//! `io`), by several threads at once, for a time or until it is done.

pub mod bank;
pub mod batch;
pub mod churn;
pub mod delete;
pub mod drawn;
pub mod evict;
pub mod insert;
pub mod io;
pub mod log;
pub mod lookup;
pub mod oo7;
pub mod queue;
pub mod record_workload;
pub mod records;
pub mod scan;
pub mod tpcc;
pub mod transactions;
pub mod update;
pub mod ycsb;
pub mod zipfian;

use crate::Result;
use crate::config::{Order, Skew, ValueSizes};
use crate::keys::{self, Generator, Keys, Permutation};
use crate::measure::statistics::Latencies;
use drawn::Drawn;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use zipfian::{THETA, Zipfian};

/// One operation in so many is timed where operations are short, so that reading the clock (some 50 ns for
/// a sample) costs less than 1 ns an operation.
pub const SAMPLE_EVERY: u64 = 64;

/// Operations that take longer than this on average are all timed.
pub const SLOW_OPERATION: Duration = Duration::from_micros(5);

/// The table that a workload uses.
#[derive(Clone, Debug)]
pub struct Table {
    /// How many tuples it has; their numbers are `0..tuples`.
    pub tuples: u64,
    /// The sizes of values.
    pub values: ValueSizes,
    /// What all random choices depend on.
    pub seed: u64,
    /// How tuples are chosen.
    choice: TupleChoice,
}

/// A [`Skew`], made ready to draw.
#[derive(Clone, Debug)]
enum TupleChoice {
    Uniform,
    Zipfian(Zipfian, Permutation),
    /// Those inserted last; in which order they were, if not in that of their numbers.
    Latest(Zipfian, Option<Permutation>),
}

impl Table {
    /// A table; takes time proportional to the tuples where choices are skewed.
    pub fn new(tuples: u64, values: ValueSizes, seed: u64, skew: Skew) -> Self {
        let choice = match skew {
            Skew::Uniform => TupleChoice::Uniform,
            Skew::Zipfian(theta) => {
                TupleChoice::Zipfian(Zipfian::new(tuples, theta), Permutation::new(tuples, seed))
            }
            Skew::Latest => TupleChoice::Latest(Zipfian::new(tuples, THETA), None),
        };
        Self { tuples, values, seed, choice }
    }

    /// The same, which one thread inserts in this order.
    pub fn inserted(mut self, order: Order) -> Self {
        if let (TupleChoice::Latest(_, inserted), Order::Random) = (&mut self.choice, order) {
            *inserted = Some(Permutation::new(self.tuples, self.seed));
        }
        self
    }

    /// The number of a tuple, at random.
    #[inline]
    pub fn choose(&self, generator: &mut Generator) -> u64 {
        match &self.choice {
            TupleChoice::Uniform => generator.below(self.tuples),
            TupleChoice::Zipfian(zipfian, scramble) => scramble.at(zipfian.draw(generator)),
            TupleChoice::Latest(zipfian, inserted) => {
                let at = self.tuples - 1 - zipfian.draw(generator);
                inserted.as_ref().map_or(at, |inserted| inserted.at(at))
            }
        }
    }

    /// Whether tuples are chosen alike.
    pub fn is_uniform(&self) -> bool {
        matches!(self.choice, TupleChoice::Uniform)
    }

    /// So many threads, each of which will have tuples of its own.
    ///
    /// # Errors
    /// If there are fewer tuples.
    pub fn owners(&self, threads: usize) -> Result<usize> {
        if self.tuples >= threads as u64 {
            return Ok(threads);
        }
        Err(format!("{} tuples are too few for {threads} threads: each changes some of its own", self.tuples)
            .into())
    }

    /// The same as [`choose`](Self::choose), of the tuples that only this one of so many threads changes; there are as many tuples as threads at least.
    #[inline]
    pub fn choose_own(&self, generator: &mut Generator, (thread, threads): (u64, u64)) -> u64 {
        let index = self.choose(generator);
        if threads == 1 {
            return index;
        }
        let own = index - index % threads + thread;
        if own < self.tuples { own } else { own - threads }
    }

    /// Whether `value` is that of tuple `index`, as far as its length and its first bytes say.
    #[inline]
    pub fn matches(&self, index: u64, value: &[u8]) -> bool {
        keys::matches(index, value, keys::value_bytes(self.values, index))
    }
}

/// How long a pass lasts and how it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How many threads work.
    pub threads: usize,
    /// How many clients each serves, where the workload has clients.
    pub clients: usize,
    /// Which pass this is; each draws its own random numbers.
    pub round: u64,
    /// At least how long it lasts.
    pub duration: Duration,
    /// One operation in so many is timed.
    pub sample_every: u64,
}

/// What one thread did.
#[derive(Debug)]
pub struct Work {
    /// Operations that were completed.
    pub operations: u64,
    /// The timed ones.
    pub latencies: Latencies,
    /// For how long it made what it needed and the engine did nothing.
    pub making: Duration,
}

impl Work {
    /// Without a time in which it made what it needed.
    pub fn new(operations: u64, latencies: Latencies) -> Self {
        Self { operations, latencies, making: Duration::ZERO }
    }
}

/// What all threads did between the start of the first and the end of the last.
#[derive(Debug)]
pub struct Pass {
    /// Operations that were completed.
    pub operations: u64,
    /// How long it took, without what a thread took on average to make what it needed.
    pub elapsed: Duration,
    /// The timed operations.
    pub latencies: Latencies,
}

impl Pass {
    /// The mean time that one thread spent on one operation.
    pub fn mean(&self, threads: usize) -> Duration {
        self.elapsed.mul_f64(threads as f64 / self.operations.max(1) as f64)
    }
}

/// Runs `work` on so many threads that start together, each with what `prepare` made for it beforehand.
///
/// # Errors
/// The first error of any thread, once all have ended.
pub fn run_threads<S>(
    threads: usize,
    prepare: impl Fn(usize) -> Result<S> + Sync,
    work: impl Fn(S, Instant) -> Result<Work> + Sync,
) -> Result<Pass> {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| -> Result<(Instant, Instant, Work)> {
        let prepared = prepare(thread);
        // A thread that could not be prepared must still arrive, or the others would wait for ever.
        barrier.wait();
        let start = Instant::now();
        let done = work(prepared?, start)?;
        Ok((start, Instant::now(), done))
    };
    let results: Vec<Result<(Instant, Instant, Work)>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err("a thread of the workload panicked".into())))
            .collect()
    });
    let mut latencies = Latencies::new()?;
    let (mut operations, mut making) = (0, Duration::ZERO);
    let mut span: Option<(Instant, Instant)> = None;
    for result in results {
        let (start, end, work) = result?;
        span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        operations += work.operations;
        making += work.making / u32::try_from(threads)?;
        latencies.add(&work.latencies)?;
    }
    let elapsed = span.map_or(Duration::ZERO, |(first, last)| (last - first).saturating_sub(making));
    Ok(Pass { operations, elapsed, latencies })
}

/// Does one thing again and again until the time since `start` is over, and times one in so many as the pace says; the
/// last is always timed.
///
/// # Errors
/// The first error.
#[inline]
pub fn until_deadline(
    pace: &Pace,
    start: Instant,
    mut latencies: Latencies,
    mut one: impl FnMut() -> Result<()>,
) -> Result<Work> {
    let deadline = start + pace.duration;
    let mut operations = 0;
    loop {
        let begin = Instant::now();
        one()?;
        let end = Instant::now();
        latencies.record(end - begin);
        if end >= deadline {
            return Ok(Work::new(operations + 1, latencies));
        }
        for _ in 1..pace.sample_every {
            one()?;
        }
        operations += pace.sample_every.max(1);
    }
}

/// The same with each tuple that is drawn, until there is none or the time is over that does not go into the making of keys.
///
/// # Errors
/// The first error.
#[inline]
pub fn each_until_deadline<K: Keys, I: Iterator<Item = u64>>(
    pace: &Pace,
    start: Instant,
    mut latencies: Latencies,
    mut drawn: Drawn<K, I>,
    mut one: impl FnMut(u64, &K::Key) -> Result<()>,
) -> Result<Work> {
    let deadline = start + pace.duration;
    let mut operations = 0;
    'all: while let Some((index, key)) = drawn.next() {
        let begin = Instant::now();
        one(index, key)?;
        let end = Instant::now();
        latencies.record(end - begin);
        operations += 1;
        if end >= deadline + drawn.making() {
            break;
        }
        for _ in 1..pace.sample_every {
            let Some((index, key)) = drawn.next() else { break 'all };
            one(index, key)?;
            operations += 1;
        }
    }
    Ok(Work { operations, latencies, making: drawn.making() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_all_threads_is_added_up() {
        let pass = run_threads(3, Ok, |thread, _| {
            let mut latencies = Latencies::new()?;
            latencies.record(Duration::from_micros(1));
            Ok(Work::new(10 + thread as u64, latencies))
        })
        .unwrap();
        assert_eq!((pass.operations, pass.latencies.samples()), (33, 3));
    }

    #[test]
    fn the_latest_are_those_that_were_inserted_last() {
        let values = ValueSizes::one(8);
        for order in [Order::Sequential, Order::Random] {
            let table = Table::new(1000, values, 5, Skew::Latest).inserted(order);
            let inserted: Vec<u64> = keys::Share::new(order, 1000, 5, 0, 1).collect();
            let mut generator = Generator::new(1, 0, 0);
            let mut counts = vec![0; 1000];
            for _ in 0..100_000 {
                counts[table.choose(&mut generator) as usize] += 1;
            }
            let count = |from: usize, to: usize| -> u64 {
                inserted[from..to].iter().map(|index| counts[*index as usize]).sum()
            };
            // The sum of 1 / k^0.99 up to 10 is 0.39 of that up to 1000.
            assert!((36_000..42_000).contains(&count(990, 1000)), "{order:?}: {}", count(990, 1000));
            assert!(count(0, 500) < count(500, 990));
        }
    }

    #[test]
    fn each_thread_has_tuples_of_its_own_and_all_have_an_owner() {
        for (tuples, threads) in [(3, 3), (100, 1), (100, 3), (101, 7)] {
            let table = Table::new(tuples, ValueSizes::one(8), 5, Skew::Uniform);
            let mut owners = vec![None; tuples as usize];
            for thread in 0..threads {
                let mut generator = Generator::new(1, thread, 0);
                for _ in 0..10_000 {
                    let owner = &mut owners[table.choose_own(&mut generator, (thread, threads)) as usize];
                    assert_eq!(*owner.get_or_insert(thread), thread);
                }
            }
            assert!(owners.iter().all(Option::is_some));
        }
    }

    #[test]
    fn a_thread_that_cannot_be_prepared_fails_the_pass_without_hanging_it() {
        let prepare = |thread| if thread == 1 { Err("no".into()) } else { Ok(()) };
        let result = run_threads(2, prepare, |(), _| Ok(Work::new(1, Latencies::new()?)));
        assert_eq!(result.unwrap_err().to_string(), "no");
    }
}
