//! Opening, refusing, running out of room.

mod common;

use common::{Place, create, fill, open, options, value};
use vellum_pmem::{Fixed, Options, Persistence, PmemError, Put, Shape, Store, Variable, describe};

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
fn a_value_whose_length_must_not_change_keeps_it_and_the_error_says_why() {
    let place = Place::new();
    let store = create::<Fixed<8, 20>>(&place);
    let mut client = store.client().unwrap();
    client.put(&[1; 8], &[2; 20]).unwrap();
    let error = client.update(&[1; 8], |value| value.truncate(7)).unwrap_err();
    assert!(matches!(error, PmemError::OtherLength { bytes: 7, wanted: 20 }), "{error}");
    assert_eq!(client.get(&[1; 8]).unwrap().as_deref(), Some(&[2; 20][..]));
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
fn what_a_put_has_replaced_makes_room_for_the_next() {
    let place = Place::new();
    let small = Options { capacity_bytes: 1 << 20, ..options() };
    let store = Store::<Variable>::create(place.path(), &small).unwrap();
    let mut client = store.client().unwrap();
    // Two of these find room, and the second makes the first dead.
    for version in 0..4 {
        client.put(b"key", &value(version, 400_000)).unwrap();
        assert_eq!(client.get(b"key").unwrap(), Some(value(version, 400_000)));
    }
    client.update(b"key", |value| value.truncate(390_000)).unwrap();
}

/// Reclaiming makes the batch begin again. What it had stored must not be stored twice: another client has changed it since.
#[test]
fn a_batch_that_finds_no_room_for_a_while_does_not_undo_what_others_changed() {
    let small = Options { capacity_bytes: 1 << 20, ..options() };
    let place = Place::new();
    let stored = fill(&mut Store::create(place.path(), &small).unwrap().client().unwrap(), 900);
    let place = Place::new();
    let store = Store::<Variable>::create(place.path(), &small).unwrap();
    let (mut client, mut other) = (store.client().unwrap(), store.client().unwrap());
    other.put(b"other", b"begins a block").unwrap();
    // As in a full store of which every second record is deleted: room for some small records, and then from compaction alone.
    let old: Vec<_> = (0..stored - 100).map(|key| (key + 1000).to_le_bytes()).collect();
    old.iter().for_each(|key| assert_eq!(client.put(key, &value(1, 900)).unwrap(), Put::Inserted));
    old.iter().step_by(2).for_each(|key| assert!(client.delete(key).unwrap()));
    let keys: Vec<_> = (0..200u64).map(u64::to_le_bytes).collect();
    let values: Vec<_> = (0..200).map(|key| value(key, if key < 64 { 8 } else { 900 })).collect();
    let once = std::cell::RefCell::new(Some(&mut other));
    let entries = keys.iter().zip(&values).map(|(key, value)| {
        if *key == keys[64]
            && let Some(other) = once.take()
        {
            other.put(&keys[0], b"changed").unwrap();
        }
        (&key[..], &value[..])
    });
    client.put_batch(entries).unwrap();
    assert_eq!(client.get(&keys[0]).unwrap().unwrap(), b"changed");
    assert!((1..200).all(|key| client.get(&keys[key]).unwrap().as_ref() == Some(&values[key])));
}

#[test]
fn a_file_never_exceeds_its_capacity() {
    let place = Place::new();
    let bytes = || std::fs::metadata(place.path()).unwrap().len();
    for capacity_bytes in [4 << 20, (1 << 20) + 1] {
        let small = Options { capacity_bytes, ..options() };
        let store = Store::<Variable>::create(place.path(), &small).unwrap();
        let mut client = store.client().unwrap();
        let before = bytes();
        let error = client.put(b"large", &vec![1; 20 << 20]).unwrap_err();
        assert!(matches!(error, PmemError::Full { .. }), "{error}");
        assert_eq!(bytes(), before, "nothing is allocated for what finds no room");
        fill(&mut client, 1000);
        assert!(bytes() <= capacity_bytes && bytes() + (256 << 10) > capacity_bytes, "{}", bytes());
        drop((client, store));
        // A file that is larger than the capacity with which it is opened stays as it is.
        let smaller = Options { capacity_bytes: 1 << 20, ..small };
        let store = Store::<Variable>::open(place.path(), &smaller).unwrap();
        let before = bytes();
        assert!(store.client().unwrap().put(b"large", &vec![1; 2 << 20]).is_err());
        assert_eq!(bytes(), before);
        drop(store);
        std::fs::remove_file(place.path()).unwrap();
    }
}

#[test]
fn a_capacity_without_bounds_is_as_much_as_there_is() {
    let place = Place::new();
    let boundless = Options { capacity_bytes: u64::MAX, ..options() };
    let store = Store::<Variable>::create(place.path(), &boundless).unwrap();
    store.client().unwrap().put(b"key", b"value").unwrap();
    drop(store);
    assert_eq!(Store::<Variable>::open(place.path(), &boundless).unwrap().len(), 1);
    std::fs::remove_file(place.path()).unwrap();
    let impossible = Options { chunk_bytes: u64::MAX >> 20 << 20, ..boundless };
    assert!(Store::<Variable>::create(place.path(), &impossible).is_err());
    assert!(!place.path().exists(), "nothing remains of it");
}

#[test]
fn two_that_create_a_store_at_once_do_not_remove_each_others() {
    let place = Place::new();
    for _ in 0..2000 {
        let together = std::sync::Barrier::new(2);
        let create = || {
            together.wait();
            Store::<Variable>::create(place.path(), &options())
        };
        let made = std::thread::scope(|scope| {
            let other = scope.spawn(create);
            [create(), other.join().unwrap()]
        });
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
        assert!(place.path().exists(), "the store of the one that came first");
        drop(made);
        std::fs::remove_file(place.path()).unwrap();
    }
}

#[test]
fn a_pipe_is_refused_at_once() {
    let place = Place::new();
    let path = std::ffi::CString::new(place.path().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let (done, wait) = std::sync::mpsc::channel();
    let path = place.path();
    std::thread::spawn(move || {
        let opened = Store::<Variable>::open(&path, &options()).map(drop).unwrap_err();
        let created = Store::<Variable>::create(&path, &options()).map(drop).unwrap_err();
        done.send([opened, created].map(|error| error.to_string())).unwrap();
    });
    let [opened, created] = wait.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits for ever");
    assert!(opened.contains("not a regular file"), "{opened}");
    assert!(created.contains("cannot create") && place.path().exists(), "{created}");
}

#[test]
fn holes_of_a_copy_get_room_when_it_is_opened_for_changes() {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    let place = Place::new();
    drop(create::<Variable>(&place));
    let contents = std::fs::read(place.path()).unwrap();
    std::fs::remove_file(place.path()).unwrap();
    // As by a program that copies only what is not zero.
    let copy = std::fs::File::create(place.path()).unwrap();
    copy.set_len(contents.len() as u64).unwrap();
    for (number, page) in
        contents.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0))
    {
        copy.write_all_at(page, number as u64 * 4096).unwrap();
    }
    let allocated = || place.path().metadata().unwrap().blocks() * 512;
    assert!(allocated() < contents.len() as u64, "there are holes");
    let store = open::<Variable>(&place);
    assert!(allocated() >= contents.len() as u64, "{} of {}", allocated(), contents.len());
    drop(store);
    assert!(std::fs::read(place.path()).unwrap() == contents, "nothing else has changed");
}

