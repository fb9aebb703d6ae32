//! A heap: its pages, its roots and its types.

use crate::{
    Object, Persistent, Ref,
    body::{damaged, encode},
    copies::copy_of,
    directory::Directory,
    error::ObjectError,
    page::{Head, PageView},
    reference::AnyRef,
    roots::Roots,
    state::HeapState,
};
use vellum_access::Tree;
use vellum_base::PageId;
use vellum_base::primitive::Ordering;
use vellum_pool::Pager;

/// A heap of objects: see `vellum::objects`.
///
/// A heap consists of the root of its directory, the state that its handles share in memory, and a pager; it may be
/// copied freely. Threads may share it.
///
/// ```
/// use vellum_access::Tree;
/// use vellum_objects::{Heap, HeapState, Ref};
/// use vellum_pool::{Pool, PoolOptions};
///
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     value: u32,
///     next: Option<Ref<Node>>,
/// }
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let (root, state) = (Tree::create(&pool)?.root(), HeapState::default());
/// let heap = Heap::open(&pool, root, &state);
/// let last = heap.allocate(&Node { value: 2, next: None })?;
/// let first = heap.allocate_near(last, &Node { value: 1, next: Some(last) })?;
/// heap.set_root(Some(first))?;
/// heap.update(last, |node: &mut Node| node.next = Some(first))?;
/// assert_eq!(heap.get(heap.get(first)?.next.unwrap())?.value, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Heap<'p, P: Pager> {
    pub(crate) pager: &'p P,
    /// The root of the directory.
    pub(crate) owner: PageId,
    pub(crate) state: &'p HeapState,
}

impl<P: Pager> std::fmt::Debug for Heap<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<P: Pager> Clone for Heap<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Pager> Copy for Heap<'_, P> {}

impl<'p, P: Pager> Heap<'p, P> {
    /// The heap whose directory is the tree with this root, which must be empty or always have been the directory of a
    /// heap.
    #[inline]
    pub fn open(pager: &'p P, root: PageId, state: &'p HeapState) -> Self {
        Self { pager, owner: root, state }
    }

    /// The references to the objects with a fingerprint that lie in a page, or to which the page forwards.
    pub(crate) fn references_in(&self, page: PageId, fingerprint: u32) -> Result<Vec<AnyRef>, ObjectError> {
        let Some((bytes, _)) = copy_of(self.pager, self.owner, page)? else { return Ok(Vec::new()) };
        let view = PageView(&bytes);
        let mut found = Vec::new();
        for (granule, head) in view.objects().filter(|(_, head)| !head.is_moved()) {
            let is_of = if head.is_forward() {
                let Some(target) = view.target(granule, head) else { continue };
                let other = copy_of(self.pager, self.owner, target.page())?;
                let head = other.and_then(|(bytes, _)| PageView(&bytes).find(target));
                head.is_some_and(|head| head.fingerprint() == fingerprint)
            } else {
                head.fingerprint() == fingerprint
            };
            if is_of {
                found.extend(AnyRef::new(page, granule, head.generation()));
            }
        }
        Ok(found)
    }

    pub(crate) fn directory(&self) -> Directory<'p, P> {
        Directory(Tree::open(self.pager, self.owner))
    }

    /// The object with the roots, if there is one.
    pub(crate) fn anchor(&self) -> Result<Option<Ref<Roots>>, ObjectError> {
        // Relaxed: the number never changes once it is set.
        if let Some(anchor) = Ref::from_bits(self.state.anchor.load(Ordering::Relaxed)) {
            return Ok(Some(anchor));
        }
        let anchor = self.directory().anchor()?;
        if let Some(anchor) = anchor {
            self.state.anchor.store(anchor.to_bits(), Ordering::Relaxed);
        }
        Ok(anchor.map(AnyRef::typed))
    }

    /// The object with the roots, which is made if there is none yet.
    pub(crate) fn anchor_or_make(&self) -> Result<Ref<Roots>, ObjectError> {
        loop {
            if let Some(anchor) = self.anchor()? {
                return Ok(anchor);
            }
            self.check_type::<Roots>(true)?;
            let body = encode(&Roots::default())?;
            let directory = self.directory();
            directory.make_anchor(
                self.pager,
                self.state.generation(),
                (<Roots as Persistent>::FINGERPRINT, &body),
            )?;
        }
    }

    /// Makes sure that the heap has type `T` as it is in this program, or does not have it yet; adds it if `adds`.
    pub(crate) fn check_type<T: Object>(&self, adds: bool) -> Result<(), ObjectError> {
        if self.state.knows(T::FINGERPRINT) { Ok(()) } else { self.check_type_closely::<T>(adds) }
    }

    #[cold]
    fn check_type_closely<T: Object>(&self, adds: bool) -> Result<(), ObjectError> {
        let (directory, wanted) = (self.directory(), T::shape().into_stored());
        loop {
            let stored = directory.shape(T::FINGERPRINT)?;
            match directory.fingerprint(T::NAME)? {
                Some(fingerprint) if fingerprint == T::FINGERPRINT && stored.as_ref() == Some(&wanted) => {
                    self.state.learn(fingerprint);
                    return Ok(());
                }
                Some(fingerprint) if fingerprint != T::FINGERPRINT => {
                    let stored =
                        directory.shape(fingerprint)?.map_or_else(String::new, |shape| shape.to_string());
                    return Err(ObjectError::TypeChanged {
                        name: T::NAME,
                        stored,
                        wanted: wanted.to_string(),
                    });
                }
                _ => {}
            }
            if let Some(stored) = stored.filter(|stored| *stored != wanted) {
                let (stored, wanted) = (stored.to_string(), wanted.to_string());
                return Err(ObjectError::SameFingerprint { stored, wanted });
            }
            if !adds {
                return Ok(());
            }
            directory.add_shape::<T>(&wanted)?;
            directory.add_fingerprint(T::NAME, T::FINGERPRINT)?;
        }
    }

    /// The error for an object of a type other than `T`.
    #[cold]
    pub(crate) fn other_type<T: Object>(&self, reference: AnyRef, head: Head) -> ObjectError {
        match self.directory().shape(head.fingerprint()) {
            Ok(Some(stored)) if stored.name() == Some(T::NAME) => ObjectError::TypeChanged {
                name: T::NAME,
                stored: stored.to_string(),
                wanted: T::shape().to_string(),
            },
            Ok(Some(stored)) => ObjectError::OtherType {
                reference,
                stored: stored.name().unwrap_or_default().to_owned(),
                wanted: T::NAME,
            },
            Ok(None) => damaged(reference, "object of a type"),
            Err(error) => error,
        }
    }
}
