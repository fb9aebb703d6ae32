//! What the tests of trees share.
#![allow(dead_code, reason = "each test uses a part")]

pub mod model;
pub mod records;

use std::collections::HashSet;
use vellum_access::{AccessError, Tree, TreeReport};
use vellum_base::{PageId, checksum};
use vellum_pool::{Pool, PoolOptions, PoolStatistics};

/// The seed of the threads' random numbers; runs that repeat a test set it, so that no two are alike.
pub fn seed() -> u64 {
    std::env::var("TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// Prints how much was done, so that many runs of a test can be added up.
pub fn print_counts(operations: u64, statistics: &PoolStatistics) {
    println!(
        "counted: {operations} operations, {} pages read, {} pages evicted, {} pages written, memory by {}",
        statistics.pages_read, statistics.pages_evicted, statistics.pages_written, statistics.release_method
    );
}

/// A pool of a few pages, so that each operation evicts.
pub fn options(pool_pages: u64) -> PoolOptions {
    PoolOptions::default().pool_bytes(pool_pages * 4096).capacity_bytes(1 << 32)
}

/// Makes a tree and remembers its root in the file.
pub fn create_tree(pool: &Pool) -> Result<Tree<'_, Pool>, AccessError> {
    let tree = Tree::create(pool)?;
    pool.set_root_slot(0, tree.root().0)?;
    Ok(tree)
}

/// The tree whose root the file remembers.
pub fn open_tree(pool: &Pool) -> Tree<'_, Pool> {
    Tree::open(pool, PageId(pool.root_slot(0)))
}

/// The problems of the whole file: those that `verify` reports, and extents that belong to two things, to nothing, or
/// are referred to without being allocated.
pub fn problems(pool: &Pool, tree: &Tree<'_, Pool>) -> (Vec<String>, TreeReport) {
    let mut owned: HashSet<_> = pool.own_extents().into_iter().collect();
    let mut found = Vec::new();
    let report = tree.verify(|extent| {
        let new = owned.insert(extent);
        if !new {
            found.push(format!("{extent} belongs to two things"));
        }
        new
    });
    pool.for_each_extent(|extent| {
        if !owned.remove(&extent) {
            found.push(format!("{extent} belongs to nothing"));
        }
    });
    found.extend(owned.iter().map(|extent| format!("{extent} is not allocated")));
    found.extend(report.problems.iter().map(ToString::to_string));
    (found, report)
}

/// Asserts that nothing is wrong.
pub fn verify(pool: &Pool, tree: &Tree<'_, Pool>) -> TreeReport {
    let (found, report) = problems(pool, tree);
    assert!(found.is_empty(), "{found:#?}");
    report
}

/// A value of `length` bytes, at least 24, with its key, its version and a checksum.
pub fn sealed(key: u64, version: u64, length: usize) -> Vec<u8> {
    let mut value = vec![0; length.max(24)];
    value[8..16].copy_from_slice(&key.to_le_bytes());
    value[16..24].copy_from_slice(&version.to_le_bytes());
    let mut word = key ^ version << 32 ^ length as u64;
    for bytes in value[24..].chunks_mut(8) {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
    }
    let sum = checksum(&value[8..]);
    value[..8].copy_from_slice(&sum.to_le_bytes());
    value
}

/// The version of a sealed value of `key`; panics if it is not one.
pub fn unseal(key: u64, value: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    assert!(value.len() >= 24, "a value of {} bytes", value.len());
    assert_eq!(word(0), checksum(&value[8..]), "the value of key {key} is damaged");
    assert_eq!(word(8), key, "the value of another key");
    word(16)
}
