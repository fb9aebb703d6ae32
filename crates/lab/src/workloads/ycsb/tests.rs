use super::*;
use crate::config::Skew;
use crate::config::{Choice, EngineName, TransactionSettings};
use crate::config::{KeyKind, Order, ValueSizes};
use crate::engines::dashmap::Dash;
use crate::engines::memory_store::MemoryStore;
use crate::engines::papaya::Papaya;
use crate::engines::pmem::Pmem;
use crate::engines::record_store::RecordStore;
use crate::engines::records::RecordEngine;
use crate::engines::{EngineOptions, Instance as _};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;
use vellum_pmem::{Fixed, Variable};

const ALL: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F];

/// A workload on records of 5 fields of 12 bytes, with keys of 8 bytes.
fn workload(mix: Mix, distribution: Distribution, records: u64) -> Ycsb {
    sized((mix, distribution), records, Layout { fields: 5, field_bytes: 12, key_bytes: 8 })
}

fn sized((mix, distribution): (Mix, Distribution), records: u64, layout: Layout) -> Ycsb {
    let Layout { fields, key_bytes, .. } = layout;
    let specification = Specification {
        engine: EngineName::Vellum.into(),
        workload: Workload::Ycsb { mix, distribution, key_bytes, fields, scan_max: 20 },
        tuples: records,
        keys: KeyKind::U64,
        values: ValueSizes::one(layout.bytes()),
        skew: Skew::Uniform,
        pool_bytes: 1 << 30,
        threads_max: 4,
        clients_max: 1,
        duration: Duration::from_millis(30),
        warm_up: Duration::ZERO,
        seed: 3,
        order: Order::Random,
        lmdb_write_map: Choice::Auto,
        transactions: TransactionSettings::default(),
        directory: PathBuf::new(),
    };
    Ycsb::new(&specification).unwrap()
}

fn pace(threads: usize) -> Pace {
    Pace { clients: 1, threads, round: 0, duration: Duration::from_millis(30), sample_every: 8 }
}

fn problems(workload: &Ycsb, store: &impl Store) -> Vec<String> {
    workload.check(store).unwrap().problems
}

#[test]
fn every_mix_runs_and_leaves_what_it_should() {
    for mix in ALL {
        for distribution in [Distribution::Zipfian, Distribution::Uniform, Distribution::Latest] {
            for (threads, records) in [(1, 1), (3, 2000)] {
                let (workload, store) = (workload(mix, distribution, records), MemoryStore::with(1));
                workload.load(&store).unwrap();
                let before = store.table(RECORDS).clone();
                let pass = workload.pass(&store, &pace(threads)).unwrap();
                assert!(pass.operations > 50, "{mix:?} {distribution:?}");
                assert_eq!(problems(&workload, &store), [""; 0], "{mix:?} {distribution:?}");
                let after = store.table(RECORDS);
                assert_eq!(after.len() > before.len(), mix.inserts(), "{mix:?}");
                let changed = before.iter().any(|(key, record)| after[key] != *record);
                assert_eq!(changed, matches!(mix, Mix::A | Mix::B | Mix::F), "{mix:?}");
            }
        }
    }
}

#[test]
fn mixes_have_their_parts() {
    for (mix, operation, percent) in [
        (Mix::A, Operation::Update, 50),
        (Mix::B, Operation::Update, 5),
        (Mix::C, Operation::Read, 100),
        (Mix::D, Operation::Insert, 5),
        (Mix::E, Operation::Scan, 95),
        (Mix::F, Operation::ReadModifyWrite, 50),
    ] {
        let count = (0..100).filter(|number| super::operation(mix, *number) == operation).count();
        assert_eq!(count, percent, "{mix:?}");
    }
}

