//! Nodes against `BTreeMap`: a small tree of them takes keys of all shapes, and every node that changed is
//! validated after every step.

use crate::node_tree::Tree;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use vellum_access::node::{BLOB_REFERENCE_BYTES, MAX_KEY_BYTES};

const STEPS: usize = if cfg!(miri) { 60 } else { 6000 };

type KeyMaker = fn(&mut StdRng) -> Vec<u8>;

fn small_integer(random: &mut StdRng) -> Vec<u8> {
    random.random_range(0..3000u64).to_be_bytes().to_vec()
}

fn any_integer(random: &mut StdRng) -> Vec<u8> {
    random.random::<u64>().to_be_bytes().to_vec()
}

/// Keys that tie in their heads and are prefixes of each other.
fn zeroes(random: &mut StdRng) -> Vec<u8> {
    let mut key = vec![0; random.random_range(0..40)];
    if !key.is_empty() && random.random_bool(0.5) {
        let at = random.random_range(0..key.len());
        key[at] = random.random_range(0..3);
    }
    key
}

fn two_letters(random: &mut StdRng) -> Vec<u8> {
    let length = random.random_range(0..14);
    (0..length).map(|_| *b"\0\xff".get(random.random_range(0..2)).unwrap()).collect()
}

fn long_prefix(random: &mut StdRng) -> Vec<u8> {
    let mut key = vec![b'p'; *[9, 200, 900].get(random.random_range(0..3)).unwrap()];
    key.extend(random.random_range(0..2000u32).to_be_bytes());
    key
}

fn any_length(random: &mut StdRng) -> Vec<u8> {
    let length = random.random_range(0..=MAX_KEY_BYTES);
    (0..length).map(|_| random.random()).collect()
}

/// Long keys that differ late, so that separators are as long as they can be.
fn longest(random: &mut StdRng) -> Vec<u8> {
    let mut key = vec![random.random_range(0..4); MAX_KEY_BYTES - 1];
    key.push(random.random());
    key
}

/// Long runs of integers in a few places far apart, so that the ends of the tree share prefixes that the next
/// run breaks, on either side.
fn runs(random: &mut StdRng) -> Vec<u8> {
    let start = *[0, 0xff00, 0xff_ff00, 1 << 40, u64::MAX << 20].get(random.random_range(0..5)).unwrap();
    (start + random.random_range(0..0x300u64)).to_be_bytes().to_vec()
}

/// Long keys whose prefixes end at many places: a key of another run leaves a node little or nothing of what
/// it saved.
fn long_runs(random: &mut StdRng) -> Vec<u8> {
    let mut key = vec![b'p'; MAX_KEY_BYTES - random.random_range(0..40)];
    if random.random_bool(0.2) {
        let at = *[0, 3, 500, 900, 980].get(random.random_range(0..5)).unwrap();
        key[at] = *b"oq".get(random.random_range(0..2)).unwrap();
        key.truncate((at + random.random_range(1..100)).min(MAX_KEY_BYTES));
    } else {
        let at = key.len() - 2;
        key[at..].copy_from_slice(&random.random::<u16>().to_be_bytes());
    }
    key
}

const SHAPES: [KeyMaker; 9] =
    [small_integer, any_integer, zeroes, two_letters, long_prefix, any_length, longest, runs, long_runs];

fn mixed(random: &mut StdRng) -> Vec<u8> {
    let shape = random.random_range(0..SHAPES.len());
    SHAPES[shape](random)
}

fn value(random: &mut StdRng) -> (Vec<u8>, bool) {
    let blob = random.random_bool(0.1);
    let length = match random.random_range(0..4) {
        _ if blob => BLOB_REFERENCE_BYTES,
        0 => 0,
        1 => random.random_range(0..20),
        2 => 120,
        _ => random.random_range(0..=1024),
    };
    (vec![random.random(); length], blob)
}

/// Lets a tree grow, change and shrink to nothing.
fn run(seed: u64, key: KeyMaker) -> Tree {
    let mut random = StdRng::seed_from_u64(seed);
    let mut tree = Tree::new();
    for step in 0..STEPS {
        let growing = if step < STEPS / 2 { 0.9 } else { 0.4 };
        let key = key(&mut random);
        if random.random_bool(growing) {
            let (value, blob) = value(&mut random);
            tree.put(&key, &value, blob);
        } else if random.random_bool(0.5) {
            assert_eq!(tree.get(&key), tree.model.get(&key).cloned());
            tree.remove(&key);
        } else if let Some((near, _)) = tree.model.range(key..).next() {
            let near = near.clone();
            tree.remove(&near);
        }
        if step % 1000 == 0 {
            tree.check_all();
        }
    }
    tree.check_all();
    let keys: Vec<_> = tree.model.keys().cloned().collect();
    for key in keys {
        tree.remove(&key);
    }
    tree.check_all();
    tree
}

