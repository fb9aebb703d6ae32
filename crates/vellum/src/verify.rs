//! Verification of a whole database.

use crate::{Error, catalog};
use std::{collections::BTreeMap, fmt};
use vellum_access::{Tree, TreeReport, TreeShape};
use vellum_base::{Extent, PageId};
use vellum_objects::{AnyRef, Heap, HeapProblem, HeapState};
use vellum_pool::Pool;

/// The progress of a verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Pages that were found and read.
    pub pages_done: u64,
    /// Pages that are allocated.
    pub pages_total: u64,
}

/// A problem that a verification found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A structure cannot be read, or is damaged.
    Damaged {
        /// The table, or `None` for the file itself and its catalog.
        table: Option<String>,
        /// The error.
        error: Error,
    },
    /// Two references lead to the same page.
    UsedTwice {
        /// The table in which the second reference was found, if any.
        table: Option<String>,
        /// The first page of the extent.
        page: u64,
        /// Its length in pages.
        pages: u32,
    },
    /// Pages are allocated, but nothing refers to them: their space is lost.
    Leaked {
        /// The first page.
        page: u64,
        /// How many pages.
        pages: u32,
    },
    /// A reference of an object leads nowhere, or to an object of another type.
    Dangling {
        /// The heap.
        heap: String,
        /// The object that holds the reference; none for a root.
        from: Option<AnyRef>,
        /// Where it leads.
        to: AnyRef,
        /// The expected type.
        wanted: String,
    },
    /// No path leads from a root to some objects of a heap: their space is lost.
    Unreachable {
        /// The heap.
        heap: String,
        /// How many.
        objects: u64,
        /// Their type.
        type_name: String,
        /// The first of them.
        first: AnyRef,
    },
    /// One of the two copies of the superblock is damaged, or cannot be read. The database uses the other, and the next
    /// change rewrites both.
    DamagedSuperblock {
        /// The copy's page.
        page: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |table: &Option<String>| match table {
            Some(name) => format!("table {name:?}"),
            None => "the catalog".to_owned(),
        };
        match self {
            Self::Damaged { table, error } => write!(f, "{}: {error}", place(table)),
            Self::UsedTwice { table, page, pages } => {
                let end = page + *pages as u64;
                write!(f, "{}: pages {page}..{end} are already used by something else", place(table))
            }
            Self::Leaked { page, pages } => {
                let end = page + *pages as u64;
                write!(f, "pages {page}..{end} are allocated, but nothing refers to them")
            }
            Self::Dangling { heap, from, to, wanted } => {
                write!(f, "heap {heap:?}: ")?;
                match from {
                    Some(from) => write!(f, "the object at {from}")?,
                    None => f.write_str("a root")?,
                }
                write!(f, " refers to a {wanted:?} at {to}, which is not there")
            }
            Self::Unreachable { heap, objects, type_name, first } => {
                let noun = if *objects == 1 { "object" } else { "objects" };
                write!(
                    f,
                    "heap {heap:?}: {objects} {noun} of type {type_name:?} to which no way leads from a root, the first at {first}"
                )
            }
            Self::DamagedSuperblock { page } => {
                write!(f, "the copy of the superblock on page {page} is damaged, or cannot be read")
            }
        }
    }
}

/// The result of a verification.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The tables that were found, and their sizes.
    pub tables: Vec<(String, TreeShape)>,
    /// The heaps of objects that were found, and the number of reachable objects of each type.
    pub heaps: Vec<(String, BTreeMap<String, u64>)>,
    /// The problems, in the order in which they were found.
    pub problems: Vec<Problem>,
    /// Pages that were found and read.
    pub pages_verified: u64,
    /// Why a transaction that has ended could still not be rolled back, if so. It will be when that works, or when the
    /// database is opened again. This is no damage.
    pub rollback_error: Option<Error>,
}

impl VerifyReport {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Which pages have been found to be in use.
struct Seen<'v> {
    pool: &'v Pool,
    pages: Vec<u64>,
    progress: Progress,
    report: &'v mut dyn FnMut(Progress),
}

impl Seen<'_> {
    /// Notes that something refers to an extent. Returns false if something else refers to it, too.
    fn claim(&mut self, extent: Extent) -> bool {
        let range = extent.head.0..extent.end().0;
        if range.clone().any(|page| self.is_seen(page)) {
            return false;
        }
        for page in range {
            if let Some(word) = self.pages.get_mut((page / 64) as usize) {
                *word |= 1 << (page % 64);
            }
        }
        self.progress.pages_done += extent.pages as u64;
        (self.report)(self.progress);
        true
    }

    fn is_seen(&self, page: u64) -> bool {
        self.pages.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }
}