fn chosen(workload: &Ycsb) -> HashMap<u64, u32> {
    let store = MemoryStore::with(1);
    let mut client = Client {
        workload,
        session: store.session().unwrap(),
        generator: Generator::new(1, 1, 1),
        zipfian: workload.zipfian.clone(),
        digests: 0,
        record: Vec::new(),
    };
    let mut counts = HashMap::new();
    for _ in 0..100_000 {
        *counts.entry(client.choose()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn records_are_chosen_as_they_should_be() {
    let uniform = chosen(&workload(Mix::C, Distribution::Uniform, 1000));
    assert!(uniform.len() == 1000 && uniform.values().all(|count| (30..250).contains(count)));
    // The most frequent of 1000 by Zipf's law is about 13 in 100, and anywhere; of the latest it is the last.
    let zipfian = chosen(&workload(Mix::C, Distribution::Zipfian, 1000));
    let (first, count) = zipfian.iter().max_by_key(|(_, count)| **count).unwrap();
    assert!((11_000..15_000).contains(count) && ![0, 999].contains(first), "{first}: {count}");
    let latest = chosen(&workload(Mix::D, Distribution::Latest, 1000));
    assert!((11_000..15_000).contains(&latest[&999]) && latest[&998] > latest[&900]);
}

#[test]
fn damage_and_loss_are_noticed_by_who_meets_them() {
    let store = MemoryStore::with(1);
    let workload = workload(Mix::C, Distribution::Uniform, 100);
    workload.load(&store).unwrap();
    let key = workload.layout.key(5);
    store.table(RECORDS).get_mut(key.bytes()).unwrap()[13] ^= 1;
    assert!(workload.pass(&store, &pace(1)).is_err());
    assert_eq!(problems(&workload, &store).len(), 1);
    store.table(RECORDS).remove(key.bytes());
    assert!(workload.pass(&store, &pace(1)).is_err());
    assert_eq!(problems(&workload, &store).len(), 1);
}

/// The sizes of records that an engine is tried with.
const SIZES: Layout = Layout { fields: 10, field_bytes: 20, key_bytes: 16 };

fn store_of<E: RecordEngine>(records: u64, layout: Layout) -> (RecordStore<E>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        directory: folder.path().to_owned(),
        pool_bytes: 0,
        tuples: records,
        key_bytes: layout.key_bytes,
        value_bytes: layout.bytes(),
        bytes_max: (layout.key_bytes, layout.bytes()),
        payload_bytes: 0,
        threads_max: 2,
        lmdb_write_map: Choice::Auto,
        transactions: TransactionSettings::default(),
        read_depth: 1,
    };
    (RecordStore::create(&options, &["usertable"]).unwrap(), folder)
}

/// All records, in the order of their keys.
fn records_of(store: &impl Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut session = store.session().unwrap();
    let mut transaction = session.begin(Access::Read).unwrap();
    let mut all = BTreeMap::new();
    let visit = |key: &[u8], record: &[u8]| {
        assert!(all.insert(key.to_vec(), record.to_vec()).is_none(), "{key:?} is shown twice");
        ControlFlow::Continue(())
    };
    transaction.for_each(RECORDS, visit).unwrap();
    transaction.commit().unwrap();
    all
}

fn does_every_mix<E: RecordEngine>(layout: Layout, is_ordered: bool) {
    for mix in ALL {
        for distribution in [Distribution::Zipfian, Distribution::Uniform, mix.distribution()] {
            let (store, _folder) = store_of::<E>(500, layout);
            let workload = sized((mix, distribution), 500, layout);
            workload.load(&store).unwrap();
            let before = records_of(&store);
            assert_eq!(before.len(), 500);
            let pass = workload.pass(&store, &pace(2));
            if mix.needs_order() && !is_ordered {
                assert!(pass.unwrap_err().to_string().contains("no order"));
                continue;
            }
            assert!(pass.unwrap().operations > 20, "{mix:?} {distribution:?}");
            assert_eq!(problems(&workload, &store), [""; 0], "{mix:?} {distribution:?}");
            let after = records_of(&store);
            assert_eq!(after.len() > before.len(), mix.inserts(), "{mix:?}");
            let changed = before.iter().any(|(key, record)| after[key] != *record);
            assert_eq!(changed, matches!(mix, Mix::A | Mix::B | Mix::F), "{mix:?}");
            assert!(store.data_bytes().unwrap() > 0);
            assert!(!store.notes().is_empty());
        }
    }
}

#[test]
fn engines_of_single_records_do_every_mix() {
    does_every_mix::<Dash<16, 200>>(SIZES, false);
    does_every_mix::<Papaya<16, 200>>(SIZES, false);
    does_every_mix::<Pmem<Fixed<16, 200>>>(SIZES, false);
    does_every_mix::<Pmem<Variable>>(Layout { fields: 3, field_bytes: 33, key_bytes: 16 }, false);
    // Fields of one word, which are changed in place.
    does_every_mix::<Pmem<Fixed<8, 200>>>(Layout { fields: 25, field_bytes: 8, key_bytes: 8 }, false);
    does_every_mix::<Pmem<Fixed<8, 8>>>(Layout { fields: 1, field_bytes: 8, key_bytes: 8 }, false);
    #[cfg(feature = "rocksdb")]
    does_every_mix::<crate::engines::rocksdb_records::Rocks>(SIZES, true);
}

/// Changes what a store holds without the workload's knowledge, and demands that the check finds it, and nothing else once
/// it is undone.
fn notices_what_is_wrong(store: &impl Store, layout: Layout) {
    let workload = sized((Mix::A, Distribution::Uniform), 300, layout);
    workload.load(store).unwrap();
    assert_eq!(problems(&workload, store), [""; 0]);
    let before = records_of(store);
    workload.pass(store, &pace(2)).unwrap();
    let after = records_of(store);
    let (key, old) = before.iter().find(|(key, record)| after[*key] != **record).unwrap();
    let mut session = store.session().unwrap();
    let mut set = |key: &[u8], record: Option<&[u8]>| {
        let mut transaction = session.begin(Access::Write).unwrap();
        match record {
            Some(record) if transaction.get(RECORDS, key, |_| ()).unwrap().is_some() => {
                let changed =
                    transaction.modify(RECORDS, key, |found| found.copy_from_slice(record)).unwrap();
                assert!(changed.is_some());
            }
            Some(record) => transaction.insert(RECORDS, key, record).unwrap(),
            None => assert!(transaction.remove(RECORDS, key).unwrap()),
        }
        transaction.commit().unwrap();
    };
    let expect = |what: &str| {
        let problems = problems(&workload, store);
        assert!(problems.len() == 1 && problems[0].contains(what), "{what}: {problems:?}");
    };
    // A record that was right once, and whose change was acknowledged.
    set(key, Some(old));
    expect("a change was lost");
    set(key, Some(&after[key]));
    assert_eq!(problems(&workload, store), [""; 0]);
    // One that is lost.
    set(key, None);
    expect("299 records where 300 were inserted");
    // One in the place of another: right in itself, and the number is right, too.
    let (other, mut record) = (layout.key(1_000_000), vec![0; layout.bytes()]);
    layout.fill(other.bytes(), 0, &mut record);
    set(other.bytes(), Some(&record));
    expect("stands for one that is missing");
    // One too many.
    set(key, Some(&after[key]));
    expect("301 records where 300 were inserted");
    set(other.bytes(), None);
    assert_eq!(problems(&workload, store), [""; 0]);
    // Bytes that were never written, after the mark of the field that reads look at.
    let mut damaged = after[key].clone();
    *damaged.last_mut().unwrap() ^= 1;
    set(key, Some(&damaged));
    expect("not as its last change left it");
}

#[test]
fn a_lost_a_stale_and_a_superfluous_record_are_noticed_at_the_end() {
    notices_what_is_wrong(&MemoryStore::with(1), SIZES);
    notices_what_is_wrong(&store_of::<Dash<16, 200>>(300, SIZES).0, SIZES);
    notices_what_is_wrong(&store_of::<Papaya<16, 200>>(300, SIZES).0, SIZES);
    let (store, _folder) = store_of::<Pmem<Fixed<16, 200>>>(300, SIZES);
    notices_what_is_wrong(&store, SIZES);
    let (store, _folder) = store_of::<Pmem<Variable>>(300, SIZES);
    notices_what_is_wrong(&store, SIZES);
    #[cfg(feature = "rocksdb")]
    {
        let (store, _folder) = store_of::<crate::engines::rocksdb_records::Rocks>(300, SIZES);
        notices_what_is_wrong(&store, SIZES);
    }
}
