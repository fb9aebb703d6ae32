//! A table as the database sees it: a tree of bytes, without the types of its keys and values.

mod answers;
mod current;
mod errors;

pub(crate) use errors::name_now;

use crate::{
    Cursor, Error, KeyBuffer, KeyType, Result, Task, ValueReader, ValueType,
    catalog::{self, TableRecord},
    generations::Generation,
    life::{OpenTable, Writing, with_name},
    open_transaction::OpenTransaction,
    patience::Patience,
    plant::Plant,
    range::as_slice,
    running,
    shared::{Inner, OpenTables, Owned},
};
use std::{
    borrow::Cow,
    ops::Bound,
    sync::{Arc, Weak},
};
use vellum_access::{AccessError, Tree, WriteMode, Written};
use vellum_base::{PAGE_SIZE, PageId, plant::is_planted};
use vellum_pool::{Pool, PoolError};
use vellum_txn::CommitError;

/// A table, as bytes.
#[derive(Clone)]
pub(crate) struct Handle {
    // The fields that an operation needs; `open` also keeps the table from being dropped.
    pub(crate) inner: Arc<Inner>,
    is_plain: bool,
    pub(crate) open: Arc<OpenTable>,
    /// The table's name when this handle was made.
    pub(crate) name: Arc<str>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.sweep_later();
        // All that is left of the table may be free then, which is more than a root.
        if self.open.is_dropped() {
            self.inner.note_news(&self.open);
        }
    }
}

impl Handle {
    pub(crate) fn new(inner: Arc<Inner>, open: Arc<OpenTable>) -> Self {
        Self { inner, is_plain: open.is_plain, name: open.name.clone(), open }
    }

    /// A handle on the table with this record.
    pub(crate) fn of(inner: &Arc<Inner>, open: &mut OpenTables, name: &str, record: &TableRecord) -> Self {
        let existing = open.get(&record.root).and_then(Weak::upgrade);
        let table = existing.unwrap_or_else(|| {
            let table = Arc::new(OpenTable::new(name, record, &inner.writers));
            table.add_generation(record.root, inner.created_after(record.root));
            open.insert(record.root, Arc::downgrade(&table));
            table
        });
        let mut handle = Self::new(inner.clone(), table);
        // The table may have been renamed since it was opened.
        if *handle.name != *name {
            handle.name = name.into();
        }
        handle
    }

