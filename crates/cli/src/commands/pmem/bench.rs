//! `vellum pmem bench`: measures a store on this machine, with records of 16 and 200 bytes.

use super::store::PersistenceArguments;
use crate::{
    arguments::General,
    failure::{Code, Failure, Result},
    output::{Output, columns, render},
    signals, size, workers,
};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use serde::Serialize;
use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::RwLock,
    time::{Duration, Instant},
};
use vellum_base::{primitive::spawn_scoped, shown};
use vellum_pmem::{Client, Fixed, Options, Store};

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 200;
/// How many operations are done between two checks of the time, and how many keys are read in one batch.
const AT_ONCE: usize = 64;

type Records = Fixed<KEY_BYTES, VALUE_BYTES>;

/// The arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file that does not exist; it is made, measured and removed
    store: PathBuf,
    #[command(flatten)]
    how: PersistenceArguments,
    /// Records
    #[arg(long, default_value = "1000000")]
    records: NonZeroU64,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// How long each step lasts that has no end of its own
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

/// One figure.
#[derive(Serialize)]
struct Step {
    step: &'static str,
    operations: u64,
    seconds: f64,
    per_second: f64,
}

/// Measures.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    signals::watch();
    let mut options = arguments.how.options();
    options.reclaim.background = false;
    if arguments.store.exists() {
        let path = shown(&arguments.store);
        return Err(Failure::usage(format!("{path} exists; name a file that can be made and removed")));
    }
    // Until the store is made, what lies there is not this program's to remove.
    let store = Store::create(&arguments.store, &options)?;
    let outcome = measure(store, options, arguments, general);
    // The lock on the file was released with the store.
    match std::fs::remove_file(&arguments.store) {
        Err(error) if outcome.is_ok() => Err(Failure::file("remove", &arguments.store, &error)),
        _ => outcome,
    }
}

fn measure(store: Store<Records>, mut options: Options, arguments: &Arguments, general: &General) -> Result {
    let persistence = store.persistence().to_string();
    let (records, threads) = (arguments.records.get(), arguments.threads);
    let time = Duration::from_secs(arguments.seconds);
    let again = |client: &mut Client<Records>, number: u64| put(client, number, !number);
    let mut steps = vec![
        step("put", run_all(&store, threads, records, |client, number| put(client, number, number))?),
        step("get", run_random(&store, threads, records, time, each(get))?),
        step("get in batches of 64", run_random(&store, threads, records, time, get_batch)?),
        step("update in place", run_random(&store, threads, records, time, each(update))?),
        step("overwrite", run_random(&store, threads, records, time, each(again))?),
    ];
    drop(store);
    let (store, recovered) = reopen(&arguments.store, &options)?;
    steps.push(recovered);
    steps.push(step(
        "delete half",
        run_all(&store, threads, records / 2, |client, number| {
            client.delete(&key(number * 2 + 1))?;
            Ok(())
        })?,
    ));
    let odd = |client: &mut Client<Records>, number: u64| put(client, number / 2 * 2, number);
    let quiet = step("overwrite, nothing reclaimed", run_random(&store, threads, records, time, each(odd))?);
    drop(store);
    options.reclaim.background = true;
    let (store, _) = reopen(&arguments.store, &options)?;
    let before = store.statistics();
    let busy =
        step("overwrite while space is reclaimed", run_random(&store, threads, records, time, each(odd))?);
    let after = store.statistics();
    let share = busy.per_second / quiet.per_second;
    steps.extend([quiet, busy]);
    let reclaimed = store.reclaim()?;
    let remarks = [
        ("changes become durable by", persistence),
        (
            "blocks compacted beside the writers",
            size::count(after.blocks_compacted - before.blocks_compacted),
        ),
        ("writers kept of their speed", format!("{:.0} %", share * 100.0)),
        (
            "blocks returned to the file system in the end",
            size::count(reclaimed.blocks_returned + after.blocks_returned),
        ),
    ];
    report(general, &steps, &remarks)
}

fn report(general: &General, steps: &[Step], remarks: &[(&str, String)]) -> Result {
    let mut out = Output::new();
    if general.json {
        steps.iter().try_for_each(|step| out.json(step))?;
        for (what, value) in remarks {
            out.json(&serde_json::json!({ "remark": what, "value": value }))?;
        }
        return out.finish();
    }
    let mut table = columns(&["step", "operations", "seconds", "a second"], 1);
    for step in steps {
        table.add_row([
            step.step.to_owned(),
            size::count(step.operations),
            format!("{:.2}", step.seconds),
            size::count(step.per_second as u64),
        ]);
    }
    out.line(render(&table))?;
    remarks.iter().try_for_each(|(what, value)| out.line(format_args!("{what}: {value}")))?;
    out.finish()
}

