//! Histories that take every step of the store, designed so that each step matters at some moment.

use super::{
    model::{Entries, Op, Outcome, Runner, Setting, Testable},
    records::{key, sample, value},
};
use crate::{Fixed, Variable};
use std::sync::Arc;
use vellum_base::PAGE_SIZE;

/// The value with one word changed.
fn word_changed(mut value: Vec<u8>, word: usize) -> Vec<u8> {
    value[word * 8] ^= 0xfe;
    value
}

fn put(client: usize, k: u64, v: u64, bytes: usize) -> Op {
    Op::Put(client, key(k), value(v, bytes))
}

/// All operations that stores of both layouts have; values of `bytes` bytes, of which few fit into a block.
pub fn everyday(bytes: usize) -> Vec<Op> {
    let mut history = vec![put(0, 0, 0, bytes)];
    // The next version of key 0 lies elsewhere, and a client that has a block does nothing with it.
    history.extend((1..8).map(|k| put(0, k, k, bytes)));
    history.push(Op::Stall);
    history.push(put(1, 0, 100, bytes));
    history.push(put(1, 20, 120, bytes));
    // A client that has drawn fewer numbers than the one whose record it replaces.
    history.push(put(1, 7, 107, bytes));
    history.push(Op::PutBatch(2, [7, 6].map(|k| (key(k), value(k, bytes))).to_vec()));
    history.push(Op::Delete(1, key(0)));
    let old = value(1, bytes);
    let new = word_changed(old.clone(), 0);
    history.push(Op::Update(0, key(1), new.clone()));
    history.push(Op::Update(1, key(1), word_changed(new, 0)));
    // The same client changes another word of the same value, after a fence that was not for that value.
    let twice = word_changed(value(6, bytes), 1);
    history.push(Op::Update(0, key(6), twice.clone()));
    history.push(put(0, 50, 50, bytes));
    history.push(Op::Update(0, key(6), word_changed(twice, 2)));
    history.push(Op::Update(0, key(2), value(102, bytes)));
    history.push(Op::Delete(1, key(2)));
    history
        .push(Op::PutBatch(0, (3..6).chain([30, 31, 3]).map(|k| (key(k), value(k + 200, bytes))).collect()));
    history.push(Op::DeleteBatch(1, [3, 30, 30, 77].map(key).to_vec()));
    history.push(Op::Delete(0, key(4)));
    history.push(put(1, 40, 40, bytes));
    // Another client deletes a record whose predecessor is retracted, but not durably; then the same client; then in a
    // batch.
    history.push(put(0, 40, 41, bytes));
    history.push(Op::Delete(1, key(40)));
    history.push(put(1, 40, 42, bytes));
    history.push(Op::Update(1, key(40), value(43, bytes)));
    history.push(Op::Delete(1, key(40)));
    history.push(put(0, 41, 44, bytes));
    history.push(put(1, 41, 45, bytes));
    history.push(Op::DeleteBatch(0, [41, 5].map(key).to_vec()));
    history
}

/// Blocks that are half dead are compacted, the end of the file is cut, and moved records are deleted.
pub fn reclaiming(bytes: usize, records: u64) -> Vec<Op> {
    let mut history: Vec<Op> = (0..records).map(|k| put(0, k, k, bytes)).collect();
    history.extend((0..records).filter(|k| k % 3 != 0).map(|k| Op::Delete(1, key(k))));
    history.push(Op::Renew(0));
    history.push(Op::Reclaim);
    history.push(put(1, 1000, 1, bytes));
    history.extend((0..records).step_by(3).map(|k| Op::Delete(1, key(k))));
    history.push(Op::Reclaim);
    history.extend((0..records / 2).map(|k| put(2, k, k + 500, bytes)));
    history
}

/// All blocks are freed and the file is cut, then they are all used again.
pub fn refilling(bytes: usize, records: u64) -> Vec<Op> {
    let fill = |round: u64| (0..records).map(move |k| put(0, k, k + round * 100, bytes));
    let mut history: Vec<Op> = fill(0).collect();
    history.extend((0..records).map(|k| Op::Delete(0, key(k))));
    history.push(Op::Renew(0));
    history.push(Op::Reclaim);
    history.extend(fill(1));
    history
}

/// Blocks are compacted while the last one is in use, so that nothing is cut, and another client deletes moved records.
pub fn moving(bytes: usize) -> Vec<Op> {
    let mut history: Vec<Op> = (0..60).map(|k| put(0, k, k, bytes)).collect();
    history.push(put(1, 100, 100, bytes));
    history.extend((0..12).filter(|k| k % 3 != 0).map(|k| Op::Delete(1, key(k))));
    history.push(Op::Reclaim);
    history.extend((0..12).step_by(3).map(|k| Op::Delete(1, key(k))));
    history
}

