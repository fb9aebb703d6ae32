//! Opening, refusing, running out of room.

mod common;

use common::{Place, create, fill, open, options, value};
use vellum_pmem::{Fixed, Options, Persistence, PmemError, Shape, Store, Variable, describe};

#[test]
fn a_second_process_is_refused_and_readers_share() {
    let place = Place::new();
    let store = create::<Variable>(&place);
    let mut client = store.client().unwrap();
    client.put(b"key", b"value").unwrap();
    assert!(matches!(Store::<Variable>::open(place.path(), &options()), Err(PmemError::Locked { .. })));
    let read = Options { read_only: true, ..options() };
    assert!(matches!(Store::<Variable>::open(place.path(), &read), Err(PmemError::Locked { .. })));
    drop(store);
    assert!(client.get(b"key").unwrap().is_some(), "a client outlives its store");
    drop(client);
    let one = Store::<Variable>::open(place.path(), &read).unwrap();
    let other = Store::<Variable>::open(place.path(), &read).unwrap();
    assert_eq!(other.reader().get(b"key").unwrap(), one.reader().get(b"key").unwrap());
    assert!(matches!(one.client(), Err(PmemError::ReadOnly)));
    assert!(matches!(Store::<Variable>::open(place.path(), &options()), Err(PmemError::Locked { .. })));
}

#[test]
fn a_file_is_what_it_was_made_as() {
    let place = Place::new();
    let made = Options { pages_per_block: 4, checksums: false, ..options() };
    drop(Store::<Fixed<16, 200>>::create(place.path(), &made).unwrap());
    let superblock = describe(&place.path()).unwrap();
    assert_eq!(superblock.shape, Shape::Fixed { key_bytes: 16, value_bytes: 200 });
    assert_eq!((superblock.pages_per_block, superblock.checksums), (4, false));
    let error = Store::<Variable>::open(place.path(), &options()).unwrap_err();
    assert!(matches!(error, PmemError::Shape { .. }) && error.to_string().contains("16"), "{error}");
    let error = Store::<Variable>::create(place.path(), &options()).unwrap_err();
    assert!(matches!(error, PmemError::File { .. }), "{error}");
    assert_eq!(open::<Fixed<16, 200>>(&place).statistics().block_bytes, 16_384);
}

#[test]
fn what_is_no_store_is_called_that() {
    let place = Place::new();
    for contents in [vec![], vec![0; 20_000], b"hello, world".repeat(2000)] {
        std::fs::write(place.path(), contents).unwrap();
        let error = Store::<Variable>::open(place.path(), &options()).unwrap_err();
        assert!(matches!(error, PmemError::NotAStore { .. }), "{error}");
    }
    std::fs::remove_file(place.path()).unwrap();
    let error = Store::<Variable>::open(place.path(), &options()).unwrap_err();
    assert!(matches!(error, PmemError::File { .. }), "{error}");
    let error = Store::<Variable>::create(place.folder.path(), &options()).unwrap_err();
    assert!(matches!(error, PmemError::File { .. }), "{error}");
}

#[test]
fn persistence_is_never_believed_without_a_word_for_it() {
    let place = Place::new();
    let plain = Options { persistence: None, vouch_for_memory: false, ..options() };
    let store = Store::<Variable>::create(place.path(), &plain).unwrap();
    assert_eq!(store.persistence(), Persistence::Msync, "the folder of this test is no persistent memory");
    assert!(store.is_confirmed());
    let mut client = store.client().unwrap();
    client.put(b"a", &value(1, 5000)).unwrap();
    client.update(b"a", |value| value[0] = 9).unwrap();
    assert!(client.delete(b"a").unwrap());
    drop((client, store));
    for persistence in [Persistence::Dax, Persistence::Flushless] {
        let wanted = Options { persistence: Some(persistence), ..plain.clone() };
        let error = Store::<Variable>::open(place.path(), &wanted).unwrap_err();
        assert!(matches!(error, PmemError::NotPersistent { .. }), "{error}");
        let vouched = Options { vouch_for_memory: true, ..wanted };
        let store = Store::<Variable>::open(place.path(), &vouched).unwrap();
        assert_eq!((store.persistence(), store.is_confirmed()), (persistence, false));
    }
}

#[test]
fn a_full_store_says_so_and_takes_more_after_deletes() {
    let place = Place::new();
    let small = Options { capacity_bytes: 1 << 20, ..options() };
    let store = Store::<Variable>::create(place.path(), &small).unwrap();
    let mut client = store.client().unwrap();
    let stored = fill(&mut client, 900);
    assert!(stored > 800, "{stored}");
    for key in 0..stored {
        assert_eq!(client.get(&key.to_le_bytes()).unwrap(), Some(value(key, 900)), "what is there stays");
    }
    let error = client.put(b"large", &value(1, 100_000)).unwrap_err();
    assert!(matches!(error, PmemError::Full { .. }), "{error}");
    // Every second record: no block is free as a whole, so room comes from compaction alone.
    for key in (0..stored).step_by(2) {
        assert!(client.delete(&key.to_le_bytes()).unwrap());
    }
    for key in 0..stored / 3 {
        client.put(&(key + 10_000).to_le_bytes(), &value(key, 900)).unwrap();
    }
    assert_eq!(store.len(), stored - stored.div_ceil(2) + stored / 3);
    drop((client, store));
    assert_eq!(
        Store::<Variable>::open(place.path(), &small).unwrap().len(),
        stored - stored.div_ceil(2) + stored / 3
    );
}

#[test]
fn records_of_every_length_come_back() {
    let place = Place::new();
    let store = create::<Variable>(&place);
    let mut client = store.client().unwrap();
    let lengths: Vec<usize> =
        (0..300).chain([4000, 4040, 4041, 4096, 8192, 24_500, 24_576, 24_600, 70_000, 3 << 20]).collect();
    for bytes in &lengths {
        client.put(&bytes.to_le_bytes(), &value(*bytes as u64, *bytes)).unwrap();
    }
    let long = value(3, 65_535);
    client.put(&long, b"a long key").unwrap();
    assert!(matches!(client.put(&[1; 65_536], b""), Err(PmemError::TooLong { what: "key", .. })));
    client.put(b"", b"an empty key").unwrap();
    let check = |store: &Store<Variable>| {
        let reader = store.reader();
        for bytes in &lengths {
            assert_eq!(
                reader.get(&bytes.to_le_bytes()).unwrap(),
                Some(value(*bytes as u64, *bytes)),
                "{bytes}"
            );
        }
        assert_eq!(reader.get(&long).unwrap().unwrap(), b"a long key");
        assert_eq!(reader.get(b"").unwrap().unwrap(), b"an empty key");
        assert_eq!(store.len(), lengths.len() as u64 + 2);
    };
    check(&store);
    // An update may change the length too.
    client.update(b"", |value| value.extend_from_slice(&[7; 50_000])).unwrap();
    assert_eq!(client.get(b"").unwrap().unwrap().len(), 50_012);
    client.update(b"", |value| value.truncate(12)).unwrap();
    drop((client, store));
    check(&open(&place));
}
