//! Changes of one word of a value, in every place and in every state that a crash can leave, and two in a row by one
//! client and by two.

use super::{
    CrashStates, Shadow,
    model::{Op, Runner, Setting, Testable, contents},
    records::{key, value},
};
use crate::{Fixed, Store, Variable, medium::Medium, memory::WORD};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

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

/// What a crash can leave at each fence of a change, of the store's only record, to a value.
fn crashes_in_change<L: Testable>(store: &Store<L, Shadow>, to: &[u8]) -> Vec<CrashStates> {
    let taken = Arc::<Mutex<Vec<CrashStates>>>::default();
    let seen = taken.clone();
    store
        .core()
        .medium
        .set_observer(Box::new(move |states: &CrashStates| seen.lock().unwrap().push(states.clone())));
    let mut client = store.client().unwrap();
    client.update(L::key(&key(0)), |value| *value = to.to_vec()).unwrap();
    std::mem::take(&mut *taken.lock().unwrap())
}

/// A change that a crash undid does not come back with another one that puts the same word elsewhere, and that a crash
/// interrupts, too. Returns how many states the second crash has left.
fn twice<L: Testable>() -> u32 {
    let setting = Setting { pages_per_block: 1, ..Setting::default() };
    let words = |words: [u64; 3]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let (before, first, second) = (words([5, 6, 7]), words([1, 6, 7]), words([5, 1, 7]));
    let shadow = Shadow::new(setting.bytes);
    let store = Store::<L, Shadow>::create_on(shadow, &setting.options(), 4, 2).unwrap();
    store.client().unwrap().put(L::key(&key(0)), L::value(&before)).unwrap();
    let mut states = 0;
    crashes_in_change(&store, &first)[0].for_each(1 << 10, 1, |shadow| {
        let store = setting.open::<L>(shadow).unwrap();
        if contents(&store)[&key(0)] == before {
            for left in crashes_in_change(&store, &second) {
                left.for_each(1 << 10, 1, |shadow| {
                    let found = contents(&setting.open::<L>(shadow).unwrap())[&key(0)].clone();
                    assert!(found == before || found == second, "{found:?}");
                    states += 1;
                });
            }
        }
    });
    states
}

#[test]
fn a_change_that_a_crash_undid_does_not_come_back() {
    assert!(twice::<Fixed<8, 24>>() >= 10 && twice::<Variable>() >= 10);
}

/// Words of the value of the only record, which two words of are raised in turn: first word 0, then word 5.
fn raised<L: Testable>(checksums: bool, bytes: usize) -> Store<L, Shadow> {
    let setting = Setting { checksums, ..Setting::default() };
    let store = Store::<L, Shadow>::create_on(Shadow::new(setting.bytes), &setting.options(), 4, 2).unwrap();
    store.client().unwrap().put(L::key(&key(0)), L::value(&vec![0; bytes])).unwrap();
    store
}

fn raise<L: Testable>(store: &Store<L, Shadow>, times: u64) {
    let mut client = store.client().unwrap();
    for _ in 0..times {
        for at in [0, 5 * WORD] {
            assert!(client.update(L::key(&key(0)), |value| value[at] += 1).unwrap());
        }
    }
}

/// A reader that has copied word 0 is overtaken by as many changes, before it copies word 5.
fn overtaken<L: Testable>(checksums: bool, bytes: usize, times: u64) {
    let store = raised::<L>(checksums, bytes);
    let core = store.core();
    let mut tries = 0;
    let found = core.read(core.hash(&key(0)), &key(0), |record| {
        let word = |number: usize| {
            core.medium.memory().word(record.value_at() + (number * WORD) as u64).load(Ordering::Relaxed)
        };
        let first = word(0);
        tries += 1;
        if tries == 1 {
            raise(&store, times);
        }
        (first, word(5))
    });
    assert_eq!(found.unwrap(), Some((times, times)), "{bytes} bytes, checksums: {checksums}");
    assert_eq!(tries, 2);
}

#[test]
fn a_reader_that_is_overtaken_reads_again() {
    for times in [1, 64] {
        overtaken::<Fixed<8, 48>>(true, 48, times);
        overtaken::<Variable>(true, 100, times);
        // The version of the page comes round.
        overtaken::<Fixed<8, 48>>(false, 48, times);
        overtaken::<Variable>(false, 100, times);
        overtaken::<Variable>(true, 5000, times);
    }
}

#[test]
fn readers_see_no_value_that_never_was() {
    for (checksums, bytes) in [(true, 100), (false, 100), (true, 5000)] {
        let store = raised::<Variable>(checksums, bytes);
        let is_done = AtomicBool::new(false);
        let check = |value: &[u8]| assert!(value[0] == value[40] || value[0] == value[40] + 1, "{value:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (reader, key) = (store.reader(), key(0));
                let mut value = Vec::new();
                while !is_done.load(Ordering::Relaxed) {
                    assert!(reader.get_into(&key, &mut value).unwrap());
                    check(&value);
                    let batch = reader.get_batch([&key[..], &key[..]]).unwrap();
                    batch.iter().for_each(|value| check(value.as_ref().unwrap()));
                    let shown = reader.for_each(|_, value| {
                        check(value);
                        std::ops::ControlFlow::Continue(())
                    });
                    shown.unwrap();
                }
            });
            raise(&store, 250);
            is_done.store(true, Ordering::Relaxed);
        });
    }
}
