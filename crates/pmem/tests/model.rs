//! Stores in files behave as maps, with many clients at once, through reclaiming and reopening.

mod common;

use common::{Place, Random, create, open, value};
use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};
use vellum_pmem::{Fixed, Put, Reader, Store, Variable};

type Model = HashMap<Vec<u8>, Vec<u8>>;

fn everything(reader: &Reader<Variable>) -> Model {
    let mut all = Model::new();
    reader
        .for_each(|key, value| {
            assert!(all.insert(key.to_vec(), value.to_vec()).is_none(), "shown twice");
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

/// Clients with keys of their own do everything at random while one reclaims; each knows what its keys must hold.
fn many_clients(store: &Store<Variable>, seed: u64, steps: u64) -> Model {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.reclaim().unwrap();
                std::thread::yield_now();
            }
        });
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random(seed ^ thread << 40);
                    let mut model = Model::new();
                    let mut client = store.client().unwrap();
                    for step in 0..steps {
                        let key = format!("{}-{thread}", random.below(500)).into_bytes();
                        let bytes = [0, 8, 30, 200, 3000, 9000, 60_000]
                            [random.below(7) as usize % (1 + step as usize % 7)];
                        let new = value(step, bytes);
                        match random.below(10) {
                            0..=3 => {
                                let put = client.put(&key, &new).unwrap();
                                let old = model.insert(key, new);
                                assert_eq!(put, if old.is_some() { Put::Replaced } else { Put::Inserted });
                            }
                            4..=5 => {
                                assert_eq!(client.delete(&key).unwrap(), model.remove(&key).is_some());
                            }
                            6 => {
                                let change = |value: &mut Vec<u8>| {
                                    if let Some(first) = value.first_mut() {
                                        *first = first.wrapping_add(2);
                                    }
                                };
                                assert_eq!(client.update(&key, change).unwrap(), model.contains_key(&key));
                                model.entry(key).and_modify(change);
                            }
                            7 => assert_eq!(client.get(&key).unwrap(), model.get(&key).cloned()),
                            8 => {
                                let keys: Vec<Vec<u8>> = (0..20)
                                    .map(|_| format!("{}-{thread}", random.below(500)).into_bytes())
                                    .collect();
                                let found = client.get_batch(keys.iter().map(Vec::as_slice)).unwrap();
                                assert!(
                                    keys.iter()
                                        .zip(found)
                                        .all(|(key, found)| model.get(key) == found.as_ref())
                                );
                            }
                            _ if step % 50 == 0 => client = store.client().unwrap(),
                            _ => {
                                client.put_batch([(&key[..], &new[..]), (b"shared", b"by all")]).unwrap();
                                model.insert(key, new);
                            }
                        }
                    }
                    model
                })
            })
            .collect();
        let all = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        all
    })
}

#[test]
fn many_clients_and_reclaiming_at_once() {
    let place = Place::new();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let store = create::<Variable>(&place);
    let mut model = many_clients(&store, seed, 4000);
    model.insert(b"shared".to_vec(), b"by all".to_vec());
    assert_eq!(everything(&store.reader()), model);
    assert_eq!(store.len(), model.len() as u64);
    drop(store);
    let store = open::<Variable>(&place);
    assert_eq!(everything(&store.reader()), model, "after reopening");
    assert_eq!(store.recovery().superseded, 0);
}

