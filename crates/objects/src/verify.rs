//! Verification of a whole heap.
//!
//! Pages are checked one by one. Then all references are followed from the roots, using the descriptions of types in
//! the heap; one bit a granule records what was reached. Objects that were not reached are unreachable.

use crate::{
    Heap,
    body::{damaged, large},
    copies::{copy_of, is_wiped},
    error::ObjectError,
    outline::{Names, Outline},
    page::{Head, PageView},
    reference::{AnyRef, GRANULES},
};
use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};
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
    names: Names,
    outlines: HashMap<u32, Option<Rc<Outline>>>,
    /// How many objects there are of the type whose name has this number.
    objects: BTreeMap<u32, u64>,
    /// References that were found and not yet followed. There may be as many as in all objects, so they are small.
    next: Vec<Step>,
    /// Those of one object, and the types of objects to which they lead.
    found: Vec<(u32, AnyRef)>,
}

/// A reference that is to be followed.
#[derive(Clone, Copy)]
struct Step {
    /// The object that holds it; none for the roots.
    from: Option<AnyRef>,
    to: AnyRef,
    /// The number of the name of the type of the object to which it should lead.
    wanted: u32,
}

impl<P: Pager> Heap<'_, P> {
    /// Reads and checks every page, and follows all references. `claim` is called with every page and extent, and
    /// returns whether it is the first time. This takes 100 bytes of memory for each page of the heap, and 24 for each
    /// reference that waits to be followed, which leads to an object that was not reached before.
    ///
    /// No thread may change the heap meanwhile.
    pub fn verify(&self, claim: &mut dyn FnMut(Extent) -> bool) -> HeapReport {
        let mut walk = Walk {
            heap: *self,
            report: HeapReport::default(),
            claim,
            reached: HashMap::new(),
            names: Names::default(),
            outlines: HashMap::new(),
            objects: BTreeMap::new(),
            next: Vec::new(),
            found: Vec::new(),
        };
        let walked = walk.pages().and_then(|()| walk.follow_all()).and_then(|()| walk.find_unreachable());
        if let Err(error) = walked {
            walk.problem(HeapProblem::Damaged(error));
        }
        let names = &walk.names;
        let objects = walk.objects.iter().map(|(name, objects)| (names.name(*name).to_owned(), *objects));
        walk.report.objects = objects.collect();
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
                // It is left of a heap whose dropping was interrupted.
                Ok(None) if matches!(is_wiped(heap.pager, page), Ok(true)) => Ok(()),
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
        if is_wiped(self.heap.pager, anchor.any().page())? {
            return Ok(());
        }
        self.reach(anchor.any());
        let roots = self.heap.get(anchor)?;
        for (name, to) in roots.iter() {
            let wanted = self.names.number(name);
            self.next.push(Step { from: None, to, wanted });
        }
        while let Some(step) = self.next.pop() {
            self.take(step);
        }
        Ok(())
    }

    /// Follows a reference.
    fn take(&mut self, step: Step) {
        match self.follow(step.to, step.wanted) {
            Ok(true) => {}
            Ok(false) => {
                let wanted = self.names.name(step.wanted).to_owned();
                self.problem(HeapProblem::Dangling { from: step.from, to: step.to, wanted });
            }
            Err(error) => self.problem(HeapProblem::Damaged(error)),
        }
    }

    /// Whether an object was reached, or another one in its place.
    fn is_reached(&self, reference: AnyRef) -> bool {
        let reached = self.reached.get(&reference.page());
        let word = reached.and_then(|reached| reached.get(reference.granule() / 64));
        word.is_some_and(|word| word >> (reference.granule() % 64) & 1 != 0)
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

    fn outline(&mut self, fingerprint: u32) -> Result<Option<Rc<Outline>>, ObjectError> {
        if let Some(outline) = self.outlines.get(&fingerprint) {
            return Ok(outline.clone());
        }
        let shape = self.heap.directory().shape(fingerprint)?;
        let outline = shape.map(|shape| Rc::new(Outline::of(&shape, &mut self.names)));
        self.outlines.insert(fingerprint, outline.clone());
        Ok(outline)
    }

    /// Follows a reference; returns false if it does not lead to an object of this type.
    fn follow(&mut self, reference: AnyRef, wanted: u32) -> Result<bool, ObjectError> {
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
        wanted: u32,
        is_new: bool,
    ) -> Result<bool, ObjectError> {
        let outline = self.outline(head.fingerprint())?;
        let Some(outline) = outline.filter(|outline| outline.name == Some(wanted)) else { return Ok(false) };
        if !is_new {
            return Ok(true);
        }
        *self.objects.entry(wanted).or_default() += 1;
        let body = page.body(at.granule(), head);
        let mut found = std::mem::take(&mut self.found);
        let mut look = |bytes: &[u8]| {
            // It may be shown again.
            found.clear();
            outline.references(bytes, &mut |name, to| found.push((name, to)))
        };
        let (is_sound, extent) = if head.is_large() {
            let (pager, large) = (self.heap.pager, large(body, at)?);
            let looked = pager.run(|| read_large(pager, &pager.root(at.page())?, large, &mut look))?;
            (looked, Some(large.extent()))
        } else {
            (look(body), None)
        };
        for (wanted, to) in found.drain(..) {
            let step = Step { from: Some(reference), to, wanted };
            // Of an object that was reached only the type is looked at, so it need not wait.
            if self.is_reached(to) { self.take(step) } else { self.next.push(step) }
        }
        self.found = found;
        if !is_sound {
            return Err(damaged(at, self.names.name(wanted)));
        }
        if let Some(extent) = extent.filter(|extent| !(self.claim)(*extent)) {
            self.problem(HeapProblem::UsedTwice(extent));
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
            let name = self.outline(fingerprint)?.and_then(|outline| outline.name);
            let type_name = name.map_or("?", |name| self.names.name(name)).to_owned();
            self.problem(HeapProblem::Unreachable { objects, type_name, first });
        }
        Ok(())
    }
}
