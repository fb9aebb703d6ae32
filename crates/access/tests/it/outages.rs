//! Pages that cannot be written for a long time: a full disk, a quota, a device that fails.

use crate::support::{create_tree, options, sealed, unseal, verify};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use vellum_access::AccessError;
use vellum_pool::{Pool, PoolError};
use vellum_vm::{Faults, SimulatedFile};

const ENTRIES: u64 = 2000;
/// Every operation takes less time than this, however often it tries.
const PATIENCE: Duration = Duration::from_secs(10);

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn timed<T>(what: &str, operation: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let outcome = operation();
    assert!(begun.elapsed() < PATIENCE, "{what} took {:?}", begun.elapsed());
    outcome
}

fn outages(size: u64) -> [(&'static str, Faults); 3] {
    [
        ("a quota", Faults { reserved_bytes: Some(0), ..Faults::default() }),
        ("a full disk", Faults { reserved_bytes: Some(size), ..Faults::default() }),
        ("a failing device", Faults { write_error: 1.0, ..Faults::default() }),
    ]
}

#[test]
fn reads_go_on_and_changes_say_why_they_cannot_until_pages_can_be_written_again() {
    for outage in 0..3 {
        for (pool_pages, background) in
            [(16, false), (16, true), (64, true), (512, false), (512, true), (4096, true)]
        {
            let file = SimulatedFile::new(pool_pages);
            let options = options(pool_pages).background_eviction(background);
            let mut pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
            let tree = create_tree(&pool).unwrap();
            for number in 0..ENTRIES {
                tree.upsert(&key(number), &sealed(number, 1, 500)).unwrap();
            }
            let root = tree.root();
            pool.checkpoint().unwrap();
            let tree = vellum_access::Tree::open(&pool, root);
            let (outage, faults) = outages(file.snapshot().size())[outage].clone();
            file.set_faults(faults);
            let (mut changed, mut errors) = (ENTRIES, 0);
            let mut refused = Vec::new();
            while errors < 200 {
                let number = changed + errors;
                let length = if number % 2 == 0 { 3000 } else { 700 };
                match timed("a change", || tree.upsert(&key(number), &sealed(number, 1, length))) {
                    Ok(_) => changed += 1,
                    Err(AccessError::Pool(error @ PoolError::Write { .. })) => {
                        assert!(error.to_string().starts_with("cannot write"), "{error}");
                        refused.push(number);
                        errors += 1;
                    }
                    Err(error) => panic!("{outage}, {pool_pages} pages: {error}"),
                }
            }
            let numbers = (0..changed + errors).filter(|number| !refused.contains(number));
            for number in numbers.clone() {
                let value = timed("a read", || tree.value(&key(number)));
                let value = value.unwrap_or_else(|error| {
                    panic!("{outage}, {pool_pages} pages, background {background}: {error}")
                });
                unseal(number, &value.unwrap());
            }
            let removed = timed("a removal", || tree.remove(&key(5)));
            match removed {
                Err(AccessError::Pool(PoolError::Write { .. })) => {}
                // Pages that were in the file before can be written.
                Ok(true) if outage == "a full disk" => refused.push(5),
                other => panic!("{outage}, {pool_pages} pages: {other:?}"),
            }
            assert!(timed("a checkpoint", || pool.checkpoint()).is_err());
            // The next change finds out that pages can be written again.
            file.heal();
            let tree = vellum_access::Tree::open(&pool, root);
            let healed = Instant::now();
            while tree.upsert(&key(refused[0]), &sealed(refused[0], 1, 700)).is_err() {
                assert!(healed.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            for number in refused {
                tree.upsert(&key(number), &sealed(number, 1, 700)).unwrap();
            }
            verify(&pool, &tree);
            pool.close().unwrap();
            let pool = Pool::open_on(Arc::new(file), &options).unwrap();
            let tree = vellum_access::Tree::open(&pool, root);
            for number in 0..changed + errors {
                unseal(number, &tree.value(&key(number)).unwrap().unwrap());
            }
        }
    }
}

#[test]
fn a_file_that_cannot_grow_is_asked_to_seldom() {
    let file = SimulatedFile::new(1);
    file.set_faults(Faults { capacity_bytes: Some(4 << 20), ..Faults::default() });
    let pool = Pool::create_on(Arc::new(file.clone()), &options(4096)).unwrap();
    let tree = create_tree(&pool).unwrap();
    let mut number = 0;
    let put = |number: u64| tree.upsert(&key(number), &sealed(number, 1, 3000));
    while put(number).is_ok() {
        number += 1;
    }
    // As slow as a file system that searches everywhere for room.
    file.set_faults(Faults { delay_max: Duration::from_millis(20), ..file.faults() });
    let before = file.counts().of(vellum_vm::FileOperation::Resize);
    let (begun, mut errors) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        number += 1;
        errors += u64::from(put(number).is_err());
    }
    let asked = file.counts().of(vellum_vm::FileOperation::Resize) - before;
    assert!(errors > 1000 && asked < 50, "{errors} errors, asked {asked} times");
    file.heal();
    std::thread::sleep(Duration::from_secs(1));
    put(number).unwrap();
    verify(&pool, &tree);
}
