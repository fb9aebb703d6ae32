//! The memory that the process takes while a tree many times larger than the pool is written, read and scanned.
//! The test is alone in its file, because others would take memory too.

#[path = "it/support/mod.rs"]
mod support;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::ops::Bound;
use support::{create_tree, sealed, unseal};
use vellum_pool::{Pool, PoolOptions};

const POOL_BYTES: u64 = 8 << 20;

/// The resident size of this process in bytes, now and at most so far.
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

#[test]
fn it_stays_below_the_pool_and_a_little() {
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().pool_bytes(POOL_BYTES).capacity_bytes(1 << 40);
    let pool = Pool::create(directory.path().join("tree"), &options).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let limit = |pool: &Pool| POOL_BYTES + 16 * pool.statistics().pages_in_file + (64 << 20);
    let check = |pool: &Pool, what: &str| {
        let (now, limit) = (resident().0, limit(pool));
        assert!(now <= limit, "{what}: {now} bytes are resident, and the limit is {limit}");
    };
    const KEYS: u64 = 70_000;
    for number in 0..KEYS {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let length = if number.is_multiple_of(1000) { 700_000 } else { 700 };
        tree.upsert(&key.to_be_bytes(), &sealed(key, number, length)).unwrap();
        if number.is_multiple_of(500) {
            check(&pool, "writing");
        }
    }
    let file_bytes = pool.statistics().pages_in_file * 4096;
    assert!(file_bytes > 12 * POOL_BYTES, "{file_bytes}");
    for round in 0..8000 {
        let key = random.random_range(0..KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        unseal(key, &tree.value(&key.to_be_bytes()).unwrap().unwrap());
        if round % 500 == 0 {
            check(&pool, "reading");
        }
    }
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
    let mut count = 0;
    while let Some(entry) = cursor.next().unwrap() {
        count += u64::from(entry.value_length() > 0);
    }
    assert_eq!(count, KEYS);
    check(&pool, "scanning");
    let limit = limit(&pool);
    drop(cursor);
    pool.close().unwrap();
    let highest = resident().1;
    assert!(highest <= limit, "at most {highest} bytes were resident, and the limit is {limit}");
}
