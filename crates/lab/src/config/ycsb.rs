//! What a run of YCSB is told.

use super::{AnyEngineName, Choice, Named};
use serde::{Deserialize, Serialize};

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// Half reads, half updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads
    C,
    /// 95 % reads of the latest records, 5 % insertions
    D,
    /// 95 % scans, 5 % insertions
    E,
    /// Half reads, half reads with an update of what was read
    F,
}

impl Mix {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "ycsb_a",
            Self::B => "ycsb_b",
            Self::C => "ycsb_c",
            Self::D => "ycsb_d",
            Self::E => "ycsb_e",
            Self::F => "ycsb_f",
        }
    }

    /// The distribution of keys unless another one is asked for.
    pub fn distribution(self) -> Distribution {
        if self == Self::D { Distribution::Latest } else { Distribution::Zipfian }
    }

    /// Whether it needs an engine that shows records in the order of their keys.
    pub fn needs_order(self) -> bool {
        self == Self::E
    }

    /// Whether it inserts records.
    pub fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }
}

impl Named for Mix {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::A, "a", "Half reads, half updates"),
        (Self::B, "b", "95 % reads, 5 % updates"),
        (Self::C, "c", "Reads"),
        (Self::D, "d", "95 % reads of the latest records, 5 % insertions"),
        (Self::E, "e", "95 % scans, 5 % insertions"),
        (Self::F, "f", "Half reads, half reads with an update of what was read"),
    ];
}

/// A workload, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MixName {
    /// This one.
    One(Mix),
    /// All of them.
    All,
}

/// Which records are used how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// By Zipf's law, in no order
    Zipfian,
    /// All alike
    Uniform,
    /// By Zipf's law, those inserted last most often
    Latest,
}

impl Named for Distribution {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Zipfian, "zipfian", "By Zipf's law, in no order"),
        (Self::Uniform, "uniform", "All alike"),
        (Self::Latest, "latest", "By Zipf's law, those inserted last most often"),
    ];
}

/// The smallest field, in bytes.
pub const FIELD_BYTES_MIN: usize = 8;

/// What `lab ycsb` is told.
#[derive(Clone, Debug)]
pub struct YcsbSettings {
    /// The workloads, one after the other.
    pub workload: Vec<MixName>,
    /// The engines, in the order of their turns.
    pub engines: Vec<AnyEngineName>,
    /// Which records are used how often; by default the latest in D, zipfian otherwise.
    pub distribution: Option<Distribution>,
    /// Records that are loaded.
    pub records: u64,
    /// The size of each key, in bytes.
    pub key_bytes: usize,
    /// Fields of a record.
    pub fields: usize,
    /// The size of each field, in bytes.
    pub field_bytes: usize,
    /// The size of each value, which is a whole record, instead of that of a field, in bytes.
    pub value_bytes: Option<usize>,
    /// The longest scan of E, in records.
    pub scan_max: u64,
    /// Whether RocksDB keeps a log and syncs each write.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "RocksDB is not built in"))]
    pub rocksdb_sync: Choice,
}
