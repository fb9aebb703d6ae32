//! Batches whose operations do not fit into memory together, or are many.

use super::*;
use std::sync::Arc;
use vellum_pool::{Pool, PoolOptions};
use vellum_vm::SimulatedFile;

/// Two large values do not fit into memory together: the read of one evicts the other, and their leaf.
#[test]
fn operations_whose_pages_do_not_fit_together_end() {
    for (one, other) in [(9, 15), (15, 9), (12, 13), (15, 15)] {
        let options = PoolOptions::default().pool_bytes(24 * 4096).capacity_bytes(1 << 28);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(2)), &options).unwrap();
        let tree = Tree::create(&pool).unwrap();
        for (key, pages) in [(1, one), (2, other)] {
            tree.upsert(&[key], &vec![key; pages * 4096 - 100]).unwrap();
        }
        for keys in [[[1], [2]], [[2], [1]]].into_iter().cycle().take(12) {
            let mut shown = 0;
            tree.multi_get_part(&keys, 16, 0..1, |index, found| {
                assert_eq!(found.unwrap(), Some(&keys[index][..]), "{one} and {other} pages");
                shown += 1;
            });
            assert_eq!(shown, 2);
        }
    }
}

/// One of the answers is never taken: the values of all others must not pile up because of it.
#[test]
fn values_that_were_taken_are_dropped_though_others_were_not() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28);
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
    let tree = Tree::create(&pool).unwrap();
    let value = |number: u32| vec![number as u8; 1000];
    (0..300u32).for_each(|number| assert!(tree.insert(&number.to_be_bytes(), &value(number)).unwrap()));
    let mut batch: Batch<'_, Pool, [u8; 4], Vec<u8>> = Batch::new(&pool, 16);
    let first = batch.begin(tree, 7u32.to_be_bytes(), Task::Get, 7);
    for round in 0..40 {
        let places: Vec<_> = (0..300u32)
            .map(|number| (number, batch.begin(tree, number.to_be_bytes(), Task::Get, 0)))
            .collect();
        for (number, place) in places {
            while !batch.is_finished(place) {
                batch.advance(true);
            }
            let taken =
                batch.take_from(place, |_, _, answer| answer.unwrap() == Answer::Value(Some(&value(number))));
            assert_eq!(taken, Some(true), "{number} in round {round}");
        }
        assert!(batch.results.values.len() <= VALUES_BYTES_KEPT + 400_000);
    }
    let taken = batch.take_from(first, |_, _, answer| answer.unwrap() == Answer::Value(Some(&value(7))));
    assert_eq!(taken, Some(true));
    assert!(batch.is_empty() && batch.results.values.is_empty());
}

/// Each step looks at all that wait, and those that are under way evict each other's pages.
#[test]
fn few_of_many_operations_are_under_way_at_once() {
    let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28);
    let pool = Pool::create_on(Arc::new(SimulatedFile::new(3)), &options).unwrap();
    let tree = Tree::create(&pool).unwrap();
    let key = |number: u32| (number % 4000).to_be_bytes();
    (0..4000).for_each(|number| assert!(tree.insert(&key(number), &[7; 900]).unwrap()));
    let mut batch: Batch<'_, Pool, [u8; 4], Vec<u8>> = Batch::new(&pool, 16);
    for round in 0..3 {
        for number in 0..10_000 {
            batch.begin(tree, key(number * 7), Task::Get, number.into());
        }
        let mut is_done = vec![false; 10_000];
        while !batch.is_empty() {
            batch.advance(true);
            let Waiting { reads, room, pages, .. } = &batch.waiting;
            let under_way = batch.ready.len() + reads.len() + room.len() + pages.len();
            assert!(under_way <= 2048, "{under_way} in round {round}");
            while let Some(number) = batch.take(|tag, request, answer| {
                assert_eq!(request.0, key(tag as u32 * 7));
                assert_eq!(answer.unwrap(), Answer::Value(Some(&[7; 900])));
                tag as usize
            }) {
                assert!(!std::mem::replace(&mut is_done[number], true));
            }
        }
        assert!(is_done.iter().all(|is_done| *is_done));
    }
}