impl<'v> Seen<'v> {
    fn none(pool: &'v Pool, report: &'v mut dyn FnMut(Progress)) -> Self {
        let statistics = pool.statistics();
        let pages = vec![0; statistics.pages_in_file.div_ceil(64) as usize];
        let progress = Progress { pages_done: 0, pages_total: statistics.pages_allocated };
        Self { pool, pages, progress, report }
    }
}

/// Verifies a heap alone.
pub(crate) fn heap(pool: &Pool, root: PageId, name: &str) -> Vec<Problem> {
    let (mut report, mut quiet) = (VerifyReport::default(), |_| {});
    let mut seen = Seen::none(pool, &mut quiet);
    verify_tree(Tree::open(pool, root), Some(name), &mut seen, &mut report);
    verify_heap(root, name.to_owned(), &mut seen, &mut report);
    report.problems
}

/// Verifies everything. `kept` are extents to which no structure refers, and which are needed, and `replaced` copies of the
/// superblock that are damaged in the file, and sound in the pool's view of it.
pub(crate) fn verify(
    pool: &Pool,
    (kept, replaced): (&[Extent], &[PageId]),
    mut progress: impl FnMut(Progress),
) -> VerifyReport {
    let mut report = VerifyReport::default();
    let mut seen = Seen::none(pool, &mut progress);
    for extent in pool.own_extents() {
        seen.claim(extent);
    }
    for page in pool.damaged_superblocks().into_iter().chain(replaced.iter().copied()) {
        report.problems.push(Problem::DamagedSuperblock { page: page.0 });
    }
    verify_tree(catalog::tree(pool), None, &mut seen, &mut report);
    match catalog::doomed(pool) {
        Ok(doomed) => doomed.into_iter().for_each(|root| {
            verify_extents(None, &mut seen, &mut report, |claim| Tree::open(pool, root).verify_rest(claim));
        }),
        Err(error) => report.problems.push(Problem::Damaged { table: None, error }),
    }
    match catalog::list(catalog::tree(pool)) {
        Ok(tables) => {
            for (name, record) in tables {
                let shape = verify_tree(Tree::open(pool, record.root), Some(&name), &mut seen, &mut report);
                if record.is_heap {
                    verify_heap(record.root, name, &mut seen, &mut report);
                } else {
                    report.tables.push((name, shape));
                }
            }
        }
        Err(error) => report.problems.push(Problem::Damaged { table: None, error }),
    }
    report.pages_verified = seen.progress.pages_done;
    for extent in kept {
        seen.claim(*extent);
    }
    pool.for_each_extent(|extent| {
        if !seen.is_seen(extent.head.0) {
            report.problems.push(Problem::Leaked { page: extent.head.0, pages: extent.pages });
        }
    });
    report
}

fn verify_heap(root: PageId, name: String, seen: &mut Seen<'_>, report: &mut VerifyReport) {
    let (pool, state) = (seen.pool, HeapState::default());
    let found =
        Heap::open(pool, root, &state).verify(&mut |extent| !pool.is_extent(extent) || seen.claim(extent));
    for problem in found.problems {
        let heap = name.clone();
        report.problems.push(match problem {
            HeapProblem::Damaged(error) => Problem::Damaged { table: Some(heap), error: error.into() },
            HeapProblem::UsedTwice(extent) => {
                Problem::UsedTwice { table: Some(heap), page: extent.head.0, pages: extent.pages }
            }
            HeapProblem::Dangling { from, to, wanted } => Problem::Dangling { heap, from, to, wanted },
            HeapProblem::Unreachable { objects, type_name, first } => {
                Problem::Unreachable { heap, objects, type_name, first }
            }
        });
    }
    report.heaps.push((name, found.objects));
}

fn verify_tree(
    tree: Tree<'_, Pool>,
    table: Option<&str>,
    seen: &mut Seen<'_>,
    report: &mut VerifyReport,
) -> TreeShape {
    verify_extents(table, seen, report, |claim| tree.verify(claim))
}

/// Verifies a tree by `verify`, which claims its extents.
fn verify_extents(
    table: Option<&str>,
    seen: &mut Seen<'_>,
    report: &mut VerifyReport,
    verify: impl FnOnce(&mut dyn FnMut(Extent) -> bool) -> TreeReport,
) -> TreeShape {
    let table = table.map(str::to_owned);
    let problems = &mut report.problems;
    let found = verify(&mut |extent| {
        // An extent that is not allocated is reported by the read that fails.
        if !seen.pool.is_extent(extent) || seen.claim(extent) {
            return true;
        }
        let (page, pages) = (extent.head.0, extent.pages);
        problems.push(Problem::UsedTwice { table: table.clone(), page, pages });
        false
    });
    for problem in found.problems {
        report.problems.push(Problem::Damaged { table: table.clone(), error: problem.into() });
    }
    found.shape
}