#[test]
fn small_integers_agree_with_the_model() {
    run(1, small_integer);
}

#[test]
fn any_integers_agree_with_the_model() {
    let tree = run(2, any_integer);
    assert!(cfg!(miri) || tree.splits > 100 && tree.merges > 50);
}

#[test]
fn zeroes_agree_with_the_model() {
    run(3, zeroes);
}

#[test]
fn two_letters_agree_with_the_model() {
    run(4, two_letters);
}

#[test]
fn long_prefixes_agree_with_the_model() {
    run(5, long_prefix);
}

#[test]
fn any_lengths_agree_with_the_model() {
    run(6, any_length);
}

#[test]
fn longest_keys_agree_with_the_model() {
    run(7, longest);
}

#[test]
fn runs_agree_with_the_model() {
    run(21, runs);
}

#[test]
fn long_runs_agree_with_the_model() {
    run(22, long_runs);
}

/// Each run goes up or down and begins where it lacks the prefix of what is at that end of the tree.
#[test]
fn loading_runs_breaks_the_prefixes_of_the_spines() {
    let length = if cfg!(miri) { 20 } else { 700u64 };
    for (step, value_bytes) in [(1u64, 8), (1, 120), (255, 8), (1 << 20, 0)] {
        for descending in [false, true] {
            let mut tree = Tree::new();
            for run in 0..6u64 {
                for number in 0..length {
                    let up = ((1u64 << (8 * run + 4)) - 1).wrapping_add(number.wrapping_mul(step));
                    let number = if descending { u64::MAX - up } else { up };
                    tree.put(&number.to_be_bytes(), &vec![7; value_bytes], false);
                    let suffixed = [&number.to_be_bytes()[..], &[b's'; 300]].concat();
                    if number % 50 == 0 {
                        tree.put(&suffixed, &[], false);
                    }
                }
                tree.check_all();
            }
            let keys: Vec<_> = tree.model.keys().cloned().collect();
            let from_below = keys.iter().take(keys.len() / 2);
            for key in from_below.chain(keys.iter().skip(keys.len() / 2).rev()) {
                tree.remove(key);
            }
            tree.check_all();
        }
    }
}

/// As many seeds as asked for: `VELLUM_SEEDS=100`.
#[test]
fn any_seed_agrees_with_the_model() {
    let count = std::env::var("VELLUM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    for seed in 1000..1000 + count {
        for (shape, &key) in SHAPES.iter().enumerate() {
            println!("seed {seed}, shape {shape}");
            run(seed, key);
        }
        run(seed, mixed);
    }
}

#[test]
fn mixed_keys_agree_with_the_model() {
    for seed in 8..if cfg!(miri) { 9 } else { 11 } {
        run(seed, mixed);
    }
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused() {
    let mut tree = Tree::new();
    tree.put(&[1; MAX_KEY_BYTES + 1], b"", false);
    tree.put(b"", &[1; 1025], false);
    tree.put(&[1; MAX_KEY_BYTES], &[1; 1024], false);
    tree.put(b"a", &[1; BLOB_REFERENCE_BYTES - 1], true);
    assert!(tree.model.is_empty());
    tree.put(&[1; MAX_KEY_BYTES], &[1; BLOB_REFERENCE_BYTES], true);
    assert_eq!(tree.model.len(), 1);
    assert_eq!(tree.get(&[1; MAX_KEY_BYTES + 1]), None);
}

#[test]
fn loading_in_either_order_fills_the_leaves() {
    let count = if cfg!(miri) { 100 } else { 20_000u64 };
    for descending in [false, true] {
        let mut tree = Tree::new();
        for number in 0..count {
            let number = if descending { count - number } else { number };
            tree.put(&number.to_be_bytes(), &[7; 120], false);
        }
        tree.check_all();
        assert!(tree.leaf_fill() > if cfg!(miri) { 0.6 } else { 0.95 }, "{}", tree.leaf_fill());
        assert!(cfg!(miri) || descending == (tree.ends == 0), "{}", tree.ends);
    }
}
