//! What an OO7 database consists of (Carey, DeWitt, Naughton, *The OO7 benchmark*, SIGMOD 1993), as numbers. Each contestant builds the
//! same of it, and what an operation must count follows from it.
//!
//! One module, of which the manual is left out. Assemblies have seven levels, three below each; the lowest are *base assemblies* of three
//! random composite parts. A composite part has a document and 20 or 200 atomic parts, of which each has three connections:
//! one to the next part, so that all are reached, and two to random ones of the same composite part.

use crate::config::Oo7Size;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// The levels of assemblies.
pub const LEVELS: u32 = 7;
/// How many children an assembly has, and how many connections an atomic part.
pub const FANOUT: usize = 3;
/// How many assemblies are complex; base assemblies have the numbers from here on.
pub const COMPLEX: u32 = (3u32.pow(LEVELS - 1) - 1) / 2;
/// How many base assemblies there are.
pub const BASES: u32 = 3u32.pow(LEVELS - 1);

/// Dates of atomic parts are below this; one of assemblies and composite parts is compared with others of these.
const DATES: u32 = 10_000;

/// The numbers of a database.
pub struct Plan {
    /// How many atomic parts a composite part has.
    pub parts: u32,
    /// How long a document is.
    pub document_bytes: usize,
    /// The dates of assemblies, from the top, level by level.
    pub assembly_dates: Vec<u32>,
    /// The composite parts of each base assembly.
    pub base_parts: Vec<[u32; FANOUT]>,
    /// The dates of composite parts.
    pub composite_dates: Vec<u32>,
    /// The dates of atomic parts.
    pub part_dates: Vec<u32>,
    /// The documents that atomic parts name.
    pub part_documents: Vec<u32>,
    /// Where the connections of each atomic part lead.
    pub connections: Vec<[u32; FANOUT]>,
}

impl Plan {
    /// A database of a size.
    pub fn new(size: Oo7Size, composites: u32, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let parts = size.parts();
        let count = composites * parts;
        let mut connections = Vec::with_capacity(count as usize);
        for part in 0..count {
            let first = part / parts * parts;
            let next = first + (part - first + 1) % parts;
            let mut other = || first + random.random_range(0..parts);
            connections.push([next, other(), other()]);
        }
        Self {
            parts,
            document_bytes: size.document_bytes(),
            assembly_dates: (0..COMPLEX + BASES).map(|_| random.random_range(0..DATES)).collect(),
            base_parts: (0..BASES)
                .map(|_| [(); FANOUT].map(|()| random.random_range(0..composites)))
                .collect(),
            composite_dates: (0..composites).map(|_| random.random_range(0..DATES)).collect(),
            part_dates: (0..count).map(|_| random.random_range(0..DATES)).collect(),
            part_documents: (0..count).map(|_| random.random_range(0..composites)).collect(),
            connections,
        }
    }

    /// How many composite parts there are.
    pub fn composites(&self) -> u32 {
        self.composite_dates.len() as u32
    }

    /// How many atomic parts there are.
    pub fn part_count(&self) -> u32 {
        self.part_dates.len() as u32
    }

    /// The children of a complex assembly.
    pub fn children(assembly: u32) -> [u32; FANOUT] {
        [1, 2, 3].map(|child| 3 * assembly + child)
    }

    /// The base assemblies that use each composite part, one as often as it does.
    pub fn users(&self) -> Vec<Vec<u32>> {
        let mut users = vec![Vec::new(); self.composites() as usize];
        for (base, parts) in self.base_parts.iter().enumerate() {
            parts.iter().for_each(|part| users[*part as usize].push(COMPLEX + base as u32));
        }
        users
    }

    /// The title of the document of a composite part.
    pub fn title(composite: u32) -> String {
        format!("Composite Part {composite:08}")
    }

    /// The text of a document.
    pub fn text(&self, composite: u32) -> String {
        format!("I am the documentation for composite part #{composite:08}.\n")
            .repeat(self.document_bytes / 50 + 1)[..self.document_bytes]
            .to_owned()
    }

    /// The date from which on a share of all dates lies. It is even, so that toggling one does not change on which side it lies.
    pub fn date_of_latest(share: f64) -> u32 {
        (f64::from(DATES) * (1.0 - share)) as u32 / 2 * 2
    }
}
