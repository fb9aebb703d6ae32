//! A file of each released format version stays readable, value for value.
//!
//! The samples are committed in `tests/data`. What they hold follows from the functions below. A second look
//! goes past the engine: it reads the bytes as FILE_FORMAT.md describes them.

use std::{collections::BTreeMap, path::PathBuf};
use vellum::{
    Database, Durability, Options,
    pool::{PAGE_SIZE, checksum},
};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The version of which the sample is written anew.
const VERSION: u32 = 4;

fn sample(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/sample-v{version}.vellum"))
}

/// `length` bytes that follow from `seed`.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// What each table holds.
fn tables() -> Vec<(&'static str, Entries)> {
    // Numbers as big-endian keys: heads alone decide.
    let numbers =
        (0..1000u64).map(|number| (number.to_be_bytes().to_vec(), pattern(number, number as usize % 60)));
    // Paths: prefixes and separators are cut, tails lie in the heap.
    let paths = (0..400u64).map(|number| {
        let path = format!("usr/share/doc/package-{:03}/examples/{number}.txt", number / 7);
        (path.into_bytes(), format!("number {number}").into_bytes())
    });
    // Lengths at and around each limit.
    let mut edges = Entries::new();
    for length in [0, 1, 3, 4, 5, 8, 9, 500, 887, 888, 889, 1023, 1024] {
        edges.insert(pattern(length as u64 + 7, length), pattern(length as u64, 40));
    }
    for length in [0, 1, 1023, 1024, 1025, 4063, 4064, 4065, 65_537] {
        edges.insert(format!("value of {length} bytes").into_bytes(), pattern(length as u64, length));
    }
    // Each would go into a leaf alone, both together do not.
    edges.insert(pattern(1000, 1000), pattern(1001, 1000));
    vec![
        ("edges", edges),
        ("empty", Entries::new()),
        ("numbers", numbers.collect()),
        ("paths", paths.collect()),
        ("ärger \u{1F4D6}", Entries::from([(b"key".to_vec(), b"value".to_vec())])),
    ]
}

fn options() -> Options {
    Options::default().capacity_bytes(1 << 30).background_eviction(false).durability(Durability::Deferred)
}

#[test]
#[ignore = "writes the committed sample anew, for a new version of the format: cargo xtask sample"]
fn write_the_sample() {
    let path = sample(VERSION);
    if path.exists() {
        std::fs::remove_file(&path).unwrap();
    }
    let database = Database::create(&path, &options()).unwrap();
    for (name, entries) in tables() {
        let table = database.create_table(name).unwrap();
        let dropped = database.create_table("dropped").unwrap();
        // In an order that is not the keys', so that leaves split in their middles, with entries that go
        // again, so that nodes and the space map have holes.
        let mut order: Vec<_> = entries.iter().collect();
        order.sort_by_key(|(key, _)| checksum(key));
        for (key, value) in order {
            let short = key.get(..key.len().min(1000)).unwrap();
            let passing = [short, b" passing"].concat();
            table.put(&passing, pattern(1, 20)).unwrap();
            table.put(key, "replaced below").unwrap();
            table.put(key, value).unwrap();
            assert!(table.remove(&passing).unwrap());
            dropped.put(key, b"x").unwrap();
        }
        drop(dropped);
        database.drop_table("dropped").unwrap();
    }
    database.close().unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes <= 300 << 10, "{bytes} bytes are too many to commit");
}

#[test]
fn a_sample_of_each_version_has_every_value() {
    (1..=VERSION).for_each(has_every_value);
}

