//! Operations on a heap: reading, changing and clearing it.

use crate::{
    Change, Heap, Object, Ref,
    codec::Reader,
    copies::is_nowhere,
    error::ObjectError,
    field::{Fields, Whole},
    page::Head,
    plant::{Plant, planted},
    reference::GRANULE_BYTES,
    under_way::UnderWay,
};
use std::time::Duration;
use vellum_base::primitive::{Instant, Ordering, thread};
use vellum_base::{Bytes, PAGE_SIZE, PageId};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError};

impl<'p, P: Pager> Heap<'p, P> {
    /// Reads an object. In memory that costs a look at the state of its page, at its first word, and at its fields.
    ///
    /// # Errors
    /// [`ObjectError::Dangling`] if the object no longer exists, [`ObjectError::OtherType`] or
    /// [`ObjectError::TypeChanged`] if it has another type, or if its page cannot be read or is damaged.
    #[inline(always)]
    pub fn get<T: Object>(&self, reference: Ref<T>) -> Result<T, ObjectError> {
        self.read(reference, Whole)
    }

    /// Reads one field of an object, or several, given as a tuple. The other fields cost nothing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline(always)]
    pub fn fields<T: Object, F: Fields<T> + Copy>(
        &self,
        reference: Ref<T>,
        fields: F,
    ) -> Result<F::Values, ObjectError> {
        self.read(reference, fields)
    }

    #[inline(always)]
    fn read<T: Object, F: Fields<T> + Copy>(
        &self,
        reference: Ref<T>,
        fields: F,
    ) -> Result<F::Values, ObjectError> {
        match self.read_at_once(reference, fields) {
            Some(values) => Ok(values),
            None => self.read_slowly(reference, fields),
        }
    }

    /// The requested fields of the object, if its page is in memory and does not change meanwhile, and the object lies
    /// where the reference leads and has this type. Nearly all reads end here, so this function contains only what they
    /// need.
    #[inline(always)]
    fn read_at_once<T: Object, F: Fields<T>>(&self, reference: Ref<T>, fields: F) -> Option<F::Values> {
        let any = reference.any();
        let page = self.pager.look(any.page())?;
        let (bytes, at) = (page.bytes(), any.at());
        // Checked once for all fields: the compiler then sees that none of them exceeds the page.
        if at > PAGE_SIZE.checked_sub(GRANULE_BYTES + T::BYTES)? {
            return None;
        }
        let head = Head(bytes.u64_at(at));
        // Objects of types that are not fixed differ in length.
        let is_meant = if T::IS_FIXED { head.is_of_fixed::<T>(any) } else { head.is_of::<T>(any) };
        if !is_meant {
            return None;
        }
        let length = if T::IS_FIXED { T::BYTES } else { head.body_bytes() };
        let reader = Reader::new(bytes, at + GRANULE_BYTES, length, T::BYTES);
        let values = fields.load(&reader);
        let is_valid = planted(Plant::ReadNotValidated) || page.validate().is_ok();
        (is_valid && reader.is_sound()).then_some(values)
    }

    /// The requested fields of the object, if it lies where the reference leads and has this type.
    fn try_read<T: Object, F: Fields<T>>(
        &self,
        reference: Ref<T>,
        fields: F,
    ) -> Result<Option<F::Values>, Interrupt> {
        let any = reference.any();
        let page = self.pager.root(any.page())?;
        let bytes = page.bytes();
        let head = Head(bytes.u64_at(any.at()));
        if !head.is_of::<T>(any) {
            return Ok(None);
        }
        let reader = Reader::new(bytes, any.at() + GRANULE_BYTES, head.body_bytes(), T::BYTES);
        let values = fields.load(&reader);
        page.validate()?;
        Ok(reader.is_sound().then_some(values))
    }

