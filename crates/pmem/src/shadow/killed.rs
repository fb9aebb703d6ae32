//! The process is killed at each fence of some operations, the store is opened again and used, and power fails at any
//! fence of that: what lay only in the caches must not be taken for durable.

use super::{
    CrashStates, Shadow,
    model::{Ledger, Op, Runner, Setting, Testable, check_killed, lock},
    records::{key, value},
};
use crate::{Fixed, Store, Variable};
use std::sync::{Arc, Mutex};

/// Runs `before`, then kills the process at each fence of `history`; returns the first violation of what follows.
fn kill_in<L: Testable>(setting: &Setting, before: &[Op], history: &[Op]) -> Option<String> {
    let shadow = Shadow::new(setting.bytes).cut_at(setting.cut_step);
    let store = Store::<L, Shadow>::create_on(shadow, &setting.options(), 4, 2).unwrap();
    let ledger = Arc::<Mutex<Ledger>>::default();
    let mut runner = Runner::resume(store, ledger.clone(), setting);
    before.iter().for_each(|op| runner.run(op));
    let (how, mut fence) = (setting.clone(), 0);
    runner.store.core().medium.set_observer(Box::new(move |states: &CrashStates| {
        fence += 1;
        let mut ledger = lock(&ledger);
        if ledger.violation.is_none() {
            let outcome = check_killed::<L>(states, &how, &ledger.expected, true);
            ledger.violation = outcome.err().map(|problem| format!("killed at fence {fence}: {problem}"));
        }
    }));
    history.iter().for_each(|op| runner.run(op));
    lock(&runner.ledger).violation.clone()
}

fn puts(client: usize, keys: std::ops::Range<u64>, bytes: usize) -> impl Iterator<Item = Op> {
    keys.map(move |k| Op::Put(client, key(k), value(k, bytes)))
}

#[test]
fn blocks_of_a_large_record_that_were_freed_in_the_caches_alone() {
    let after_kill = puts(0, 50..51, 40).chain(puts(1, 51..52, 40)).collect();
    let setting = Setting { pages_per_block: 1, states_killed: 60, after_kill, ..Setting::default() };
    // The records after the large one are lost, or its first block refuses the store, if its head comes back.
    let mut before: Vec<Op> = puts(0, 0..1, 8000).collect();
    before.extend(puts(1, 1..6, 3900));
    before.push(Op::Renew(1));
    assert_eq!(kill_in::<Variable>(&setting, &before, &[Op::Delete(0, key(0))]), None);
}

#[test]
fn blocks_that_a_cut_store_takes_again_and_cleared_in_the_caches_alone() {
    fn refill<L: Testable>() {
        let after_kill = puts(0, 100..104, 1000).collect();
        let setting = Setting { states_killed: 30, after_kill, cut_step: 5 * 4096, ..Setting::default() };
        let mut before: Vec<Op> = puts(0, 0..24, 1000).collect();
        before.push(Op::DeleteBatch(0, (0..24).map(key).collect()));
        before.push(Op::Renew(0));
        before.push(Op::Reclaim);
        let history: Vec<Op> = puts(0, 0..1, 1000).collect();
        assert_eq!(kill_in::<L>(&setting, &before, &history), None);
    }
    refill::<Fixed<8, 1000>>();
    refill::<Variable>();
}

#[test]
fn a_change_in_place_whose_head_is_in_the_caches_alone() {
    fn update<L: Testable>() {
        let after_kill = puts(1, 5..6, 16).collect();
        let setting =
            Setting { pages_per_block: 1, states_killed: 1 << 10, after_kill, ..Setting::default() };
        let (old, mut new) = (value(1, 16), value(1, 16));
        new[0] ^= 2;
        for is_settled in [true, false] {
            let mut before = vec![Op::Put(0, key(0), old.clone())];
            before.extend(is_settled.then_some(Op::Renew(0)));
            let history = [Op::Update(0, key(0), new.clone())];
            assert_eq!(kill_in::<L>(&setting, &before, &history), None, "settled: {is_settled}");
        }
    }
    update::<Fixed<8, 16>>();
    update::<Variable>();
}