#[test]
fn counters_that_all_change_lose_nothing() {
    let place = Place::new();
    let store = create::<Fixed<8, 8>>(&place);
    let mut client = store.client().unwrap();
    for key in 0..4u64 {
        client.put(&key.to_le_bytes(), &[0; 8]).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = store.client().unwrap();
                for step in 0..5000u64 {
                    let key = (step % 4).to_le_bytes();
                    let add = |value: &mut Vec<u8>| {
                        let number = u64::from_le_bytes(value.as_slice().try_into().unwrap()) + 1;
                        value.copy_from_slice(&number.to_le_bytes());
                    };
                    assert!(client.update(&key, add).unwrap());
                }
            });
        }
        scope.spawn(|| {
            // What is read never goes back.
            let reader = store.reader();
            let mut last = 0;
            while last < 5000 {
                let now = reader.get(&0u64.to_le_bytes()).unwrap().unwrap();
                let now = u64::from_le_bytes(now.try_into().unwrap());
                assert!(now >= last);
                last = now;
            }
        });
    });
    for key in 0..4u64 {
        assert_eq!(client.get(&key.to_le_bytes()).unwrap().unwrap(), 5000u64.to_le_bytes());
    }
}

#[test]
fn clients_that_overwrite_each_others_records_never_wait_for_ever_and_never_tear() {
    let place = Place::new();
    let store = create::<Fixed<16, 200>>(&place);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                let mut client = store.client().unwrap();
                for step in 0..20_000u64 {
                    let key = u128::from(step % 17).to_le_bytes();
                    match step % 5 {
                        4 => {
                            client.delete(&key).unwrap();
                        }
                        _ => {
                            client.put(&key, &[thread * 50 + (step % 50) as u8; 200]).unwrap();
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            let (reader, mut value) = (store.reader(), Vec::new());
            for step in 0..100_000u64 {
                if reader.get_into(&u128::from(step % 17).to_le_bytes(), &mut value).unwrap() {
                    assert!(value.len() == 200 && value.iter().all(|byte| *byte == value[0]), "torn");
                }
            }
        });
    });
    assert!(store.len() <= 17);
}

#[test]
fn half_of_a_store_is_reclaimed_and_given_back() {
    let place = Place::new();
    let store = create::<Fixed<16, 200>>(&place);
    let mut client = store.client().unwrap();
    let key = |number: u64| u128::from(number).to_le_bytes();
    let filled = |number: u64| -> [u8; 200] { value(number, 200).try_into().unwrap() };
    for number in 0..40_000 {
        client.put(&key(number), &filled(number)).unwrap();
    }
    let full = std::fs::metadata(place.path()).unwrap().len();
    let keys: Vec<_> = (0..40_000).filter(|number| number % 2 == 0).map(key).collect();
    assert_eq!(client.delete_batch(&keys).unwrap(), 20_000);
    // The client is idle, and its own block is the last one; it is taken away like any other.
    let reclaimed = store.reclaim().unwrap();
    assert!(reclaimed.blocks_compacted > 100 && reclaimed.blocks_returned > 100, "{reclaimed:?}");
    let left = std::fs::metadata(place.path()).unwrap().len();
    assert!(left < full * 2 / 3, "{left} of {full}");
    let check = |store: &Store<Fixed<16, 200>>| {
        let reader = store.reader();
        for number in 0..40_000 {
            let expected = (number % 2 == 1).then(|| filled(number).to_vec());
            assert_eq!(reader.get(&key(number)).unwrap(), expected);
        }
    };
    check(&store);
    // The client takes another block, and what was given back is used again.
    for number in 0..40_000 {
        client.put(&key(number + 100_000), &filled(number)).unwrap();
    }
    drop((client, store));
    let store = open(&place);
    check(&store);
    assert_eq!(store.len(), 60_000);
}

