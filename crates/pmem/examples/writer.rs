//! Writes to a store until it is killed, or checks what a killed one left.
//!
//! ```text
//! writer write STORE            # prints `acknowledged N` now and then
//! writer check STORE N          # everything up to N must be there, and nothing but what came next
//! ```
//!
//! What the N-th operation does follows from N, so that checking needs to know nothing else. The script beside this,
//! `guest/run.sh`, runs it on real DAX in an emulated machine that is killed in the middle.

use std::{
    collections::BTreeMap, error::Error, io::Write as _, ops::ControlFlow, path::Path, process::ExitCode,
};
use vellum_pmem::{Client, Options, Persistence, PmemError, Store, Variable};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// How many operations go between two lines of output.
const TELL_EVERY: u64 = 50;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["write", path] => write(Path::new(path)),
        ["check", path, number] => check(Path::new(path), number),
        _ => Err("usage: writer write STORE | writer check STORE N".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Options {
    Options { chunk_bytes: 64 << 20, growth_bytes: 16 << 20, ..Options::default() }
}

/// What the operation of a number changes: a key, and its new value or none.
fn operation(number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    let key = format!("key {}", mixed % 300).into_bytes();
    let bytes = [8, 60, 200, 3000, 30_000][(mixed >> 32) as usize % 5];
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes, number as u8 | 1);
    (key, (mixed >> 40 & 7 != 0).then_some(value))
}

fn contents(store: &Store<Variable>) -> Result<Model, Box<dyn Error>> {
    let mut found = Model::new();
    store.reader().for_each(|key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// The number of the last put that a store holds; zero if it holds none.
fn last_put(found: &Model) -> u64 {
    found
        .values()
        .filter_map(|value| value.first_chunk())
        .map(|id| u64::from_le_bytes(*id))
        .max()
        .unwrap_or(0)
}

fn apply(client: &mut Client<Variable>, number: u64) -> Result<(), Box<dyn Error>> {
    match operation(number) {
        (key, Some(value)) => {
            client.put(&key, &value)?;
        }
        (key, None) => {
            client.delete(&key)?;
        }
    }
    Ok(())
}

fn write(path: &Path) -> Result<(), Box<dyn Error>> {
    let store = match Store::open(path, &options()) {
        // A file that is not there, or a device that holds nothing yet: one that holds something is not overwritten.
        Err(PmemError::File { .. } | PmemError::NotAStore { .. }) => Store::create(path, &options())?,
        outcome => outcome?,
    };
    let instruction = store.instruction().unwrap_or("no instruction");
    println!("durable by {} ({instruction})", store.persistence());
    if store.persistence() == Persistence::Msync {
        return Err("this is not on persistent memory".into());
    }
    let mut client = store.client()?;
    // Doing some operations twice changes nothing in the end.
    let mut number = last_put(&contents(&store)?);
    loop {
        number += 1;
        apply(&mut client, number)?;
        if number.is_multiple_of(TELL_EVERY) {
            println!("acknowledged {number}");
            std::io::stdout().flush()?;
        }
    }
}

fn check(path: &Path, number: &str) -> Result<(), Box<dyn Error>> {
    let acknowledged: u64 = number.parse()?;
    let store = Store::<Variable>::open(path, &options())?;
    let found = contents(&store)?;
    let last = last_put(&found).max(acknowledged);
    let mut model = Model::new();
    for number in 1..=last {
        step(&mut model, number);
    }
    // Deletes after the last put leave no number behind.
    let mut deletes = 0;
    while model != found {
        let next = last + deletes + 1;
        if operation(next).1.is_some() {
            return Err(format!("the store holds neither what operation {last} left nor a later one").into());
        }
        step(&mut model, next);
        deletes += 1;
    }
    println!(
        "{} records are right: up to operation {}, acknowledged {acknowledged}; recovery: {:?}",
        found.len(),
        last + deletes,
        store.recovery()
    );
    Ok(())
}

fn step(model: &mut Model, number: u64) {
    match operation(number) {
        (key, Some(value)) => {
            model.insert(key, value);
        }
        (key, None) => {
            model.remove(&key);
        }
    }
}