    /// Continues after the first attempt has failed: the page is not in memory, or is being changed; or the object is
    /// large, or was moved; or it is not what it should be.
    #[cold]
    #[inline(never)]
    fn read_slowly<T: Object, F: Fields<T> + Copy>(
        self,
        reference: Ref<T>,
        fields: F,
    ) -> Result<F::Values, ObjectError> {
        let page = reference.any().page();
        self.read_around(page);
        match self.pager.run(|| self.try_read(reference, fields)) {
            Ok(Some(values)) => Ok(values),
            Ok(None) => self.change(|change| change.read(reference, fields)),
            Err(error) if is_nowhere(&error, page) => {
                Err(ObjectError::Dangling { reference: reference.any() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Prefetches the cache lines of an object that will be read soon, if it is in memory, without waiting.
    #[inline]
    pub fn prefetch<T: Object>(&self, reference: Ref<T>) {
        let any = reference.any();
        self.pager.prefetch(any.page(), 0, 1);
        self.pager.prefetch(any.page(), any.at(), GRANULE_BYTES + T::BYTES);
    }

    /// Makes several changes that happen together, or not at all. `change` may be called several times: if something
    /// that it has read was changed by another thread before it ended, the effects of `change` are discarded and it is
    /// called again. Until that is detected, it may see one object as it was before the other thread's change and
    /// another object as it was after it. If it reads so many objects that it may be walking in a circle of such ones, its
    /// steps fail, by [`ObjectError::Overtaken`].
    ///
    /// A step of it that fails, by [`ObjectError::ChangeTooLarge`] or because the file cannot grow, has not happened.
    /// `change` may handle that error and go on: its other steps then happen together.
    ///
    /// # Errors
    /// Those of `change`, after which nothing has happened; also if the change cannot be recorded;
    /// [`ObjectError::NotSet`] if it has reserved a place and not set the object;
    /// [`ObjectError::ChangeUnderWay`] if it writes inside another change of the same heap by the same thread.
    pub fn change<R, E: From<ObjectError>>(
        &self,
        mut change: impl FnMut(&mut Change<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        /// A change that has failed so often goes first: other threads wait before they begin one.
        const FAILURES_MAX: u32 = 8;
        /// How long they wait at least and at most, if the change does not end before: twice as long as its last
        /// attempt took.
        const PRECEDENCE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));
        let (mut failures, mut took) = (0u32, Duration::ZERO);
        let under_way = UnderWay::begin(self.pager, self.owner);
        loop {
            let precedence = &self.state.precedence;
            let longest = (2 * took).clamp(PRECEDENCE.0, PRECEDENCE.1);
            let _preceding = (failures >= FAILURES_MAX).then(|| precedence.take(longest, || true));
            // If this thread goes first, an enclosing change of it perhaps, it does not wait.
            precedence.heed();
            // The time is needed only if the next attempt goes first.
            let begun = (failures + 1 >= FAILURES_MAX).then(Instant::now);
            let mut attempt = Change::new(*self, under_way.is_nested);
            match change(&mut attempt) {
                Ok(result) => {
                    if attempt.commit()? {
                        return Ok(result);
                    }
                }
                Err(error) => {
                    // What it saw may never have existed at one moment.
                    if attempt.is_current()? {
                        return Err(error);
                    }
                }
            }
            took = begun.map_or(took, |begun| begun.elapsed());
            failures = failures.saturating_add(1);
            thread::yield_now();
        }
    }

    /// Stores a new object. See [`Change::allocate`].
    ///
    /// # Errors
    /// As for `Change::allocate`.
    pub fn allocate<T: Object>(&self, object: &T) -> Result<Ref<T>, ObjectError> {
        self.change(|change| change.allocate(object))
    }

    /// Stores a new object near another one. See [`Change::allocate_near`].
    ///
    /// # Errors
    /// As for `Change::allocate_near`.
    pub fn allocate_near<T: Object, N>(&self, near: Ref<N>, object: &T) -> Result<Ref<T>, ObjectError> {
        self.change(|change| change.allocate_near(near, object))
    }

    /// Replaces the value of an object. See [`Change::set`].
    ///
    /// # Errors
    /// As for `Change::set`.
    pub fn set<T: Object>(&self, reference: Ref<T>, object: &T) -> Result<(), ObjectError> {
        self.change(|change| change.set(reference, object))
    }

    /// Changes an object. `change` may be called several times. See [`Change::update`].
    ///
    /// # Errors
    /// As for `Change::update`.
    pub fn update<T: Object, R>(
        &self,
        reference: Ref<T>,
        mut change: impl FnMut(&mut T) -> R,
    ) -> Result<R, ObjectError> {
        self.change(|whole| whole.update(reference, &mut change))
    }

    /// Deletes an object. See [`Change::delete`].
    ///
    /// # Errors
    /// As for `Change::delete`.
    pub fn delete<T: Object>(&self, reference: Ref<T>) -> Result<(), ObjectError> {
        self.change(|change| change.delete(reference))
    }

    /// The root of type `T`, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn root<T: Object>(&self) -> Result<Option<Ref<T>>, ObjectError> {
        self.change(Change::root)
    }

    /// Makes an object the root of its type. See [`Change::set_root`].
    ///
    /// # Errors
    /// As for `Change::set_root`.
    pub fn set_root<T: Object>(&self, root: Option<Ref<T>>) -> Result<(), ObjectError> {
        self.change(|change| change.set_root(root))
    }

    /// Calls `show` with references to all objects of type `T`, in the order of their places, until `show` returns
    /// false. Objects that are allocated or deleted meanwhile may or may not be shown.
    ///
    /// # Errors
    /// If a page cannot be read, or `show` fails.
    pub fn for_each<T: Object, E: From<ObjectError>>(
        &self,
        mut show: impl FnMut(Ref<T>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut failed = None;
        self.directory().pages(|page| {
            for reference in self.references_in(page, T::FINGERPRINT)? {
                match show(reference.typed()) {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error) => {
                        failed = Some(error);
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Frees all pages of the heap, and its large objects. If it is interrupted, the call may be repeated until nothing
    /// is left; until then the heap has no roots. No thread may use the heap meanwhile. Damaged pages are freed too; the
    /// large objects that they refer to are not known, and stay allocated.
    ///
    /// # Errors
    /// If a page cannot be read, except that it is damaged.
    pub fn clear(&self) -> Result<(), ObjectError> {
        self.state.anchor.store(0, Ordering::Relaxed);
        self.state.forget_types();
        self.state.forget_rooms();
        let directory = self.directory();
        // Roots would lead to objects that are gone.
        let anchor = directory.anchor()?;
        if let Some(anchor) = anchor {
            unless_damaged(self.change(|change| change.empty_roots(anchor)))?;
        }
        loop {
            let mut pages = Vec::new();
            directory.pages(|page| {
                // Last, so that what is left of the heap has all that a heap has.
                if anchor.is_none_or(|anchor| anchor.page() != page) {
                    pages.push(page);
                }
                Ok(pages.len() < 256)
            })?;
            if pages.is_empty() {
                break;
            }
            pages.into_iter().try_for_each(|page| self.clear_page(page))?;
        }
        if let Some(anchor) = anchor {
            self.clear_page(anchor.page())?;
        }
        directory.clear()
    }

    fn clear_page(&self, page: PageId) -> Result<(), ObjectError> {
        // A freed page may stay readable for a while, and remaining references must lead nowhere.
        unless_damaged(self.change(|change| change.wipe(page)))?;
        self.directory().free_page(self.pager, page)
    }
}

/// Accepts that something was not done because it is damaged.
fn unless_damaged(done: Result<(), ObjectError>) -> Result<(), ObjectError> {
    match done {
        Err(ObjectError::Pool(PoolError::Corruption { .. })) => Ok(()),
        done => done,
    }
}
