//! Tables created, renamed and dropped in transactions.
//!
//! The catalog's records are changed like any others: they are part of the transaction, seen by its snapshot, undone
//! with it, and the first updater wins. Only the pages need special treatment.
//!
//! # Pages that may have to be freed
//! For each tree whose fate is undecided the catalog has a second record, *doomed*, under its root:
//! - Creating a table makes the tree and a doomed record in one group, outside of the transaction, which then removes that record. So
//!   the record is gone if the transaction is committed, and back if it is undone, in memory or after a crash.
//! - Dropping a table adds a doomed record in the transaction.
//! - Clearing a table does both: its record gets another tree. See [`life`](crate::life) on what its handles see. So
//!   does [loading](crate::loading) a table.
//!
//! So when a transaction has ended, whether by commit or rollback, the doomed trees are those with such a record. Those
//! that the running database knows are freed as soon as nothing can use them (`Inner::sweep`); all others are freed
//! when the database is opened.
//!
//! The last part of a tree is freed together with its doomed record, in one group: see [`freeing`](crate::freeing). What a transaction has made and taken back by a
//! savepoint is emptied at once, and its root is used again by this transaction: see [`owned`](crate::owned).

use crate::{
    Database, Error, ErrorKind, NamesTable, Result, Table, TableInformation, TableOptions, Transaction,
    catalog::{self, TableRecord},
    driver::lock,
    handle::Handle,
    life::{OpenTable, Writing, conflict, with_name},
    new_tree::NewTree,
    owned::Fate,
};
use std::{ops::Bound, sync::Arc};
use vellum_access::{AccessError, Tree};
use vellum_base::PageId;
use vellum_base::primitive::MutexGuard;
use vellum_pool::Pool;
use vellum_txn::Edge;

impl Database {
    /// Creates a table; its name has 1 to 255 bytes. A plain string makes a table from bytes to bytes, a
    /// [`TableName`](crate::TableName) one with other types.
    ///
    /// # Errors
    /// If there already is a table of that name, or the file cannot grow.
    pub fn create_table<N: NamesTable>(&self, table: N) -> Result<Table<N::Key, N::Value>> {
        self.create_table_with(table, TableOptions::default())
    }

    /// As [`create_table`](Self::create_table), with options.
    ///
    /// # Errors
    /// As for [`create_table`](Self::create_table).
    pub fn create_table_with<N: NamesTable>(
        &self,
        table: N,
        options: TableOptions,
    ) -> Result<Table<N::Key, N::Value>> {
        let transaction = self.begin()?;
        let table = transaction.create_table_with(table, options)?;
        transaction.commit()?;
        Ok(table)
    }

    /// Opens a table, or creates it if there is none of that name.
    ///
    /// # Errors
    /// As for [`table`](Self::table) and [`create_table`](Self::create_table).
    pub fn table_or_create<N: NamesTable>(&self, table: N) -> Result<Table<N::Key, N::Value>> {
        match self.table(&table) {
            // Another thread may create it meanwhile.
            Err(Error::NoSuchTable { .. }) => self.run(|transaction| match transaction.table(&table) {
                Err(Error::NoSuchTable { .. }) => transaction.create_table(&table),
                other => other,
            }),
            other => other,
        }
    }

