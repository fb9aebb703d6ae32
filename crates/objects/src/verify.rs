//! Verification of a whole heap.
//!
//! Pages are checked one by one. Then all references are followed from the roots, using the descriptions of types in
//! the heap; one bit a granule records what was reached. Objects that were not reached are unreachable.

use crate::{
    Heap, Shape,
    body::{damaged, large},
    codec::Reader,
    copies::copy_of,
    error::ObjectError,
    page::{Head, PageView},
    reference::{AnyRef, GRANULES},
};
use std::collections::{BTreeMap, HashMap};
use vellum_access::read_large;
use vellum_base::{Extent, PageId};
use vellum_pool::{Pager, PoolError};

/// A problem in a heap.
#[derive(Debug)]
pub enum HeapProblem {
    /// A page or an object cannot be read, or is damaged.
    Damaged(ObjectError),
    /// Two references lead to the same page or extent.
    UsedTwice(Extent),
    /// A reference leads nowhere, or to an object of another type.
    Dangling {
        /// The object that holds the reference; none for the roots.
        from: Option<AnyRef>,
        /// The reference.
        to: AnyRef,
        /// The name of the expected type.
        wanted: String,
    },
    /// No path leads from a root to some objects: their space is lost.
    Unreachable {
        /// How many objects of one type.
        objects: u64,
        /// The name of the type.
        type_name: String,
        /// The first one.
        first: AnyRef,
    },
}

/// The result of verifying a heap.
#[derive(Debug, Default)]
pub struct HeapReport {
    /// How many pages it has, without extents of large objects.
    pub pages: u64,
    /// How many objects of each type there are.
    pub objects: BTreeMap<String, u64>,
    /// The problems. Only some of many dangling references are reported.
    pub problems: Vec<HeapProblem>,
}

/// How many problems are reported.
const TOLD_MAX: usize = 1000;

/// What has been reached in a page: one bit a granule.
type Reached = [u64; GRANULES / 64];

struct Walk<'w, 'p, P: Pager> {
    heap: Heap<'p, P>,
    report: HeapReport,
    claim: &'w mut dyn FnMut(Extent) -> bool,
    reached: HashMap<PageId, Reached>,
    shapes: HashMap<u32, Option<Shape>>,
    /// References that were found and not yet followed: from where, to where, and the name of the type.
    next: Vec<(Option<AnyRef>, AnyRef, String)>,
}

impl<P: Pager> Heap<'_, P> {
    /// Reads and checks every page, and follows all references. `claim` is called with every page and extent, and
    /// returns whether it is the first time. This takes 100 bytes of memory for each page of the heap.
    ///
    /// No thread may change the heap meanwhile.
    pub fn verify(&self, claim: &mut dyn FnMut(Extent) -> bool) -> HeapReport {
        let mut walk = Walk {
            heap: *self,
            report: HeapReport::default(),
            claim,
            reached: HashMap::new(),
            shapes: HashMap::new(),
            next: Vec::new(),
        };
        let walked = walk.pages().and_then(|()| walk.follow_all()).and_then(|()| walk.find_unreachable());
        if let Err(error) = walked {
            walk.problem(HeapProblem::Damaged(error));
        }
        walk.report
    }
}

impl<P: Pager> Walk<'_, '_, P> {
    fn problem(&mut self, problem: HeapProblem) {
        if self.report.problems.len() < TOLD_MAX {
            self.report.problems.push(problem);
        }
    }

    /// Checks each page by itself.
    fn pages(&mut self) -> Result<(), ObjectError> {
        let heap = self.heap;
        heap.directory().pages(|page| {
            if !(self.claim)(Extent::page(page)) {
                self.problem(HeapProblem::UsedTwice(Extent::page(page)));
                return Ok(true);
            }
            self.report.pages += 1;
            self.reached.insert(page, Reached::default());
            let wrong = match copy_of(heap.pager, heap.owner, page) {
                Ok(Some((bytes, _))) => {
                    PageView(&bytes).check().map_err(|what| PoolError::contents(page, what).into())
                }
                Ok(None) => Err(PoolError::contents(page, "a page of objects should be here").into()),
                Err(error) => Err(error),
            };
            if let Err(error) = wrong {
                self.problem(HeapProblem::Damaged(error));
            }
            Ok(true)
        })
    }

    /// Follows all references, starting with the roots.
    fn follow_all(&mut self) -> Result<(), ObjectError> {
        let Some(anchor) = self.heap.anchor()? else { return Ok(()) };
        self.reach(anchor.any());
        let roots = self.heap.get(anchor)?;
        self.next.extend(roots.iter().map(|(name, root)| (None, root, name.to_owned())));
        while let Some((from, to, wanted)) = self.next.pop() {
            match self.follow(to, &wanted) {
                Ok(true) => {}
                Ok(false) => self.problem(HeapProblem::Dangling { from, to, wanted }),
                Err(error) => self.problem(HeapProblem::Damaged(error)),
            }
        }
        Ok(())
    }

