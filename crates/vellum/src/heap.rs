//! Heaps of objects in a database: the public part of `vellum::objects`.
//!
//! A heap consists of a tree in the catalog, its directory, which no program uses as a table, and pages of objects that
//! the directory lists. The crate `objects` does the work; this module makes its changes as durable as those of tables.

use crate::{
    Database, Error, Result, Transaction, catalog,
    catalog::TableRecord,
    handle::Handle,
    life::conflict,
    objects::{Fields, Object, Ref},
};
use std::sync::Arc;
use vellum_base::PageId;
use vellum_objects::{Converted, HeapState};
use vellum_pool::Pool;

/// A heap of objects: see [`objects`](crate::objects).
///
/// Threads may share it or use clones of it. As long as one exists, the heap cannot be dropped.
#[derive(Clone)]
pub struct Heap {
    handle: Handle,
    /// The root of the directory, which is always the same.
    root: PageId,
    state: Arc<HeapState>,
}

/// Several changes of a heap that happen together, or not at all: see [`Heap::change`].
#[derive(Debug)]
pub struct Change<'c, 'h>(&'c mut vellum_objects::Change<'h, Pool>);

/// Brings objects into memory by parallel reads: see [`Heap::fetcher`].
///
/// A traversal that knows which objects come next begins to fetch them early and goes on. If it reads an object that
/// has not arrived yet, it waits for it. In this example a whole has the list of its parts, and the parts lie near each
/// other. Wholes are begun two batches before they are visited, and their parts one batch before:
///
/// ```
/// use vellum::objects::{Array, Persistent, Ref};
///
/// #[derive(Persistent)]
/// struct Part {
///     weight: u32,
/// }
///
/// #[derive(Persistent)]
/// struct Whole {
///     parts: Array<Ref<Part>>,
/// }
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let heap = database.create_heap("wholes")?;
/// # let mut wholes = Vec::new();
/// # for _ in 0..30 {
/// #     let whole = heap.change(|change| {
/// #         let parts = (0..10).map(|weight| change.allocate(&Part { weight })).collect::<Result<Vec<_>, _>>()?;
/// #         change.allocate_near(parts[0], &Whole { parts: parts.into() })
/// #     })?;
/// #     wholes.push(whole);
/// # }
/// let batches: Vec<&[Ref<Whole>]> = wholes.chunks(4).collect();
/// let later = |number: usize| batches.get(number).copied().unwrap_or_default();
/// let mut fetcher = heap.fetcher()?;
/// fetcher.begin(later(0).iter().chain(later(1)).copied());
/// for whole in later(0) {
///     fetcher.begin(heap.get(*whole)?.parts);
/// }
/// let mut sum = 0;
/// for (number, batch) in batches.iter().enumerate() {
///     fetcher.begin(later(number + 2).iter().copied());
///     for whole in later(number + 1) {
///         fetcher.begin(heap.get(*whole)?.parts);
///     }
///     for whole in *batch {
///         for part in heap.get(*whole)?.parts {
///             sum += heap.get(part)?.weight;
///         }
///     }
/// }
/// assert_eq!(sum, 30 * 45);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Objects whose fetch has begun should be used soon: their pages are the first to be evicted when memory is short, and
/// at most a quarter of the pool is being read at a time.
#[derive(Debug)]
pub struct Fetcher<'h>(vellum_objects::Fetcher<'h, Pool>);

impl Database {
    /// Creates a heap of objects. Heaps share their names with tables: a heap and a table cannot have the same name.
    ///
    /// # Errors
    /// If the name is in use, or the file cannot grow.
    pub fn create_heap(&self, name: &str) -> Result<Heap> {
        let transaction = self.begin()?;
        let heap = self.create_heap_by(&transaction, name)?;
        transaction.commit()?;
        Ok(heap)
    }

    fn create_heap_by(&self, transaction: &Transaction, name: &str) -> Result<Heap> {
        let types = (catalog::bytes(), catalog::bytes());
        catalog::check(name, &types)?;
        if catalog::find(self.catalog(), name)?.is_some() {
            return Err(Error::TableExists { name: name.to_owned() });
        }
        let root = catalog::create_doomed(self.inner().pool())?;
        let handle =
            transaction.create_of(name, &TableRecord { root, types, is_plain: true, is_heap: true })?;
        Ok(Heap::new(handle, root))
    }

