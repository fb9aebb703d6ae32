//! Files that are damaged, cut, foreign, of another time, or in use: each has its error, and none a panic.

mod common;

use common::{Model, assert_nothing_is_held, fill, is_filled, verify};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{process::Command, sync::Arc};
use vellum_base::{Extent, HeaderFault, Lsn, PAGE_SIZE, PageId, PageKind, stamp_checksum};
use vellum_pool::{Allocation, Fault, Interrupt, Navigation, Pool, PoolError, PoolOptions};
use vellum_vm::{Faults, File, FileOperation, Image, SimulatedFile, VmError};

fn options() -> PoolOptions {
    PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24).background_eviction(false)
}

fn open(file: &SimulatedFile) -> Result<Pool, PoolError> {
    Pool::open_on(Arc::new(file.clone()), &options())
}

/// A closed file of extents of 1 to 6 pages with gaps between them.
fn sample() -> (Image, Model, Vec<Extent>) {
    let file = SimulatedFile::new(1);
    let mut pool = Pool::create_on(Arc::new(file.clone()), &options()).unwrap();
    let mut model = Model::new();
    for number in 0..24 {
        let mut guard = pool.allocate(1 + (number % 6) as u32, PageKind::USER).unwrap();
        let extent = guard.extent();
        fill(extent, number, guard.payload_mut());
        drop(guard.keep());
        if number % 5 == 2 {
            pool.discard(extent, Lsn(0)).unwrap();
        } else {
            model.insert(extent, number);
        }
    }
    pool.set_root_slot(3, 33).unwrap();
    pool.checkpoint().unwrap();
    let own = pool.own_extents();
    (file.snapshot(), model, own)
}

fn damaged(image: &Image, bit: u64) -> SimulatedFile {
    let file = SimulatedFile::from_image(1, image.clone());
    file.flip_bit(bit);
    file
}

