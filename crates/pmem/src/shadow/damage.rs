//! Damaged stores: opening gives an error, or a part of the contents if damage is tolerated; never a panic, and never
//! wrong contents.

use super::{
    Shadow,
    model::{Entries, Setting, Testable, contents},
    records::{key, sample, value},
};
use crate::{
    Damage, Fixed, Options, PmemError, Store, Variable,
    core::{CLIENT_BITS, CLOCK_MAX, Core},
    layout::{
        Geometry, KIND_LARGE, LARGE_BLOCKS_AT, LOG_AT, PageWord, SizeWord, mix, read_page_word,
        read_size_word, record_sum,
    },
    space::Purpose,
};
use std::{path::Path, sync::atomic::Ordering};

fn open<L: Testable>(
    image: &[u64],
    setting: &Setting,
    tolerate_damage: bool,
) -> Result<Store<L, Shadow>, PmemError> {
    let options = Options { tolerate_damage, ..setting.options() };
    let shadow = Shadow::with(image.to_vec(), setting.bytes);
    Store::open_on(shadow, Path::new("shadow"), &options, (4, 2), &|_, _| {})
}

/// Opens a changed image in both ways; returns whether the change was noticed.
fn check<L: Testable>(image: &[u64], held: &Entries, setting: &Setting, what: &str) -> bool {
    let noticed = match open::<L>(image, setting, false) {
        // Meaningless bytes and locks may change.
        Ok(store) => {
            assert_eq!(&contents(&store), held, "{what}");
            false
        }
        Err(PmemError::Damaged(_) | PmemError::NotAStore { .. } | PmemError::Version { .. }) => true,
        Err(error) => panic!("{what}: {error}"),
    };
    match open::<L>(image, setting, true) {
        Ok(store) => {
            let found = contents(&store);
            assert!(found.iter().all(|(key, value)| held.get(key) == Some(value)), "{what}");
            assert!(noticed || &found == held, "{what}");
            assert_eq!(noticed, store.recovery().damage_count > 0, "{what}");
            // The rest can be used, and that overwrites nothing that is damaged.
            let mut client = store.client().unwrap();
            let (new_key, new_value) = (key(1000), held.values().next().unwrap());
            client.put(L::key(&new_key), L::value(new_value)).unwrap();
            assert_eq!(client.get(L::key(&new_key)).unwrap().as_ref(), Some(new_value), "{what}");
        }
        Err(PmemError::Damaged(_) | PmemError::NotAStore { .. } | PmemError::Version { .. }) => {
            assert!(noticed)
        }
        Err(error) => panic!("{what}: {error}"),
    }
    noticed
}

fn damage<L: Testable>(setting: &Setting, sizes: &[usize]) {
    let (image, held) = sample::<L>(setting, sizes);
    assert!(!check::<L>(&image, &held, setting, "unchanged"));
    let (mut tried, mut noticed) = (0, 0);
    // A sample of words, each with a different bit; the first words of pages, where heads are, with many bits.
    for word in 0..image.len() {
        let any = (word as u64 * 7) % 64;
        let bits = match word % 512 {
            0..4 => (word as u64 % 3..64).step_by(3),
            _ if word % 13 == 0 => (any..any + 1).step_by(1),
            _ => continue,
        };
        for bit in bits {
            let mut changed = image.clone();
            changed[word] ^= 1 << bit;
            tried += 1;
            noticed += u64::from(check::<L>(&changed, &held, setting, &format!("word {word} bit {bit}")));
        }
    }
    // Words that became zero, which ends a log; not the heads of pages, for a block without one was never used.
    for word in 0..image.len() {
        let at = word as u64 * 8;
        let is_size = matches!(read_size_word(at, image[word]), SizeWord::Record { .. });
        let is_chosen = image[word] != 0 && !word.is_multiple_of(512) && (is_size || word.is_multiple_of(11));
        // A large record without its size word is one that was never valid.
        if is_chosen && !(word % 512 == LOG_AT as usize / 8 && is_large(image[word - 2], at, setting)) {
            let mut changed = image.clone();
            changed[word] = 0;
            tried += 1;
            noticed += u64::from(check::<L>(&changed, &held, setting, &format!("word {word} is zero")));
        }
    }
    // Whole pages of noise, and erased pages.
    for page in 0..image.len() / 512 {
        for noise in [true, false] {
            let mut changed = image.clone();
            for (at, word) in changed.iter_mut().enumerate().skip(page * 512).take(512) {
                *word = if noise { mix(at as u64) } else { 0 };
            }
            tried += 1;
            noticed += u64::from(check_any::<L>(&changed, &held, setting));
        }
    }
    // A file that was cut.
    for end in (0..image.len()).step_by(512) {
        tried += 1;
        noticed += u64::from(check_any::<L>(&image[..end], &held, setting));
    }
    println!("{tried} damaged stores, {noticed} noticed");
    assert!(noticed * 4 > tried, "{noticed} of {tried}");
}

