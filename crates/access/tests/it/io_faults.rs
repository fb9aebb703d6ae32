//! The n-th I/O fails, for every n, once or from then on, in a script with everything that a tree does: splits,
//! evictions, merges, large values within the pool and past it, and close.
//!
//! An error comes back, nothing hangs and nothing panics. What was acknowledged before is still readable, a
//! failed operation has changed at most the record that it was to change, and once storage works again, all
//! operations succeed, the file is sound, and it closes. After a failed sync nothing can be promised.

use crate::support::{create_tree, open_tree, options, problems, sealed, verify};
use std::{cell::Cell, collections::BTreeMap, sync::Arc};
use vellum_access::{AccessError, Tree};
use vellum_pool::{Pool, PoolError, PoolOptions};
use vellum_vm::{Faults, FileOperation, SimulatedFile};

type Model = BTreeMap<u64, Vec<u8>>;

/// One step of the script.
#[derive(Clone, Copy, Debug)]
enum Step {
    Put { key: u64, length: usize },
    Stream { key: u64, length: usize },
    Remove { key: u64 },
    Get { key: u64 },
    Part { key: u64 },
    Scan,
}

fn script() -> Vec<Step> {
    let mut steps = Vec::new();
    // Spread keys, so that every leaf is visited again after it has been evicted.
    let key = |number: u64| number * 7919 % 1000;
    for number in 0..142 {
        let length = match number % 13 {
            5 => 5000,
            9 => 1100,
            _ => 400 + (number % 3) as usize * 250,
        };
        steps.push(Step::Put { key: key(number), length });
        if number % 9 == 8 {
            steps.push(Step::Get { key: key(number / 2) });
        }
    }
    steps.push(Step::Stream { key: key(3), length: 150_000 });
    steps.push(Step::Part { key: key(3) });
    steps.push(Step::Put { key: key(5), length: 9000 });
    steps.push(Step::Scan);
    for number in (0..142).filter(|number| number % 8 != 1) {
        steps.push(Step::Remove { key: key(number) });
    }
    steps.push(Step::Put { key: key(9), length: 700 });
    steps.push(Step::Scan);
    steps
}

/// Applies a step to tree and model. After a failed operation it is uncertain what its key holds.
fn apply(tree: &Tree<'_, Pool>, model: &mut Model, version: u64, step: Step) -> Result<(), AccessError> {
    match step {
        Step::Put { key, length } => {
            let value = sealed(key, version, length);
            tree.upsert(&key.to_be_bytes(), &value)?;
            model.insert(key, value);
        }
        Step::Stream { key, length } => {
            let value = sealed(key, version, length);
            tree.upsert_from(&key.to_be_bytes(), length as u64, &mut &value[..])?;
            model.insert(key, value);
        }
        Step::Remove { key } => {
            let removed = tree.remove(&key.to_be_bytes())?;
            assert_eq!(removed, model.remove(&key).is_some(), "key {key}");
        }
        Step::Get { key } => {
            assert_eq!(tree.get(&key.to_be_bytes())?.as_ref(), model.get(&key), "key {key}");
        }
        Step::Part { key } => {
            let mut part = vec![0; 70_000];
            let mut reader = tree.reader(&key.to_be_bytes())?.expect("a large value");
            assert_eq!(reader.read_at(60_001, &mut part)?, part.len());
            assert_eq!(part, model[&key][60_001..][..part.len()]);
        }
        Step::Scan => {
            let mut cursor = tree.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)?;
            let mut expected = model.iter();
            while let Some(entry) = cursor.next()? {
                let (key, value) = expected.next().expect("the scan ends with the model");
                assert_eq!(entry.key(), key.to_be_bytes());
                assert_eq!(entry.value_length(), value.len() as u64);
            }
            assert!(expected.next().is_none(), "the scan ended early");
        }
    }
    Ok(())
}

/// Compares everything with the model. Panics at a difference; an error of storage is returned.
fn check_all(tree: &Tree<'_, Pool>, model: &Model) -> Result<(), AccessError> {
    for (key, value) in model {
        let bytes = key.to_be_bytes();
        if let Some(mut reader) = tree.reader(&bytes)? {
            let mut found = vec![0; reader.length() as usize];
            assert_eq!(reader.read_at(0, &mut found)?, value.len());
            assert!(found == *value, "the value of key {key} differs");
        } else {
            assert_eq!(tree.get(&bytes)?.as_ref(), Some(value), "key {key}");
        }
    }
    Ok(())
}

fn pool_options() -> PoolOptions {
    // One thread, so that the n-th I/O is the same each time.
    options(24).background_eviction(false)
}