#[test]
fn a_flipped_bit_on_any_page_is_named() {
    let (image, model, own) = sample();
    let mut rng = StdRng::seed_from_u64(5);
    let pages = image.size() / PAGE_SIZE as u64;
    let map = *own.last().unwrap();
    let mut hit = 0;
    for page in 2..pages {
        for _ in 0..12 {
            let file =
                damaged(&image, page * 8 * PAGE_SIZE as u64 + rng.random_range(0..8 * PAGE_SIZE as u64));
            if (map.head.0..map.end().0).contains(&page) {
                match open(&file).map(drop) {
                    Err(PoolError::Corruption { extent, fault: Fault::Header(_) }) => assert_eq!(extent, map),
                    other => panic!("{other:?}"),
                }
                continue;
            }
            let pool = open(&file).unwrap();
            for (extent, number) in &model {
                let is_hit = (extent.head.0..extent.end().0).contains(&page);
                match pool.shared(*extent) {
                    Ok(guard) => {
                        assert!(!is_hit && is_filled(*extent, *number, guard.payload()));
                    }
                    Err(PoolError::Corruption { extent: named, fault: Fault::Header(fault) }) => {
                        assert!(is_hit && named == *extent, "{named} is said to be damaged: {fault}");
                        assert!(matches!(fault, HeaderFault::Checksum { .. }));
                        hit += 1;
                        // A second attempt fails too, and so does one by another way.
                        assert!(pool.exclusive(*extent).is_err());
                        assert!(pool.run(|| pool.root(extent.head)).is_err());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_nothing_is_held(&pool);
        }
    }
    assert!(hit > 300, "{hit}");
}

#[test]
fn one_damaged_superblock_is_reported_and_does_no_harm() {
    let (image, model, _) = sample();
    for page in 0..2u64 {
        // The header and the fields, every bit; the rest, some.
        for bit in (0..232 * 8).step_by(3).chain((232 * 8..PAGE_SIZE as u64 * 8).step_by(997)) {
            let file = damaged(&image, page * 8 * PAGE_SIZE as u64 + bit);
            let mut pool = open(&file).unwrap_or_else(|error| panic!("bit {bit} of page {page}: {error}"));
            assert_eq!(pool.damaged_superblocks(), [PageId(page)], "bit {bit}");
            assert_eq!(pool.root_slot(3), 33);
            if bit % 301 == 0 {
                verify(&pool, &model).unwrap();
                // The next change repairs it.
                pool.set_root_slot(3, 34).unwrap();
                pool.checkpoint().unwrap();
                assert!(pool.damaged_superblocks().is_empty(), "bit {bit}");
                drop(pool);
                let pool = open(&file).unwrap();
                assert_eq!((pool.damaged_superblocks(), pool.root_slot(3)), (Vec::new(), 34));
            }
        }
    }
}

#[test]
fn a_damaged_superblock_is_written_again_and_nothing_else() {
    let (image, model, _) = sample();
    for page in 0..2u64 {
        let file = damaged(&image, (page * PAGE_SIZE as u64 + 100) * 8);
        let pool = open(&file).unwrap();
        assert_eq!(pool.mend_superblocks().unwrap(), [PageId(page)]);
        assert_eq!((pool.mend_superblocks().unwrap(), pool.damaged_superblocks()), (Vec::new(), Vec::new()));
        drop(pool);
        // Either copy suffices.
        for other in 0..2u64 {
            let byte = other * PAGE_SIZE as u64 + 100;
            file.flip_bit(byte * 8);
            let pool = open(&file).unwrap();
            assert_eq!(pool.damaged_superblocks(), [PageId(other)]);
            verify(&pool, &model).unwrap();
            drop(pool);
            file.flip_bit(byte * 8);
        }
    }
}

#[test]
fn a_superblock_that_is_damaged_while_the_file_is_open_is_written_before_the_other() {
    let (image, ..) = sample();
    for page in 0..2u64 {
        let file = SimulatedFile::from_image(1, image.clone());
        let pool = open(&file).unwrap();
        file.flip_bit((page * PAGE_SIZE as u64 + 100) * 8);
        assert_eq!(pool.damaged_superblocks(), [PageId(page)]);
        file.fail_nth_of(FileOperation::Write, 2);
        assert!(pool.mend_superblocks().is_err());
        assert_eq!(pool.damaged_superblocks(), [], "the sound copy was risked first, {page}");
    }
}

#[test]
fn two_damaged_superblocks_are_an_error() {
    let (image, ..) = sample();
    let file = damaged(&image, 60 * 8);
    file.flip_bit((PAGE_SIZE as u64 + 100) * 8);
    match open(&file).map(drop) {
        Err(PoolError::Corruption { extent, .. }) => assert_eq!(extent, Extent::page(PageId(0))),
        other => panic!("{other:?}"),
    }
}

/// A superblock whose write was cut off at any byte: the other copy tells.
#[test]
fn a_torn_superblock_is_one_of_two_states() {
    let (closed, model, _) = sample();
    let file = SimulatedFile::from_image(1, closed.clone());
    let pool = open(&file).unwrap();
    pool.set_root_slot(3, 99).unwrap();
    let in_use = file.snapshot();
    drop(pool);
    let (before, after) = (closed.to_vec(), in_use.to_vec());
    for page in 0..2 {
        let range = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
        assert_ne!(before[range.clone()], after[range.clone()], "both copies are written");
    }
    // The copies in the order in which they were written: the older generation first.
    let generation = |page: usize| {
        u64::from_le_bytes(before[page * PAGE_SIZE + 48..page * PAGE_SIZE + 56].try_into().unwrap())
    };
    let order = if generation(0) < generation(1) { [0, 1] } else { [1, 0] };
    let (mut opened, mut refused) = (0, 0);
    for (round, page) in order.into_iter().enumerate() {
        for cut in (0..=240).chain([512, PAGE_SIZE]) {
            let mut bytes = before.clone();
            if round == 1 {
                let first = order[0] * PAGE_SIZE..(order[0] + 1) * PAGE_SIZE;
                bytes[first.clone()].copy_from_slice(&after[first]);
            }
            let torn = page * PAGE_SIZE..page * PAGE_SIZE + cut;
            bytes[torn.clone()].copy_from_slice(&after[torn]);
            match open(&SimulatedFile::from_image(1, Image::from_bytes(&bytes))) {
                Ok(pool) => {
                    assert_eq!((round, pool.root_slot(3)), (0, 33), "cut at {cut}");
                    verify(&pool, &model).unwrap();
                    opened += 1;
                }
                Err(PoolError::NotClosedCleanly { .. }) => refused += 1,
                Err(error) => panic!("cut at {cut} of page {page}: {error}"),
            }
        }
    }
    assert!(opened > 50 && refused > 200, "{opened} opened, {refused} refused");
}

#[test]
fn a_file_that_was_cut_anywhere_says_so() {
    let (image, ..) = sample();
    for bytes in (0..image.size()).step_by(PAGE_SIZE).chain([1, 511, 4095, 5000, image.size() - 1]) {
        let mut cut = image.clone();
        cut.resize(bytes);
        match open(&SimulatedFile::from_image(1, cut)).map(drop) {
            Err(PoolError::Unfinished { .. }) => assert_eq!(bytes, 0),
            Err(PoolError::NotVellum { .. }) => assert!(bytes < PAGE_SIZE as u64),
            Err(PoolError::Truncated { found, expected, .. }) => {
                assert_eq!((found, expected), (bytes, image.size()));
                assert!(bytes >= PAGE_SIZE as u64);
            }
            other => panic!("{bytes}: {other:?}"),
        }
    }
    // A longer file is a closed one that was preallocated.
    let mut longer = image.clone();
    longer.resize(image.size() + 12345);
    open(&SimulatedFile::from_image(1, longer)).unwrap();
}

#[test]
fn what_was_never_ours_is_called_so() {
    let mut rng = StdRng::seed_from_u64(2);
    for bytes in [1usize, 100, 4096, 5000, 8192, 100_000] {
        for zero in [true, false] {
            let contents: Vec<u8> = (0..bytes).map(|_| if zero { 0 } else { rng.random() }).collect();
            let outcome = open(&SimulatedFile::from_image(1, Image::from_bytes(&contents))).map(drop);
            // Two pages of zeroes are what an interrupted creation leaves behind.
            let expected = match outcome {
                Err(PoolError::Unfinished { .. }) => zero && bytes == 8192,
                Err(PoolError::NotVellum { .. }) => !(zero && bytes == 8192),
                _ => false,
            };
            assert!(expected, "{bytes}: {outcome:?}");
        }
    }
}

#[test]
fn a_later_format_is_called_by_its_number() {
    let (image, ..) = sample();
    let mut bytes = image.to_vec();
    for sound in [true, false] {
        for page in 0..2 {
            let superblock = &mut bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE];
            superblock[40..44].copy_from_slice(&7u32.to_le_bytes());
            if sound {
                stamp_checksum(superblock);
            } else {
                // A later format may compute it in another way.
                superblock[0] ^= 1;
            }
        }
        match open(&SimulatedFile::from_image(1, Image::from_bytes(&bytes))).map(drop) {
            Err(PoolError::FormatTooNew { found, supported, .. }) => assert_eq!((found, supported), (7, 4)),
            other => panic!("{other:?}"),
        }
    }
    // One copy of a later version, sound: a newer program was at work.
    let mut bytes = image.to_vec();
    bytes[40] = 9;
    stamp_checksum(&mut bytes[..PAGE_SIZE]);
    let outcome = open(&SimulatedFile::from_image(1, Image::from_bytes(&bytes))).map(drop);
    assert!(matches!(outcome, Err(PoolError::FormatTooNew { found: 9, .. })), "{outcome:?}");
}

#[test]
fn pages_that_changed_places_are_noticed() {
    let (image, model, _) = sample();
    let singles: Vec<_> = model.keys().filter(|extent| extent.pages == 1).collect();
    let (first, second) = (*singles[0], *singles[1]);
    let mut bytes = image.to_vec();
    for at in 0..PAGE_SIZE {
        bytes.swap(first.head.offset() as usize + at, second.head.offset() as usize + at);
    }
    let pool = open(&SimulatedFile::from_image(1, Image::from_bytes(&bytes))).unwrap();
    for (extent, other) in [(first, second), (second, first)] {
        match pool.shared(extent).map(drop) {
            Err(PoolError::Corruption {
                extent: named,
                fault: Fault::Header(HeaderFault::PageId { found }),
            }) => {
                assert_eq!((named, found), (extent, other.head.0));
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}

/// A map that was tampered with, checksum and all, does not make the pool read what is not there.
#[test]
fn a_forged_space_map_is_refused() {
    let (image, _, own) = sample();
    let map = *own.last().unwrap();
    let start = map.head.offset() as usize;
    let range = start..start + map.bytes();
    let mut rng = StdRng::seed_from_u64(8);
    let mut refused = 0;
    for _ in 0..300 {
        let mut bytes = image.to_vec();
        let words = image.size() as usize / PAGE_SIZE / 4;
        let at = start + 32 + rng.random_range(0..words);
        bytes[at] ^= 1 << rng.random_range(0..8);
        stamp_checksum(&mut bytes[range.clone()]);
        match open(&SimulatedFile::from_image(1, Image::from_bytes(&bytes))) {
            Ok(pool) => {
                // It is consistent in itself, so it opens; whatever it says is an extent can be asked for.
                let mut extents = Vec::new();
                pool.for_each_extent(|extent| extents.push(extent));
                for extent in extents {
                    drop(pool.shared(extent));
                }
                drop(pool.allocate(5, PageKind::USER).unwrap());
                assert_nothing_is_held(&pool);
            }
            Err(PoolError::Corruption { extent, .. }) => {
                assert_eq!(extent, map);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_read_that_fails_once_succeeds_the_next_time() {
    let (image, model, _) = sample();
    let file = SimulatedFile::from_image(1, image);
    let pool = open(&file).unwrap();
    for (extent, number) in &model {
        file.set_faults(Faults { bit_flip_on_read: 1.0, ..Faults::default() });
        let outcome = pool.shared(*extent).map(drop);
        assert!(matches!(outcome, Err(PoolError::Corruption { .. })), "{outcome:?}");
        file.heal();
        file.fail_nth(1);
        let outcome = pool.shared(*extent).map(drop);
        assert!(matches!(outcome, Err(PoolError::Read { .. })), "{outcome:?}");
        assert!(is_filled(*extent, *number, pool.shared(*extent).unwrap().payload()));
    }
    assert_nothing_is_held(&pool);
}

/// A damaged page reached through a reference: an error if the reference stands, nothing if it was stale.
#[test]
fn damage_behind_a_stale_reference_is_no_error() {
    let (image, model, _) = sample();
    let singles: Vec<Extent> = model.keys().filter(|extent| extent.pages == 1).copied().collect();
    let (parent, child) = (singles[0], singles[1]);
    let file = SimulatedFile::from_image(1, image);
    let pool = open(&file).unwrap();
    pool.exclusive(parent).unwrap().payload_mut()[..8].copy_from_slice(&child.head.0.to_le_bytes());
    file.flip_bit(child.head.offset() * 8 + 9000);
    let look = || {
        let guard = pool.root(parent.head)?;
        pool.child(&guard, 32).map(drop)
    };
    match pool.run(look) {
        Err(PoolError::Corruption { extent, .. }) => assert_eq!(extent, child),
        other => panic!("{other:?}"),
    }
    // The reference changes between the look and the read.
    let interrupt = look().unwrap_err();
    assert!(matches!(interrupt, Interrupt::Miss(_)));
    pool.exclusive(parent).unwrap().payload_mut()[..8].fill(0);
    pool.resolve(interrupt).unwrap();
    // A reference to the superblock is one that leads nowhere.
    assert!(matches!(pool.run(look), Err(PoolError::Corruption { .. })));
}

/// The child of a latched page that is missed, and is gone when it is looked for, because another thread changes the
/// page at that moment.
#[test]
fn a_child_that_is_gone_while_its_parent_is_being_changed_is_no_damage() {
    let (image, model, _) = sample();
    let singles: Vec<Extent> = model.keys().filter(|extent| extent.pages == 1).copied().collect();
    let (parent, child) = (singles[0], singles[1]);
    let pool = open(&SimulatedFile::from_image(1, image)).unwrap();
    let mut guard = pool.exclusive(parent).unwrap();
    guard.payload_mut()[..8].copy_from_slice(&child.head.0.to_le_bytes());
    drop(guard);
    let guard = pool.exclusive(parent).unwrap();
    let interrupt = pool.child_of_latched(&guard, 32).map(drop).unwrap_err();
    assert!(matches!(interrupt, Interrupt::Miss(_)));
    drop(guard);
    let mut other = pool.exclusive(parent).unwrap();
    pool.discard(child, Lsn(0)).unwrap();
    pool.resolve(interrupt).unwrap();
    other.payload_mut()[..8].fill(0);
    drop(other);
    // If the reference stands, it is one.
    let mut guard = pool.exclusive(parent).unwrap();
    guard.payload_mut()[..8].copy_from_slice(&child.head.0.to_le_bytes());
    drop(guard);
    let guard = pool.exclusive(parent).unwrap();
    let interrupt = pool.child_of_latched(&guard, 32).map(drop).unwrap_err();
    drop(guard);
    let outcome = pool.resolve(interrupt);
    assert!(matches!(outcome, Err(PoolError::Corruption { extent, .. }) if extent == child), "{outcome:?}");
}

const CHILD_VARIABLE: &str = "VELLUM_POOL_TEST_FILE";

#[test]
fn a_file_in_use_is_locked_for_others() {
    // In the second process: say what opening gives.
    if let Ok(path) = std::env::var(CHILD_VARIABLE) {
        match Pool::open(path, &PoolOptions::default()).map(drop) {
            Err(PoolError::Vm(VmError::Locked { .. })) => return println!("it is locked"),
            other => panic!("{other:?}"),
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = PoolOptions::default().capacity_bytes(1 << 24);
    let is_locked = |outcome: Result<Pool, PoolError>| {
        let error = outcome.map(drop).unwrap_err();
        assert!(matches!(error, PoolError::Vm(VmError::Locked { .. })), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    };
    let pool = Pool::create(&path, &options).unwrap();
    is_locked(Pool::open(&path, &options));
    is_locked(Pool::open(&path, &options.clone().read_only(true)));
    assert!(Pool::create(&path, &options).is_err());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["a_file_in_use_is_locked_for_others", "--exact", "--nocapture"])
        .env(CHILD_VARIABLE, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("it is locked"), "{said}");
    pool.close().unwrap();
    let readers = [0, 1].map(|_| Pool::open(&path, &options.clone().read_only(true)).unwrap());
    is_locked(Pool::open(&path, &options));
    drop(readers);
    Pool::open(&path, &options).unwrap();
}

#[test]
fn a_file_that_is_not_there_or_not_a_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let options = PoolOptions::default().capacity_bytes(1 << 24);
    assert!(Pool::open(directory.path().join("none"), &options).is_err());
    assert!(Pool::open(directory.path(), &options).is_err());
    assert!(Pool::create(directory.path().join("none/pool"), &options).is_err());
    let refused =
        Pool::create(directory.path().join("pool"), &options.clone().application("far too long a name"));
    assert!(matches!(refused.map(drop), Err(PoolError::ApplicationName { .. })));
    assert!(!directory.path().join("pool").exists(), "nothing is left behind");
    let pool = Pool::create(directory.path().join("pool"), &options).unwrap();
    assert_eq!(pool.path(), directory.path().join("pool"));
}

/// The file of a pool is as long as it need be when it is closed.
#[test]
fn a_closed_file_ends_behind_its_last_page() {
    let (image, model, own) = sample();
    let last = model.keys().chain(&own).map(|extent| extent.end().0).max().unwrap();
    assert_eq!(image.size(), last * PAGE_SIZE as u64);
    let file = SimulatedFile::from_image(1, image);
    assert_eq!(open(&file).unwrap().statistics().pages_in_file, file.size().unwrap() / PAGE_SIZE as u64);
}
