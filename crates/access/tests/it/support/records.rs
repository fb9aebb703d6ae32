//! Keys and values of all lengths.

use rand::{RngExt, rngs::StdRng};

/// More than any test has keys.
const KEYS_MAX: u64 = 1500;

/// A long or a short key; the order of the keys is not that of their numbers.
pub fn key(number: u64) -> Vec<u8> {
    let mut key = (number % 7 * KEYS_MAX + number).to_be_bytes()[5..].to_vec();
    if number.is_multiple_of(3) {
        key.resize(8 + (number % 200) as usize, b'k');
    }
    key
}

pub fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..60) {
        0 => random.random_range(30_000..80_000),
        1..4 => random.random_range(1025..9000),
        4..15 => random.random_range(200..=1024),
        _ => random.random_range(0..150),
    };
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ random.random::<u8>() & 1).collect()
}