/// What lies behind a key, up to the next word, is covered by no checksum, and means nothing.
#[test]
fn a_key_is_found_whatever_lies_behind_it() {
    let place = Place::new();
    let mut client = create::<Variable>(&place).client().unwrap();
    client.put(b"a key of 19 bytes..", b"old").unwrap();
    drop(client);
    let mut bytes = std::fs::read(place.path()).unwrap();
    let at = bytes.windows(19).position(|bytes| bytes == b"a key of 19 bytes..").unwrap();
    bytes[at + 19] ^= 1;
    std::fs::write(place.path(), bytes).unwrap();
    let store = open::<Variable>(&place);
    let mut client = store.client().unwrap();
    assert_eq!(client.get(b"a key of 19 bytes..").unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(client.put(b"a key of 19 bytes..", b"new").unwrap(), Put::Replaced);
    assert!(client.delete(b"a key of 19 bytes..").unwrap() && store.is_empty());
}

/// A store that was cut in the middle of a large record, and is used without it.
#[test]
fn what_is_stored_behind_a_large_record_that_was_cut_off_stays() {
    // In the middle of the record, after its first block, and one page after that.
    for cut in [150_000, 8192, 12_288] {
        let place = Place::new();
        let made = Options { pages_per_block: 2, ..options() };
        let store = Store::<Variable>::create(place.path(), &made).unwrap();
        let mut client = store.client().unwrap();
        client.put(b"small", &value(1, 100)).unwrap();
        let before = store.statistics().blocks + 2;
        client.put(b"large", &value(2, 300_000)).unwrap();
        drop((client, store));
        let file = std::fs::OpenOptions::new().write(true).open(place.path()).unwrap();
        file.set_len(before * 8192 + cut).unwrap();
        let error = Store::<Variable>::open(place.path(), &made).unwrap_err();
        assert!(matches!(error, PmemError::Damaged(_)), "{error}");
        let tolerant = Options { tolerate_damage: true, ..made };
        for round in 0..3u64 {
            let store = Store::<Variable>::open(place.path(), &tolerant).unwrap();
            assert!(store.recovery().damage_count > 0);
            let mut client = store.client().unwrap();
            assert_eq!(client.get(b"small").unwrap(), Some(value(1, 100)));
            assert_eq!(client.get(b"large").unwrap(), None);
            for key in 0..round * 100 {
                let length = if key % 50 == 7 { 60_000 } else { 500 };
                assert_eq!(client.get(&key.to_le_bytes()).unwrap(), Some(value(key, length)), "{cut} {key}");
            }
            for key in round * 100..(round + 1) * 100 {
                let length = if key % 50 == 7 { 60_000 } else { 500 };
                client.put(&key.to_le_bytes(), &value(key, length)).unwrap();
            }
        }
    }
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
