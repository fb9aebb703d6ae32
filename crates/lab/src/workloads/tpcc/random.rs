//! Random values as clauses 2.1.5, 2.1.6 and 4.3.2 of the specification define them.

use crate::keys::Generator;

/// The syllables of which last names are made.
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// How long a last name may be.
pub const LAST_NAME_BYTES: usize = 16;

/// A last name, padded with zeroes.
pub type LastName = [u8; LAST_NAME_BYTES];

/// The last name that belongs to a number of three digits.
pub fn last_name(number: u32) -> LastName {
    let mut name = [0; LAST_NAME_BYTES];
    let mut length = 0;
    for digit in [number / 100, number / 10, number] {
        let syllable = SYLLABLES[(digit % 10) as usize].as_bytes();
        name[length..length + syllable.len()].copy_from_slice(syllable);
        length += syllable.len();
    }
    name
}

/// The constants `C` of the function `NURand`, one for each of its three uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constants {
    /// For last names when tables are loaded.
    pub last_name_loaded: u32,
    /// For last names when transactions run.
    pub last_name: u32,
    /// For customers.
    pub customer: u32,
    /// For items.
    pub item: u32,
}

impl Constants {
    /// The constants of a run, which depend on its seed only.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(Generator::new(seed, u64::MAX, 0));
        let last_name_loaded = random.within(0, 255);
        // Clause 2.1.6.1: the two for last names must differ by this much.
        let allowed = |other: &u32| {
            let difference = other.abs_diff(last_name_loaded);
            (65..=119).contains(&difference) && difference != 96 && difference != 112
        };
        let candidates: Vec<u32> = (0..=255).filter(allowed).collect();
        // From any number of 0..=255 some number is 65 to 119 away.
        let last_name = candidates[random.within(0, candidates.len() as u32 - 1) as usize];
        Self { last_name_loaded, last_name, customer: random.within(0, 1023), item: random.within(0, 8191) }
    }
}

/// Draws random values.
#[derive(Clone, Debug)]
pub struct Random(Generator);

impl Random {
    /// Draws from a generator.
    pub fn new(generator: Generator) -> Self {
        Self(generator)
    }

