//! The rival is held to what Vellum's own pool is held to: the tree's model, and threads on a pool of a few pages.

#[path = "../../../../access/tests/it/support/model.rs"]
mod model;

use super::pool::HashPool;
use crate::keys::{self, Generator};
use std::collections::HashSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vellum_access::{AccessError, Answer, Batch, Task, Tree};
use vellum_base::PAGE_SIZE;
use vellum_pool::PoolError;
use vellum_vm::{CreateMode, DiskFile, File, FileOptions};

fn file(directory: &Path) -> Arc<dyn File> {
    let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    Arc::new(DiskFile::open(&directory.join("frames"), &options).unwrap())
}

fn verify(pool: &HashPool, tree: &Tree<'_, HashPool>) {
    pool.free_pending();
    model::verify(tree, HashSet::new(), &pool.space.extents());
}

#[test]
fn the_tree_does_what_a_btreemap_does() {
    let directory = tempfile::tempdir().unwrap();
    let pool = HashPool::on(file(directory.path()), 64).unwrap();
    let tree = Tree::create(&pool).unwrap();
    let model = model::run(&tree, 1, || verify(&pool, &tree));
    assert!(pool.counters.pages_evicted.load(Ordering::Relaxed) > 1000);
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
    }
    verify(&pool, &tree);
    assert!(pool.space.extents().len() < 8, "an empty tree keeps {:?}", pool.space.extents());
}

/// A value that says which tuple and which version it belongs to.
fn value(tuple: u64, version: u64) -> Vec<u8> {
    let mut value = vec![0; 40 + (Generator::hash(tuple ^ version << 20) % 300) as usize];
    keys::fill_value(Generator::hash(tuple) ^ version, &mut value);
    value[..8].copy_from_slice(&version.to_be_bytes());
    value
}

fn check(tuple: u64, found: &[u8]) -> u64 {
    let version = u64::from_be_bytes(found[..8].try_into().unwrap());
    assert_eq!(found, value(tuple, version), "the value of tuple {tuple}");
    version
}

/// Each thread changes tuples of its own, so that it knows what they must be, and reads those of all.
fn stress(frames: usize, threads: u64, steps: u64) {
    const TUPLES: u64 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let pool = HashPool::on(file(directory.path()), frames).unwrap();
    let tree = Tree::create(&pool).unwrap();
    for tuple in 0..TUPLES {
        tree.insert(&keys::key(tuple), &value(tuple, 0)).unwrap();
    }
    let scanning = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while scanning.load(Ordering::Relaxed) {
                let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded).unwrap();
                let mut last = None;
                while let Some(entry) = cursor.next().unwrap() {
                    let tuple = u64::from_be_bytes(entry.key().try_into().unwrap());
                    assert!(last.is_none_or(|last| last < tuple));
                    last = Some(tuple);
                    check(tuple, entry.inline_value().unwrap());
                }
            }
        });
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let pool = &pool;
                    move || work(pool, tree, thread, threads, TUPLES, steps)
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        scanning.store(false, Ordering::Relaxed);
    });
    verify(&pool, &tree);
    assert!(pool.counters.pages_evicted.load(Ordering::Relaxed) > steps);
    assert!(pool.counters.pages_written.load(Ordering::Relaxed) > 100);
}

fn work<'p>(
    pool: &'p HashPool,
    tree: Tree<'p, HashPool>,
    thread: u64,
    threads: u64,
    tuples: u64,
    steps: u64,
) {
    let mut generator = Generator::new(11, thread, 0);
    let mut versions = vec![Some(0u64); tuples as usize];
    for step in 1..=steps {
        let any = generator.below(tuples);
        let mine = any - any % threads + thread;
        let mine = if mine < tuples { mine } else { thread };
        let known = &mut versions[mine as usize];
        match generator.below(8) {
            0..3 => {
                tree.upsert(&keys::key(mine), &value(mine, step)).unwrap();
                *known = Some(step);
            }
            3 => {
                assert_eq!(tree.remove(&keys::key(mine)).unwrap(), known.is_some());
                *known = None;
            }
            4 => {
                let keys: Vec<_> = (0..20).map(|_| keys::key(generator.below(tuples))).collect();
                let mut batch: Batch<'_, HashPool, _, Vec<u8>> = Batch::new(pool, 8);
                batch.run(tree, keys.iter().map(|key| (key, Task::Get)), |place, _, answer| {
                    if let Answer::Value(Some(found)) = answer.unwrap() {
                        check(u64::from_be_bytes(keys[place]), found);
                    }
                });
            }
            5 => {
                if let Some(found) = tree.get(&keys::key(any)).unwrap() {
                    check(any, &found);
                }
            }
            _ => {
                let found = tree.get(&keys::key(mine)).unwrap();
                assert_eq!(found.map(|found| check(mine, &found)), *known, "tuple {mine}");
            }
        }
    }
}

#[test]
fn several_threads_on_a_pool_of_a_few_pages_lose_nothing() {
    stress(24, 3, 4000);
    stress(64, 3, 4000);
}

#[test]
fn a_damaged_page_is_an_error_that_names_it_and_not_a_wrong_answer() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(directory.path());
    let pool = HashPool::on(file.clone(), 16).unwrap();
    let tree = Tree::create(&pool).unwrap();
    for tuple in 0..5000 {
        tree.insert(&keys::key(tuple), &value(tuple, 0)).unwrap();
    }
    let zeroes = vellum_vm::AlignedBuffer::new(PAGE_SIZE);
    for page in 2..pool.space.pages() {
        // SAFETY: the buffer is as long as what is written.
        unsafe { file.write(page * PAGE_SIZE as u64, zeroes.as_ptr(), PAGE_SIZE) }.unwrap();
    }
    let mut damaged = 0;
    for tuple in 0..5000 {
        match tree.get(&keys::key(tuple)) {
            Ok(found) => assert_eq!(check(tuple, &found.unwrap()), 0),
            Err(AccessError::Pool(PoolError::Corruption { .. })) => damaged += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(damaged > 4000, "{damaged}");
}

#[test]
fn memory_stays_within_the_limit_with_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let pool = HashPool::create(&directory.path().join("f"), 64 << 20).unwrap();
    let frames = pool.frames.count();
    assert!((16_000..16_384).contains(&frames), "{frames} frames in 64 MiB");
    assert!(HashPool::create(&directory.path().join("g"), 4096).is_err());
}
