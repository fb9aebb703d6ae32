//! What is done with a heap: reading, changing and clearing it.

use crate::{
    Change, Heap, Object, Ref,
    codec::Reader,
    copies::is_nowhere,
    error::ObjectError,
    field::{Fields, Whole},
    page::Head,
    plant::{Plant, planted},
    reference::GRANULE_BYTES,
};
use std::time::Duration;
use vellum_base::primitive::{Ordering, thread};
use vellum_base::{Bytes, PAGE_SIZE};
use vellum_pool::{Interrupt, OptimisticPage, Pager};

impl<'p, P: Pager> Heap<'p, P> {
    /// Reads an object. If it is in memory that is a look at the state of its page, at its first word, and at its fields.
    ///
    /// # Errors
    /// [`ObjectError::Dangling`] if it is not there any more, [`ObjectError::OtherType`] or [`ObjectError::TypeChanged`] if it is of
    /// another type, or if its page cannot be read or is damaged.
    #[inline(always)]
    pub fn get<T: Object>(&self, reference: Ref<T>) -> Result<T, ObjectError> {
        self.read(reference, Whole)
    }

    /// Reads one field of an object, or several, given as a tuple: that costs nothing for the others.
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

    /// What is wanted of the object, if its page is in memory and stays as it is meanwhile, and it lies where the reference leads and is of
    /// this type. Nearly all reads end here, so it holds nothing that the others need.
    #[inline(always)]
    fn read_at_once<T: Object, F: Fields<T>>(&self, reference: Ref<T>, fields: F) -> Option<F::Values> {
        let any = reference.any();
        let page = self.pager.look(any.page())?;
        let (bytes, at) = (page.bytes(), any.at());
        // Once for all fields: the compiler sees then that none of them leaves the page.
        if at > PAGE_SIZE.checked_sub(GRANULE_BYTES + T::BYTES)? {
            return None;
        }
        let head = Head(bytes.u64_at(at));
        // The lengths of the others differ.
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

    /// What is wanted of the object, if it lies where the reference leads, and is of this type.
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

    /// Goes on after the first attempt: the page is not in memory, or is being changed; or the object is large, or was moved; or it is not
    /// what it should be.
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

    /// Fetches the cache lines of an object that will be read soon, if it is in memory, and waits for none of it.
    #[inline]
    pub fn prefetch<T: Object>(&self, reference: Ref<T>) {
        let any = reference.any();
        self.pager.prefetch(any.page(), 0, 1);
        self.pager.prefetch(any.page(), any.at(), GRANULE_BYTES + T::BYTES);
    }

    /// Makes several changes that happen together, or not at all. `change` may be called several times: if something that it has read was
    /// changed by another thread before it ended, what it did is thrown away, and it is called again. Until that is found it may see
    /// one object as it was before the other thread's change and another one as it was after it.
    ///
    /// # Errors
    /// Those of `change`, after which nothing has happened; and if it cannot be recorded.
    pub fn change<R, E: From<ObjectError>>(
        &self,
        mut change: impl FnMut(&mut Change<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        /// After how many failures threads take turns.
        const FAILURES_MAX: u32 = 8;
        let (mut failures, mut turn) = (0u32, None);
        loop {
            let mut attempt = Change::new(*self);
            match change(&mut attempt) {
                Ok(result) => {
                    if attempt.commit()? {
                        return Ok(result);
                    }
                }
                Err(error) => {
                    // What it saw may never have been there together.
                    if attempt.is_current()? {
                        return Err(error);
                    }
                }
            }
            failures = failures.saturating_add(1);
            if failures < FAILURES_MAX {
                thread::yield_now();
                continue;
            }
            if turn.is_none() {
                // Not waited for: this thread may have it, in a change around this one.
                turn = self.state.turn.try_lock().ok();
            }
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Stores a new object. See [`Change::allocate`].
    ///
    /// # Errors
    /// As for that.
    pub fn allocate<T: Object>(&self, object: &T) -> Result<Ref<T>, ObjectError> {
        self.change(|change| change.allocate(object))
    }

    /// Stores a new object near another one. See [`Change::allocate_near`].
    ///
    /// # Errors
    /// As for that.
    pub fn allocate_near<T: Object, N>(&self, near: Ref<N>, object: &T) -> Result<Ref<T>, ObjectError> {
        self.change(|change| change.allocate_near(near, object))
    }

    /// Gives an object another value. See [`Change::set`].
    ///
    /// # Errors
    /// As for that.
    pub fn set<T: Object>(&self, reference: Ref<T>, object: &T) -> Result<(), ObjectError> {
        self.change(|change| change.set(reference, object))
    }

    /// Changes an object. `change` may be called several times. See [`Change::update`].
    ///
    /// # Errors
    /// As for that.
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
    /// As for that.
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
    /// As for that.
    pub fn set_root<T: Object>(&self, root: Option<Ref<T>>) -> Result<(), ObjectError> {
        self.change(|change| change.set_root(root))
    }

    /// Shows the references to all objects of type `T`, in the order of their places, until `show` returns false. Those that come or
    /// go meanwhile may be shown or not.
    ///
    /// # Errors
    /// If a page cannot be read, and those of `show`.
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

    /// Frees all pages of the heap, and its large objects. If that is interrupted it can be done again, until nothing is left. No thread
    /// uses the heap meanwhile.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub fn clear(&self) -> Result<(), ObjectError> {
        self.state.anchor.store(0, Ordering::Relaxed);
        self.state.forget_types();
        let directory = self.directory();
        loop {
            let mut pages = Vec::new();
            directory.pages(|page| {
                pages.push(page);
                Ok(pages.len() < 256)
            })?;
            if pages.is_empty() {
                return directory.clear();
            }
            for page in pages {
                // A page that is free may stay readable for a while, and references that are left must lead to nothing.
                self.change(|change| change.wipe(page))?;
                directory.free_page(self.pager, page)?;
            }
        }
    }
}
