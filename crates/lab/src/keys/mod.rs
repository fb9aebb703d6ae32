//! Keys, values and the orders in which they are visited, the same for every engine.
//!
//! The order of keys is that of the tuples' numbers, whatever keys are made of; a value begins with the number, so that a
//! value that was found can be checked at the price of one comparison. Nothing here allocates: an order is computed and
//! never stored, so that it does not count in the resident size that a workload measures.

mod files;
mod kind;
mod made;
mod text;
mod url;

pub use kind::choose;
pub use text::{TEXT_BYTES_MAX, Text};

use crate::config::{Order, ValueSizes};

pub use crate::config::KEY_BYTES;

/// What keys are, as a type, so that workloads are compiled for each.
pub trait Keys {
    /// A key, in place.
    type Key: AsRef<[u8]> + Copy + Send;

    /// Whether keys are numbers, which cost nothing to make.
    const ARE_NUMBERS: bool;

    /// The key of tuple `index`.
    fn key(index: u64) -> Self::Key;
}

/// Numbers.
pub struct U64Keys;

/// Keys of the kind that was [chosen](choose); addresses if none was.
pub struct TextKeys;

impl Keys for U64Keys {
    type Key = [u8; KEY_BYTES];
    const ARE_NUMBERS: bool = true;

    #[inline]
    fn key(index: u64) -> [u8; KEY_BYTES] {
        key(index)
    }
}

impl Keys for TextKeys {
    type Key = Text;
    const ARE_NUMBERS: bool = false;

    #[inline]
    fn key(index: u64) -> Text {
        kind::chosen().key(index)
    }
}

/// The size of the value of tuple `index`, in bytes.
#[inline]
pub fn value_bytes(sizes: ValueSizes, index: u64) -> usize {
    if sizes.min == sizes.max {
        return sizes.min;
    }
    let hash = Generator::hash(index ^ 0x5a5a_5a5a) >> 32;
    sizes.min + ((hash * (sizes.max - sizes.min + 1) as u64) >> 32) as usize
}

/// The number of tuple `index` as a key.
#[inline]
pub fn key(index: u64) -> [u8; KEY_BYTES] {
    index.to_be_bytes()
}

/// A key of 8 or 16 bytes: a number, and zeroes after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

/// The size of the largest [`Key`], in bytes.
pub const KEY_BYTES_MAX: usize = 16;