fn has_every_value(version: u32) {
    let database = Database::open(sample(version), &options().read_only(true)).unwrap();
    let expected = tables();
    let names: Vec<_> = database.tables().unwrap().into_iter().map(|table| table.name).collect();
    let expected_names: Vec<_> = expected.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected_names);
    for (name, entries) in expected {
        let table = database.table(name).unwrap();
        for (key, value) in &entries {
            let found = table.get(key).unwrap();
            assert!(found.as_ref() == Some(value), "{name}: the value of {key:02x?}");
        }
        let mut cursor = table.cursor(..).unwrap();
        let mut found = Entries::new();
        while let Some(entry) = cursor.next().unwrap() {
            found.insert(entry.key().to_vec(), entry.value().unwrap().unwrap().to_vec());
        }
        assert!(found == entries, "{name}: a scan finds {} entries of {}", found.len(), entries.len());
        cursor.seek_to_end();
        let backwards = std::iter::from_fn(|| Some(cursor.previous().unwrap()?.key().to_vec()));
        assert!(backwards.eq(entries.keys().rev().cloned()), "{name}: a scan backwards");
    }
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.tables.len(), 5);
}

/// Reads the keys of a leaf and their fingerprints; says how many there are.
fn fingerprints_are_those_of_the_keys(leaf: &[u8]) -> usize {
    let (count, prefix_length) = (number(leaf, 32, 2) as usize, number(leaf, 34, 2) as usize);
    let lower_length = number(leaf, 48, 2) as usize;
    assert!(leaf[36] == 0 && count <= 64);
    for index in 0..64 {
        let fingerprint = number(leaf, 64 + index, 1);
        if index >= count {
            assert_eq!(fingerprint, 0);
            continue;
        }
        let slot = number(leaf, 128 + 8 * index, 8);
        let [rest, value, at] =
            [slot >> 21 & 0x7ff, slot >> 10 & 0x7ff, (slot & 0x3ff) * 4].map(|field| field as usize);
        let value = if value == 1025 { 24 } else { value };
        let mut key = leaf[4096 - lower_length..][..prefix_length].to_vec();
        key.extend_from_slice(&((slot >> 32) as u32).to_be_bytes()[..rest.min(4)]);
        key.extend_from_slice(&leaf[at + value..][..rest.saturating_sub(4)]);
        assert_eq!(fingerprint, checksum(&key) & 0xff, "fingerprint {index}");
    }
    count
}