/// Records that extend over several pages, and blocks that are reformatted after them.
pub fn spanning(pages: u32) -> Vec<Op> {
    let two_pages = 5000;
    let mut history = Vec::new();
    for round in 0..3 {
        let records = u64::from(pages);
        history.extend((0..records).map(|k| put(0, k, k + round * 50, two_pages)));
        history.extend((0..records).map(|k| put(1, k + 100, k + round * 50, 700)));
        history.extend((0..records).map(|k| Op::Delete(0, key(k))));
        history.extend((0..records).map(|k| Op::Delete(0, key(k + 100))));
        history.push(Op::Renew((round % 2) as usize));
    }
    history
}

/// Records that take separate blocks, and the later use of these blocks.
pub fn large(block_bytes: usize) -> Vec<Op> {
    let bytes = block_bytes * 2 + 100;
    vec![
        put(0, 9, 9, bytes),
        Op::Delete(0, key(9)),
        // The first of the freed blocks goes to a client that does nothing with it, the next to another.
        Op::Stall,
        put(1, 8, 8, 50),
        put(0, 0, 0, bytes),
        put(0, 1, 1, 50),
        put(0, 0, 2, bytes),
        Op::Update(0, key(0), word_changed(value(2, bytes), 9)),
        Op::Delete(0, key(0)),
        put(1, 2, 2, 50),
        put(1, 3, 3, block_bytes - 100),
        put(1, 4, 4, bytes),
        Op::Delete(1, key(4)),
        put(2, 5, 5, bytes),
        put(2, 5, 6, 60),
    ]
}

/// All histories, each with the setting for which it is made.
pub fn all() -> Vec<(&'static str, Setting, Kind, Vec<Op>)> {
    let setting = |pages_per_block| Setting { pages_per_block, ..Setting::default() };
    // Without checksums, records are published by a second step.
    let without = |pages_per_block| Setting { checksums: false, ..setting(pages_per_block) };
    // A cut leaves one page of a block of two.
    let cutting = |setting| Setting { cut_step: 5 * PAGE_SIZE as u64, ..setting };
    let over =
        |setting: Setting, before: (Vec<u64>, Entries)| Setting { before: Some(Arc::new(before)), ..setting };
    let one_size = over(setting(2), sample::<Fixed<8, 1000>>(&setting(2), &[1000]));
    let any_size = over(setting(2), sample::<Variable>(&setting(2), &[900, 900, 9000]));
    vec![
        ("over another, one size", one_size, Kind::Fixed, vec![put(0, 50, 50, 1000), put(0, 51, 51, 1000)]),
        (
            "over another, any size",
            any_size,
            Kind::Variable,
            vec![put(0, 50, 50, 900), put(0, 51, 51, 30_000)],
        ),
        ("everyday, one size", setting(2), Kind::Fixed, everyday(1000)),
        ("everyday, any size", setting(2), Kind::Variable, everyday(900)),
        ("reclaiming, one size", setting(2), Kind::Fixed, reclaiming(1000, 18)),
        ("reclaiming, any size", setting(2), Kind::Variable, reclaiming(900, 18)),
        ("refilling, one size", cutting(setting(2)), Kind::Fixed, refilling(1000, 24)),
        ("refilling, any size", cutting(setting(2)), Kind::Variable, refilling(900, 24)),
        ("moving, one size", setting(2), Kind::Fixed, moving(1000)),
        ("moving, any size", setting(2), Kind::Variable, moving(900)),
        ("everyday, without checksums", without(2), Kind::Variable, everyday(900)),
        ("moving, without checksums", without(2), Kind::Variable, moving(900)),
        ("spanning", setting(4), Kind::Variable, spanning(4)),
        ("large", setting(2), Kind::Variable, large(8192)),
    ]
}

/// Which layout a history is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Fixed,
    Variable,
}

/// Runs a history on a new store; returns what was wrong and what was seen.
pub fn run(kind: Kind, setting: &Setting, history: &[Op]) -> Outcome {
    fn on<L: Testable>(setting: &Setting, history: &[Op]) -> Outcome {
        Runner::<L>::new(setting).run_all(history)
    }
    match kind {
        Kind::Fixed => on::<Fixed<8, 1000>>(setting, history),
        Kind::Variable => on::<Variable>(setting, history),
    }
}
