//! Deleting and inserting again, for long, does not make the file grow.

use crate::support::{create_tree, sealed, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use vellum_pool::{Pool, PoolOptions};

const TUPLES: u64 = 40_000;
const CHANGES: u64 = 100_000;

fn length(random: &mut StdRng) -> usize {
    random.random_range(60..=180)
}

/// Loaded in random order, then at any time a tenth of the tuples is absent and comes back in another size.
#[test]
fn deletes_and_inserts_of_other_sizes_do_not_grow_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().pool_bytes(8 << 20).capacity_bytes(1 << 32);
    let pool = Pool::create(directory.path().join("tree"), &options).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut order: Vec<u64> = (0..TUPLES).collect();
    order.shuffle(&mut random);
    for key in &order {
        tree.insert(&key.to_be_bytes(), &sealed(*key, 0, length(&mut random))).unwrap();
    }
    let before = pool.statistics().pages_in_file;
    let fill_before = fill(&pool);
    let mut changes = 0;
    while changes < CHANGES {
        order.shuffle(&mut random);
        let absent = TUPLES as usize / 10;
        for index in 0..order.len() + absent {
            if let Some(key) = order.get(index) {
                assert!(tree.remove(&key.to_be_bytes()).unwrap());
                changes += 1;
            }
            if let Some(key) = index.checked_sub(absent).and_then(|index| order.get(index)) {
                let value = sealed(*key, changes, length(&mut random));
                assert!(tree.insert(&key.to_be_bytes(), &value).unwrap());
            }
        }
    }
    let after = pool.statistics().pages_in_file;
    let grown = after as f64 / before as f64 - 1.0;
    assert!(
        grown <= 0.1,
        "{before} pages have become {after}: leaves were {fill_before:.3} full, now {:.3}",
        fill(&pool)
    );
    assert_eq!(verify(&pool, &tree).shape.entries, TUPLES);
    // When all tuples are removed, the pages are free.
    for key in &order {
        assert!(tree.remove(&key.to_be_bytes()).unwrap());
    }
    let shape = verify(&pool, &tree).shape;
    assert!(shape.leaves <= 3, "{shape:?}");
}

fn fill(pool: &Pool) -> f64 {
    let shape = crate::support::open_tree(pool).shape().unwrap();
    shape.leaf_bytes_used as f64 / (shape.leaves * 3968) as f64
}

/// Records appended to several runs in turn leave full leaves, though all but one of the runs end within the tree.
#[test]
fn runs_in_ascending_order_leave_full_leaves() {
    const RUNS: u8 = 10;
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("tree"), &crate::support::options(4096)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut next = [0u32; RUNS as usize];
    for _ in 0..3_000 {
        let run = random.random_range(0..RUNS);
        for _ in 0..random.random_range(5..=15) {
            let number = &mut next[run as usize];
            let key = [&[run][..], &number.to_be_bytes()].concat();
            assert!(tree.insert(&key, &[run; 50]).unwrap());
            *number += 1;
        }
    }
    verify(&pool, &tree);
    assert!(fill(&pool) > 0.85, "{}", fill(&pool));
}

/// Nodes whose fences are as long as keys can be are merged too.
#[test]
fn long_keys_leave_no_empty_nodes_behind() {
    let directory = tempfile::tempdir().unwrap();
    let options = crate::support::options(256);
    let pool = Pool::create(directory.path().join("tree"), &options).unwrap();
    let tree = create_tree(&pool).unwrap();
    let key = |number: u64| {
        let mut key = vec![b'p'; 1016];
        // Even keys differ at their beginning, odd ones at their end.
        let at = if number.is_multiple_of(2) { 0 } else { key.len() };
        key.splice(at..at, number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    };
    for number in 0..1500 {
        assert!(tree.insert(&key(number), b"value").unwrap());
    }
    let full = verify(&pool, &tree).shape;
    assert!(full.height >= 4, "{full:?}");
    for number in 0..1500 {
        assert!(tree.remove(&key(number)).unwrap());
    }
    let empty = verify(&pool, &tree).shape;
    assert!(empty.leaves <= 2 && empty.inner_nodes <= 2, "{empty:?}");
}
