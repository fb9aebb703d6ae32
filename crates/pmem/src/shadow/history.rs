//! Small histories, for which every crash state is tried, and seeded random ones.

use super::{
    Shadow,
    model::{Entries, Op, Runner, Setting, Testable, contents, lock},
    records::{key, value},
};
use crate::{
    Fixed, Store, Variable,
    layout::{LOG_AT, mix},
};

/// Every crash state of a history: at every fence all combinations of what may have reached the memory, and the same for
/// the recovery from each of them.
fn every_state<L: Testable>(history: &[Op], pages_per_block: u32) -> u64 {
    let setting =
        Setting { pages_per_block, states: 1 << 12, depth: 1, bytes: 128 << 10, ..Setting::default() };
    let (problem, ledger, _) = Runner::<L>::new(&setting).run_all(history);
    assert_eq!(problem, None);
    assert_eq!(ledger.moments.1, 0, "of some moment not all states were tried");
    println!("{} states at {} moments", ledger.states, ledger.moments.0);
    ledger.states
}

fn small_history(value_bytes: usize) -> Vec<Op> {
    let value = |number| value(number, value_bytes);
    vec![
        Op::Put(0, key(0), value(0)),
        Op::Put(1, key(0), value(1)),
        Op::Put(0, key(1), value(2)),
        Op::Update(1, key(1), value(3)),
        Op::Put(0, key(0), value(4)),
        Op::Delete(1, key(0)),
        Op::Put(1, key(0), value(5)),
        Op::DeleteBatch(0, vec![key(0), key(1)]),
    ]
}

#[test]
fn every_crash_state_of_small_histories_with_records_of_one_size() {
    let states =
        every_state::<Fixed<8, 8>>(&small_history(8), 1) + every_state::<Fixed<8, 16>>(&small_history(16), 2);
    assert!(states > 500, "{states}");
}

#[test]
fn every_crash_state_of_small_histories_with_records_of_any_size() {
    let mut history = small_history(9);
    history.push(Op::Put(1, key(3), value(7, 0)));
    history.push(Op::Update(1, key(3), value(8, 12)));
    let states = every_state::<Variable>(&history, 1) + every_state::<Variable>(&history, 2);
    assert!(states > 500, "{states}");
}

#[test]
fn a_crash_as_a_large_record_begins_where_logs_were() {
    let setting = Setting { pages_per_block: 1, states: 200, ..Setting::default() };
    // Two blocks are filled with logs, and then hold a large record. The end of a client records that what it wrote must be
    // right.
    let history = [
        Op::Put(0, key(0), value(0, 4000)),
        Op::Put(1, key(1), value(1, 4000)),
        Op::Put(2, key(2), value(2, 9)),
        Op::Renew(0),
        Op::Renew(1),
        Op::DeleteBatch(2, vec![key(0), key(1)]),
        Op::Put(2, key(3), value(3, 5000)),
    ];
    let (problem, ledger, _) = Runner::<Variable>::new(&setting).run_all(&history);
    assert_eq!(problem, None);
    assert!(ledger.states > 200, "{}", ledger.states);
}

#[test]
fn every_crash_state_of_compaction() {
    // One record out of a page of them is left, so that records are moved one at a time.
    let mut history: Vec<Op> = (0..8).map(|k| Op::Put(0, key(k), value(k, 8))).collect();
    history.extend((1..8).map(|k| Op::Delete(0, key(k))));
    let setting = Setting { pages_per_block: 1, states: 1 << 12, depth: 1, ..Setting::default() };
    let mut runner = Runner::<Variable>::new(&setting);
    history.iter().for_each(|op| runner.run(op));
    runner.run(&Op::Renew(0));
    // Until then the block is not worth compacting: most of it was never used.
    let core = runner.store.core();
    let block = core.geometry.first_block();
    core.space.close_partial_at(block);
    let (state, live, _) = core.space.block(block).load();
    core.space.block(block).set(state, live, 512);
    let before = lock(&runner.ledger).states;
    runner.run(&Op::Reclaim);
    assert_eq!(runner.store.statistics().blocks_compacted, 1);
    let ledger = lock(&runner.ledger);
    assert_eq!((ledger.violation.clone(), ledger.moments.1), (None, 0));
    assert!(ledger.states > before + 20, "{} {before}", ledger.states);
}