fn step(step: &'static str, (operations, took): (u64, Duration)) -> Step {
    let seconds = took.as_secs_f64();
    Step { step, operations, seconds, per_second: operations as f64 / seconds.max(1e-9) }
}

fn reopen(path: &Path, options: &Options) -> Result<(Store<Records>, Step)> {
    let begin = Instant::now();
    let store = Store::open(path, options)?;
    let recovered = step("recovery", (store.len(), begin.elapsed()));
    Ok((store, recovered))
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    u128::from(number).to_be_bytes()
}

fn put(client: &mut Client<Records>, number: u64, seed: u64) -> Result {
    let mut value = [0x5a; VALUE_BYTES];
    value[..8].copy_from_slice(&seed.to_le_bytes());
    client.put(&key(number), &value)?;
    Ok(())
}

fn get(client: &mut Client<Records>, number: u64) -> Result {
    let mut value = Vec::with_capacity(VALUE_BYTES);
    client.get_into(&key(number), &mut value)?;
    Ok(())
}

fn get_batch(client: &mut Client<Records>, numbers: &[u64; AT_ONCE]) -> Result {
    client.get_batch(&numbers.map(key))?;
    Ok(())
}

fn update(client: &mut Client<Records>, number: u64) -> Result {
    client.update(&key(number), |value| {
        if let Some(first) = value.first_mut() {
            *first = first.wrapping_add(1);
        }
    })?;
    Ok(())
}

/// Runs an operation on each number below `count`, divided among threads.
fn run_all(
    store: &Store<Records>,
    threads: u64,
    count: u64,
    operation: impl Fn(&mut Client<Records>, u64) -> Result + Sync,
) -> Result<(u64, Duration)> {
    run_threads(store, threads, |client, thread| {
        for number in (thread..count).step_by(threads as usize) {
            if number % 4096 < threads {
                signals::check()?;
            }
            operation(client, number)?;
        }
        Ok((thread..count).step_by(threads as usize).count() as u64)
    })
}

/// Runs an operation on numbers one by one.
fn each(
    operation: impl Fn(&mut Client<Records>, u64) -> Result + Sync,
) -> impl Fn(&mut Client<Records>, &[u64; AT_ONCE]) -> Result + Sync {
    move |client, numbers| numbers.iter().try_for_each(|number| operation(client, *number))
}

/// Runs an operation on random numbers below `count` for a time.
fn run_random(
    store: &Store<Records>,
    threads: u64,
    count: u64,
    time: Duration,
    operation: impl Fn(&mut Client<Records>, &[u64; AT_ONCE]) -> Result + Sync,
) -> Result<(u64, Duration)> {
    run_threads(store, threads, |client, thread| {
        let mut random = SmallRng::seed_from_u64(thread);
        let (begin, mut operations) = (Instant::now(), 0);
        while begin.elapsed() < time {
            signals::check()?;
            operation(client, &std::array::from_fn(|_| random.random_range(0..count)))?;
            operations += AT_ONCE as u64;
        }
        Ok(operations)
    })
}

fn run_threads(
    store: &Store<Records>,
    threads: u64,
    work: impl Fn(&mut Client<Records>, u64) -> Result<u64> + Sync,
) -> Result<(u64, Duration)> {
    // Locked until all threads are there; false if the system refuses one.
    let gate = RwLock::new(true);
    let one = |thread| {
        let client = store.client();
        if !*gate.read().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            return Ok((0, Duration::ZERO));
        }
        let begin = Instant::now();
        let operations = work(&mut client?, thread)?;
        Ok((operations, begin.elapsed()))
    };
    let results: Vec<Result<(u64, Duration)>> = std::thread::scope(|scope| {
        let mut is_open = gate.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let one = &one;
        let handles: Vec<_> =
            (0..threads).map(|thread| spawn_scoped(scope, "vellum-bench", move || one(thread))).collect();
        *is_open = handles.iter().all(|handle| handle.is_ok());
        drop(is_open);
        handles
            .into_iter()
            .map(|handle| {
                handle.map_err(|error| workers::cannot_start(&error))?.join().unwrap_or_else(|_| {
                    Err(Failure::new(Code::Io, "a thread of the measurement failed; this is a bug"))
                })
            })
            .collect()
    });
    let mut all = (0, Duration::ZERO);
    for result in results {
        let (operations, took) = result?;
        all = (all.0 + operations, all.1.max(took));
    }
    Ok(all)
}
