//! Walks of a tree that is changed on the way.

use crate::support::{create_tree, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::HashSet;
use vellum_pool::{Allocation, Pool, PoolOptions};

/// The extents that stay where they are are shown once each, whatever nodes are split and merged meanwhile.
#[test]
fn a_walk_shows_once_what_stays() {
    for seed in 0..80 {
        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(directory.path().join("data"), &PoolOptions::default()).unwrap();
        let tree = create_tree(&pool).unwrap();
        let keys = random.random_range(100..3_000_u32);
        let length = random.random_range(1..600);
        let key = |number: u32| {
            let mut key = number.to_be_bytes().to_vec();
            key.resize(length, b'k');
            key
        };
        let is_large = |number: u32| number % 50 == 7;
        for number in 0..keys {
            let bytes = if is_large(number) { 20_000 } else { 60 };
            tree.upsert(&key(number), &vec![number as u8; bytes]).unwrap();
        }
        let watch = pool.watch_space();
        let mut before = Vec::new();
        pool.for_each_extent(|extent| before.push(extent));
        let mut shown: HashSet<_> = pool.own_extents().into_iter().collect();
        let (mut twice, mut changes) = (Vec::new(), 0);
        let report = tree.verify(|extent| {
            let is_new = shown.insert(extent) || pool.has_changed_hands(extent);
            if !is_new {
                twice.push(extent);
            }
            // A few changes, most of them near each other.
            if random.random_ratio(1, 4) && changes < 40 {
                changes += 1;
                let first = random.random_range(0..keys);
                let (removes, count) = (random.random_ratio(2, 3), random.random_range(1..300));
                for number in (first..first + count).filter(|number| !is_large(*number)) {
                    if removes {
                        tree.remove(&key(number)).unwrap();
                    } else {
                        tree.upsert(&key(number), &[1; 60]).unwrap();
                    }
                }
            }
            is_new
        });
        assert!(report.problems.is_empty(), "{seed}: {:?}", report.problems);
        assert!(twice.is_empty(), "{seed}: {} are shown twice, the first {:?}", twice.len(), twice.first());
        let is_missed = |extent: &&_| !shown.contains(*extent) && !pool.has_changed_hands(**extent);
        let missed: Vec<_> = before.iter().filter(is_missed).collect();
        assert!(missed.is_empty(), "{seed}: {} are not shown, the first {:?}", missed.len(), missed.first());
        drop(watch);
        verify(&pool, &tree);
        pool.close().unwrap();
    }
}