    /// Opens a heap of objects.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`] if there is none of that name, [`Error::IsTable`] if the name is that of a table,
    /// [`Error::Conflict`] if another thread is dropping the heap, or if the catalog cannot be read.
    pub fn heap(&self, name: &str) -> Result<Heap> {
        let check = |record: &TableRecord| {
            if record.is_heap { Ok(()) } else { Err(Error::IsTable { name: name.to_owned() }) }
        };
        let handle = self.open_table(name, check)?;
        if handle.open.is_emptied() {
            // It may be gone by now.
            return handle.check().and(Err(conflict(name, false)));
        }
        let root = handle.open.current.last();
        Ok(Heap::new(handle, root))
    }

    /// Opens a heap of objects, or creates it if there is none of that name.
    ///
    /// # Errors
    /// As for [`heap`](Self::heap) and [`create_heap`](Self::create_heap).
    pub fn heap_or_create(&self, name: &str) -> Result<Heap> {
        match self.heap(name) {
            // Another thread may create it meanwhile.
            Err(Error::NoSuchTable { .. }) => {
                match self.run(|transaction| self.create_heap_by(transaction, name)) {
                    Err(Error::TableExists { .. }) => self.heap(name),
                    other => other,
                }
            }
            other => other,
        }
    }

    /// The names of all heaps, in the order of their bytes.
    ///
    /// # Errors
    /// If the catalog cannot be read.
    pub fn heaps(&self) -> Result<Vec<String>> {
        let heaps = catalog::list(self.catalog())?.into_iter().filter(|(_, record)| record.is_heap);
        Ok(heaps.map(|(name, _)| name).collect())
    }

    /// Drops a heap with all its objects, page by page: the time this takes depends on the heap's size. If it is
    /// interrupted, the roots and some objects are gone, and the call may be repeated. Meanwhile no thread can open the heap. Damaged pages of
    /// objects are no obstacle; the large objects that they refer to are not known, and keep their pages, which
    /// [`verify`](Self::verify) tells.
    ///
    /// # Errors
    /// As for [`heap`](Self::heap); [`Error::TableInUse`] if it has handles; [`Error::Conflict`] if another thread
    /// renames it meanwhile; or if a page cannot be read.
    pub fn drop_heap(&self, name: &str) -> Result<()> {
        let mut emptied = Emptied::begin(self.heap(name)?, name)?;
        emptied.heap.core().clear()?;
        // Begun only now: an open transaction would have kept the log of what was freed.
        let transaction = self.begin()?;
        transaction.drop_empty_heap(name, emptied.heap.root)?;
        transaction.commit()?;
        emptied.is_gone = true;
        drop(emptied);
        // Its root is free when it has no handles.
        self.inner().sweep();
        Ok(())
    }
}

/// The only handle on a heap whose pages are being freed. As long as it exists, nobody can open the heap.
struct Emptied {
    heap: Heap,
    /// The heap was dropped. A thread that has found it in the catalog before may not open it afterwards either.
    is_gone: bool,
}

impl Emptied {
    /// # Errors
    /// [`Error::TableInUse`] if the heap has other handles.
    fn begin(heap: Heap, name: &str) -> Result<Self> {
        let open = &heap.handle.open;
        let tables = heap.handle.inner.lock();
        if heap.handle.inner.handles(&Arc::downgrade(open)) > 1 {
            return Err(Error::TableInUse { name: name.to_owned() });
        }
        open.set_emptied(true);
        drop(tables);
        Ok(Self { heap, is_gone: false })
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        self.heap.handle.open.set_emptied(self.is_gone);
    }
}

impl Heap {
    /// All handles share what they know of the heap: which types it has, and where it has room.
    fn new(handle: Handle, root: PageId) -> Self {
        let state = handle.open.heap.get_or_init(Arc::default).clone();
        Self { handle, root, state }
    }

