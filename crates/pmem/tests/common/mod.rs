//! What the tests of stores in files share.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;
use vellum_pmem::{Client, Layout, Options, Persistence, PmemError, ReclaimOptions, Store, Variable};

/// A folder of its own, on `/dev/shm` where there is one.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { folder: folder.unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }
}

/// Small chunks, cache lines flushed as if the file were persistent memory, nothing in the background.
pub fn options() -> Options {
    Options {
        chunk_bytes: 1 << 20,
        growth_bytes: 256 << 10,
        persistence: cfg!(target_arch = "x86_64").then_some(Persistence::Dax),
        vouch_for_memory: true,
        reclaim: ReclaimOptions { background: false, ..ReclaimOptions::default() },
        ..Options::default()
    }
}

pub fn create<L: Layout>(place: &Place) -> Store<L> {
    Store::create(place.path(), &options()).unwrap()
}

pub fn open<L: Layout>(place: &Place) -> Store<L> {
    Store::open(place.path(), &options()).unwrap()
}

/// A value that depends on a number, without zero bytes.
pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| ((number.wrapping_mul(0x9e37_79b9) >> (at % 32)) as u8).wrapping_add(at as u8) | 1)
        .collect()
}

/// Puts values of so many bytes under consecutive numbers until there is no more room; how many there are then.
pub fn fill(client: &mut Client<Variable>, bytes: usize) -> u64 {
    let mut stored = 0u64;
    let error = loop {
        match client.put(&stored.to_le_bytes(), &value(stored, bytes)) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PmemError::Full { .. }), "{error}");
    stored
}

/// Numbers that look random and follow from a seed, which a failing test prints.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
