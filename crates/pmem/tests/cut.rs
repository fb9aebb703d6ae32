//! Files that are cut where space is reclaimed, and grow again.

mod common;

use common::{Place, create, open, options, value};
use vellum_pmem::{Client, Fixed, Options, Persistence, Store, Variable};

fn bytes(place: &Place) -> u64 {
    std::fs::metadata(place.path()).unwrap().len()
}

/// The file grows, and is cut, by 64 pages, and a block has six: so a cut goes through a block, of which the first
/// pages stay as they were and the others become zeroes.
#[test]
fn a_store_that_is_emptied_cut_and_filled_again_holds_everything() {
    let place = Place::new();
    let store = create::<Fixed<8, 200>>(&place);
    let mut client = store.client().unwrap();
    let filled = |key: u64| -> [u8; 200] { value(key, 200).try_into().unwrap() };
    let fill = |client: &mut Client<Fixed<8, 200>>| {
        (0..6000u64).for_each(|key| {
            client.put(&key.to_le_bytes(), &filled(key)).unwrap();
        });
    };
    fill(&mut client);
    let full = bytes(&place);
    for key in 0..6000u64 {
        assert!(client.delete(&key.to_le_bytes()).unwrap());
    }
    assert!(store.reclaim().unwrap().blocks_returned > 0);
    let (left, block) = (bytes(&place), store.statistics().block_bytes);
    assert!(left < full && !left.is_multiple_of(block), "{left} of {full} bytes, blocks of {block}");
    fill(&mut client);
    drop((client, store));
    let store = open::<Fixed<8, 200>>(&place);
    let reader = store.reader();
    for key in 0..6000u64 {
        assert_eq!(reader.get(&key.to_le_bytes()).unwrap(), Some(filled(key).to_vec()));
    }
    assert_eq!(store.recovery().damage_count, 0);
}

/// A word that a client, or the stripe of its key, remembers is flushed where the file was cut. If nothing is mapped
/// there, the process gets a signal.
#[test]
fn a_word_that_was_left_to_a_fence_may_lie_where_the_file_was_cut() {
    for is_forgotten in [false, true] {
        let place = Place::new();
        let wide = Options { chunk_bytes: 16 << 20, ..options() };
        let store = Store::<Variable>::create(place.path(), &wide).unwrap();
        let (mut client, mut sleeper) = (store.client().unwrap(), store.client().unwrap());
        let fill = |client: &mut Client<Variable>, count: u64| {
            (0..count).for_each(|key| {
                client.put(&key.to_le_bytes(), &value(key, 4000)).unwrap();
            });
        };
        fill(&mut client, 2000);
        let full = bytes(&place);
        let last = 1999u64.to_le_bytes();
        assert!(sleeper.update(&last, |value| value[0] = 1).unwrap());
        for key in 0..1950u64 {
            assert!(client.delete(&key.to_le_bytes()).unwrap());
        }
        store.reclaim().unwrap();
        let cut = bytes(&place);
        fill(&mut client, 400);
        let grown = bytes(&place);
        assert!(cut < grown && grown < full / 2, "{full}, then {cut}, then {grown} bytes");
        if is_forgotten {
            // The client never comes to its next fence, so another one flushes the word.
            std::mem::forget(sleeper);
            assert!(client.delete(&last).unwrap());
        } else {
            sleeper.put(b"another", b"record").unwrap();
            drop(sleeper);
        }
        fill(&mut client, 2000);
        assert_eq!(client.get(&last).unwrap(), Some(value(1999, 4000)));
    }
}

#[test]
fn a_file_that_grows_by_parts_of_pages_is_cut_all_the_same() {
    for persistence in [options().persistence, Some(Persistence::Msync)] {
        let place = Place::new();
        let odd = Options { growth_bytes: 100_000, persistence, ..options() };
        let store = Store::<Variable>::create(place.path(), &odd).unwrap();
        let mut client = store.client().unwrap();
        let keys: Vec<[u8; 8]> = (0..1000u64).map(u64::to_le_bytes).collect();
        let records = || keys.iter().map(|key| (&key[..], &[1; 1000][..]));
        for _ in 0..2 {
            client.put_batch(records().collect::<Vec<_>>()).unwrap();
            let full = bytes(&place);
            assert_eq!(client.delete_batch(keys.iter().map(|key| &key[..])).unwrap(), 1000);
            store.reclaim().unwrap();
            assert!(bytes(&place) < full / 2, "{} of {full} bytes", bytes(&place));
        }
    }
}
