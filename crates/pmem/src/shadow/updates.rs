//! Changes of one word of a value, in every place and in every state that a crash can leave, and two in a row by one
//! client and by two.

use super::{
    model::{Op, Runner, Setting, Testable},
    records::{key, value},
};
use crate::{Fixed, Variable};

/// A value with one word changed; the last word only as far as the value goes.
fn changed(mut value: Vec<u8>, word: usize, by: u8) -> Vec<u8> {
    value[word * 8] ^= by;
    value
}

fn every_word<L: Testable>(bytes: usize) -> u64 {
    let setting = Setting { states: 1 << 12, depth: 1, bytes: 128 << 10, ..Setting::default() };
    let mut states = 0;
    for word in 0..bytes.div_ceil(8) {
        let old = value(1, bytes);
        let next = (word + 1) % bytes.div_ceil(8);
        let once = changed(old.clone(), word, 2);
        let history = [
            Op::Put(0, key(0), old.clone()),
            // The first change has nothing to wait for. The second must wait for the word of the first, and is by the
            // same client; the third is by another. The last reverts the first, with the same word in another place
            // before it.
            Op::Update(0, key(0), once.clone()),
            Op::Update(0, key(0), changed(once.clone(), next, 4)),
            Op::Update(1, key(0), changed(changed(once, next, 4), word, 8)),
            Op::Update(0, key(0), changed(changed(old.clone(), next, 4), word, 10)),
            Op::Update(1, key(0), changed(old, next, 4)),
            Op::Delete(0, key(0)),
        ];
        let (problem, ledger, _) = Runner::<L>::new(&setting).run_all(&history);
        assert_eq!(problem, None, "word {word} of {bytes} bytes");
        assert_eq!(ledger.moments.1, 0, "of some moment not all states were tried");
        states += ledger.states;
    }
    states
}

#[test]
fn a_word_is_changed_wholly_or_not_at_all_in_records_of_one_size() {
    let states = every_word::<Fixed<8, 8>>(8) + every_word::<Fixed<8, 20>>(20);
    assert!(states > 100, "{states}");
}

#[test]
fn a_word_is_changed_wholly_or_not_at_all_in_records_of_any_size() {
    let states = every_word::<Variable>(12);
    assert!(states > 100, "{states}");
}