/// Whether this first word of the page with byte `at` says that a large record begins there.
fn is_large(head: u64, at: u64, setting: &Setting) -> bool {
    let block = Geometry::new(setting.pages_per_block).blocks_in(at);
    matches!(read_page_word(head, block, 0), PageWord::Formatted { kind: KIND_LARGE, .. })
}

/// Whether larger damage is noticed. A block that reads as zeroes is one that was never used.
fn check_any<L: Testable>(image: &[u64], held: &Entries, setting: &Setting) -> bool {
    for tolerate in [false, true] {
        match open::<L>(image, setting, tolerate) {
            Ok(store) => {
                let found = contents(&store);
                assert!(found.iter().all(|(key, value)| held.get(key) == Some(value)));
            }
            Err(PmemError::Damaged(_) | PmemError::NotAStore { .. } | PmemError::Version { .. }) => {
                return true;
            }
            Err(error) => panic!("{error}"),
        }
    }
    false
}

#[test]
fn damaged_stores_of_records_of_one_size() {
    damage::<Fixed<8, 1000>>(&Setting::default(), &[1000]);
}

#[test]
fn damaged_stores_of_records_of_any_size() {
    damage::<Variable>(&Setting { pages_per_block: 3, ..Setting::default() }, &[10, 300, 5000, 20, 15_000]);
}

#[test]
fn a_damaged_count_of_blocks_hides_nothing_else() {
    let setting = Setting::default();
    let (image, held) = sample::<Variable>(&setting, &[10, 20_000, 300]);
    let is_head = |word: &usize| {
        let at = *word as u64 * 8;
        at.is_multiple_of(8192) && is_large(image[*word], at, &setting)
    };
    let heads: Vec<usize> = (0..image.len()).step_by(512).filter(is_head).collect();
    assert!(heads.len() > 3, "{heads:?}");
    for head in heads {
        let mut changed = image.clone();
        changed[head + LARGE_BLOCKS_AT as usize / 8] ^= 1 << 5;
        assert!(check::<Variable>(&changed, &held, &setting, "a count"));
        let store = open::<Variable>(&changed, &setting, true).unwrap();
        assert_eq!((contents(&store), store.recovery().damage_count), (held.clone(), 1), "{head}");
    }
}

#[test]
fn an_index_of_large_records_is_as_small_as_they_are_few() {
    let setting = Setting { bytes: 4 << 20, ..Setting::default() };
    let options = setting.options();
    let store =
        Store::<Variable, Shadow>::create_on(Shadow::new(setting.bytes), &options, 1 << 10, 2).unwrap();
    let mut client = store.client().unwrap();
    (0..3).for_each(|k| assert!(client.put(&key(k), &value(k, 1 << 20)).is_ok()));
    drop(client);
    let medium = &store.core().medium;
    let image = (0..medium.capacity_words()).map(|word| medium.word(word)).collect();
    let shadow = Shadow::with(image, setting.bytes);
    let again =
        Store::<Variable, Shadow>::open_on(shadow, Path::new("shadow"), &options, (1 << 10, 2), &|_, _| {})
            .unwrap();
    assert_eq!((again.len(), again.statistics().index_bytes), (3, store.statistics().index_bytes));
}

fn image_of<L: Testable>(store: &Store<L, Shadow>) -> Vec<u64> {
    let medium = &store.core().medium;
    (0..medium.capacity_words()).map(|word| medium.word(word)).collect()
}

/// Where the record of a key is, as a number of words.
fn record_at<L: Testable>(store: &Store<L, Shadow>, key: &[u8]) -> usize {
    let core = store.core();
    core.read(core.hash(key), key, |record| record.at as usize / 8).unwrap().unwrap()
}

#[test]
fn what_is_left_of_a_large_record_without_its_head_is_not_overwritten() {
    const LARGE_BYTES: usize = 20_000;
    let setting = Setting::default();
    let shadow = Shadow::new(setting.bytes);
    let store = Store::<Variable, Shadow>::create_on(shadow, &setting.options(), 4, 2).unwrap();
    let mut client = store.client().unwrap();
    // Its other blocks begin with zeroes, as unformatted ones do.
    client.put(&key(0), &vec![0; LARGE_BYTES]).unwrap();
    client.put(&key(1), &value(1, 300)).unwrap();
    drop(client);
    let (image, record) = (image_of(&store), record_at(&store, &key(0)));
    let head = record - LOG_AT as usize / 8 - 1;
    let count = head + LARGE_BLOCKS_AT as usize / 8;
    assert!(is_large(image[head], head as u64 * 8, &setting));
    for damaged in [&[head][..], &[head, count], &[head, count, count + 1]] {
        let mut changed = image.clone();
        damaged.iter().for_each(|word| changed[*word] ^= 1 << 40);
        assert!(open::<Variable>(&changed, &setting, false).is_err());
        let store = open::<Variable>(&changed, &setting, true).unwrap();
        let mut client = store.client().unwrap();
        let stored = (2..).find(|number| client.put(&key(*number), &value(*number, 300)).is_err()).unwrap();
        assert!(stored > 100, "{stored}");
        let left = image_of(&store);
        let words = head + 1..record + LARGE_BYTES / 8;
        assert!(left[words.clone()] == changed[words], "{damaged:?}");
        assert_eq!(client.get(&key(1)).unwrap(), Some(value(1, 300)));
    }
}