    /// Drops a table with all its contents. There must be no handles on it; a transaction can drop a table that has
    /// handles, see [`Transaction::drop_table`](Transaction::drop_table).
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::TableInUse`] if there are handles on it, or an open transaction has changed it;
    /// [`Error::Conflict`] if another thread renames, clears or drops it meanwhile; or if a page cannot be read. If
    /// a transaction has ended and still cannot be rolled back, the error says why. After an error nothing has
    /// happened.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        // Such a transaction counts as one that has changed the table.
        let undone = self.inner().undo_rest();
        let open = self.inner().lock();
        let record = catalog::find(self.catalog(), name)?;
        let record = record.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        record.expect_table(name)?;
        let root = record.root;
        let is_changed = self.inner().writers.any(root, |_| true);
        let is_read_only = self.inner().pool().is_read_only();
        if !is_read_only
            && (is_changed || open.get(&root).is_some_and(|table| self.inner().handles(table) > 0))
        {
            return undone.and(Err(Error::TableInUse { name: name.to_owned() }));
        }
        drop(open);
        let transaction = self.begin()?;
        transaction.drop_table(name)?;
        transaction.commit()
    }

    /// Renames a table: see [`Transaction::rename_table`](Transaction::rename_table).
    ///
    /// # Errors
    /// As for `Transaction::rename_table`.
    pub fn rename_table(&self, name: &str, new_name: &str) -> Result<()> {
        let transaction = self.begin()?;
        transaction.rename_table(name, new_name)?;
        transaction.commit()
    }

    /// Removes all entries of a table at once: see [`Transaction::clear_table`](Transaction::clear_table). Beside busy
    /// writers most attempts conflict; inside [`run`](Self::run) it is tried again, and then has precedence.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Conflict`] if an open transaction has changed the table.
    pub fn clear_table(&self, name: &str) -> Result<()> {
        let transaction = self.begin()?;
        transaction.clear_table(name)?;
        transaction.commit()
    }
}

impl Transaction {
    /// Creates a table, which others see once this transaction is committed. See
    /// [`Database::create_table`](Database::create_table).
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # database.create_table("old")?;
    /// database.run(|transaction| {
    ///     let fruit = transaction.create_table(TableName::<str, u64>::new("fruit"))?;
    ///     transaction.put(&fruit, "apples", 5)?;
    ///     transaction.drop_table("old")
    /// })?;
    /// assert_eq!(database.tables()?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for `Database::create_table`; [`Error::Conflict`] if another transaction has created, renamed or dropped a table of that
    /// name.
    pub fn create_table<N: NamesTable>(&self, table: N) -> Result<Table<N::Key, N::Value>> {
        self.create_table_with(table, TableOptions::default())
    }

    /// As [`create_table`](Self::create_table), with options. A [plain](TableOptions::versions) table can be used once
    /// this transaction is committed; before that this transaction may [load](Self::bulk_loader) it.
    ///
    /// # Errors
    /// As for [`create_table`](Self::create_table); [`Error::TableTypes`] if the options name types, and the table's
    /// name has different ones.
    pub fn create_table_with<N: NamesTable>(
        &self,
        table: N,
        options: TableOptions,
    ) -> Result<Table<N::Key, N::Value>> {
        let (name, handled_as) = (table.name(), catalog::types_of::<N>());
        let types = options.types.unwrap_or_else(|| handled_as.clone());
        if types != handled_as && handled_as != catalog::types_of::<&str>() {
            return Err(Error::TableTypes { name: name.to_owned(), stored: types, wanted: handled_as });
        }
        catalog::check(name, &types)?;
        let changing = self.changing();
        self.look_up(name)?.map_or(Ok(()), |_| Err(Error::TableExists { name: name.to_owned() }))?;
        // It may wait here for others that have precedence, so nothing has been made yet.
        self.writing()?;
        let root = match self.root_taken_back(None) {
            Some(root) => root,
            None => catalog::create_doomed(self.open.inner.pool())?,
        };
        let record = TableRecord { root, types, is_plain: !options.versions, is_heap: false };
        Ok(Table::new(self.create_while(&changing, name, &record)?))
    }

    /// Creates the table or heap with this record. Its tree has been made, and is doomed.
    pub(crate) fn create_of(&self, name: &str, record: &TableRecord) -> Result<Handle> {
        self.create_while(&self.changing(), name, record)
    }

