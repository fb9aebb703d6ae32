//! Several changes of a heap that happen together, or not at all.

use crate::{
    Object, Persistent, Ref,
    body::{LARGE_BYTES, damaged, decode, encode, large},
    copies::Copies,
    directory::Directory,
    error::ObjectError,
    field::{Fields, Whole},
    filled::Filled,
    heap::Heap,
    page::{Flags, Head, OBJECT_BYTES_INLINE_MAX, granules_of},
    reference::{AnyRef, GRANULE_BYTES},
    roots::Roots,
    state::{LARGE_TRIES, ROOMY},
};
use std::collections::BTreeSet;
use vellum_access::{BlobReference, NewLarge, read_large};
use vellum_base::{Bytes, PageId};
use vellum_pool::{OptimisticPage, Pager, PoolError};

/// Several changes of a heap that happen together, or not at all: see [`Heap::change`].
///
/// It sees its own changes, and otherwise the heap as it is at one moment, the moment when the change ends: if another
/// change meanwhile modifies anything that this one has read, this one is repeated. Until it ends, others see nothing
/// of it.
///
/// A method that fails leaves the change as it was before the call, except that the pages which it would have written
/// count as written.
pub struct Change<'p, P: Pager> {
    heap: Heap<'p, P>,
    copies: Copies<'p, P>,
    made: NewLarge<'p, P>,
    freed: Vec<BlobReference>,
    filled: Filled<'p, P>,
    /// Places that are reserved and not set yet.
    reserved: BTreeSet<AnyRef>,
    /// It has found no roots where no page says so yet, and none of its copies shows that.
    is_rootless: bool,
    /// What it has read was changed meanwhile, or there are roots now: it has to be repeated.
    is_stale: bool,
    /// How many objects it has looked for.
    finds: u64,
}

/// When a change has looked for so many objects, twice as many, and so on, it looks whether it is still current.
const FINDS_MIN: u64 = 4096;

/// Where an object is, after following its forward.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Its actual place.
    pub at: AnyRef,
    pub head: Head,
}

/// An object in its stored form.
pub(crate) struct Stored<'b> {
    pub fingerprint: u32,
    pub is_large: bool,
    /// Its bytes, or the reference to its extent.
    pub body: &'b [u8],
}

impl<'p, P: Pager> Change<'p, P> {
    /// Begins one; `is_nested` says that the thread is already changing the heap.
    pub(crate) fn new(heap: Heap<'p, P>, is_nested: bool) -> Self {
        let pager = heap.pager;
        Self {
            heap,
            copies: Copies::new(pager, heap.owner, is_nested),
            made: NewLarge::new(pager),
            freed: Vec::new(),
            filled: Filled::new(heap),
            reserved: BTreeSet::new(),
            is_rootless: false,
            is_stale: false,
            finds: 0,
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As for [`Heap::get`]; [`ObjectError::NotSet`] if its place is [reserved](Self::reserve) and it is not set yet.
    pub fn get<T: Object>(&mut self, reference: Ref<T>) -> Result<T, ObjectError> {
        self.read(reference, Whole)
    }

    /// Reads fields of an object.
    pub(crate) fn read<T: Object, F: Fields<T> + Copy>(
        &mut self,
        reference: Ref<T>,
        fields: F,
    ) -> Result<F::Values, ObjectError> {
        let found = self.find(reference.any())?;
        if found.head.fingerprint() != T::FINGERPRINT {
            return Err(self.heap.other_type::<T>(reference.any(), found.head));
        }
        if self.reserved.contains(&reference.any()) {
            return Err(ObjectError::NotSet { reference: reference.any() });
        }
        let page =
            self.copies.view(found.at.page())?.ok_or(ObjectError::Dangling { reference: reference.any() })?;
        let body = page.body(found.at.granule(), found.head);
        if !found.head.is_large() {
            return decode::<T, F>(fields, body, found.at);
        }
        let (pager, large) = (self.heap.pager, large(body, found.at)?);
        let page = found.at.page();
        if let Some(value) = self.made.read(large, page, |bytes| decode::<T, F>(fields, bytes, found.at))? {
            return value;
        }
        let value = pager.run(|| {
            let parent = pager.root(page)?;
            // If the object has changed since, its extent may have been reused. This change is then discarded.
            let body_at = found.at.at() + GRANULE_BYTES;
            if parent.bytes().compare(body_at, LARGE_BYTES, &large.encode()).is_ne() {
                parent.validate()?;
                return Ok(None);
            }
            read_large(pager, &parent, large, |bytes| decode::<T, F>(fields, bytes, found.at)).map(Some)
        });
        value?.ok_or(ObjectError::Dangling { reference: reference.any() })?
    }

    /// Stores a new object and returns a reference to it.
    ///
    /// # Errors
    /// If its type differs from the type of the same name in the heap, it is too long, or the file cannot grow.
    pub fn allocate<T: Object>(&mut self, object: &T) -> Result<Ref<T>, ObjectError> {
        self.allocate_in(None, object)
    }

    /// Stores a new object near another one: in the same page, if that has room. Objects that are visited together are
    /// then read together.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn allocate_near<T: Object, N>(&mut self, near: Ref<N>, object: &T) -> Result<Ref<T>, ObjectError> {
        self.allocate_in(Some(near.any().page()), object)
    }

    /// Reserves the place of an object that is [set](Self::set) before this change ends, so that objects can refer to
    /// each other in cycles. It cannot be read before it is set.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn reserve<T: Object>(&mut self) -> Result<Ref<T>, ObjectError> {
        self.reserve_in(None)
    }

