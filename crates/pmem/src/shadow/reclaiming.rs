//! Reclaiming space: crashes while records that were changed in place are moved, and stores that accept no changes.

use super::{
    model::{Op, Runner, Setting},
    records::{key, value},
};
use crate::{Fixed, Variable};

fn with_word(mut value: Vec<u8>, by: u8) -> Vec<u8> {
    value[0] ^= by;
    value
}

#[test]
fn a_torn_copy_of_a_changed_record_does_not_have_its_former_value() {
    // The former value of key 0 is all zeroes, as is the memory to which it is moved.
    let setting = Setting { pages_per_block: 1, states: 1 << 9, states_killed: 0, ..Setting::default() };
    let history = [
        Op::Put(0, key(10), value(10, 4000)),
        Op::Put(0, key(0), vec![0; 16]),
        Op::Put(0, key(11), value(11, 3000)),
        Op::Update(0, key(0), with_word(vec![0; 16], 1)),
        Op::Delete(0, key(10)),
        Op::Delete(0, key(11)),
        Op::Reclaim,
    ];
    assert_eq!(Runner::<Variable>::new(&setting).run_all(&history).0, None);
    // A slot holds what was there, so key 5 is moved up and, with another value, back.
    let put = |client, k| Op::Put(client, key(k), value(k, 1000));
    let history = [
        put(0, 5),
        put(0, 0),
        put(0, 1),
        Op::Delete(0, key(0)),
        Op::Delete(0, key(1)),
        put(0, 8),
        Op::Reclaim,
        Op::Update(0, key(5), with_word(value(5, 1000), 2)),
        put(1, 9),
        Op::Reclaim,
        Op::Delete(0, key(8)),
        Op::Renew(0),
        Op::Reclaim,
    ];
    let setting = Setting { states: 200, ..setting };
    assert_eq!(Runner::<Fixed<8, 1000>>::new(&setting).run_all(&history).0, None);
}