fn too_high_a_sequence_number<L: Testable>(checksums: bool) {
    let setting = Setting { checksums, ..Setting::default() };
    let shadow = Shadow::new(setting.bytes);
    let store = Store::<L, Shadow>::create_on(shadow, &setting.options(), 4, 2).unwrap();
    let old = L::any_value();
    let mut client = store.client().unwrap();
    (0..2).for_each(|k| assert!(client.put(L::key(&key(k)), L::value(&old)).is_ok()));
    drop(client);
    let at = record_at(&store, &key(0));
    let with = |clock: u64| {
        let mut image = image_of(&store);
        let sequence = clock << CLIENT_BITS | 7;
        image[at] = sequence;
        if checksums {
            let sum = u64::from(record_sum(sequence, &key(0), &old));
            image[at + 1] = sum | sum << 32;
        }
        image
    };
    for clock in [CLOCK_MAX + 1, (1 << 48) - 1] {
        let error = open::<L>(&with(clock), &setting, false).map(drop).unwrap_err();
        let wanted = Damage::Record { at: at as u64 * 8 };
        assert!(matches!(error, PmemError::Damaged(damage) if damage == wanted), "{error}");
        let store = open::<L>(&with(clock), &setting, true).unwrap();
        let mut client = store.client().unwrap();
        assert_eq!(client.get(L::key(&key(0))).unwrap(), None);
        for k in 0..2 {
            let new: Vec<u8> = old.iter().map(|byte| byte ^ 1).collect();
            client.put(L::key(&key(k)), L::value(&new)).unwrap();
            assert_eq!(client.get(L::key(&key(k))).unwrap(), Some(new), "it is not dropped");
        }
    }
    let store = open::<L>(&with(CLOCK_MAX), &setting, false).unwrap();
    let mut writer = store.core().writer(Purpose::Write).unwrap();
    writer.clock = (1 << 48) - 2;
    let last = Core::<L, Shadow>::draw(&mut writer, 0).unwrap();
    assert_eq!(last >> CLIENT_BITS, (1 << 48) - 1);
    assert!(matches!(Core::<L, Shadow>::draw(&mut writer, last), Err(PmemError::Clock)));
    store.core().end_writer(&mut writer);
}

#[test]
fn a_sequence_number_that_leaves_none_above_it_is_damage() {
    for checksums in [true, false] {
        too_high_a_sequence_number::<Variable>(checksums);
        too_high_a_sequence_number::<Fixed<8, 8>>(checksums);
    }
}

/// A put that learns only after it has written its record that it cannot replace the present one.
fn a_put_that_comes_to_nothing<L: Testable>(checksums: bool, word_behind: usize, damaged: u64) {
    let setting = Setting { checksums, ..Setting::default() };
    let store = Store::<L, Shadow>::create_on(Shadow::new(setting.bytes), &setting.options(), 4, 2).unwrap();
    let old = L::any_value();
    let new: Vec<u8> = old.iter().map(|byte| byte ^ 1).collect();
    let mut client = store.client().unwrap();
    client.put(L::key(&key(0)), L::value(&old)).unwrap();
    let word = store.core().medium.memory.word((record_at(&store, &key(0)) - word_behind) as u64 * 8);
    let right = word.swap(damaged, Ordering::Relaxed);
    for _ in 0..2 {
        client.put(L::key(&key(0)), L::value(&new)).unwrap_err();
    }
    word.store(right, Ordering::Relaxed);
    let value = |store: &Store<L, Shadow>| store.reader().get(L::key(&key(0))).unwrap();
    assert_eq!(value(&store), Some(old.clone()));
    let again = open::<L>(&image_of(&store), &setting, false).unwrap();
    assert_eq!((value(&again), again.len()), (Some(old), 1), "the record was taken back");
}

#[test]
fn a_put_that_fails_after_it_has_written_its_record_leaves_nothing() {
    for checksums in [true, false] {
        // No number is above that of the record; nothing says how long the record is.
        a_put_that_comes_to_nothing::<Fixed<8, 8>>(checksums, 0, u64::MAX);
        a_put_that_comes_to_nothing::<Variable>(checksums, 0, u64::MAX);
        a_put_that_comes_to_nothing::<Variable>(checksums, 1, u64::MAX);
    }
}
