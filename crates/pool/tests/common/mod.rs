//! What several test files share: contents that tell whether they are what was written.
#![allow(dead_code, reason = "each test file uses some of it")]

pub mod log;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use vellum_base::{Extent, HEADER_BYTES, PAGE_SIZE};
use vellum_pool::{Pool, PoolError};

/// What each extent holds: the number that its contents are made from.
pub type Model = BTreeMap<Extent, u64>;

/// The word at one place of an extent's payload: depends on the extent, the number and the place.
fn word(extent: Extent, number: u64, place: usize) -> u64 {
    let mixed = (extent.head.0 << 32 | u64::from(extent.pages)) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.wrapping_add(place as u64).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ number
}

/// Fills a payload.
pub fn fill(extent: Extent, number: u64, payload: &mut [u8]) {
    for (place, bytes) in payload.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(extent, number, place).to_le_bytes());
    }
}

/// Whether a payload is what [`fill`] made.
pub fn is_filled(extent: Extent, number: u64, payload: &[u8]) -> bool {
    payload
        .chunks_exact(8)
        .enumerate()
        .all(|(place, bytes)| bytes == word(extent, number, place).to_le_bytes().as_slice())
}

/// The payload of an extent as bytes.
pub fn filled(extent: Extent, number: u64) -> Vec<u8> {
    let mut payload = vec![0; extent.pages as usize * PAGE_SIZE - HEADER_BYTES];
    fill(extent, number, &mut payload);
    payload
}

/// Compares everything that a pool holds with a model.
pub fn verify(pool: &Pool, model: &Model) -> Result<(), PoolError> {
    for (extent, number) in model {
        let guard = pool.shared(*extent)?;
        assert!(is_filled(*extent, *number, guard.payload()), "{extent} does not hold {number}");
    }
    let mut found = Vec::new();
    pool.for_each_extent(|extent| found.push(extent));
    let mut expected: Vec<_> = model.keys().copied().chain(pool.own_extents()).collect();
    expected.sort_unstable();
    assert_eq!(found, expected, "the space map and the model disagree");
    Ok(())
}

/// Checks that nothing is latched and no memory is lost: the whole pool can be had at once.
pub fn assert_nothing_is_held(pool: &Pool) {
    let limit = pool.limit_pages();
    let begun = Instant::now();
    let whole = loop {
        match pool.allocate(limit as u32, vellum_base::PageKind::USER) {
            Ok(whole) => break whole,
            // What could not be done a moment ago is tried again after a pause.
            Err(PoolError::Write { .. } | PoolError::StorageFull { .. })
                if begun.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(error) => panic!("the whole pool can be had: {error}"),
        }
    };
    assert_eq!(pool.statistics().pages_resident, limit as u64);
    drop(whole);
    assert_eq!(pool.statistics().pages_resident, 0);
}