    /// As [`create_of`](Self::create_of). The caller holds the lock of the tables.
    fn create_while(
        &self,
        changing: &MutexGuard<'_, Vec<Writing>>,
        name: &str,
        record: &TableRecord,
    ) -> Result<Handle> {
        let root = record.root;
        let open = Arc::new(OpenTable::new(name, record, &self.open.inner.writers));
        let last_commit = self.open.inner.durable.last_commit();
        open.add_generation(root, last_commit);
        lock(&self.open.inner.created_after).insert(root, last_commit);
        self.own(changing, (name, &open), root, Fate::Created)?;
        self.open.inner.lock().insert(root, Arc::downgrade(&open));
        let is_new = self.change_catalog(changing, name, |catalog| {
            catalog.remove(&catalog::doomed_key(record.root))?;
            catalog.insert(name.as_bytes(), &record.encode())
        })?;
        if !is_new {
            // An entry that the snapshot does not see causes a conflict above, so this is not reached.
            return Err(self.die(conflict(name, true)));
        }
        Ok(Handle::new(self.open.inner.clone(), open))
    }

    /// Opens a table that this transaction sees: one that it has created, or that existed when it began. See
    /// [`Database::table`](Database::table).
    ///
    /// # Errors
    /// As for `Database::table`.
    pub fn table<N: NamesTable>(&self, table: N) -> Result<Table<N::Key, N::Value>> {
        let name = table.name();
        let inner = &self.open.inner;
        let mut open = inner.lock();
        let record = self.look_up(name)?.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        record.expect(name, catalog::types_of::<N>())?;
        let handle = Handle::of(inner, &mut open, name, &record);
        // If the snapshot was ended meanwhile, the table may be gone.
        self.check()?;
        Ok(Table::new(handle))
    }

