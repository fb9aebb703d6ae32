//! Verification of a whole database, while others change it.
//!
//! # Damage
//! A tree is walked by descents, each of which sees its nodes as of one moment: see [`Tree::verify`]. So what it reports is
//! damaged, as long as the tree has its root. What is found in the tree of a table that was dropped meanwhile is forgotten.
//! A doomed tree may lack its end, and is walked from its root down: nobody changes it but to free it. If anything is found,
//! it is walked as those of tables, too: it may be that of a table whose transaction is still open. Heaps of objects are walked by following references. If problems are found, and the pages have
//! changed meanwhile, the heap is walked again, a few times.
//!
//! # Lost space
//! What is allocated, and not found by the walk, is lost, if it was not allocated or freed since the walk began: the pool
//! keeps a list of that ([`Pool::watch_space`]), in which is also what the undo of a change refers to again. But it may be
//! - too new: allocated by an operation that had begun before the walk, and refers to it since the walk has passed by. So
//!   a second walk begins when these operations have ended;
//! - too old: about to be freed by an operation, or replaced before the walk came, and kept until a transaction has ended or
//!   no snapshot needs it. So what is left after the second walk is lost only if it is still there when all such
//!   operations and transactions have ended, and what these have left behind has gone.
//!
//! The second walk is needed only if there is something to be explained. Neither is waited for longer than
//! [`PATIENCE`](lost::PATIENCE): then it is unknown what is lost.

mod lost;
mod walk;

use crate::{Error, shared::Inner};
use std::{collections::BTreeMap, fmt, sync::Arc};
use vellum_access::TreeShape;
use vellum_base::PageId;
use vellum_objects::AnyRef;
use vellum_pool::Pool;
use vellum_txn::BufferDamage;
use walk::{Seen, Walk};

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
    /// The database has crashed, and the buffer in its log's directory is damaged: commits that were only
    /// [`Buffered`](crate::Durability::Buffered) may be lost. This is reported if the database is opened for reading only. An
    /// opening for changes replaces the buffer, and [`Recovery::buffer_damage`](crate::Recovery::buffer_damage) tells.
    DamagedBuffer {
        /// What is wrong.
        damage: BufferDamage,
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
            Self::DamagedBuffer { damage } => write!(f, "{damage}"),
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
    /// Pages to which nothing was found to refer, and that may still be needed by transactions, snapshots, or loads that were
    /// under way all the while. A later verification tells whether their space is lost. They are no problem.
    pub undecided_pages: u64,
    /// Heaps that others changed while they were verified, so that it is unknown what of the problems found in them was
    /// only halfway through a change. Only damaged pages of theirs are among the problems.
    pub undecided_heaps: Vec<String>,
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

/// Verifies a heap alone, which nobody changes.
pub(crate) fn heap(pool: &Pool, root: PageId, name: &str) -> Vec<Problem> {
    let (mut report, mut quiet) = (VerifyReport::default(), |_| {});
    let mut walk = Walk::new(Seen::none(pool, &mut quiet), &mut report);
    walk.table_tree(root, name);
    walk.heap(root, name);
    report.problems
}

/// Verifies everything.
pub(crate) fn verify(inner: &Arc<Inner>, progress: &mut dyn FnMut(Progress)) -> VerifyReport {
    let pool = inner.pool();
    // Its changes would hide what they have replaced.
    let undone = inner.undo_rest();
    let watch = pool.watch_space();
    let begun = lost::Moment::now(inner, &watch);
    let mut report = VerifyReport::default();
    for page in pool.damaged_superblocks().into_iter().chain(inner.damaged_superblocks.iter().copied()) {
        report.problems.push(Problem::DamagedSuperblock { page: page.0 });
    }
    let left = inner.durable.recovery().filter(|_| pool.is_read_only());
    if let Some(damage) = left.and_then(|recovery| recovery.buffer_damage) {
        report.problems.push(Problem::DamagedBuffer { damage });
    }
    let mut walk = Walk::new(Seen::none(pool, progress), &mut report);
    walk.everything(inner);
    let seen = walk.end();
    report.pages_verified = seen.pages_done();
    let found = lost::find(inner, (&watch, &begun), seen);
    report.undecided_pages = found.undecided;
    report.problems.extend(
        found.lost.into_iter().map(|extent| Problem::Leaked { page: extent.head.0, pages: extent.pages }),
    );
    report.rollback_error = undone.err();
    report
}

#[cfg(all(test, not(shuttle)))]
mod tests;