    #[inline]
    #[track_caller]
    pub(crate) fn tree(&self) -> Tree<'_, Pool> {
        let (generation, seen) = self.open.current();
        let tree = self.tree_with(generation).while_current(&self.open.current, seen);
        if self.is_plain { tree } else { tree.with_view(self.inner.durable.view()) }
    }

    /// The tree that a transaction sees. The transaction must belong to this table's database, and the table must have
    /// versions.
    ///
    /// # Errors
    /// If either condition is not met; [`Error::NoSuchTable`] if the transaction began before the table was created,
    /// and then either the table was loaded or cleared, or the transaction's snapshot was covered before it changed the
    /// table.
    // Inlined, like the construction of the view: a tree that passes through memory is read back in pieces other than
    // those in which it was written, so the processor waits until all earlier stores are in its cache.
    #[inline(always)]
    pub(crate) fn tree_of(&self, transaction: &OpenTransaction) -> Result<Tree<'_, Pool>> {
        let is_usual = Arc::ptr_eq(&transaction.inner, &self.inner)
            && !self.is_plain
            && !transaction.transaction.is_covered();
        let seen = match self.open.seen_by_all() {
            Some(seen) if is_usual => seen,
            _ => self.generation_of(transaction)?,
        };
        Ok(self.tree_with(seen))
    }

    /// The generation that [`tree_of`](Self::tree_of) uses.
    #[cold]
    fn generation_of(&self, transaction: &OpenTransaction) -> Result<&Generation> {
        let table = || self.name.as_ref().to_owned();
        if !Arc::ptr_eq(&transaction.inner, &self.inner) {
            return Err(Error::OtherDatabase { table: table() });
        }
        if self.is_plain {
            return Err(Error::PlainTable { table: table() });
        }
        let Some(current) = self.open.seen_by_all() else {
            // No versions hide what a later transaction has loaded.
            return self.seen_by(transaction)?.ok_or_else(|| Error::NoSuchTable { name: table() });
        };
        if transaction.transaction.is_covered()
            && !is_planted("vellum", Plant::LaterTreeUsed)
            && !self.is_seen_by_covered(transaction, current.root)?
        {
            return Err(Error::NoSuchTable { name: table() });
        }
        Ok(current)
    }

    #[inline]
    #[track_caller]
    fn tree_with<'h>(&'h self, generation: &'h Generation) -> Tree<'h, Pool> {
        Tree::open(self.inner.pool(), generation.root).with_hints(&generation.hints)
    }

    /// The generation of the table that a transaction sees, if it sees the table: the one that is not doomed for it and
    /// that a record it sees names. Of a tree that was made after its snapshot was covered, it sees neither record.
    #[cold]
    pub(crate) fn seen_by(&self, transaction: &OpenTransaction) -> Result<Option<&Generation>> {
        let catalog = catalog::tree(self.inner.pool()).with_view(transaction.transaction.reading());
        // What is read here is not noted: a read that counts notes for its tree that it is not doomed.
        let is_doomed = |root| -> Result<bool> { Ok(catalog.get(&catalog::doomed_key(root))?.is_some()) };
        let named = catalog::find(catalog, &self.name)?;
        if let Some(generation) = named.and_then(|record| self.open.generation(record.root))
            && !is_doomed(generation.root)?
        {
            return Ok(Some(generation));
        }
        for generation in self.open.generations() {
            if !is_doomed(generation.root)? && self.is_named(catalog, generation.root)? {
                return Ok(Some(generation));
            }
        }
        Ok(None)
    }

    /// Whether a transaction whose snapshot was covered already uses the table, or sees a name of the tree with this
    /// root. If the tree was made later, nothing was kept for the transaction, and no version hides the contents. A
    /// doomed record proves nothing: it may be that of an earlier tree, which was freed since and whose root page was
    /// reused.
    #[cold]
    fn is_seen_by_covered(&self, transaction: &OpenTransaction, root: PageId) -> Result<bool> {
        let transaction = &transaction.transaction;
        if self.open.is_used_by(transaction.id()) {
            return Ok(true);
        }
        self.is_named(catalog::tree(self.inner.pool()).with_view(transaction.reading()), root)
    }

    /// Whether the catalog has a table with this root, most likely under the name of this table.
    fn is_named(&self, catalog: Tree<'_, Pool>, root: PageId) -> Result<bool> {
        let is_it = |name: &str| -> Result<bool> {
            Ok(catalog::find(catalog, name)?.is_some_and(|record| record.root == root))
        };
        // The table may have been renamed. There may be thousands, so all are looked at only once for each name.
        if is_it(&self.name)? || self.open.found_as().map_or(Ok(false), |name| is_it(&name))? {
            return Ok(true);
        }
        let found = catalog::list(catalog)?.into_iter().find(|(_, record)| record.root == root);
        Ok(found.inspect(|(name, _)| self.open.note_found_as(name)).is_some())
    }

    #[track_caller]
    pub(crate) fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    /// Makes sure that a single operation may change the table.
    ///
    /// # Errors
    /// As for [`OpenTable::check`]; if the transaction in the way has ended, why it cannot be rolled back.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        let check = || self.open.check();
        with_name(check().or_else(|_| self.inner.try_again(&self.open, check)), || self.name_now())
    }

    /// Registers a transaction that is about to change records of the tree that it sees.
    ///
    /// # Errors
    /// As for [`OpenTable::begin_writing`]; if another transaction in the way has ended, why it cannot be rolled back.
    pub(crate) fn begin_writing(&self, transaction: u64, seen: PageId) -> Result<Writing> {
        let begin = || self.open.begin_writing(Some(transaction), seen);
        with_name(begin().or_else(|_| self.inner.try_again(&self.open, begin)), || self.name_now())
    }

    /// Changes the tree, and returns once the change is as durable as it should be. While transactions are open, the
    /// change is made as a transaction, so that each of them either sees it or does not.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn change<T>(
        &self,
        mut change: impl FnMut(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        self.check()?;
        match change(self.tree()) {
            Ok(done) => self.inner.commit().map(|()| done),
            Err(error) => self.change_again(error, change),
        }
    }

    /// Stores a value, if `mode` allows it.
    // The most frequent operation that changes a table. It is not generic, so that there is a single copy with
    // everything it calls inlined.
    #[inline(never)]
    #[track_caller]
    pub(crate) fn write(&self, key: &[u8], value: &[u8], mode: WriteMode) -> Result<Written> {
        self.check()?;
        match self.tree().write_inlined(key, value, mode) {
            Ok(written) => self.inner.commit().map(|()| written),
            Err(error) => self.change_again(error, |tree| tree.write(key, value, mode)),
        }
    }

    /// Continues a [`change`](Self::change) that has failed once.
    #[cold]
    #[inline(never)]
    fn change_again<T>(
        &self,
        error: AccessError,
        change: impl FnMut(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    ) -> Result<T> {
        with_result(change, |change| self.try_again(error, change))
    }

    /// [`change_again`](Self::change_again), which is compiled once for all kinds of changes.
    fn try_again(&self, mut error: AccessError, change: ErasedChange<'_>) -> Result<()> {
        loop {
            match error {
                AccessError::NeedsTransaction { .. } => return self.change_in_turn(change),
                // The table has been cleared: retry.
                AccessError::Pool(PoolError::Cancelled) => {}
                error => return Err(error.into()),
            }
            self.check()?;
            match change(self.tree()) {
                Ok(()) => return self.inner.commit(),
                Err(again) => error = again,
            }
        }
    }

    /// Makes a change as its own transaction. If another one is changing the record, that may be over in a moment.
    #[cold]
    pub(crate) fn change_in_turn(&self, change: ErasedChange<'_>) -> Result<()> {
        let (mut patience, mut baton) = (Patience::new(), None);
        loop {
            let done = self.change_in_transaction(change);
            drop(baton.take());
            let Err(conflict @ Error::Conflict { committed, .. }) = done else { return done };
            let wait = running::wait_for(&self.inner, &conflict);
            let left = patience.left(wait.as_ref());
            if committed || left.is_zero() {
                // The conflict may be with a transaction that has ended and cannot be rolled back.
                return self.inner.undo_rest().and(Err(conflict));
            }
            baton = running::wait_or_pause(wait, left);
        }
    }

    /// Makes a change as its own transaction, and returns once it is as durable as it should be.
    #[cold]
    fn change_in_transaction(&self, change: ErasedChange<'_>) -> Result<()> {
        self.change_and_commit(change).and_then(|()| self.inner.commit())
    }

    /// Makes a change as its own transaction, without waiting until that is durable.
    pub(crate) fn change_and_commit(&self, change: ErasedChange<'_>) -> Result<()> {
        /// How often the snapshot limit may end its snapshot. A closure of the caller that takes longer than the limit
        /// would otherwise be called for ever.
        const ENDS_MAX: usize = 3;
        let mut ends = 0;
        loop {
            // It reads only what it changes, so it is serializable as it is.
            let own = OpenTransaction::begin(&self.inner, false);
            let tree = self.tree_of(&own)?;
            // It may wait here for others that have precedence, so it is not entered as a writer yet.
            let view = own.transaction.writing(own.inner.pool())?;
            let writing = match self.begin_writing(own.transaction.id(), tree.root()) {
                // The table was cleared since this transaction began.
                Err(Error::Conflict { committed: true, .. }) => {
                    own.rollback()?;
                    continue;
                }
                begun => begun?,
            };
            // If the transaction cannot be rolled back, the entry is kept with it.
            own.transaction.changing().push(writing);
            match change(tree.with_view(view)) {
                Ok(()) => match own.commit() {
                    Ok(inner) => {
                        running::note_commit(&inner);
                        inner.durable.keep_last_change(|| inner.sweep());
                        return Ok(());
                    }
                    Err(CommitError::Failed(error)) => return Err(error.into()),
                    Err(_) => ends += 1,
                },
                // Another transaction was faster and has been committed: this one comes after it.
                Err(AccessError::Conflict { committed: true, .. }) => own.rollback()?,
                Err(AccessError::Pool(PoolError::Cancelled)) => {
                    own.rollback()?;
                    ends += 1;
                }
                Err(error) => return own.rollback().and(Err(self.named(error))),
            }
            if ends > ENDS_MAX {
                return Err(Error::SnapshotTooOld);
            }
        }
    }

    /// Whether the table keeps no versions.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether changes must be transactions, because some are open.
    pub(crate) fn needs_transactions(&self) -> bool {
        !self.is_plain && self.inner.durable.has_transactions()
    }

    /// Whether changes must be made one by one, because transactions are open or the table is not there any more.
    pub(crate) fn is_apart(&self) -> bool {
        self.needs_transactions() || self.check().is_err()
    }

    /// Runs a single operation.
    pub(crate) fn perform(&self, key: &[u8], task: &Task<impl AsRef<[u8]>>) -> Result<Owned> {
        match task {
            Task::Get => Ok(Owned::Value(self.get(key)?)),
            Task::GetPart { .. } => {
                let read = |tree| match perform_on(tree, key, task)? {
                    Owned::Value(None) => Ok(None),
                    found => Ok(Some(found)),
                };
                Ok(self.find(read)?.unwrap_or(Owned::Value(None)))
            }
            _ => self.change(|tree| perform_on(tree, key, task)),
        }
    }

    /// How many reads of one batch may be under way at once.
    pub(crate) fn read_depth(&self) -> usize {
        self.inner.read_depth
    }

    /// A copy of the value of a key.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// The same into a buffer; returns whether there is a value.
    // One function for all types of keys and values: callers stay small, and the value does not pass through memory
    // inside a `Result`.
    #[inline(never)]
    pub(crate) fn get_into(&self, key: &[u8], target: &mut Vec<u8>) -> Result<bool> {
        self.get_into_inlined(key, target)
    }

    /// The same, as this tree of the table shows it.
    #[inline(always)]
    pub(crate) fn get_into_by(&self, tree: Tree<'_, Pool>, key: &[u8], target: &mut Vec<u8>) -> Result<bool> {
        match tree.get_into(key, target) {
            Ok(found) => Ok(found),
            Err(error) => self.get_past_pool(tree, key, target, error),
        }
    }

    /// How [`get_into_by`](Self::get_into_by) handles an error.
    #[cold]
    #[inline(never)]
    fn get_past_pool(
        &self,
        tree: Tree<'_, Pool>,
        key: &[u8],
        target: &mut Vec<u8>,
        error: AccessError,
    ) -> Result<bool> {
        let error = Error::from(error);
        if !error.is_about_room() {
            return Err(error);
        }
        let whole = self.read_whole(tree, key)?;
        let found = whole.is_some();
        *target = whole.unwrap_or_default();
        Ok(found)
    }

    /// A copy of the value of a key, as this tree of the table shows it.
    #[inline]
    pub(crate) fn get_by(&self, tree: Tree<'_, Pool>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into_by(tree, key, &mut value)?.then_some(value))
    }

    /// The values of many keys, as this tree of the table shows them.
    pub(crate) fn multi_get_by<K: AsRef<[u8]>>(
        &self,
        tree: Tree<'_, Pool>,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>>),
    ) {
        tree.multi_get(keys, self.read_depth(), |index, value| {
            match (value.map_err(Error::from), keys.get(index)) {
                (Err(error), Some(key)) if error.is_about_room() => {
                    match self.read_whole(tree, key.as_ref()) {
                        Ok(whole) => visit(index, Ok(whole.as_deref())),
                        Err(error) => visit(index, Err(error)),
                    }
                }
                (value, _) => visit(index, value),
            }
        });
    }

    /// Decodes a key.
    pub(crate) fn key_of<K: KeyType + ?Sized>(&self, bytes: &[u8]) -> Result<K::Owned> {
        K::from_bytes(bytes.into()).ok_or_else(|| self.malformed("key", K::type_name()).at(bytes))
    }

    /// Decodes a value.
    #[inline]
    pub(crate) fn value_of<V: ValueType + ?Sized>(&self, bytes: Cow<'_, [u8]>) -> Result<V::Owned> {
        match V::from_bytes(bytes) {
            Some(value) => Ok(value),
            None => Err(self.malformed("value", V::type_name())),
        }
    }

    /// Decodes a value, if there is one.
    #[inline]
    pub(crate) fn value_if_any<'v, V: ValueType + ?Sized>(
        &self,
        bytes: Option<impl Into<Cow<'v, [u8]>>>,
    ) -> Result<Option<V::Owned>> {
        match bytes {
            Some(bytes) => self.value_of::<V>(bytes.into()).map(Some),
            None => Ok(None),
        }
    }

    #[cold]
    pub(crate) fn malformed(&self, what: &'static str, type_name: String) -> Error {
        Error::Malformed { table: self.name.as_ref().to_owned(), key: None, what, type_name }
    }

    /// A cursor over a range of keys.
    pub(crate) fn cursor(&self, (lower, upper): &(Bound<KeyBuffer>, Bound<KeyBuffer>)) -> Result<Cursor<'_>> {
        Ok(Cursor::new(self.tree().range(as_slice(lower), as_slice(upper))?, self.pool()))
    }

    /// Changes, stores or removes a value atomically: `change` is called with the present value, and again if another
    /// thread changes the value meanwhile.
    pub(crate) fn exchange<B: AsRef<[u8]>>(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Result<Exchange<B>>,
    ) -> Result<()> {
        self.change(|tree| exchange(tree, key, &mut change))?
    }

    /// A reader of the value of a key, as this tree of the table shows it.
    pub(crate) fn reader<'h>(&'h self, tree: Tree<'h, Pool>, key: &[u8]) -> Result<Option<ValueReader<'h>>> {
        loop {
            if let Some(reader) = tree.reader(key)? {
                return Ok(Some(ValueReader::large(reader, self.pool())));
            }
            match tree.value(key).map_err(Error::from) {
                Ok(None) => return Ok(None),
                // The value was replaced by a large one in between: retry.
                Ok(Some(value)) if value.is_in_place() => {}
                Ok(Some(value)) => return Ok(Some(ValueReader::small(value.into_vec()))),
                // By one that is larger than the pool: retry.
                Err(Error::Pool(PoolError::LargerThanPool { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A copy of a value for which the pool has no room: read in parts, past the pool.
    #[cold]
    pub(crate) fn read_whole(&self, tree: Tree<'_, Pool>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(mut reader) = self.reader(tree, key)? else { return Ok(None) };
            let mut value = vec![0; reader.len() as usize];
            match reader.read_at(0, &mut value) {
                // The value was replaced meanwhile: retry.
                Err(Error::Access(AccessError::ValueChanged)) => {}
                done => return done.map(|_| Some(value)),
            }
        }
    }

    /// Replaces an error about lack of room by one that names the value and says what to do.
    #[cold]
    pub(crate) fn name_large(&self, key: &[u8], error: Error) -> Error {
        let length = if error.is_about_room() { self.tree().value_length(key) } else { Ok(None) };
        match length {
            Ok(Some(bytes)) => Error::LargerThanPool {
                key: key.to_vec(),
                bytes,
                pool_bytes: self.inner.durable.pool().limit_pages() as u64 * PAGE_SIZE as u64,
            },
            _ => error,
        }
    }
}

/// A change of a tree, which may be tried several times.
pub(crate) type ErasedChange<'c> = &'c mut dyn FnMut(Tree<'_, Pool>) -> std::result::Result<(), AccessError>;

/// Lets `by` make a change that has a result.
pub(crate) fn with_result<T>(
    mut change: impl FnMut(Tree<'_, Pool>) -> std::result::Result<T, AccessError>,
    by: impl FnOnce(ErasedChange<'_>) -> Result<()>,
) -> Result<T> {
    let mut result = None;
    by(&mut |tree| {
        result = Some(change(tree)?);
        Ok(())
    })?;
    Ok(result.unwrap_or_else(|| unreachable!("the change has been made")))
}

/// Runs an operation on a tree.
pub(crate) fn perform_on(
    tree: Tree<'_, Pool>,
    key: &[u8],
    task: &Task<impl AsRef<[u8]>>,
) -> std::result::Result<Owned, AccessError> {
    let written = |put: bool, done: Written| Owned::Written(if put { done } else { Written::Refused });
    Ok(match task {
        Task::Get => Owned::Value(tree.get(key)?),
        Task::GetPart { offset, length } => {
            let (mut part, range) = (Vec::new(), *offset..offset.saturating_add(*length));
            Owned::Value(tree.get_part_into(key, range, &mut part)?.then_some(part))
        }
        Task::Insert(value) => written(tree.insert(key, value.as_ref())?, Written::Inserted),
        Task::Update(value) => written(tree.update(key, value.as_ref())?, Written::Replaced),
        Task::Upsert(value) => Owned::Written(tree.upsert(key, value.as_ref())?),
        Task::Remove => Owned::Removed(tree.remove(key)?),
    })
}

/// The outcome of a change of a value.
pub(crate) enum Exchange<B> {
    Keep,
    Store(B),
    Remove,
}

/// See [`Handle::exchange`]. The inner error is that of `change`.
pub(crate) fn exchange<B: AsRef<[u8]>>(
    tree: Tree<'_, Pool>,
    key: &[u8],
    change: &mut impl FnMut(Option<&[u8]>) -> Result<Exchange<B>>,
) -> std::result::Result<Result<()>, AccessError> {
    loop {
        let held = tree.held(key)?;
        let new = match change(held.value()) {
            Ok(Exchange::Store(new)) => Some(new),
            Ok(Exchange::Remove) => None,
            Ok(Exchange::Keep) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        if tree.exchange(key, &held, new.as_ref().map(AsRef::as_ref))? {
            return Ok(Ok(()));
        }
    }
}