    /// Drops a table with all its contents, including records that were stored after this transaction began. Others see
    /// that once it is committed; transactions that began before that still see the table. Handles on the table are of
    /// no use afterwards: they show what it held, and changes are refused ([`Error::NoSuchTable`]). Its space is freed when no such transaction or
    /// handle is left: that of a large table in the background, and what is left of that when the database is closed,
    /// after the next opening.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Conflict`] if another open transaction has changed records of the table, or
    /// another transaction has renamed or dropped it. If a transaction that has changed records of the table has
    /// ended and cannot be rolled back, the error says why.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let changing = self.changing();
        let existing = self.existing(&changing, name)?;
        existing.0.expect_table(name)?;
        self.drop_existing(&changing, name, existing)
    }

    /// Drops the heap with this root, which has no pages left.
    pub(crate) fn drop_empty_heap(&self, name: &str, root: PageId) -> Result<()> {
        let changing = self.changing();
        let existing = self.existing(&changing, name)?;
        if existing.0.root != root {
            return Err(self.die(conflict(name, true)));
        }
        self.drop_existing(&changing, name, existing)
    }

    fn drop_existing(
        &self,
        changing: &MutexGuard<'_, Vec<Writing>>,
        name: &str,
        (record, open): (TableRecord, Arc<OpenTable>),
    ) -> Result<()> {
        self.own(changing, (name, &open), record.root, Fate::Dropped)?;
        let is_done = self.change_catalog(changing, name, |catalog| {
            Ok(catalog.remove(name.as_bytes())?
                && catalog.insert(&catalog::doomed_key(record.root), &record.encode())?)
        })?;
        self.expect_unchanged(name, is_done)
    }

    /// Makes sure that the catalog's records were as this transaction has seen them. Another transaction that has
    /// changed them causes a conflict before.
    fn expect_unchanged(&self, name: &str, is_unchanged: bool) -> Result<()> {
        if is_unchanged { Ok(()) } else { Err(self.die(conflict(name, true))) }
    }

    /// Removes all entries of a table at once, including those that were stored after this transaction began; the time
    /// this takes does not depend on their number. Others see that once this transaction is committed; transactions
    /// that began before that still see what the table held. Handles on it stay valid. A cursor or an iterator that was
    /// begun before, and belongs to no transaction, goes over to the new contents at its next leaf, to the place where it is.
    /// A bulk loader that was begun before, and belongs to no transaction, is refused when it is finished.
    ///
    /// The space is freed when no older snapshot is open, that of a large table in the background, as by
    /// [`drop_table`](Self::drop_table). A feed of changes reports the table as dropped and created.
    ///
    /// If the file is full, so that there is no page for a new tree, the entries are removed one by one, as by
    /// [`remove_range`](Self::remove_range), unless the table is plain.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table("stock")?;
    /// stock.put("apples", "5")?;
    /// let transaction = database.begin()?;
    /// transaction.clear_table("stock")?;
    /// transaction.put(&stock, "pears", "7")?;
    /// assert_eq!(stock.first()?.unwrap().0, b"apples");
    /// transaction.commit()?;
    /// assert_eq!(stock.first()?.unwrap().0, b"pears");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Conflict`] if another open transaction has changed records of the table, or
    /// another transaction has cleared, renamed or dropped it. If a transaction that has changed records of the
    /// table has ended and cannot be rolled back, the error says why.
    pub fn clear_table(&self, name: &str) -> Result<()> {
        let changing = self.changing();
        let (old, open) = self.existing(&changing, name)?;
        old.expect_table(name)?;
        match self.new_tree(&open) {
            Ok(new) => self.replace_tree(&changing, (name, &old), new),
            // A new tree takes a page, and tables are cleared to get room. Removing the records takes no page.
            Err(error) if error.kind() == ErrorKind::OutOfSpace && !old.is_plain => {
                drop(changing);
                let table = Handle::new(self.open.inner.clone(), open);
                let before = self.savepoint();
                let removed = self.remove_bounds(&table, &(Bound::Unbounded, Bound::Unbounded));
                let is_full = |other: &Error| other.kind() == ErrorKind::OutOfSpace;
                removed.map(drop).or_else(|other| {
                    self.go_back(&self.changing(), before)?;
                    // The log of that may find no room either, on a full disk.
                    Err(if is_full(&other) { error } else { other })
                })
            }
            Err(error) => Err(error),
        }
    }

    /// A new tree for a table that this transaction is about to clear or to load.
    pub(crate) fn new_tree(&self, open: &Arc<OpenTable>) -> Result<NewTree> {
        let inner = &self.open.inner;
        // A covered snapshot is shown the leaf that it had.
        let empty = (!self.open.transaction.is_covered()).then(|| inner.take_empty(open)).flatten();
        match empty.or_else(|| self.root_taken_back(Some(open))) {
            Some(root) => Ok(NewTree::of(inner, open, root)),
            None => NewTree::create(inner, open),
        }
    }

    /// The root of an empty tree that this transaction has made and taken back, for a table, which is new if it is not
    /// given.
    fn root_taken_back(&self, table: Option<&Arc<OpenTable>>) -> Option<PageId> {
        // A covered snapshot is shown the leaf that it had, and not what becomes of it.
        if self.open.transaction.is_covered() {
            return None;
        }
        let mut owned = lock(&self.open.owned);
        let root = owned.take_root()?;
        if let Some(table) = table {
            owned.hold(table.clone());
        }
        Some(root)
    }

    /// Replaces the tree in a table's record by another one.
    ///
    /// # Errors
    /// As for [`clear_table`](Self::clear_table).
    pub(crate) fn replace_tree(
        &self,
        changing: &MutexGuard<'_, Vec<Writing>>,
        (name, old): (&str, &TableRecord),
        tree: NewTree,
    ) -> Result<()> {
        let (open, new) = (&tree.open, tree.root);
        open.add_generation(new, self.open.inner.durable.last_commit());
        self.open.inner.lock().insert(new, Arc::downgrade(open));
        let record = TableRecord { root: new, ..old.clone() };
        self.own(changing, (name, open), old.root, Fate::Replaced { old: old.root, new })?;
        // From now on the fate of the tree depends on this transaction.
        tree.keep();
        let is_done = self.change_catalog(changing, name, |catalog| {
            catalog.remove(&catalog::doomed_key(new))?;
            Ok(catalog.insert(&catalog::doomed_key(old.root), &old.encode())?
                && catalog.update(name.as_bytes(), &record.encode())?)
        })?;
        self.expect_unchanged(name, is_done)
    }

    /// Renames a table. Handles on it stay valid.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TableExists`]; [`Error::Conflict`] if another transaction has created, renamed
    /// or dropped a table of either name.
    pub fn rename_table(&self, name: &str, new_name: &str) -> Result<()> {
        let changing = self.changing();
        let (record, _open) = self.existing(&changing, name)?;
        catalog::check(new_name, &record.types)?;
        if self.look_up(new_name)?.is_some() {
            return Err(Error::TableExists { name: new_name.to_owned() });
        }
        let was_there = self.change_catalog(&changing, name, |catalog| catalog.remove(name.as_bytes()))?;
        self.expect_unchanged(name, was_there)?;
        let is_new = self.change_catalog(&changing, new_name, |catalog| {
            catalog.insert(new_name.as_bytes(), &record.encode())
        })?;
        self.expect_unchanged(new_name, is_new)
    }

    /// The tables that this transaction sees, in the order of their names' bytes.
    ///
    /// # Errors
    /// If the catalog cannot be read.
    pub fn tables(&self) -> Result<Vec<TableInformation>> {
        let tables = self.records()?.into_iter().filter(|(_, record)| !record.is_heap);
        Ok(tables.map(TableInformation::from).collect())
    }

    /// The records of all tables that this transaction sees, with their names.
    pub(crate) fn records(&self) -> Result<Vec<(String, TableRecord)>> {
        let catalog = self.catalog()?;
        self.open.transaction.note_range(
            catalog.root(),
            Edge::lower(std::ops::Bound::Unbounded),
            Edge::upper(std::ops::Bound::Excluded(&catalog::DOOMED[..])),
        );
        catalog::list(catalog)
    }

    /// A table that is to be cleared, dropped or renamed. The caller holds the lock of the tables: another thread
    /// that shares this transaction does none of these meanwhile.
    fn existing(
        &self,
        _changing: &MutexGuard<'_, Vec<Writing>>,
        name: &str,
    ) -> Result<(TableRecord, Arc<OpenTable>)> {
        let inner = &self.open.inner;
        let mut open = inner.lock();
        let record = self.look_up(name)?.ok_or_else(|| Error::NoSuchTable { name: name.to_owned() })?;
        let handle = Handle::of(inner, &mut open, name, &record);
        self.check()?;
        Ok((record, handle.open.clone()))
    }

    /// Makes this transaction the owner of a table that it is about to create, load, clear or drop, and of which it
    /// sees this tree. The caller holds the lock of the tables because a transaction makes one change at a time.
    pub(crate) fn own(
        &self,
        _changing: &MutexGuard<'_, Vec<Writing>>,
        (name, table): (&str, &Arc<OpenTable>),
        seen: PageId,
        fate: Fate,
    ) -> Result<()> {
        let replaces = matches!(fate, Fate::Replaced { .. });
        // It may wait here for others that have precedence, so it does not own the table yet. A table that it
        // creates is in nobody's way. A load changes no record for a long time: until then it should not look like a
        // transaction that does, because readers would look for its changes.
        if replaces || fate == Fate::Dropped {
            self.writing()?;
        }
        let begin = || table.begin_owning(self.id(), (seen, replaces));
        let begun = begin().or_else(|_| self.open.inner.try_again(table, begin));
        with_name(begun, || name.to_owned()).map_err(|error| match error {
            // This transaction saw the table, so it was dropped since.
            Error::NoSuchTable { .. } => self.die(conflict(name, true)),
            error => self.die(error),
        })?;
        lock(&self.open.owned).add(self.open.transaction.savepoint(), table.clone(), fate);
        Ok(())
    }

    /// Changes records of the catalog. The caller holds the lock of the tables because a transaction makes one change
    /// at a time.
    fn change_catalog<T>(
        &self,
        _changing: &MutexGuard<'_, Vec<Writing>>,
        name: &str,
        change: impl FnOnce(Tree<'_, Pool>) -> Result<T, AccessError>,
    ) -> Result<T> {
        self.check()?;
        let catalog = catalog::tree(self.open.inner.pool());
        change(catalog.with_view(self.writing()?)).map_err(|error| {
            self.die(match error {
                AccessError::Conflict { committed, .. } => conflict(name, committed),
                error => error.into(),
            })
        })
    }
}
