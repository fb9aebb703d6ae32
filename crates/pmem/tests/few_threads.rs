//! A system that refuses threads. A test of its own, because the limit that stands for it holds for the whole process.

mod common;

use common::{Place, options};
use std::{num::NonZeroUsize, time::Duration};
use vellum_pmem::{Options, Store, Variable};

/// The address space of this process, in bytes.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_store_opens_with_the_threads_that_there_are() {
    let place = Place::new();
    let options =
        Options { pages_per_block: 1, capacity_bytes: 16 << 20, chunk_bytes: 16 << 20, ..options() };
    let before = address_space();
    let store = Store::<Variable>::create(place.path(), &options).unwrap();
    let mut client = store.client().unwrap();
    let records = 2100u64;
    for key in 0..records {
        client.put(&key.to_le_bytes(), &common::value(key, 3900)).unwrap();
    }
    let needed = address_space() - before;
    drop((client, store));
    // Enough for the store, but not for the stacks of so many threads.
    let bytes = address_space() + needed + (24 << 20);
    // SAFETY: the limit is a plain structure.
    unsafe {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
    }
    let many = Options { recovery_threads: NonZeroUsize::new(64), ..options };
    // All threads are there at once.
    let progress = |_, _| std::thread::sleep(Duration::from_millis(20));
    let store = Store::<Variable>::open_with_progress(place.path(), &many, &progress).unwrap();
    assert_eq!(store.len(), records);
}