/// Reads the separators of an inner node, and checks that they ascend and lie between the fences, and that its hints are
/// the upper halves of heads; says how many are longer than their heads.
fn separators_ascend(node: &[u8], head_bytes: usize) -> usize {
    let (count, prefix_length) = (number(node, 32, 2) as usize, number(node, 34, 2) as usize);
    let (lower_length, upper_length) = (number(node, 48, 2) as usize, number(node, 50, 2) as usize);
    let prefix = &node[4096 - lower_length..][..prefix_length];
    let mut before = node[4096 - lower_length..4096].to_vec();
    let (mut heads, mut long) = (Vec::new(), 0);
    for entry in (0..count).map(|index| &node[128 + 16 * index..][..16]) {
        let (first, second) = (number(entry, 0, 8), number(entry, 8, 8));
        let (head, rest, at) = if head_bytes == 8 {
            assert_eq!(second >> 50 & 7, 0);
            (first, (second >> 53) as usize, (second >> 40 & 0x3ff) as usize * 4)
        } else {
            assert_eq!((first >> 10 & 0x7ff, second >> 40), (0, 0));
            (first >> 32 << 32, (first >> 21 & 0x7ff) as usize, (first & 0x3ff) as usize * 4)
        };
        let head_part = &head.to_be_bytes()[..rest.min(head_bytes)];
        let separator = [prefix, head_part, &node[at..][..rest.saturating_sub(head_bytes)]].concat();
        assert!(before < separator, "{before:?} {separator:?}");
        before = separator;
        heads.push((head >> 32) as u32);
        long += usize::from(rest > head_bytes);
    }
    if node[37] & 2 != 0 {
        let rest = upper_length - prefix_length;
        let upper = [prefix, &node[4096 - lower_length - rest..][..rest]].concat();
        assert!(before < upper);
    }
    let step = (count.div_ceil(16)).next_power_of_two();
    for hint in 0..16 {
        let due = heads.get((hint + 1) * step - 1).copied().unwrap_or(u32::MAX);
        assert_eq!(number(node, 64 + 4 * hint, 4), due.into(), "hint {hint} of {count}");
    }
    let last = 128 + 16 * count;
    assert!(node[last..last + 8].iter().chain(&node[last + 13..last + 16]).all(|byte| *byte == 0));
    long
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Reads the superblocks, the space map and every page header as FILE_FORMAT.md says they are.
#[test]
fn a_sample_of_each_version_is_as_the_document_says() {
    (1..=VERSION).for_each(is_as_the_document_says);
}

fn is_as_the_document_says(version: u32) {
    let file = std::fs::read(sample(version)).unwrap();
    let page = |page: usize| &file[page * PAGE_SIZE..];
    let newest = if number(page(0), 48, 8) > number(page(1), 48, 8) { 0 } else { 1 };
    for (number_of_page, superblock) in [(0, page(0)), (1, page(1))] {
        assert_eq!(&superblock[32..40], b"VELLUMDB");
        assert_eq!(number(superblock, 40, 4), version.into(), "version of the format");
        assert_eq!(number(superblock, 44, 4), 4096, "page size");
        assert_eq!(number(superblock, 48, 8) % 2, number_of_page, "generation");
        assert_eq!(number(superblock, 56, 4), 2, "closed cleanly");
        assert_eq!(&superblock[64..80], b"vellum database\0");
        // The id of the database, the redo point and the undo point.
        assert_eq!(superblock[232..248] == [0; 16], version == 1);
        assert_eq!(number(superblock, 248, 8) == 0, version == 1);
        assert_eq!(number(superblock, 248, 8), number(superblock, 256, 8));
    }
    let (map, end) = (number(page(newest), 80, 8) as usize, number(page(newest), 96, 8) as usize);
    assert_eq!(file.len(), end * PAGE_SIZE);
    let bit = |page_id: usize, which: usize| {
        let word = number(page(map), 32 + page_id / 64 * 16 + which * 8, 8);
        word >> (page_id % 64) & 1 == 1
    };
    let (allocated, head) = (|page| bit(page, 0), |page| bit(page, 1));
    let (mut kinds, mut fingerprints, mut inner_nodes, mut long) = (BTreeMap::new(), 0, 0, 0);
    for start in (0..end).filter(|page| head(*page)) {
        assert!(allocated(start));
        let stop = (start + 1..end).find(|page| head(*page) || !allocated(*page)).unwrap_or(end);
        let extent = &file[start * PAGE_SIZE..stop * PAGE_SIZE];
        assert_eq!(number(extent, 0, 8), checksum(&extent[8..]), "checksum of page {start}");
        assert_eq!(number(extent, 8, 8), start as u64, "page id");
        let lsn = number(extent, 16, 8);
        assert!(lsn <= number(page(newest), 248, 8), "LSN {lsn}");
        assert_eq!(number(extent, 24, 4), (stop - start) as u64, "length");
        assert_eq!((extent[29], number(extent, 30, 2)), (1, 0), "version of the header");
        *kinds.entry(extent[28]).or_insert(0) += 1;
        if extent[28] == 3 && extent[36] > 0 {
            inner_nodes += 1;
            assert_eq!(extent[37] & !3, if version < 4 { 0 } else { 8 });
            long += separators_ascend(extent, if version < 4 { 4 } else { 8 });
        } else if extent[28] == 3 && extent[37] & 4 != 0 {
            assert!(version >= 3);
            fingerprints += fingerprints_are_those_of_the_keys(extent);
        }
    }
    assert_eq!(fingerprints > 20, version >= 3, "{fingerprints} keys have a fingerprint");
    assert!(inner_nodes >= 3 && long > 0, "{inner_nodes} inner nodes, {long} long separators");
    assert_eq!((kinds[&1], kinds[&2]), (2, 1), "superblocks and the space map");
    assert_eq!(kinds[&4], 6, "values of more than 1024 bytes, and one beside a long key");
    assert!(kinds[&3] > 20 && kinds.len() == 4, "{kinds:?}");
    assert!((0..end).any(|page| !allocated(page)), "some space is free");
}
