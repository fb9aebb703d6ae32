//! Files with wrong bytes in them: opened, read, scanned, changed and verified. Nothing panics and nothing runs
//! forever; `verify` reports what checksums or the structure show.

use crate::support::{create_tree, open_tree, options, problems, sealed};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{ops::Bound, sync::Arc};
use vellum_access::{AccessError, Tree};
use vellum_base::{Extent, PAGE_SIZE, PageHeader, PageId, PageKind, stamp_checksum};
use vellum_pool::{Pool, PoolOptions};
use vellum_vm::{Image, SimulatedFile};

const KEYS: u64 = 260;

fn pool_options() -> PoolOptions {
    options(32).background_eviction(false)
}

/// Many keys differ late, so that separators are long and the tree has more than two levels.
fn key(number: u64) -> Vec<u8> {
    let prefix = if number > 140 { 700 } else { 0 };
    [vec![b'z'; prefix], format!("{number:05}").into_bytes()].concat()
}

/// A closed file with inner nodes, leaves, free pages, and values within the pool and past it.
struct Sample {
    bytes: Vec<u8>,
    extents: Vec<Extent>,
}

impl Sample {
    fn new() -> Self {
        let file = SimulatedFile::new(1);
        let pool = Pool::create_on(Arc::new(file.clone()), &pool_options()).unwrap();
        let tree = create_tree(&pool).unwrap();
        for number in 0..KEYS {
            let length = match number % 40 {
                7 => 3000,
                23 => 9000,
                39 => 80_000,
                _ => 30 + (number * 37 % 400) as usize,
            };
            assert!(tree.insert(&key(number), &sealed(number, 0, length)).unwrap());
        }
        for number in 100..130 {
            assert!(tree.remove(&key(number)).unwrap());
        }
        let shape = crate::support::verify(&pool, &tree).shape;
        assert!(shape.height >= 3 && shape.large_values > 10, "{shape:?}");
        pool.close().unwrap();
        let mut extents = Vec::new();
        let pool = Pool::open_on(Arc::new(file.clone()), &pool_options()).unwrap();
        pool.for_each_extent(|extent| extents.push(extent));
        drop(pool);
        Self { bytes: file.snapshot().to_vec(), extents }
    }

    fn page(&self, page: u64) -> &[u8] {
        &self.bytes[page as usize * PAGE_SIZE..][..PAGE_SIZE]
    }

    fn nodes(&self) -> Vec<u64> {
        let is_node =
            |extent: &&Extent| PageHeader::read(self.page(extent.head.0)).kind == PageKind::TREE_NODE;
        self.extents.iter().filter(is_node).map(|extent| extent.head.0).collect()
    }
}

/// Reads all of a damaged file, then changes much. Returns whether the damage was noticed before the first change.
fn survive(bytes: &[u8]) -> bool {
    let file = SimulatedFile::from_image(1, Image::from_bytes(bytes));
    let Ok(pool) = Pool::open_on(Arc::new(file), &pool_options()) else { return true };
    let tree = open_tree(&pool);
    let noticed = !problems(&pool, &tree).0.is_empty() || !pool.damaged_superblocks().is_empty();
    let _ = tree.shape();
    let _ = scan(&tree, false);
    let _ = scan(&tree, true);
    for number in 0..KEYS {
        let key = key(number);
        let _ = tree.value(&key).map(|value| value.map(|value| value.len()));
        let _ = tree.value_length(&key);
        if let Ok(Some(mut reader)) = tree.reader(&key) {
            let _ = reader.read_at(70_000, &mut [0; 200]);
            let _ = reader.read_at(u64::MAX, &mut [0; 200]);
        }
        let length = (number * 613 % 1500) as usize;
        let _ = match number % 4 {
            0 => tree.upsert(&key, &vec![1; length]).map(drop),
            1 => tree.remove(&key).map(drop),
            2 => tree.insert(&[&key[..], b"+"].concat(), &vec![2; length]).map(drop),
            _ => Ok(()),
        };
    }
    for number in 0..KEYS {
        let _ = tree.remove(&key(number));
    }
    let _ = problems(&pool, &tree);
    if noticed {
        let _ = tree.destroy();
    }
    let _ = pool.close();
    noticed
}

fn scan(tree: &Tree<'_, Pool>, backwards: bool) -> Result<u64, AccessError> {
    let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded)?;
    if backwards {
        cursor.seek_to_end();
    }
    let mut count = 0;
    while let Some(entry) = if backwards { cursor.previous()? } else { cursor.next()? } {
        count += 1;
        assert!(count < 100_000, "a scan in a circle");
        let _ = entry.value();
    }
    Ok(count)
}

#[test]
fn an_intact_file_is_not_complained_of() {
    let sample = Sample::new();
    assert!(!survive(&sample.bytes));
}

/// A bit of any page that is in use: of headers, slots, keys, values, large values, padding.
#[test]
fn a_flipped_bit_on_any_page_is_noticed() {
    let sample = Sample::new();
    let mut random = StdRng::seed_from_u64(1);
    let mut bytes = sample.bytes.clone();
    for extent in &sample.extents {
        for page in 0..extent.pages as usize {
            for within in [random.random_range(0..32 * 8), random.random_range(0..PAGE_SIZE * 8)] {
                let bit = (extent.head.0 as usize + page) * PAGE_SIZE * 8 + within;
                bytes[bit / 8] ^= 1 << (bit % 8);
                let file = SimulatedFile::from_image(1, Image::from_bytes(&bytes));
                let noticed = match Pool::open_on(Arc::new(file), &pool_options()) {
                    Err(_) => true,
                    Ok(pool) => {
                        !pool.damaged_superblocks().is_empty()
                            || !problems(&pool, &open_tree(&pool)).0.is_empty()
                    }
                };
                assert!(noticed, "{extent}, page {page}, bit {within}");
                bytes[bit / 8] = sample.bytes[bit / 8];
            }
        }
    }
}

