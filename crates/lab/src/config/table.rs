//! What a table of tuples looks like, and how tuples are chosen.

use super::Named;
use serde::{Deserialize, Serialize};

/// The table of those workloads that have a single one.
#[derive(Clone, Copy, Debug)]
pub struct TableSettings {
    /// How many tuples it has.
    pub tuples: u64,
    /// What keys are made of.
    pub keys: KeyKind,
    /// The sizes of values.
    pub values: ValueSizes,
}

/// The size of a number as a key, in bytes.
pub const KEY_BYTES: usize = 8;

/// What keys are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyKind {
    /// The number of the tuple, 8 bytes, big-endian.
    U64,
    /// An address of 12 to 200 bytes.
    Url,
    /// The path of a file of this machine.
    Path,
    /// A word from its texts.
    Word,
    /// An address of electronic mail.
    Email,
    /// A random identifier, as text.
    Uuid,
    /// A number, a name and a time, in the encoding of tuples that preserves their order.
    Composite,
    /// `user` and 20 digits.
    Ycsb,
}

impl Named for KeyKind {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::U64, "u64", "Numbers of 8 bytes, big-endian"),
        (Self::Url, "url", "Addresses of 12 to 200 bytes; long prefixes are common to neighbours"),
        (
            Self::Path,
            "path",
            "Paths of this machine's files; with a number if there are fewer files than tuples",
        ),
        (Self::Word, "word", "Words of 2 to 32 letters from this machine's texts; with a number likewise"),
        (Self::Email, "email", "First and last name, a number, one of a few domains; 28 bytes on average"),
        (Self::Uuid, "uuid", "Random identifiers of version 4 in 36 bytes of text"),
        (
            Self::Composite,
            "composite",
            "A number, a name and a time, in the encoding of tuples; 23 bytes on average",
        ),
        (Self::Ycsb, "ycsb", "`user` and 20 digits, as YCSB's keys"),
    ];
}

impl KeyKind {
    /// The size of each key, in bytes; zero where they differ.
    pub fn bytes(self) -> usize {
        match self {
            Self::U64 => KEY_BYTES,
            Self::Uuid => 36,
            Self::Ycsb => 24,
            Self::Url | Self::Path | Self::Word | Self::Email | Self::Composite => 0,
        }
    }

    /// The mean size of a key, about, in bytes.
    pub fn bytes_mean(self) -> u64 {
        match self {
            Self::U64 | Self::Uuid | Self::Ycsb => self.bytes() as u64,
            Self::Url => 75,
            Self::Path => 90,
            Self::Word => 12,
            Self::Email => 28,
            Self::Composite => 23,
        }
    }
}

/// The sizes of values: one, or all between two bounds, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ValueSizes {
    /// The smallest, in bytes.
    pub min: usize,
    /// The largest, in bytes.
    pub max: usize,
}

impl ValueSizes {
    /// What is allowed, in bytes: a value begins with its tuple's number.
    pub const BOUNDS: std::ops::RangeInclusive<usize> = 8..=1 << 20;

    /// All of one size.
    pub fn one(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// The size that all have; zero where they differ.
    pub fn same(self) -> usize {
        if self.min == self.max { self.min } else { 0 }
    }

    /// The mean size, in bytes.
    pub fn mean(self) -> u64 {
        (self.min + self.max) as u64 / 2
    }

    /// The same; but half to one and a half times the size that all have, if there is one.
    pub fn spread(self) -> Self {
        match self.same() {
            0 => self,
            bytes => Self { min: (bytes / 2).max(KEY_BYTES), max: bytes + bytes / 2 },
        }
    }
}

/// The order in which the tuples of a table are inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Ascending keys.
    Sequential,
    /// A permutation of the keys that depends on the seed only.
    Random,
    /// Ascending keys, by whatever the engine has for loading sorted input, with one thread.
    Bulk,
}

impl Named for Order {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Sequential, "sequential", "Ascending keys"),
        (Self::Random, "random", "A permutation of the keys that depends on the seed only"),
        (
            Self::Bulk,
            "bulk",
            "Ascending keys, by whatever the engine has for loading sorted input, with one thread",
        ),
    ];
}

/// Which tuples are used how often.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skew {
    /// All alike.
    Uniform,
    /// By Zipf's law with this exponent, between 0 and 1; the frequent ones are spread over the table.
    Zipfian(f64),
    /// By Zipf's law with the exponent of YCSB, those inserted last most often.
    Latest,
}