    /// A uniform number of `low..=high`.
    #[inline]
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below(u64::from(high - low) + 1) as u32
    }

    /// Whether what happens `percent` times in a hundred happens now.
    #[inline]
    pub fn percent(&mut self, percent: u32) -> bool {
        self.within(1, 100) <= percent
    }

    /// The function `NURand(a, low, high)` with the constant `c`.
    #[inline]
    fn uneven(&mut self, a: u32, c: u32, low: u32, high: u32) -> u32 {
        ((self.within(0, a) | self.within(low, high)) + c) % (high - low + 1) + low
    }

    /// A customer: `NURand(1023, 1, 3000)`.
    #[inline]
    pub fn customer(&mut self, constants: &Constants) -> u32 {
        self.uneven(1023, constants.customer, 1, super::CUSTOMERS)
    }

    /// An item: `NURand(8191, 1, 100000)`.
    #[inline]
    pub fn item(&mut self, constants: &Constants) -> u32 {
        self.uneven(8191, constants.item, 1, super::ITEMS)
    }

    /// A last name of a transaction: `NURand(255, 0, 999)`.
    #[inline]
    pub fn last_name(&mut self, constants: &Constants) -> LastName {
        last_name(self.uneven(255, constants.last_name, 0, 999))
    }

    /// A last name of a customer that is loaded.
    pub fn last_name_loaded(&mut self, constants: &Constants) -> LastName {
        last_name(self.uneven(255, constants.last_name_loaded, 0, 999))
    }

    /// Letters and digits, `low` to `high` of them, at the beginning of `target`; gives how many.
    pub fn text(&mut self, target: &mut [u8], low: usize, high: usize) -> usize {
        let length = self.within(low as u32, high as u32) as usize;
        for byte in &mut target[..length] {
            *byte = LETTERS[self.within(0, 61) as usize];
        }
        length
    }

    /// Fills `target` with digits.
    pub fn digits(&mut self, target: &mut [u8]) {
        for byte in target {
            *byte = b'0' + self.within(0, 9) as u8;
        }
    }

    /// Fills `target` with capital letters.
    pub fn capitals(&mut self, target: &mut [u8]) {
        for byte in target {
            *byte = b'A' + self.within(0, 25) as u8;
        }
    }

    /// The data of an item or stock: 26 to 50 letters, which one time in ten contain `ORIGINAL`.
    pub fn data(&mut self, target: &mut [u8]) {
        let length = self.text(target, 26, 50);
        if self.percent(10) {
            let at = self.within(0, (length - super::ORIGINAL.len()) as u32) as usize;
            target[at..at + super::ORIGINAL.len()].copy_from_slice(super::ORIGINAL);
        }
    }

    /// Brings `all` into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.within(0, last as u32) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> Random {
        Random::new(Generator::new(7, 0, 0))
    }

    fn text(name: LastName) -> String {
        String::from_utf8(name.into_iter().filter(|byte| *byte != 0).collect()).unwrap()
    }

    #[test]
    fn last_names_are_those_of_the_specification() {
        assert_eq!(text(last_name(0)), "BARBARBAR");
        assert_eq!(text(last_name(371)), "PRICALLYOUGHT");
        assert_eq!(text(last_name(40)), "BARPRESBAR");
        assert_eq!(text(last_name(999)), "EINGEINGEING");
        let all: std::collections::HashSet<_> = (0..1000).map(last_name).collect();
        assert_eq!(all.len(), 1000);
        // The longest fit: three syllables of five letters.
        assert_eq!(text(last_name(777)), "CALLYCALLYCALLY");
    }

    #[test]
    fn the_constants_of_load_and_run_differ_as_they_must() {
        for seed in 0..2000 {
            let constants = Constants::new(seed);
            let difference = constants.last_name.abs_diff(constants.last_name_loaded);
            assert!((65..=119).contains(&difference) && difference != 96 && difference != 112);
            assert!(constants.last_name <= 255 && constants.customer <= 1023 && constants.item <= 8191);
            assert_eq!(constants, Constants::new(seed));
        }
    }

    #[test]
    fn uneven_numbers_stay_in_their_range_and_are_uneven() {
        let (mut random, constants) = (random(), Constants::new(1));
        let mut counts = vec![0u32; 3001];
        for _ in 0..300_000 {
            counts[random.customer(&constants) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        let (least, most) = (*counts[1..].iter().min().unwrap(), *counts.iter().max().unwrap());
        // Evenly, each would have about 100.
        assert!(most > 300 && least < 40, "{least} to {most}");
        for _ in 0..100_000 {
            assert!((1..=100_000).contains(&random.item(&constants)));
        }
    }

    #[test]
    fn the_likely_customers_follow_from_the_constant() {
        // Without the constant, numbers with many bits set among the lower ten are the likely ones.
        let mut random = random();
        let mut ones = 0;
        for _ in 0..10_000 {
            ones += ((random.uneven(1023, 0, 0, 3071)) & 1023).count_ones();
        }
        // Each of ten bits is set three times in four.
        assert!((73_000..77_000).contains(&ones), "{ones}");
    }

    #[test]
    fn texts_have_their_lengths_and_letters() {
        let mut random = random();
        let mut lengths = std::collections::BTreeSet::new();
        let mut original = 0;
        for _ in 0..10_000 {
            let mut target = [0; 50];
            random.data(&mut target);
            let length = target.iter().position(|byte| *byte == 0).unwrap_or(50);
            assert!(target[..length].iter().all(u8::is_ascii_alphanumeric));
            assert!(target[length..].iter().all(|byte| *byte == 0));
            lengths.insert(length);
            original += u32::from(super::super::is_original(&target));
        }
        assert!(lengths.into_iter().eq(26..=50));
        assert!((850..1150).contains(&original), "{original}");
        let (mut digits, mut capitals) = ([0; 100], [0; 100]);
        random.digits(&mut digits);
        random.capitals(&mut capitals);
        assert!(digits.iter().all(u8::is_ascii_digit) && capitals.iter().all(u8::is_ascii_uppercase));
    }

    #[test]
    fn a_shuffle_keeps_everything_and_changes_the_order() {
        let mut all: Vec<u32> = (0..100).collect();
        random().shuffle(&mut all);
        assert!(all.windows(2).any(|pair| pair[0] > pair[1]));
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }
}