impl Key {
    /// The key of a number, of so many bytes, at most [`KEY_BYTES_MAX`].
    #[inline]
    pub fn new(number: u64, length: usize) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..KEY_BYTES].copy_from_slice(&key(number));
        Self { bytes, length: length.min(KEY_BYTES_MAX) }
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Writes the value of tuple `index`: its number, then bytes that depend on the number and do not compress.
///
/// A value shorter than a number holds the beginning of the number.
#[inline]
pub fn fill_value(index: u64, value: &mut [u8]) {
    // In few instructions, and without waiting for one word to make the next: the making of values counts in the figures
    // of the engines.
    let first = mix(index);
    let word =
        |place: usize| first.wrapping_add((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    let (words, rest) = value.as_chunks_mut();
    let behind = words.len();
    for (place, to) in words.iter_mut().enumerate() {
        *to = if place == 0 { key(index) } else { word(place) };
    }
    rest.copy_from_slice(&if behind == 0 { key(index) } else { word(behind) }[..rest.len()]);
}

/// Writes a later value of tuple `index`, which its version tells from its others: after its number comes the version, if
/// there is room, and size and bytes follow from both. Gives the size; `value` has room for the largest.
#[inline]
pub fn fill_version(index: u64, version: u64, sizes: ValueSizes, value: &mut [u8]) -> usize {
    let kind = index ^ Generator::hash(version);
    let value = &mut value[..value_bytes(sizes, kind)];
    fill_value(kind, value);
    value[..KEY_BYTES].copy_from_slice(&key(index));
    if let Some(place) = value.get_mut(KEY_BYTES..2 * KEY_BYTES) {
        place.copy_from_slice(&key(version));
    }
    value.len()
}

/// The version in a value that [`fill_version`] has made; none where there is no room for it.
pub fn version(value: &[u8]) -> Option<u64> {
    value.get(KEY_BYTES..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Whether `value` has the right length and begins with the number of its tuple: the check of every value that is found.
#[inline]
pub fn matches(index: u64, value: &[u8], value_bytes: usize) -> bool {
    value.len() == value_bytes && value.first_chunk() == Some(&key(index))
}

/// A small pseudorandom generator: the state advances by a constant and the output is mixed from it
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// The generator of one thread in one round.
    pub fn new(seed: u64, thread: u64, round: u64) -> Self {
        Self(mix(seed ^ mix(thread.wrapping_add(1) ^ mix(round.wrapping_add(1)))))
    }

    /// A number without visible structure, another one for each number.
    #[inline]
    pub fn hash(number: u64) -> u64 {
        mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A uniform number below `bound`, by multiplication (its bias is below `bound / 2^64`).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// A bijection of the 64-bit numbers without visible structure.
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A pseudorandom permutation of `0..count`, computed and not stored.
///
/// It is a Feistel network over the smallest even number of bits that holds `count`; what falls outside is
/// sent through again until it falls inside ("cycle walking"), at most four times on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// The permutation of `0..count` that belongs to `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed: mix(seed) }
    }

    /// Where `index`, which is below the count, goes.
    #[inline]
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        let mask = (1u64 << self.half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for round in 0..4u64 {
                let mixed = (right ^ self.seed.rotate_left(16 * round as u32))
                    .wrapping_add(round)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (left, right) = (right, left ^ ((mixed >> 32) & mask));
            }
            value = (left << self.half_bits) | right;
            if value < self.count {
                return value;
            }
        }
    }
}

/// The indices that one of several threads inserts, in order.
#[derive(Clone, Debug)]
pub struct Share {
    next: u64,
    end: u64,
    step: u64,
    permutation: Option<Permutation>,
}

impl Share {
    /// The share of `thread` among `threads` of `0..count`: a contiguous part if the order is sequential,
    /// every `threads`-th element of the permutation if it is random. A bulk load is sequential.
    pub fn new(order: Order, count: u64, seed: u64, thread: u64, threads: u64) -> Self {
        match order {
            Order::Sequential | Order::Bulk => {
                let bound = |t: u64| (u128::from(count) * u128::from(t) / u128::from(threads)) as u64;
                Self { next: bound(thread), end: bound(thread + 1), step: 1, permutation: None }
            }
            Order::Random => Self {
                next: thread,
                end: count,
                step: threads,
                permutation: Some(Permutation::new(count, seed)),
            },
        }
    }
}

impl Iterator for Share {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.next >= self.end {
            return None;
        }
        let index = self.next;
        self.next += self.step;
        Some(self.permutation.as_ref().map_or(index, |permutation| permutation.at(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_visits_every_index_once() {
        for count in [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 4097, 70_000] {
            for seed in [0, 1, u64::MAX] {
                let permutation = Permutation::new(count, seed);
                let mut seen = vec![false; count as usize];
                for index in 0..count {
                    let image = permutation.at(index) as usize;
                    assert!(!seen[image], "{count} {seed}: {image} twice");
                    seen[image] = true;
                }
            }
        }
    }

    #[test]
    fn a_permutation_is_not_in_order_and_depends_on_the_seed() {
        let images = |seed| (0..1000).map(|i| Permutation::new(1000, seed).at(i)).collect::<Vec<_>>();
        let ascents = images(1).windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((400..600).contains(&ascents), "{ascents} ascents");
        assert_ne!(images(1), images(2));
    }

    #[test]
    fn shares_are_disjoint_and_complete() {
        for order in [Order::Sequential, Order::Random] {
            for threads in [1, 2, 3, 7] {
                let mut all: Vec<u64> =
                    (0..threads).flat_map(|t| Share::new(order, 1001, 5, t, threads)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..1001), "{order:?} {threads}");
            }
        }
        assert!(Share::new(Order::Sequential, 10, 0, 0, 1).eq(0..10));
    }

    #[test]
    fn a_value_is_recognised_by_its_number_and_length() {
        let mut value = [0; 20];
        fill_value(7, &mut value);
        assert!(matches(7, &value, 20));
        assert!(!matches(8, &value, 20));
        assert!(!matches(7, &value[..19], 20));
        assert!(value[8..].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn sizes_between_two_bounds_are_all_drawn_and_no_others() {
        let sizes = ValueSizes { min: 10, max: 20 };
        let drawn: std::collections::BTreeSet<usize> =
            (0..1000).map(|index| value_bytes(sizes, index)).collect();
        assert!(drawn.into_iter().eq(10..=20));
        assert!((0..1000).all(|index| value_bytes(ValueSizes::one(120), index) == 120));
        assert_eq!((sizes.same(), sizes.mean(), ValueSizes::one(120).same()), (0, 15, 120));
    }

    #[test]
    fn values_of_all_sizes_begin_with_their_key_and_differ() {
        let make = |index: u64, size: usize| {
            let mut value = vec![0; size];
            fill_value(index, &mut value);
            value
        };
        for size in 0..40 {
            let value = make(1 << 40, size);
            let start = size.min(8);
            assert_eq!(value[..start], key(1 << 40)[..start]);
            assert_eq!(value, make(1 << 40, 40)[..size]);
            assert!(size <= 8 || value[8..] != make(2 << 40, size)[8..] || size < 12, "{size}");
        }
        let words: std::collections::HashSet<Vec<u8>> = (0..100)
            .flat_map(|index| make(index, 800)[8..].chunks(8).map(Vec::from).collect::<Vec<_>>())
            .collect();
        assert_eq!(words.len(), 100 * 99, "nothing comes twice");
    }

    #[test]
    fn versions_differ_and_say_which_they_are() {
        let sizes = ValueSizes { min: 8, max: 60 };
        let made = |version| {
            let mut value = vec![0; sizes.max];
            let bytes = fill_version(7, version, sizes, &mut value);
            value.truncate(bytes);
            value
        };
        let values: Vec<_> = (1..200).map(made).collect();
        for (number, value) in (1..).zip(&values) {
            assert!(value.starts_with(&key(7)) && value == &made(number));
            assert_eq!(version(value), (value.len() >= 16).then_some(number));
        }
        assert!(values.iter().map(Vec::len).collect::<std::collections::BTreeSet<_>>().len() > 40);
    }

    #[test]
    fn bounded_numbers_cover_their_range_and_stay_in_it() {
        let mut generator = Generator::new(1, 2, 3);
        let mut seen = [0; 10];
        for _ in 0..1000 {
            seen[generator.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (50..200).contains(count)), "{seen:?}");
    }
}
