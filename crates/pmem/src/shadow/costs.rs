//! The cost of each operation in memory: cache lines written back, fences, bytes stored. A change that makes one of
//! them more expensive has to update these numbers.

use super::{
    Shadow,
    model::{Setting, Testable},
    records::value,
};
use crate::{Client, Fixed, Store, Variable};

fn key(number: u64) -> Vec<u8> {
    [number.to_le_bytes(), [1; 8]].concat()
}

/// Lines, fences and bytes of operations on records of 16 and 200 bytes, of a client whose block is open: a put of a
/// new key, a put of a known key, an update of one word, an update of three words, a delete, a batch of eight puts of
/// new keys. The delete is of a key for which the client has just put another record: it flushes and fences once more
/// than a delete of any other key.
fn costs<L: Testable>() -> [[u64; 3]; 6] {
    let setting = Setting { pages_per_block: 6, ..Setting::default() };
    let store = Store::<L, Shadow>::create_on(Shadow::new(setting.bytes), &setting.options(), 4, 2).unwrap();
    let client = &mut store.client().unwrap();
    let put = |client: &mut Client<L, Shadow>, k: u64, v: u64| {
        client.put(L::key(&key(k)), L::value(&value(v, 200))).unwrap();
    };
    let update = |client: &mut Client<L, Shadow>, bytes: std::ops::Range<usize>| {
        let change = |value: &mut Vec<u8>| value[bytes.clone()].iter_mut().for_each(|byte| *byte ^= 1);
        assert!(client.update(L::key(&key(1)), change).unwrap());
    };
    put(client, 0, 0);
    let cost = |client: &mut Client<L, Shadow>, operation: &dyn Fn(&mut Client<L, Shadow>)| {
        let before = store.core().medium.costs();
        operation(client);
        let after = store.core().medium.costs();
        [after.lines - before.lines, after.fences - before.fences, after.bytes - before.bytes]
    };
    let batch: Vec<_> = (10..18).map(|number| (key(number), value(number, 200))).collect();
    [
        cost(client, &|client| put(client, 1, 1)),
        cost(client, &|client| put(client, 1, 2)),
        cost(client, &|client| update(client, 192..200)),
        cost(client, &|client| update(client, 20..40)),
        cost(client, &|client| assert!(client.delete(L::key(&key(1))).unwrap())),
        cost(client, &|client| {
            client
                .put_batch(
                    batch.iter().map(|(key, value)| (L::key(key), L::value(value))).collect::<Vec<_>>(),
                )
                .unwrap();
        }),
    ]
}

#[test]
fn what_operations_ask_of_the_memory() {
    // Four lines of a record, and no other. The word that an update changes is flushed by the next operation, which is
    // an update that also retracts a record.
    let one_size = [[4, 1, 256], [5, 1, 264], [1, 1, 24], [6, 1, 264], [2, 2, 8], [32, 1, 2048]];
    assert_eq!(costs::<Fixed<16, 200>>(), one_size);
    let any_size = [[4, 1, 248], [5, 1, 264], [1, 1, 24], [6, 1, 264], [2, 2, 8], [32, 1, 2048]];
    assert_eq!(costs::<Variable>(), any_size);
}