/// The page as it would be at another place: only the reference to it shows that it is wrong.
fn moved(sample: &Sample, from: u64, to: u64) -> Vec<u8> {
    let mut page = sample.page(from).to_vec();
    page[8..16].copy_from_slice(&to.to_le_bytes());
    stamp_checksum(&mut page);
    page
}

#[test]
fn a_node_in_the_place_of_another_is_noticed_and_survived() {
    let sample = Sample::new();
    let nodes = sample.nodes();
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..60 {
        let (from, to) =
            (nodes[random.random_range(0..nodes.len())], nodes[random.random_range(0..nodes.len())]);
        if from == to {
            continue;
        }
        let mut bytes = sample.bytes.clone();
        bytes[to as usize * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&moved(&sample, from, to));
        assert!(survive(&bytes), "page {from} at {to}");
        // Both exchanged, too.
        bytes[from as usize * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&moved(&sample, to, from));
        assert!(survive(&bytes), "pages {from} and {to} exchanged");
    }
}

#[test]
fn a_node_of_noise_with_a_good_checksum_is_noticed_and_survived() {
    let sample = Sample::new();
    let nodes = sample.nodes();
    let mut random = StdRng::seed_from_u64(3);
    for round in 0..60 {
        let page = nodes[random.random_range(0..nodes.len())];
        let mut bytes = sample.bytes.clone();
        let target = &mut bytes[page as usize * PAGE_SIZE..][..PAGE_SIZE];
        // All of the page, or only the node's own header.
        let end = if round % 2 == 0 { PAGE_SIZE } else { 64 };
        random.fill(&mut target[32..end]);
        stamp_checksum(target);
        assert!(survive(&bytes), "page {page}");
    }
}

/// Some bytes of nodes replaced, with checksums that are right: any structure at all.
fn edited(sample: &Sample, nodes: &[u64], edits: &[(u8, u16, u8)]) -> Vec<u8> {
    let mut bytes = sample.bytes.clone();
    for (node, at, value) in edits {
        let page = nodes[*node as usize % nodes.len()] as usize * PAGE_SIZE;
        // Mostly in the node's header, its hints and slots.
        let at = if at % 4 == 0 { *at as usize } else { *at as usize % 300 };
        let target = &mut bytes[page..][..PAGE_SIZE];
        target[32 + at % (PAGE_SIZE - 32)] = *value;
        stamp_checksum(target);
    }
    bytes
}

#[test]
fn nodes_with_any_bytes_replaced_are_survived() {
    let sample = Sample::new();
    let nodes = sample.nodes();
    bolero::check!().with_iterations(150).with_type::<Vec<(u8, u16, u8)>>().for_each(
        |edits: &Vec<(u8, u16, u8)>| {
            survive(&edited(&sample, &nodes, edits));
        },
    );
}

/// References of inner nodes to each other, to themselves, to values and to nowhere.
#[test]
fn references_that_lead_anywhere_are_survived() {
    let sample = Sample::new();
    let nodes = sample.nodes();
    let inner: Vec<u64> = nodes.iter().copied().filter(|page| sample.page(*page)[36] > 0).collect();
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..120 {
        let mut bytes = sample.bytes.clone();
        for _ in 0..random.random_range(1..4) {
            let page = inner[random.random_range(0..inner.len())];
            let target = &mut bytes[page as usize * PAGE_SIZE..][..PAGE_SIZE];
            let count = u16::from_le_bytes([target[32], target[33]]) as usize;
            let place = 128 + random.random_range(0..=count) * 16 + 8;
            let to = match random.random_range(0..5) {
                0 => page,
                1 => random.random(),
                2 => sample.extents[random.random_range(0..sample.extents.len())].head.0,
                _ => nodes[random.random_range(0..nodes.len())],
            };
            target[place..place + 8].copy_from_slice(&to.to_le_bytes());
            stamp_checksum(target);
        }
        let changed = bytes != sample.bytes;
        assert_eq!(survive(&bytes), changed);
    }
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let sample = Sample::new();
    for end in (0..sample.bytes.len() - 1).step_by(PAGE_SIZE * 3 + 511) {
        let file = SimulatedFile::from_image(1, Image::from_bytes(&sample.bytes[..end]));
        let opened = Pool::open_on(Arc::new(file), &pool_options());
        assert!(opened.is_err(), "{end} bytes of {}", sample.bytes.len());
    }
}

/// No reference beyond the file is followed.
#[test]
fn a_root_that_is_not_there_is_an_error() {
    let sample = Sample::new();
    let file = SimulatedFile::from_image(1, Image::from_bytes(&sample.bytes));
    let pool = Pool::open_on(Arc::new(file), &pool_options()).unwrap();
    for root in [0, 1, sample.bytes.len() as u64 / 4096, 1 << 40, u64::MAX] {
        let tree = Tree::open(&pool, PageId(root));
        assert!(tree.get(b"key").is_err(), "{root}");
        assert!(tree.insert(b"key", b"value").is_err(), "{root}");
        assert!(tree.remove(b"key").is_err(), "{root}");
        assert!(tree.shape().is_err(), "{root}");
        assert_eq!(tree.verify(|_| true).problems.len(), 1, "{root}");
        assert!(tree.destroy().is_err(), "{root}");
    }
    assert!(problems(&pool, &open_tree(&pool)).0.is_empty());
}