    /// The heap, whose changes are not yet durable.
    #[inline(always)]
    fn core(&self) -> vellum_objects::Heap<'_, Pool> {
        vellum_objects::Heap::open(self.handle.inner.pool(), self.root, &self.state)
    }

    /// Reads an object. In memory that costs a look at the state of its page, one at the object's first word, and
    /// decoding its fields.
    ///
    /// # Errors
    /// [`ObjectError::Dangling`](crate::objects::ObjectError::Dangling) if the object no longer exists,
    /// [`OtherType`](crate::objects::ObjectError::OtherType) or
    /// [`TypeChanged`](crate::objects::ObjectError::TypeChanged) if it has another type, or if its page cannot be read
    /// or is damaged.
    #[inline(always)]
    pub fn get<T: Object>(&self, reference: Ref<T>) -> Result<T> {
        self.core().get(reference).map_err(Error::from)
    }

    /// Reads one field of an object, or several, given as a tuple. The other fields cost nothing, even texts and
    /// arrays. The derive makes a constant for each named field of a struct, with its name in capital letters.
    ///
    /// ```
    /// use vellum::objects::{Array, Persistent, Text};
    ///
    /// #[derive(Persistent)]
    /// struct City {
    ///     name: Text,
    ///     inhabitants: u32,
    ///     streets: Array<Text>,
    /// }
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let cities = database.create_heap("cities")?;
    /// let ulm = City { name: "Ulm".into(), inhabitants: 126_000, streets: Array::default() };
    /// let ulm = cities.allocate(&ulm)?;
    /// assert_eq!(cities.fields(ulm, City::INHABITANTS)?, 126_000);
    /// let (name, inhabitants) = cities.fields(ulm, (City::NAME, City::INHABITANTS))?;
    /// # assert!(name == "Ulm" && inhabitants == 126_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline(always)]
    pub fn fields<T: Object, F: Fields<T> + Copy>(&self, reference: Ref<T>, fields: F) -> Result<F::Values> {
        self.core().fields(reference, fields).map_err(Error::from)
    }

    /// Makes several changes that happen together, or not at all, and returns once they are as durable as
    /// [`Options::durability`](crate::Options::durability) says.
    ///
    /// Threads do not wait for each other while they make changes. If something that `change` has read was changed by
    /// another thread before the change ended, the effects of `change` are discarded and it is called again. Until that
    /// is detected, it may see one object as it was before the other thread's change and another object as it was after
    /// it. If it reads so many objects that it may be walking in a circle of such ones, its steps fail, by
    /// [`ObjectError::Overtaken`](crate::objects::ObjectError::Overtaken). Side effects outside the heap may happen several times. Others see nothing of the change before it ends.
    /// A step of it that fails has not happened: `change` may handle the error and go on with other steps.
    ///
    /// ```
    /// use vellum::objects::{Persistent, Ref};
    ///
    /// #[derive(Persistent)]
    /// struct Account {
    ///     balance: i64,
    /// }
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let bank = database.create_heap("bank")?;
    /// let (from, to) = (bank.allocate(&Account { balance: 100 })?, bank.allocate(&Account { balance: 0 })?);
    /// bank.change(|change| {
    ///     change.update(from, |account: &mut Account| account.balance -= 30)?;
    ///     change.update(to, |account: &mut Account| account.balance += 30)
    /// })?;
    /// assert_eq!((bank.get(from)?.balance, bank.get(to)?.balance), (70, 30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `change`, after which nothing has happened. A change may write at most 128 pages, or an eighth of a
    /// small pool: [`ObjectError::ChangeTooLarge`](crate::objects::ObjectError::ChangeTooLarge). While it runs, its
    /// thread may read the heap by other means, but change it only by the [`Change`] that `change` is given: otherwise
    /// [`ObjectError::ChangeUnderWay`](crate::objects::ObjectError::ChangeUnderWay).
    pub fn change<R>(&self, mut change: impl FnMut(&mut Change<'_, '_>) -> Result<R>) -> Result<R> {
        let done = self.core().change(|core| change(&mut Change(core)))?;
        self.handle.inner.commit()?;
        Ok(done)
    }

    /// Stores a new object: see [`Change::allocate`].
    ///
    /// # Errors
    /// As for `Change::allocate`.
    pub fn allocate<T: Object>(&self, object: &T) -> Result<Ref<T>> {
        self.change(|change| change.allocate(object))
    }

    /// Stores a new object near another one: see [`Change::allocate_near`].
    ///
    /// # Errors
    /// As for `Change::allocate_near`.
    pub fn allocate_near<T: Object, N>(&self, near: Ref<N>, object: &T) -> Result<Ref<T>> {
        self.change(|change| change.allocate_near(near, object))
    }

    /// Replaces the value of an object: see [`Change::set`].
    ///
    /// # Errors
    /// As for `Change::set`.
    pub fn set<T: Object>(&self, reference: Ref<T>, object: &T) -> Result<()> {
        self.change(|change| change.set(reference, object))
    }

    /// Changes an object. `change` may be called several times: see [`change`](Self::change).
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn update<T: Object, R>(&self, reference: Ref<T>, mut change: impl FnMut(&mut T) -> R) -> Result<R> {
        self.change(|whole| whole.update(reference, &mut change))
    }

    /// Deletes an object: see [`Change::delete`].
    ///
    /// # Errors
    /// As for `Change::delete`.
    pub fn delete<T: Object>(&self, reference: Ref<T>) -> Result<()> {
        self.change(|change| change.delete(reference))
    }

    /// The root of type `T`, if there is one.
    ///
    /// # Errors
    /// If the root cannot be read, or the type has changed.
    pub fn root<T: Object>(&self) -> Result<Option<Ref<T>>> {
        Ok(self.core().root()?)
    }

    /// Makes an object the root of its type, or removes the root: see [`Change::set_root`].
    ///
    /// # Errors
    /// As for `Change::set_root`.
    pub fn set_root<T: Object>(&self, root: Option<Ref<T>>) -> Result<()> {
        self.change(|change| change.set_root(root))
    }

    /// Calls `show` with references to all objects of type `T`, in the order of their places, until `show` returns
    /// false. Objects that are allocated or deleted meanwhile may or may not be shown.
    ///
    /// # Errors
    /// If a page cannot be read, or `show` fails.
    pub fn for_each<T: Object>(&self, show: impl FnMut(Ref<T>) -> Result<bool>) -> Result<()> {
        self.core().for_each(show)
    }

    /// Converts all objects of type `Old` to `New`. Both types must have the same name in the heap:
    /// `#[persistent(name = "...")]` sets the name of one of them. References to the objects stay valid.
    ///
    /// Each object is converted by itself. If the conversion is interrupted by an error or a crash, repeat the call,
    /// which goes on with the remaining objects; until then these cannot be read as `New`. Other threads must not use
    /// objects of the type meanwhile.
    ///
    /// ```
    /// use vellum::objects::{ObjectError, Persistent, Ref, Text};
    /// use vellum::Error;
    ///
    /// mod old {
    ///     #[derive(vellum::objects::Persistent)]
    ///     pub struct Song {
    ///         pub title: vellum::objects::Text,
    ///     }
    /// }
    ///
    /// #[derive(Persistent)]
    /// struct Song {
    ///     title: Text,
    ///     seconds: Option<u32>,
    /// }
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let songs = database.create_heap("songs")?;
    /// songs.set_root(Some(songs.allocate(&old::Song { title: "Yesterday".into() })?))?;
    /// assert!(matches!(songs.root::<Song>(), Err(Error::Objects(ObjectError::TypeChanged { .. }))));
    /// songs.convert(|song: old::Song| Song { title: song.title, seconds: None })?;
    /// assert_eq!(songs.get(songs.root::<Song>()?.unwrap())?.title, "Yesterday");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ObjectError::NothingToConvert`](crate::objects::ObjectError::NothingToConvert) if the heap's type of this name
    /// is neither of the two; also if an object cannot be read or stored.
    pub fn convert<Old: Object, New: Object>(&self, convert: impl FnMut(Old) -> New) -> Result<Converted> {
        let converted = self.core().convert(convert)?;
        self.handle.inner.commit()?;
        Ok(converted)
    }

    /// Brings the pages of these objects into memory by parallel reads, and returns when they are there. A thread that
    /// does so repeatedly keeps a [`fetcher`](Self::fetcher).
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub fn fetch_all<T>(&self, references: impl IntoIterator<Item = Ref<T>>) -> Result<()> {
        let mut fetcher = self.fetcher()?;
        fetcher.fetch_all(references);
        Ok(())
    }

    /// Makes a fetcher of objects, with up to [`Options::read_depth`](crate::Options::read_depth) reads at a time.
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub fn fetcher(&self) -> Result<Fetcher<'_>> {
        Ok(Fetcher(self.core().fetcher(self.handle.inner.read_depth)?))
    }

    /// Prefetches the cache lines of an object that will be read soon, if it is in memory, without waiting.
    #[inline]
    pub fn prefetch<T: Object>(&self, reference: Ref<T>) {
        self.core().prefetch(reference);
    }
}

