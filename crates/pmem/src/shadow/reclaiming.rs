//! Reclaiming space: crashes while records that were changed in place are moved, and stores that accept no changes.

use super::{
    Shadow,
    model::{Op, Runner, Setting},
    records::{key, value},
};
use crate::{
    Client, Fixed, Options, PmemError, ReclaimOptions, Store, Variable, medium::Lane, space::Purpose,
};
use std::{
    io,
    sync::mpsc,
    time::{Duration, Instant},
};

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

/// A store, and a client that has stored 12 records of `bytes` bytes.
fn filled(bytes: usize) -> (Store<Variable, Shadow>, Client<Variable, Shadow>) {
    let setting = Setting { pages_per_block: 1, ..Setting::default() };
    let store = Store::create_on(Shadow::new(setting.bytes), &setting.options(), 4, 2).unwrap();
    let mut client: Client<Variable, Shadow> = store.client().unwrap();
    (0..12).for_each(|k| assert!(client.put(&key(k), &value(k, bytes)).is_ok()));
    (store, client)
}

#[test]
fn a_store_that_accepts_no_changes_is_not_compacted() {
    let (store, mut client) = filled(1500);
    (0..12).step_by(2).for_each(|k| assert!(client.delete(&key(k)).unwrap()));
    let core = store.core();
    let _ = core.watch::<()>(Err(PmemError::Persist(io::Error::from_raw_os_error(5))));
    let before = core.medium.costs();
    let refused = store.reclaim().unwrap_err();
    assert!(matches!(refused, PmemError::Poisoned), "{refused}");
    drop(client);
    assert_eq!(core.medium.costs(), before, "nothing is stored");
}

#[test]
fn reclaiming_ends_although_a_block_is_neither_free_nor_used() {
    let (store, mut client) = filled(3900);
    // As after a block that was taken could not be formatted.
    let core = store.core();
    core.space
        .take_run(&core.medium, &mut Lane { number: 99, ..Lane::default() }, 1, Purpose::Write)
        .unwrap();
    (0..12).for_each(|k| assert!(client.delete(&key(k)).unwrap()));
    drop(client);
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(store.reclaim().unwrap()));
    let reclaimed = wait.recv_timeout(Duration::from_secs(20)).expect("it goes on for ever");
    assert_eq!((reclaimed.blocks_compacted, reclaimed.records_moved), (0, 0));
}

#[test]
fn a_panic_in_the_background_is_told() {
    let reclaim =
        ReclaimOptions { background: true, interval: Duration::from_millis(1), ..ReclaimOptions::default() };
    let setting = Setting { pages_per_block: 1, ..Setting::default() };
    let options = Options { reclaim, ..setting.options() };
    let store = Store::<Variable, Shadow>::create_on(Shadow::new(setting.bytes), &options, 4, 2).unwrap();
    store.core().medium.set_observer(Box::new(|_| {
        assert_ne!(std::thread::current().name(), Some("pmem-reclaim"), "planted");
    }));
    let mut client = store.client().unwrap();
    (0..12).for_each(|k| assert!(client.put(&key(k), &value(k, 1500)).is_ok()));
    (0..12).step_by(2).for_each(|k| assert!(client.delete(&key(k)).unwrap()));
    let end = Instant::now() + Duration::from_secs(20);
    let told = loop {
        match store.statistics().reclaim_failure {
            Some(told) => break told,
            None if Instant::now() > end => panic!("nothing is told"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(told.contains("planted") && told.contains("pmem-reclaim"), "{told}");
}
