//! Several clients at once, and crashes in the middle of what they do.

use super::{
    Shadow,
    model::{Expected, Setting, Testable, audit, contents},
    records::{key, value},
};
use crate::{Fixed, Store, Variable, layout::mix};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Threads with separate keys put, update and delete, another one reclaims, and now and then a crash is checked.
fn run<L: Testable>(seed: u64, sizes: &'static [usize]) -> u64 {
    let setting = Setting { states: 6, seed, bytes: 4 << 20, ..Setting::default() };
    let expected = Mutex::<[Expected; 3]>::default();
    let problems = Mutex::<Vec<String>>::default();
    let states_seen = Mutex::new(0u64);
    let shadow = Shadow::new(setting.bytes);
    let store = Store::<L, Shadow>::create_on(shadow, &setting.options(), 64, 2).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let (store, expected) = (&store, &expected);
                scope.spawn(move || write::<L>(store, expected, thread, seed, sizes))
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.reclaim().unwrap();
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                look::<L>(&store, &setting, &expected, &problems, &states_seen);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(*problems.lock().unwrap(), Vec::<String>::new(), "seed {seed}");
    audit(&store).unwrap();
    let all: super::model::Entries =
        expected.lock().unwrap().iter().flat_map(|expected| expected.acknowledged.clone()).collect();
    assert_eq!(contents(&store), all, "seed {seed}");
    states_seen.into_inner().unwrap()
}

fn write<L: Testable>(
    store: &Store<L, Shadow>,
    expected: &Mutex<[Expected; 3]>,
    thread: usize,
    seed: u64,
    sizes: &[usize],
) {
    let mut client = store.client().unwrap();
    let mut state = seed ^ (thread as u64) << 32;
    let mut draw = |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(state) % below
    };
    for step in 0..1500 {
        let k = key(draw(40) * 3 + thread as u64);
        let new = (draw(3) > 0).then(|| value(step, sizes[draw(sizes.len() as u64) as usize]));
        expected.lock().unwrap()[thread].under_way = vec![(k.clone(), new.clone())];
        match &new {
            Some(new) if draw(4) == 0 => {
                let there = client.update(L::key(&k), |old| *old = new.clone()).unwrap();
                if !there {
                    client.put(L::key(&k), L::value(new)).unwrap();
                }
            }
            Some(new) => {
                client.put(L::key(&k), L::value(new)).unwrap();
            }
            None => {
                client.delete(L::key(&k)).unwrap();
            }
        }
        let mut expected = expected.lock().unwrap();
        let own = &mut expected[thread];
        own.under_way.clear();
        match new {
            Some(new) => own.acknowledged.insert(k, new),
            None => own.acknowledged.remove(&k),
        };
        drop(expected);
        if draw(100) == 0 {
            client = store.client().unwrap();
        }
    }
}

/// Takes the states of this moment and checks that they contain what was acknowledged before, or what was begun since.
fn look<L: Testable>(
    store: &Store<L, Shadow>,
    setting: &Setting,
    expected: &Mutex<[Expected; 3]>,
    problems: &Mutex<Vec<String>>,
    seen: &Mutex<u64>,
) {
    // While the ledger is locked, no thread begins or acknowledges anything, though operations under way go on.
    let (states, now) = {
        let expected = expected.lock().unwrap();
        let states = store.core().medium.crash_states();
        let all = Expected {
            acknowledged: expected.iter().flat_map(|e| e.acknowledged.clone()).collect(),
            under_way: expected.iter().flat_map(|e| e.under_way.clone()).collect(),
        };
        (states, all)
    };
    states.for_each(setting.states, setting.seed, |shadow| {
        *seen.lock().unwrap() += 1;
        let outcome = match setting.open::<L>(shadow) {
            Ok(store) => now.check(&contents(&store)).and_then(|()| audit(&store)),
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = outcome {
            problems.lock().unwrap().push(problem);
        }
    });
}

#[test]
fn clients_crash_in_the_middle_of_what_they_do_at_once() {
    let seed = rand::random();
    let states = run::<Fixed<8, 1000>>(seed, &[1000]) + run::<Variable>(seed, &[10, 300, 5000, 9000]);
    println!("{states} states, seed {seed}");
    assert!(states > 50, "{states}");
}
