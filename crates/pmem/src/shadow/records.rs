//! The records that these tests put into stores, and a store that holds some of them.

use super::model::{Entries, Runner, Setting, Testable, contents};
use crate::layout::mix;

/// A key of eight bytes.
pub fn key(number: u64) -> Vec<u8> {
    (number + 1).to_le_bytes().to_vec()
}

/// A value without zero bytes, different for each number.
pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (mix(number * 4096 + at / 8) >> (at % 8 * 8)) as u8 | 1).collect()
}

/// A store with a few records, some deleted, as it lies in memory, and what it holds.
pub fn sample<L: Testable>(setting: &Setting, sizes: &[usize]) -> (Vec<u64>, Entries) {
    let quiet = Setting { states: 1, ..setting.clone() };
    let runner = Runner::<L>::new(&quiet);
    let mut client = runner.store.client().unwrap();
    for number in 0..24u64 {
        let bytes = sizes[number as usize % sizes.len()];
        client.put(L::key(&key(number)), L::value(&value(number, bytes))).unwrap();
    }
    for number in (0..24).step_by(5) {
        assert!(client.delete(L::key(&key(number))).unwrap());
    }
    drop(client);
    let held = contents(&runner.store);
    let mut image = Vec::new();
    runner.store.core().medium.crash_states().for_each(1, 1, |state| {
        // The first state is the one in which nothing is lost.
        if !image.is_empty() {
            return;
        }
        image = (0..state.capacity_words()).map(|word| state.word(word)).collect();
    });
    (image, held)
}
