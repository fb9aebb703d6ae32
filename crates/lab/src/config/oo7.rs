//! What `lab oo7` is told.

use super::Named;
use serde::{Deserialize, Serialize};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Oo7Settings {
    /// The contestants, in the order of their turns.
    pub graphs: Vec<GraphName>,
    /// What is measured.
    pub operations: Vec<Oo7Operation>,
    /// The size of the database.
    pub size: Oo7Size,
    /// How many composite parts there are; 500 in the benchmark.
    pub composites: u32,
    /// How many bytes of pages may be in memory.
    pub pool: u64,
    /// How much memory the process of a contestant may have beside what it had before it opened its database, in bytes; what is beyond goes
    /// to swap. All in one process, without a limit, if there is none.
    pub memory_limit: Option<u64>,
}

/// A size of the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Oo7Size {
    /// 20 atomic parts in each composite part.
    Small,
    /// 200 of them.
    Medium,
}

impl Oo7Size {
    /// How many atomic parts a composite part has.
    pub fn parts(self) -> u32 {
        match self {
            Self::Small => 20,
            Self::Medium => 200,
        }
    }

    /// How long the text of a document is, in bytes.
    pub fn document_bytes(self) -> usize {
        match self {
            Self::Small => 2000,
            Self::Medium => 20_000,
        }
    }
}

impl Named for Oo7Size {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Small, "small", "10 000 atomic parts, 20 in each composite part, documents of 2 kB"),
        (Self::Medium, "medium", "100 000 atomic parts, 200 in each composite part, documents of 20 kB"),
    ];
}

/// What keeps the objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GraphName {
    /// Pointers in memory.
    Memory,
    /// A heap of objects.
    Heap,
    /// The same, whose objects are fetched ahead.
    HeapAhead,
    /// The design of Texas.
    Texas,
    /// The same with userfaultfd instead of a signal.
    TexasUffd,
    /// The same with pages that the operating system may drop.
    TexasFree,
    /// The same with a limit of its own.
    TexasDrop,
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl Named for GraphName {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Memory, "memory", "Plain pointers in memory, without storage"),
        (Self::Heap, "heap", "A heap of objects of Vellum, with tables as indices"),
        (Self::HeapAhead, "heap-ahead", "The same; traversals fetch the parts that come next side by side"),
        (
            Self::Texas,
            "texas",
            "Protected pages that are swizzled at the first touch (SIGSEGV), after Texas; what does not fit is swapped; reads only",
        ),
        (Self::TexasUffd, "texas-uffd", "The same with missing pages, of which userfaultfd tells a thread"),
        (
            Self::TexasFree,
            "texas-free",
            "The same with missing pages and SIGBUS; swizzled pages are given to MADV_FREE, and dropped instead of swapped",
        ),
        (Self::TexasDrop, "texas-drop", "Texas that drops the pages that came first, at the limit of --pool"),
        #[cfg(feature = "sqlite")]
        (Self::Sqlite, "sqlite", "SQLite, a table for each type, with indices"),
    ];
}

/// An operation of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Oo7Operation {
    T1,
    T1Sparse,
    T2a,
    T2b,
    T2c,
    T3a,
    T3b,
    T3c,
    T6,
    All,
    Q1,
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
    Q7,
    Q8,
}

impl Named for Oo7Operation {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::T1, "t1", "Visit all atomic parts of all composite parts of all base assemblies, depth first"),
        (Self::T1Sparse, "t1-sparse", "The same of one of the three composite parts of each base assembly"),
        (Self::T2a, "t2a", "T1, and exchange x and y of one atomic part of each composite part"),
        (Self::T2b, "t2b", "T1, and exchange x and y of each atomic part"),
        (Self::T2c, "t2c", "The same four times"),
        (Self::T3a, "t3a", "T2a with the date, which has an index, instead of x and y"),
        (Self::T3b, "t3b", "T2b with the date"),
        (Self::T3c, "t3c", "T2c with the date"),
        (Self::T6, "t6", "T1 of the root part of each composite part alone"),
        (
            Self::All,
            "all",
            "T1 of all composite parts, each once; not of the benchmark, for databases that are larger than what T1 visits",
        ),
        (Self::Q1, "q1", "Ten random atomic parts by their numbers"),
        (Self::Q2, "q2", "The latest hundredth of the atomic parts by their dates"),
        (Self::Q3, "q3", "The latest tenth"),
        (
            Self::Q4,
            "q4",
            "The base assemblies that use the composite parts of ten documents, by their titles",
        ),
        (Self::Q5, "q5", "The base assemblies that use a composite part of a later date"),
        (Self::Q6, "q6", "All assemblies above a composite part of a later date"),
        (Self::Q7, "q7", "All atomic parts"),
        (Self::Q8, "q8", "All pairs of an atomic part and the document of its number"),
    ];
}