/// Runs the script on a file prepared by `arm`, healing it after the first error if `transient`. Returns the
/// first error, if there was one.
fn run(file: &SimulatedFile, transient: bool) -> Option<AccessError> {
    let pool = match Pool::create_on(Arc::new(file.clone()), &pool_options()) {
        Ok(pool) => pool,
        Err(error) => return Some(error.into()),
    };
    let mut model = Model::new();
    let mut first = None;
    let tree = loop {
        match create_tree(&pool) {
            Ok(tree) => break tree,
            Err(error) if transient && first.is_none() => first = Some(error),
            Err(error) => return Some(error),
        }
    };
    for (version, step) in script().into_iter().enumerate() {
        let mut attempts = 0;
        while let Err(error) = apply(&tree, &mut model, version as u64, step) {
            assert!(matches!(error, AccessError::Pool(_)), "{step:?}: {error}");
            first = first.or(Some(error));
            attempts += 1;
            if !transient {
                // No I/O works any more; another test checks that what is in memory is still sound.
                return first;
            }
            assert!(attempts < 3, "{step:?} fails again and again: {first:?}");
        }
    }
    if let Err(error) = check_all(&tree, &model) {
        assert!(transient || first.is_none());
        first = first.or(Some(error));
        if !transient {
            return first;
        }
        check_all(&tree, &model).expect("the second attempt");
    }
    let mut pool = pool;
    if let Err(error) = pool.checkpoint() {
        let poisoned = matches!(error, PoolError::Sync(_));
        first = first.or(Some(error.into()));
        if !transient || poisoned {
            return first;
        }
        pool.checkpoint().expect("the second attempt");
    }
    drop(pool);
    CLOSED_AFTER.set(file.counts().total());
    file.heal();
    let pool = Pool::open_on(Arc::new(file.clone()), &pool_options()).unwrap();
    let tree = open_tree(&pool);
    check_all(&tree, &model).unwrap();
    assert_eq!(verify(&pool, &tree).shape.entries as usize, model.len());
    first
}

thread_local! {
    /// After how many operations the last run had closed its file.
    static CLOSED_AFTER: Cell<u64> = const { Cell::new(0) };
}

/// How many operations the script does on a file of this seed without faults. Requests of a cursor that reads ahead are
/// done in an order that depends on the seed, and with it how many there are.
fn operations(seed: u64) -> u64 {
    assert!(run(&SimulatedFile::new(seed), true).is_none());
    CLOSED_AFTER.get()
}

#[test]
fn any_single_failure_is_survived() {
    let total = operations(7);
    assert!(total > 200, "the script does too little: {total}");
    let mut noticed = 0;
    for n in 1..=total {
        let file = SimulatedFile::new(n);
        file.fail_nth(n);
        if run(&file, true).is_some() {
            noticed += 1;
        }
    }
    // Some failures are not reported: a page that cannot be written is kept while another one can be evicted.
    assert!(noticed > total / 4, "{noticed} of {total} were reported");
}

#[test]
fn a_device_that_dies_at_any_moment_is_reported() {
    let mut died = 0;
    for n in 1.. {
        let total = operations(n);
        if n > total + 50 {
            break;
        }
        let file = SimulatedFile::new(n);
        file.fail_from(n);
        // A run may end before its n-th operation.
        let noticed = run(&file, false).is_some();
        assert!(noticed || n > total, "operation {n} of {total} and all later ones failed unnoticed");
        died += u64::from(n <= total);
    }
    assert!(died > 200, "the script does too little: {died}");
}

/// When all operations fail from some moment on, what was read in or written before is still right in memory.
#[test]
fn what_was_there_before_writes_began_to_fail_is_still_readable() {
    for n in (1..400).step_by(7) {
        let file = SimulatedFile::new(n);
        let pool = Pool::create_on(Arc::new(file.clone()), &pool_options()).unwrap();
        let tree = create_tree(&pool).unwrap();
        file.fail_from_of(FileOperation::Write, n);
        let mut model = Model::new();
        for (version, step) in script().into_iter().enumerate() {
            if apply(&tree, &mut model, version as u64, step).is_err() {
                break;
            }
        }
        file.heal();
        check_all(&tree, &model).unwrap();
        verify(&pool, &tree);
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file), &pool_options()).unwrap();
        check_all(&open_tree(&pool), &model).unwrap();
    }
}

#[test]
fn a_full_disk_at_any_size_is_an_error_and_loses_nothing() {
    let file = SimulatedFile::new(1);
    assert!(run(&file, true).is_none());
    let largest = file.snapshot().size() * 2;
    let (mut refused, mut fitted) = (0, 0);
    for capacity in (2..=largest / 4096).step_by(3) {
        let file = SimulatedFile::new(capacity);
        file.set_faults(Faults { capacity_bytes: Some(capacity * 4096), ..Faults::default() });
        let pool = Pool::create_on(Arc::new(file.clone()), &pool_options()).unwrap();
        let mut model = Model::new();
        let tree = match create_tree(&pool) {
            Ok(tree) => tree,
            Err(error) => {
                assert_full(&error);
                continue;
            }
        };
        let mut full = false;
        for (version, step) in script().into_iter().enumerate() {
            if let Err(error) = apply(&tree, &mut model, version as u64, step) {
                assert_full(&error);
                full = true;
                // This step stores a part of a value, and could not.
                if matches!(step, Step::Stream { .. }) {
                    break;
                }
            }
        }
        check_all(&tree, &model).unwrap();
        verify(&pool, &tree);
        if full {
            refused += 1
        } else {
            fitted += 1
        }
        // Space on the device becomes free.
        file.heal();
        pool.close().unwrap();
        let pool = Pool::open_on(Arc::new(file), &pool_options()).unwrap();
        check_all(&open_tree(&pool), &model).unwrap();
        let (found, _) = problems(&pool, &open_tree(&pool));
        assert!(found.is_empty(), "{found:?}");
    }
    assert!(refused > 10 && fitted > 0, "{refused} refused, {fitted} fitted");
}

fn assert_full(error: &AccessError) {
    let AccessError::Pool(PoolError::StorageFull { .. }) = error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("free space"), "{error}");
}