    /// Marks an object as reached. Returns whether it was not reached before, or none if it lies in no page of the
    /// heap.
    fn reach(&mut self, reference: AnyRef) -> Option<bool> {
        let reached = self.reached.get_mut(&reference.page())?;
        let word = reached.get_mut(reference.granule() / 64)?;
        let bit = 1 << (reference.granule() % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        Some(is_new)
    }

    fn shape(&mut self, fingerprint: u32) -> Result<Option<Shape>, ObjectError> {
        if let Some(shape) = self.shapes.get(&fingerprint) {
            return Ok(shape.clone());
        }
        let shape = self.heap.directory().shape(fingerprint)?;
        self.shapes.insert(fingerprint, shape.clone());
        Ok(shape)
    }

    /// Follows a reference; returns false if it does not lead to an object of this type.
    fn follow(&mut self, reference: AnyRef, wanted: &str) -> Result<bool, ObjectError> {
        let (pager, owner) = (self.heap.pager, self.heap.owner);
        if !self.reached.contains_key(&reference.page()) {
            return Ok(false);
        }
        let Some((bytes, _)) = copy_of(pager, owner, reference.page())? else { return Ok(false) };
        let Some(head) = PageView(&bytes).find(reference).filter(|head| !head.is_moved()) else {
            return Ok(false);
        };
        let is_new = self.reach(reference) == Some(true);
        if !head.is_forward() {
            return self.object((reference, reference), (PageView(&bytes), head), wanted, is_new);
        }
        let target = PageView(&bytes).target(reference.granule(), head);
        let Some(target) = target.filter(|target| self.reached.contains_key(&target.page())) else {
            return Ok(false);
        };
        let Some((bytes, _)) = copy_of(pager, owner, target.page())? else { return Ok(false) };
        let Some(head) = PageView(&bytes).find(target).filter(|head| head.is_moved()) else {
            return Ok(false);
        };
        if is_new && self.reach(target) != Some(true) {
            self.problem(HeapProblem::Damaged(damaged(target, "object with one forward")));
        }
        self.object((reference, target), (PageView(&bytes), head), wanted, is_new)
    }

    /// Checks an object, and notes its references if it `is_new`.
    fn object(
        &mut self,
        (reference, at): (AnyRef, AnyRef),
        (page, head): (PageView<'_>, Head),
        wanted: &str,
        is_new: bool,
    ) -> Result<bool, ObjectError> {
        let Some(shape) = self.shape(head.fingerprint())? else { return Ok(false) };
        if shape.name() != Some(wanted) {
            return Ok(false);
        }
        if !is_new {
            return Ok(true);
        }
        *self.report.objects.entry(wanted.to_owned()).or_default() += 1;
        let (body, next) = (page.body(at.granule(), head), &mut self.next);
        let mut look = |bytes: &[u8]| {
            let reader = Reader::new(bytes, 0, bytes.len(), shape.layout().1);
            shape.references(&reader, 0, &mut |name, to| next.push((Some(reference), to, name.to_owned())));
            if reader.is_sound() { Ok(()) } else { Err(damaged(at, wanted)) }
        };
        if !head.is_large() {
            return look(body).map(|()| true);
        }
        let large = large(body, at)?;
        let pager = self.heap.pager;
        let looked = pager.run(|| read_large(pager, &pager.root(at.page())?, large, &mut look))?;
        looked?;
        if !(self.claim)(large.extent()) {
            self.problem(HeapProblem::UsedTwice(large.extent()));
        }
        Ok(true)
    }

    /// Finds objects in pages that were not reached.
    fn find_unreachable(&mut self) -> Result<(), ObjectError> {
        let mut found: BTreeMap<u32, (u64, AnyRef)> = BTreeMap::new();
        let mut pages: Vec<PageId> = self.reached.keys().copied().collect();
        pages.sort_unstable();
        for page in pages {
            // Unreadable pages have been reported already.
            let Ok(Some((bytes, _))) = copy_of(self.heap.pager, self.heap.owner, page) else { continue };
            let reached = self.reached.get(&page).copied().unwrap_or_default();
            for (granule, head) in PageView(&bytes).objects() {
                let is_reached =
                    reached.get(granule / 64).is_some_and(|word| word >> (granule % 64) & 1 != 0);
                if is_reached {
                    continue;
                }
                if let (true, Some(at)) = (head.is_large(), AnyRef::new(page, granule, head.generation()))
                    && let Ok(large) = large(PageView(&bytes).body(granule, head), at)
                {
                    (self.claim)(large.extent());
                }
                if let (false, Some(first)) =
                    (head.is_forward(), AnyRef::new(page, granule, head.generation()))
                {
                    found.entry(head.fingerprint()).or_insert((0, first)).0 += 1;
                }
            }
        }
        for (fingerprint, (objects, first)) in found {
            let shape = self.shape(fingerprint)?;
            let type_name = shape.as_ref().and_then(Shape::name).unwrap_or("?").to_owned();
            self.problem(HeapProblem::Unreachable { objects, type_name, first });
        }
        Ok(())
    }
}
