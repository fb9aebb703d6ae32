//! Each operation of the disk fails in turn, and nothing else does, in a history with transactions, checkpoints and openings.
//!
//! `VELLUM_FAILURES=1000` lets each of the first thousand of a kind fail; usually some of all do.

use crate::{
    histories::{Run, live},
    number, run_all,
};
use std::{collections::HashMap, sync::LazyLock};
use vellum_vm::FileOperation;

/// How many operations of each kind histories have, by their seeds.
static COUNTS: LazyLock<Vec<HashMap<FileOperation, u64>>> = LazyLock::new(|| {
    let count = |seed| {
        let mut run = Run::failing_only(seed, FileOperation::Read, u64::MAX);
        live(&mut run).unwrap();
        FileOperation::ALL.map(|operation| (operation, run.count(operation))).into()
    };
    (0..20).map(count).collect()
});

/// The seed of a long history, and how many operations of a kind it has.
fn longest(operation: FileOperation) -> (u64, u64) {
    let counts = (0..).zip(&*COUNTS).map(|(seed, counts)| (counts[&operation], seed));
    counts.max().unwrap_or_default()
}

fn failures(operation: FileOperation) {
    let (count, seed) = longest(operation);
    let numbers: Vec<u64> = match number("VELLUM_FAILURES") {
        Some(most) => (1..=most.min(count)).collect(),
        None => (1..=count).step_by(count as usize / 20 + 1).collect(),
    };
    println!("seed {seed} has {count} operations of the kind {operation}");
    run_all(&numbers, |number| live(&mut Run::failing_only(seed, operation, number)));
}

#[test]
fn reads() {
    failures(FileOperation::Read);
}

#[test]
fn writes() {
    failures(FileOperation::Write);
}

#[test]
fn syncs() {
    failures(FileOperation::Sync);
}

#[test]
fn names() {
    failures(FileOperation::Name);
}

/// The log's buffer lies in memory where its file cannot be mapped.
#[test]
fn maps() {
    failures(FileOperation::Map);
}