    /// [`reserve`](Self::reserve), near another object.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn reserve_near<T: Object, N>(&mut self, near: Ref<N>) -> Result<Ref<T>, ObjectError> {
        self.reserve_in(Some(near.any().page()))
    }

    /// Replaces the value of an object.
    ///
    /// # Errors
    /// As for [`Heap::get`] and [`allocate`](Self::allocate).
    pub fn set<T: Object>(&mut self, reference: Ref<T>, object: &T) -> Result<(), ObjectError> {
        let found = self.find(reference.any())?;
        if found.head.fingerprint() != T::FINGERPRINT {
            return Err(self.heap.other_type::<T>(reference.any(), found.head));
        }
        self.store(reference.any(), found, object)?;
        self.reserved.remove(&reference.any());
        Ok(())
    }

    /// Changes an object.
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`set`](Self::set).
    pub fn update<T: Object, R>(
        &mut self,
        reference: Ref<T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, ObjectError> {
        let mut object = self.get(reference)?;
        let result = change(&mut object);
        self.set(reference, &object)?;
        Ok(result)
    }

    /// Deletes an object. Nothing should refer to it any more: following such a reference is an error.
    ///
    /// # Errors
    /// As for [`Heap::get`].
    pub fn delete<T: Object>(&mut self, reference: Ref<T>) -> Result<(), ObjectError> {
        let found = self.find(reference.any())?;
        if found.head.fingerprint() != T::FINGERPRINT {
            return Err(self.heap.other_type::<T>(reference.any(), found.head));
        }
        self.delete_any(reference.any(), found)
    }

    /// The root of type `T`, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root<T: Object>(&mut self) -> Result<Option<Ref<T>>, ObjectError> {
        self.heap.check_type::<T>(false)?;
        let Some(anchor) = self.heap.anchor()? else {
            self.is_rootless = true;
            return Ok(None);
        };
        Ok(self.get::<Roots>(anchor)?.get(T::NAME).map(AnyRef::typed))
    }

    /// Makes an object the root of its type, or removes the root. A verification finds objects to which no path leads
    /// from a root.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn set_root<T: Object>(&mut self, root: Option<Ref<T>>) -> Result<(), ObjectError> {
        self.heap.check_type::<T>(true)?;
        let anchor = self.heap.anchor_or_make()?;
        self.look_for_roots(anchor)?;
        self.update(anchor, |roots: &mut Roots| roots.set(T::NAME, root.map(Ref::any)))
    }

    /// If it has found no roots before there was an object with them: looks whether there are still none. From then on
    /// its copies show that.
    fn look_for_roots(&mut self, anchor: Ref<Roots>) -> Result<(), ObjectError> {
        if self.is_rootless {
            self.is_stale |= self.get(anchor)?.iter().next().is_some();
            self.is_rootless = false;
        }
        Ok(())
    }

    /// Stores a new value for an object that was found.
    pub(crate) fn store<T: Object>(
        &mut self,
        reference: AnyRef,
        found: Found,
        object: &T,
    ) -> Result<(), ObjectError> {
        let body = encode(object)?;
        let replaced = self.large_of(found)?;
        self.place::<T, _>(&body, |change, stored| change.put(reference, found, stored))?;
        self.free(replaced);
        Ok(())
    }

    /// Calls `put` with the stored form of an object that has these bytes. A large one gets an extent, which is freed
    /// again if `put` fails.
    fn place<T: Object, R>(
        &mut self,
        body: &[u8],
        put: impl FnOnce(&mut Self, &Stored<'_>) -> Result<R, ObjectError>,
    ) -> Result<R, ObjectError> {
        if body.len() <= OBJECT_BYTES_INLINE_MAX {
            return put(self, &Stored { fingerprint: T::FINGERPRINT, is_large: false, body });
        }
        let large = self.made.write(body)?;
        let stored = Stored { fingerprint: T::FINGERPRINT, is_large: true, body: &large.encode() };
        put(self, &stored).inspect_err(|_| {
            self.made.abandon(large);
        })
    }

    /// Puts the stored form of an object in its place, or elsewhere if it has no room there. If that fails, nothing has
    /// changed.
    fn put(&mut self, reference: AnyRef, found: Found, stored: &Stored<'_>) -> Result<(), ObjectError> {
        let is_moved = found.head.is_moved();
        let flags = Flags { is_large: stored.is_large, is_moved };
        let dangling = || ObjectError::Dangling { reference };
        let mut page = self.copies.page_mut(found.at.page())?.ok_or_else(dangling)?;
        if page.replace(found.at.granule(), stored.fingerprint, flags, stored.body) {
            return Ok(());
        }
        // Once the pages of the object and of its forward are written, only the insertion can fail.
        self.copies.page_mut(reference.page())?.ok_or_else(dangling)?;
        let flags = Flags { is_moved: true, ..flags };
        let target = self.insert(Some(reference.page()), stored, flags)?;
        if is_moved {
            self.copies.page_mut(found.at.page())?.ok_or_else(dangling)?.remove(found.at.granule());
        }
        let mut page = self.copies.page_mut(reference.page())?.ok_or_else(dangling)?;
        // A forward takes no more room than the smallest object.
        page.forward(reference.granule(), target);
        Ok(())
    }

    /// Deletes an object that was found.
    fn delete_any(&mut self, reference: AnyRef, found: Found) -> Result<(), ObjectError> {
        let large = self.large_of(found)?;
        // Once the pages of the object and of its forward are written, nothing can fail.
        for at in [found.at, reference] {
            self.copies.page_mut(at.page())?;
        }
        for at in [found.at, reference] {
            if let Some(mut page) = self.copies.page_mut(at.page())? {
                page.remove(at.granule());
            }
            if found.at == reference {
                break;
            }
        }
        self.free(large);
        self.reserved.remove(&reference);
        Ok(())
    }

    /// Removes all roots, and puts the object with the roots back into the page in which it was made. Does nothing if it is
    /// gone.
    pub(crate) fn empty_roots(&mut self, anchor: AnyRef) -> Result<(), ObjectError> {
        let found = match self.find(anchor) {
            Err(ObjectError::Dangling { .. }) => return Ok(()),
            found => found?,
        };
        let (large, body) = (self.large_of(found)?, encode(&Roots::default())?);
        if found.at != anchor
            && let Some(mut page) = self.copies.page_mut(found.at.page())?
        {
            page.remove(found.at.granule());
        }
        if let Some(mut page) = self.copies.page_mut(anchor.page())? {
            // It takes no more room than a forward.
            page.replace(anchor.granule(), <Roots as Persistent>::FINGERPRINT, Flags::default(), &body);
        }
        self.free(large);
        Ok(())
    }

    /// Removes all objects from a page, which no longer belongs to the heap afterwards.
    pub(crate) fn wipe(&mut self, page: PageId) -> Result<(), ObjectError> {
        let Some(view) = self.copies.view(page)? else { return Ok(()) };
        for (granule, head) in view.objects().filter(|(_, head)| head.is_large()) {
            let at = AnyRef::new(page, granule, head.generation()).unwrap_or(AnyRef::NOWHERE);
            self.freed.push(large(view.body(granule, head), at)?);
        }
        if let Some(mut page) = self.copies.page_mut(page)? {
            page.wipe();
        }
        Ok(())
    }

    /// The reference to the extent of an object that was found, if it is large.
    fn large_of(&mut self, found: Found) -> Result<Option<BlobReference>, ObjectError> {
        if !found.head.is_large() {
            return Ok(None);
        }
        let page = self.copies.view(found.at.page())?;
        let body = page.map(|page| page.body(found.at.granule(), found.head)).unwrap_or_default();
        large(body, found.at).map(Some)
    }

    /// Frees the extent of a large object, to which nothing refers any more.
    fn free(&mut self, large: Option<BlobReference>) {
        if let Some(reference) = large
            && !self.made.abandon(reference)
        {
            self.freed.push(reference);
        }
    }

    fn allocate_in<T: Object>(&mut self, near: Option<PageId>, object: &T) -> Result<Ref<T>, ObjectError> {
        self.heap.check_type::<T>(true)?;
        let body = encode(object)?;
        let inserted = self.place::<T, _>(&body, |change, stored| {
            change.insert(near, stored, Flags { is_large: stored.is_large, is_moved: false })
        });
        Ok(inserted?.typed())
    }

    fn reserve_in<T: Object>(&mut self, near: Option<PageId>) -> Result<Ref<T>, ObjectError> {
        self.heap.check_type::<T>(true)?;
        // An object whose fixed part is longer than a page is moved when it is set.
        let body = vec![0; T::BYTES.min(OBJECT_BYTES_INLINE_MAX)];
        let stored = Stored { fingerprint: T::FINGERPRINT, is_large: false, body: &body };
        let reference = self.insert(near, &stored, Flags::default())?;
        self.reserved.insert(reference);
        Ok(reference.typed())
    }

    /// Puts an object into a page: `near`, the page in which this thread allocates, one that has room, or a new one. Of
    /// these, pages that cannot be read are passed over.
    fn insert(
        &mut self,
        near: Option<PageId>,
        stored: &Stored<'_>,
        flags: Flags,
    ) -> Result<AnyRef, ObjectError> {
        let granules = granules_of(stored.body.len());
        let (state, directory) = (self.heap.state, self.heap.directory());
        let current = state.current.mine();
        let own = current.get().map(|(page, _)| page);
        for page in near.into_iter().chain(own) {
            if let Some(reference) = if_readable(self.try_insert(page, granules, stored, flags))?.flatten() {
                return Ok(reference);
            }
        }
        // The thread leaves its page, which may have room for other objects.
        if let Some(page) = own {
            self.leave(page, |free| free)?;
        }
        let is_large = granules > ROOMY;
        let tries = if is_large { LARGE_TRIES } else { usize::MAX };
        for _ in 0..tries {
            let Some(page) = state.take_room(directory, granules)? else { break };
            current.set(page, 0);
            if let Some(reference) = if_readable(self.try_insert(page, granules, stored, flags))?.flatten() {
                return Ok(reference);
            }
            // What was noted is no longer so, or the room is in pieces. It may do for smaller objects.
            self.leave(page, |free| match is_large {
                false => 0,
                true if free < granules => free,
                true => ROOMY,
            })?;
        }
        let page = directory.make_page(self.heap.pager, state.generation())?;
        state.take_new(directory, page);
        current.set(page, 0);
        let inserted = self.try_insert(page, granules, stored, flags)?;
        inserted.ok_or_else(|| {
            PoolError::contents(page, "a page that was empty has no room for an object").into()
        })
    }

    /// The thread leaves a page in which an object had no room, with so much of what is free there for others.
    fn leave(&mut self, page: PageId, left: impl FnOnce(usize) -> usize) -> Result<(), ObjectError> {
        match if_readable(self.copies.free(page))? {
            Some((before, free)) => self.filled.leave(page, before, free, left(free)),
            None => self.heap.state.pass_over(page),
        }
        Ok(())
    }

    fn try_insert(
        &mut self,
        page: PageId,
        granules: usize,
        stored: &Stored<'_>,
        flags: Flags,
    ) -> Result<Option<AnyRef>, ObjectError> {
        // A page that is refused because it is full or fragmented does not count as written.
        if self.copies.view(page)?.is_none_or(|view| view.place(granules).is_none()) {
            return Ok(None);
        }
        let Some(mut copy) = self.copies.page_mut(page)? else { return Ok(None) };
        Ok(copy.insert(page, stored.fingerprint, flags, stored.body))
    }

    /// Where an object is.
    pub(crate) fn find(&mut self, reference: AnyRef) -> Result<Found, ObjectError> {
        self.finds += 1;
        if self.finds >= FINDS_MIN && self.finds.is_power_of_two() {
            // Objects of different moments may form a circle that never was, in which it would walk for ever.
            self.is_stale = !self.is_current()?;
        }
        if self.is_stale {
            return Err(ObjectError::Overtaken);
        }
        let dangling = ObjectError::Dangling { reference };
        let Some(page) = self.copies.view(reference.page())? else { return Err(dangling) };
        // Only forwards lead to moved objects.
        let Some(head) = page.find(reference).filter(|head| !head.is_moved()) else { return Err(dangling) };
        if !head.is_forward() {
            return Ok(Found { at: reference, head });
        }
        let target = page.target(reference.granule(), head);
        let at = target.ok_or_else(|| damaged(reference, "forward"))?;
        let head = self.copies.view(at.page())?.and_then(|page| page.find(at));
        let head = head.filter(|head| head.is_moved()).ok_or_else(|| damaged(reference, "forward"))?;
        Ok(Found { at, head })
    }

    /// Whether everything that was read is unchanged.
    pub(crate) fn is_current(&self) -> Result<bool, ObjectError> {
        // An object with the roots stays, so there was none at any moment of the first check.
        Ok(!self.is_stale
            && self.copies.is_current()?
            && (!self.is_rootless || self.heap.anchor()?.is_none()))
    }

    /// Makes the changes, unless something that was read has changed; returns whether they were made.
    pub(crate) fn commit(mut self) -> Result<bool, ObjectError> {
        if let Some(reference) = self.reserved.first().copied() {
            // What it saw may never have existed at one moment.
            return if self.is_current()? { Err(ObjectError::NotSet { reference }) } else { Ok(false) };
        }
        if self.copies.changed().next().is_none() {
            return self.is_current();
        }
        if self.is_rootless {
            let anchor = self.heap.anchor_or_make()?;
            match self.look_for_roots(anchor) {
                Err(ObjectError::Overtaken) => return Ok(false),
                looked => looked?,
            }
        }
        if self.is_stale {
            return Ok(false);
        }
        let (copies, freed) = (&self.copies, &self.freed);
        if !self.made.keep(|made| copies.commit(made, freed))? {
            return Ok(false);
        }
        let (state, directory): (_, Directory<'_, P>) = (self.heap.state, self.heap.directory());
        let own = state.current.mine().get().map(|(page, _)| page);
        for (page, before, after) in self.copies.changed() {
            // Also one that had as much room before, as it may have been left without a note.
            if after.free() >= ROOMY && after.free() > before.free() && own != Some(page) {
                state.note_room(directory, page, before.free(), after.free());
            }
            self.filled.keep(page, after.free());
        }
        Ok(true)
    }
}

/// What was found in a page in which an object may be put; none if the page cannot be read. Another one does as well, and
/// a program that looks for an object in the page is told.
fn if_readable<R>(found: Result<R, ObjectError>) -> Result<Option<R>, ObjectError> {
    match found {
        Err(ObjectError::Pool(PoolError::Corruption { .. } | PoolError::Read { .. })) => Ok(None),
        found => found.map(Some),
    }
}

impl<P: Pager> std::fmt::Debug for Change<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Change").field("reserved", &self.reserved.len()).finish_non_exhaustive()
    }
}