impl Change<'_, '_> {
    /// Reads an object, as this change has left it.
    ///
    /// # Errors
    /// As for [`Heap::get`].
    pub fn get<T: Object>(&mut self, reference: Ref<T>) -> Result<T> {
        Ok(self.0.get(reference)?)
    }

    /// Stores a new object and returns a reference to it. Until another object or a root refers to it, a verification
    /// reports it as unreachable.
    ///
    /// # Errors
    /// If its type differs from the type of the same name in the heap, it is too long, or the file cannot grow.
    pub fn allocate<T: Object>(&mut self, object: &T) -> Result<Ref<T>> {
        Ok(self.0.allocate(object)?)
    }

    /// Stores a new object near another one: in the same page, if that has room. Objects that are visited together are
    /// then read together.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn allocate_near<T: Object, N>(&mut self, near: Ref<N>, object: &T) -> Result<Ref<T>> {
        Ok(self.0.allocate_near(near, object)?)
    }

    /// Reserves the place of an object that is [set](Self::set) before this change ends, so that new objects can refer
    /// to each other in cycles.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn reserve<T: Object>(&mut self) -> Result<Ref<T>> {
        Ok(self.0.reserve()?)
    }

    /// [`reserve`](Self::reserve), near another object.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn reserve_near<T: Object, N>(&mut self, near: Ref<N>) -> Result<Ref<T>> {
        Ok(self.0.reserve_near(near)?)
    }

    /// Replaces the value of an object. References to it stay valid, however long the value is.
    ///
    /// # Errors
    /// As for [`Heap::get`] and [`allocate`](Self::allocate).
    pub fn set<T: Object>(&mut self, reference: Ref<T>, object: &T) -> Result<()> {
        Ok(self.0.set(reference, object)?)
    }

    /// Changes an object.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn update<T: Object, R>(&mut self, reference: Ref<T>, change: impl FnOnce(&mut T) -> R) -> Result<R> {
        Ok(self.0.update(reference, change)?)
    }

    /// Deletes an object, with the texts and arrays in it. Objects to which it refers remain. Nothing should refer to
    /// it any more: following such a reference is an error, and a verification reports it.
    ///
    /// # Errors
    /// As for [`Heap::get`].
    pub fn delete<T: Object>(&mut self, reference: Ref<T>) -> Result<()> {
        Ok(self.0.delete(reference)?)
    }

    /// The root of type `T`, if there is one.
    ///
    /// # Errors
    /// As for [`Heap::root`].
    pub fn root<T: Object>(&mut self) -> Result<Option<Ref<T>>> {
        Ok(self.0.root()?)
    }

    /// Makes an object the root of its type, or removes the root. A heap has one root for each type.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn set_root<T: Object>(&mut self, root: Option<Ref<T>>) -> Result<()> {
        Ok(self.0.set_root(root)?)
    }
}

impl Fetcher<'_> {
    /// Begins to read those pages of these objects that are not in memory, as far as there is memory for them at once.
    /// The reads go on while the thread does something else; reading an object whose page is still being read waits for
    /// it.
    ///
    /// This is only a hint: a page that cannot be read now is read when one of its objects is, which then reports the
    /// error.
    pub fn begin<T>(&mut self, references: impl IntoIterator<Item = Ref<T>>) {
        self.0.begin(references);
    }

    /// Waits until all fetches that were begun are done.
    pub fn wait(&mut self) {
        self.0.wait();
    }

    /// [`begin`](Self::begin), and waits until the objects are in memory.
    pub fn fetch_all<T>(&mut self, references: impl IntoIterator<Item = Ref<T>>) {
        self.0.fetch_all(references);
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "heap {:?}", self.handle.name)
    }
}