/// A random history of a few keys, so that operations on the same key are frequent.
fn random_history(seed: u64, steps: u64, sizes: &[usize]) -> Vec<Op> {
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(state) % below
    };
    let mut present = std::collections::BTreeSet::new();
    let mut history = Vec::new();
    for step in 0..steps {
        let (client, k) = (draw(3) as usize, draw(12));
        let bytes = sizes[draw(sizes.len() as u64) as usize];
        let op = match draw(16) {
            0..=6 => Op::Put(client, key(k), value(step, bytes)),
            7..=8 if present.contains(&k) => Op::Update(client, key(k), value(step, bytes)),
            9..=11 => Op::Delete(client, key(k)),
            12 => Op::PutBatch(client, (0..4).map(|n| (key(k + n), value(step + n * 1000, bytes))).collect()),
            13 => Op::DeleteBatch(client, (0..3).map(|n| key(k + n)).collect()),
            14 => Op::Renew(client),
            _ => Op::Reclaim,
        };
        match &op {
            Op::Put(..) => {
                present.insert(k);
            }
            Op::Delete(..) => {
                present.remove(&k);
            }
            Op::PutBatch(..) => present.extend(k..k + 4),
            Op::DeleteBatch(..) => present.retain(|other| !(k..k + 3).contains(other)),
            _ => {}
        }
        history.push(op);
    }
    history
}

fn random<L: Testable>(sizes: &[usize], pages_per_block: u32, seeds: u64) {
    let base: u64 = rand::random();
    let mut states = 0;
    for seed in 0..seeds {
        let seed = base.wrapping_add(seed);
        let setting =
            Setting { pages_per_block, states: 12, depth: 1, seed, bytes: 1 << 20, ..Setting::default() };
        let (problem, ledger, _) = Runner::<L>::new(&setting).run_all(&random_history(seed, 40, sizes));
        assert_eq!(problem, None, "seed {seed}");
        states += ledger.states;
    }
    println!("{states} states, seeds from {base}");
    assert!(states > 200, "{states}");
}

#[test]
fn random_histories_with_records_of_one_size() {
    random::<Fixed<8, 1000>>(&[1000], 2, 2);
    random::<Fixed<8, 8>>(&[8], 3, 2);
}

#[test]
fn random_histories_with_records_of_any_size() {
    random::<Variable>(&[0, 8, 40, 700], 2, 2);
    random::<Variable>(&[8, 3000, 5000, 9000], 2, 1);
}

#[test]
fn a_log_with_something_of_a_record_is_not_begun_again() {
    let setting = Setting::default();
    let image = |store: &Store<Variable, Shadow>| -> Vec<u64> {
        let shadow = &store.core().medium;
        (0..shadow.capacity_words()).map(|word| shadow.word(word)).collect()
    };
    let store =
        Store::<Variable, Shadow>::create_on(Shadow::new(setting.bytes), &setting.options(), 4, 2).unwrap();
    // Two of these do not fit into a page, so the second begins the other page of the block.
    let mut client = store.client().unwrap();
    client.put(&key(0), &value(0, 3000)).unwrap();
    client.put(&key(1), &value(1, 3000)).unwrap();
    let geometry = store.core().geometry;
    let block = geometry.first_block();
    let first_page = (block % u64::from(geometry.pages)) as u32;
    let size_word = (geometry.page_at(block, (first_page + 1) % 2) + LOG_AT) / 8;
    let mut torn = image(&store);
    assert_ne!(torn[size_word as usize], 0);
    torn[size_word as usize] = 0;

    let store = setting.open::<Variable>(Shadow::with(torn, setting.bytes)).unwrap();
    assert_eq!(contents(&store), Entries::from([(key(0), value(0, 3000))]));
    store.client().unwrap().put(&key(2), &value(2, 20)).unwrap();
    let again = setting.open::<Variable>(Shadow::with(image(&store), setting.bytes)).unwrap();
    assert_eq!(contents(&again), Entries::from([(key(0), value(0, 3000)), (key(2), value(2, 20))]));
}
