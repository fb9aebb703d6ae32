//! Walks of all structures of a database.

use super::{Problem, Progress, VerifyReport};
use crate::{
    Result,
    catalog::{self, TableRecord},
    open_transaction::OpenTransaction,
    shared::Inner,
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};
use vellum_access::{AccessError, Tree, TreeReport, TreeShape};
use vellum_base::{Extent, PageId, checksum};
use vellum_objects::{Heap, HeapProblem, HeapState};
use vellum_pool::{Allocation, Navigation, Pool};

/// How often a heap is walked that others change.
const ATTEMPTS: usize = 3;

/// Which pages have been found to be in use.
pub(super) struct Seen<'v> {
    pool: &'v Pool,
    pages: Vec<u64>,
    progress: Progress,
    report: &'v mut dyn FnMut(Progress),
}

impl<'v> Seen<'v> {
    pub fn none(pool: &'v Pool, report: &'v mut dyn FnMut(Progress)) -> Self {
        let statistics = pool.statistics();
        let pages = vec![0; statistics.pages_in_file.div_ceil(64) as usize];
        let progress = Progress { pages_done: 0, pages_total: statistics.pages_allocated };
        Self { pool, pages, progress, report }
    }

    pub fn pages_done(&self) -> u64 {
        self.progress.pages_done
    }

    /// Notes that something refers to an extent. Returns false if something else refers to it, too.
    fn claim(&mut self, extent: Extent) -> bool {
        let range = extent.head.0..extent.end().0;
        // The file may have grown since.
        if self.pages.len() < range.end.div_ceil(64) as usize && self.pool.is_extent(extent) {
            self.pages.resize(range.end.div_ceil(64) as usize, 0);
        }
        if range.clone().any(|page| self.is_seen(page)) {
            return self.pool.has_changed_hands(extent);
        }
        for page in range {
            if let Some(word) = self.pages.get_mut((page / 64) as usize) {
                *word |= 1 << (page % 64);
            }
        }
        self.progress.pages_done += u64::from(extent.pages);
        self.progress.pages_total = self.progress.pages_total.max(self.progress.pages_done);
        (self.report)(self.progress);
        true
    }

    pub fn is_seen(&self, page: u64) -> bool {
        self.pages.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }
}

/// The roots of all trees but the catalog's. Each is either that of a table or heap, or doomed.
struct Roots {
    tables: Vec<(String, TableRecord)>,
    doomed: Vec<PageId>,
}

impl Roots {
    /// As a snapshot sees them: a transaction that replaces a tree changes several records, one after the other.
    fn find(inner: &Arc<Inner>) -> Result<Self> {
        let open = OpenTransaction::begin(inner, false);
        let catalog = catalog::tree(inner.pool()).with_view(open.transaction.reading());
        Ok(Self { tables: catalog::list(catalog)?, doomed: catalog::doomed(catalog)? })
    }
}

/// A walk of all structures, and what it has found.
pub(super) struct Walk<'w, 'v> {
    seen: Seen<'v>,
    report: &'w mut VerifyReport,
    /// Whether a heap has changed meanwhile.
    has_changed: bool,
}

/// What is known of the pages of a heap: whether they are those that were read.
type Pages = BTreeMap<PageId, Option<u64>>;

impl<'w, 'v> Walk<'w, 'v> {
    pub fn new(seen: Seen<'v>, report: &'w mut VerifyReport) -> Self {
        Self { seen, report, has_changed: false }
    }

