//! Files that are opened again, however large.

use super::{SUPERBLOCKS, Superblock, space_map_pages, write_superblocks};
use crate::{Pool, PoolOptions};
use std::sync::Arc;
use vellum_base::{Extent, PageId, PageKind};
use vellum_vm::{File as _, FileOperation, SimulatedFile};

/// Closes a file of about `pages` pages, in extents of 64 GiB like those of large values. If `hole`, one of them is
/// freed, so that the map lies in its place. Returns how many pages the file then has, and its map.
fn closed(file: &SimulatedFile, pages: u64, hole: bool) -> (u64, Extent) {
    let options = options();
    let mut pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
    let storage = pool.allocator().storage();
    let mut large = Vec::new();
    while storage.space.end() < pages {
        let length = (pages - storage.space.end()).min((1 << 24) - 1) as u32;
        let extent = storage.allocate(length, |_| ()).unwrap();
        storage.space.publish(extent);
        large.push(extent);
    }
    if hole {
        assert!(storage.space.free(large[1]));
    }
    drop(pool.allocate(1, PageKind::USER).unwrap().keep());
    pool.checkpoint().unwrap();
    (pool.allocator().storage().space.end(), pool.own_extents().last().copied().unwrap())
}

fn options() -> PoolOptions {
    PoolOptions::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(5 << 40)
        .background_eviction(false)
        .huge_pages(false)
}

#[test]
fn a_file_beyond_a_tebibyte_opens_wherever_its_map_lies() {
    // Just over 1.25, 1.75 and 2 TiB.
    for pages in [335_000_000, 470_000_000, (1 << 29) + 1000] {
        for hole in [false, true] {
            let file = SimulatedFile::new(1);
            let (end, map) = closed(&file, pages, hole);
            assert_eq!(map.end() == PageId(end), !hole, "the map lies at {map} of {end} pages");
            let pool = Pool::open_on(Arc::new(file), &options()).unwrap();
            assert_eq!(pool.allocator().storage().space.end(), end);
        }
    }
}

#[test]
fn a_map_covers_itself_and_is_no_longer_than_that_takes() {
    for end in (0..1 << 31).step_by(9_999_991) {
        let pages = u64::from(space_map_pages(end));
        let room = |pages: u64| (pages * 4096 - 32) / 16 * 64;
        assert!(end + pages <= room(pages), "{end} pages");
        assert!(pages == 1 || end + pages - 1 > room(pages - 1), "{end} pages");
    }
}

/// The other copy is intact, and stays so until this one is durable.
#[test]
fn the_copy_of_a_superblock_that_failed_is_written_first() {
    for operation in [FileOperation::Write, FileOperation::Sync] {
        for failing in 1..=SUPERBLOCKS {
            let file = SimulatedFile::new(1);
            file.grow(SUPERBLOCKS * 4096).unwrap();
            let mut superblock = Superblock::default();
            write_superblocks(&file, &mut superblock).unwrap();
            let written = |from: usize| {
                let history = file.history();
                let places =
                    history.lines().skip(from).filter_map(|line| line.split_once(" write 4096 bytes at "));
                places.map(|(_, place)| place.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let first = file.history().lines().count();
            file.fail_nth_of(operation, failing);
            write_superblocks(&file, &mut superblock).unwrap_err();
            let failed = written(first).pop().unwrap();
            let again = file.history().lines().count();
            let generation = superblock.generation;
            // A file whose sync has failed is not synced again.
            let _ = write_superblocks(&file, &mut superblock);
            assert_eq!(written(again)[0], failed, "{operation} {failing}: {}", file.history());
            assert!(superblock.generation > generation);
        }
    }
}