#[test]
fn idle_clients_do_not_keep_a_store_large() {
    let place = Place::new();
    let store = create::<Variable>(&place);
    let mut clients: Vec<_> = (0..200).map(|_| store.client().unwrap()).collect();
    let key = |number: usize| number.to_le_bytes();
    // Each has a block of its own, with three records of which one stays.
    for (number, client) in clients.iter_mut().enumerate() {
        for record in 0..3 {
            client.put(&key(number * 3 + record), &value(number as u64, 5000)).unwrap();
        }
    }
    let full = store.statistics().blocks;
    assert!(full >= 200, "{full}");
    let gone: Vec<_> = (0..600).filter(|record| record % 3 != 1).map(key).collect();
    assert_eq!(clients[0].delete_batch(gone.iter().map(|key| &key[..])).unwrap(), 400);
    store.reclaim().unwrap();
    let left = store.statistics();
    // Two records of two pages each fit into a block beside others.
    assert!(left.blocks - left.blocks_free <= full / 2, "{left:?}");
    assert!(left.blocks < full, "{left:?}");
    // All clients go on as if nothing had happened, each with what it finds.
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.get(&key(number * 3 + 1)).unwrap(), Some(value(number as u64, 5000)));
        client.put(&key(number * 3), &value(number as u64, 300)).unwrap();
    }
    drop((clients, store));
    let store = open::<Variable>(&place);
    assert_eq!(store.len(), 400);
    for number in 0..200 {
        assert_eq!(store.reader().get(&key(number * 3)).unwrap(), Some(value(number as u64, 300)));
    }
}

#[test]
fn blocks_that_wait_for_a_client_and_hold_nothing_are_given_back() {
    for checksums in [true, false] {
        let place = Place::new();
        let options = vellum_pmem::Options { checksums, ..common::options() };
        let store = Store::<Variable>::create(place.path(), &options).unwrap();
        let first = store.statistics().file_bytes;
        // Each has a block of its own, with a record so small that it is not worth compacting.
        let mut clients: Vec<_> = (0..200).map(|_| store.client().unwrap()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.put(&number.to_le_bytes(), b"value").unwrap();
        }
        drop(clients);
        let mut client = store.client().unwrap();
        (0..200usize).for_each(|number| assert!(client.delete(&number.to_le_bytes()).unwrap()));
        drop(client);
        assert!(store.statistics().blocks >= 200);
        // What the file has just grown by stays for a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        store.reclaim().unwrap();
        let left = store.statistics();
        assert_eq!((left.records, left.blocks, left.blocks_unfinished), (0, 0, 0), "{left:?}");
        assert!(left.file_bytes <= first.next_multiple_of(256 << 10), "{left:?}");
    }
}

/// A client leaves the retraction of a record that it has replaced to its next operation, which never comes.
#[test]
fn clients_that_sleep_after_they_have_replaced_records_keep_no_block() {
    for (checksums, bytes) in [(true, 9000), (false, 9000), (true, 60_000), (false, 60_000)] {
        let place = Place::new();
        let options = vellum_pmem::Options { checksums, ..common::options() };
        let store = Store::<Variable>::create(place.path(), &options).unwrap();
        let first = store.statistics().file_bytes;
        let mut clients: Vec<_> = (0..100).map(|_| store.client().unwrap()).collect();
        for round in 0..2 {
            for (number, client) in clients.iter_mut().enumerate() {
                let put = client.put(&number.to_le_bytes(), &value(round, bytes)).unwrap();
                assert_eq!(put, [Put::Inserted, Put::Replaced][round as usize]);
            }
        }
        let mut client = store.client().unwrap();
        (0..100usize).for_each(|number| assert!(client.delete(&number.to_le_bytes()).unwrap()));
        drop(client);
        assert!(store.statistics().blocks >= 100);
        // What the file has just grown by stays for a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        store.reclaim().unwrap();
        let left = store.statistics();
        // A block of which nothing is known to be free yet may be left at the beginning.
        assert!(left.records == 0 && left.blocks <= 1 && left.blocks_unfinished == 0, "{left:?}");
        assert!(left.file_bytes <= first.next_multiple_of(256 << 10), "{left:?}");
        // They go on as if nothing had happened, in the same space.
        for round in 2..5 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.put(&number.to_le_bytes(), &value(round, bytes)).unwrap();
            }
        }
        drop((clients, store));
        let store = Store::<Variable>::open(place.path(), &options).unwrap();
        assert_eq!(store.len(), 100);
        for number in 0..100usize {
            assert_eq!(store.reader().get(&number.to_le_bytes()).unwrap(), Some(value(4, bytes)));
        }
    }
}