    pub fn end(self) -> Seen<'v> {
        self.seen
    }

    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    pub fn everything(&mut self, inner: &Arc<Inner>) {
        let pool = self.seen.pool;
        for extent in pool.own_extents() {
            self.seen.claim(extent);
        }
        let found = verify(|tree, visit| tree.verify(visit), catalog::tree(pool), &mut self.seen, None);
        self.report.problems.extend(found.problems);
        let Roots { tables, doomed } = match Roots::find(inner) {
            Ok(roots) => roots,
            Err(error) => return self.report.problems.push(Problem::Damaged { table: None, error }),
        };
        let doomed: Vec<_> =
            doomed.into_iter().map(|root| (root, contents(pool, Extent::page(root)))).collect();
        for (name, record) in tables {
            let known =
                (self.report.problems.len(), self.report.heaps.len(), self.report.undecided_heaps.len());
            let shape = self.table_tree(record.root, &name);
            if record.is_heap {
                self.heap(record.root, &name);
            }
            let is_root = |(_, other): &(_, TableRecord)| other.root == record.root;
            // It may have been dropped meanwhile.
            if self.report.problems.len() > known.0
                && Roots::find(inner).is_ok_and(|now| !now.tables.iter().any(is_root))
            {
                self.report.problems.truncate(known.0);
                self.report.heaps.truncate(known.1);
                self.report.undecided_heaps.truncate(known.2);
            } else if !record.is_heap {
                self.report.tables.push((name, shape));
            }
        }
        for (root, before) in doomed {
            self.doomed(inner, root, before);
        }
    }

    /// A tree that waits to be freed, or that is not that of a table yet. `before` is what the root was before tables were
    /// walked.
    fn doomed(&mut self, inner: &Arc<Inner>, root: PageId, before: Option<u64>) {
        let pool = self.seen.pool;
        let found =
            verify(|tree, visit| tree.verify_rest(visit), Tree::open(pool, root), &mut self.seen, None);
        if found.problems.is_empty() {
            return;
        }
        // The contents of a table that was walked may have come here.
        let is_old = before == contents(pool, Extent::page(root));
        // The transaction that has made it, and is open, may be changing it.
        let live = Tree::open(pool, root).verify(|extent| {
            self.seen.claim(extent);
            true
        });
        if Roots::find(inner).is_ok_and(|now| !now.doomed.contains(&root)) {
            return;
        }
        let is_real = |problem: &Problem| match problem {
            Problem::UsedTwice { .. } => is_old,
            _ => !live.problems.is_empty(),
        };
        self.report.problems.extend(found.problems.into_iter().filter(is_real));
    }

    /// The tree of a table, or the directory of a heap.
    pub fn table_tree(&mut self, root: PageId, name: &str) -> TreeShape {
        let found = verify(
            |tree, visit| tree.verify(visit),
            Tree::open(self.seen.pool, root),
            &mut self.seen,
            Some(name),
        );
        self.report.problems.extend(found.problems);
        found.shape
    }

    /// The pages and objects of a heap, to which its directory leads.
    pub fn heap(&mut self, root: PageId, name: &str) {
        let (pool, state) = (self.seen.pool, HeapState::default());
        let heap = Heap::open(pool, root, &state);
        let mut problems: Option<HashSet<String>> = None;
        for attempt in 1..=ATTEMPTS {
            let (mut pages, mut extents) = (Pages::new(), Vec::new());
            // The directory has been verified.
            let _ = Tree::open(pool, root).verify(|extent| {
                pages.insert(extent.head, contents(pool, extent));
                true
            });
            let mut own = HashSet::new();
            let mut found = heap.verify(&mut |extent| {
                if !pool.is_extent(extent) {
                    return true;
                }
                if extent.pages == 1 {
                    pages.entry(extent.head).or_insert_with(|| contents(pool, extent));
                }
                extents.push(extent);
                own.insert(extent)
            });
            let is_unchanged =
                || pages.iter().all(|(page, before)| contents(pool, Extent::page(*page)) == *before);
            let is_settled = is_unchanged();
            let told = |problem: &HeapProblem| format!("{problem:?}");
            if !is_settled && !found.problems.is_empty() {
                self.has_changed = true;
                let now = found
                    .problems
                    .iter()
                    .filter(|problem| matches!(problem, HeapProblem::Damaged(_)))
                    .map(told);
                let now: HashSet<String> =
                    now.filter(|told| problems.as_ref().is_none_or(|before| before.contains(told))).collect();
                if attempt < ATTEMPTS {
                    problems = Some(now);
                    continue;
                }
                // A page that is damaged was so each time.
                found.problems.retain(|problem| now.contains(&told(problem)));
                self.report.undecided_heaps.push(name.to_owned());
            }
            self.has_changed |= !is_settled;
            let twice = extents.into_iter().filter(|extent| !self.seen.claim(*extent));
            let twice: Vec<_> = twice.map(HeapProblem::UsedTwice).collect();
            let all = found.problems.into_iter().chain(twice.into_iter().filter(|_| is_settled));
            self.report.problems.extend(all.map(|problem| of_heap(problem, name)));
            self.report.heaps.push((name.to_owned(), found.objects));
            return;
        }
    }
}

fn of_heap(problem: HeapProblem, name: &str) -> Problem {
    let heap = name.to_owned();
    match problem {
        HeapProblem::Damaged(error) => Problem::Damaged { table: Some(heap), error: error.into() },
        HeapProblem::UsedTwice(extent) => {
            Problem::UsedTwice { table: Some(heap), page: extent.head.0, pages: extent.pages }
        }
        HeapProblem::Dangling { from, to, wanted } => Problem::Dangling { heap, from, to, wanted },
        HeapProblem::Unreachable { objects, type_name, first } => {
            Problem::Unreachable { heap, objects, type_name, first }
        }
    }
}

/// A digest of a page's contents; `None` if it cannot be read.
fn contents(pool: &Pool, extent: Extent) -> Option<u64> {
    pool.shared_certain(extent).ok().map(|page| checksum(page.page()))
}

/// What was found in a tree.
struct Found {
    shape: TreeShape,
    problems: Vec<Problem>,
}

/// Verifies a tree by `verify`, and claims its extents.
fn verify<'p>(
    verify: impl FnOnce(&Tree<'p, Pool>, &mut dyn FnMut(Extent) -> bool) -> TreeReport,
    tree: Tree<'p, Pool>,
    seen: &mut Seen<'_>,
    table: Option<&str>,
) -> Found {
    let table = table.map(str::to_owned);
    let mut problems = Vec::new();
    let found = verify(&tree, &mut |extent| {
        // An extent that is not allocated is reported by the read that fails.
        if !seen.pool.is_extent(extent) || seen.claim(extent) {
            return true;
        }
        let (page, pages) = (extent.head.0, extent.pages);
        problems.push(Problem::UsedTwice { table: table.clone(), page, pages });
        false
    });
    let damaged = |error: AccessError| Problem::Damaged { table: table.clone(), error: error.into() };
    problems.extend(found.problems.into_iter().map(damaged));
    Found { shape: found.shape, problems }
}
