//! Bulk loads as part of a transaction.
//!
//! The entries become a separate tree, known only by the catalog's *doomed* record: see [`schema`](crate::schema). When
//! the load is finished, the table gets that tree, as it gets an empty one when it is cleared, so the tree is a new
//! generation of the table: see [`life`](crate::life). Everything else follows from that. Others see the new tree when
//! the transaction is committed. If the transaction is undone, also after a crash, the tree is doomed again and freed
//! as a whole. The nodes and large values are durable before the record that assigns them to the tree, and so before
//! the commit.
//!
//! The table must be empty and stay empty. Therefore the transaction takes ownership of the table when the load begins,
//! and then checks whether its tree contains anything, from any transaction. From then on no other transaction can
//! change the table, and that needs no look at its records.

use crate::{
    AsKey, AsValue, BulkLoader, BulkOptions, Error, KeyType, Result, Table, Transaction, ValueType,
    bulk::Part,
    catalog::{self, TableRecord},
    driver::lock,
    handle::Handle,
    life::{OpenTable, Writing, conflict, with_name},
    new_tree::NewTree,
    owned::Fate,
    plant::Plant,
};
use std::{
    cell::Cell,
    ops::Bound,
    sync::{Arc, atomic},
    time::Duration,
};
use vellum_access::{AccessError, BulkLoad, Tree, Writer};
use vellum_base::primitive::{Instant, thread};
use vellum_base::{PageId, plant::is_planted};
use vellum_pool::Pool;
use vellum_txn::Loading;

impl Transaction {
    /// Begins to load entries in key order into a table, which must be empty. [`BulkLoader::finish`] makes them part of
    /// this transaction: others see them when it is committed. See [`Table::bulk_loader`].
    ///
    /// From now on this transaction owns the table: others cannot change it before this transaction has ended. Until
    /// the load is finished, this transaction sees the table as empty, and must not store anything in it either.
    ///
    /// The entries themselves are not in the log. They are durable before the commit is, and their space is freed if
    /// the transaction is rolled back.
    ///
    /// ```
    /// use vellum::TableName;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// database.run(|transaction| {
    ///     let squares = transaction.create_table(TableName::<u32, u64>::new("squares"))?;
    ///     let mut loader = transaction.bulk_loader(&squares)?;
    ///     for number in 0..10_000_u32 {
    ///         loader.push(number, u64::from(number).pow(2))?;
    ///     }
    ///     loader.finish().map(drop)
    /// })?;
    /// assert_eq!(database.table(TableName::<u32, u64>::new("squares"))?.get(12)?, Some(144));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if the table holds entries; [`Error::Conflict`] if
    /// another open transaction has changed it, or another transaction has stored something in it since this one began,
    /// or has cleared, renamed or dropped it; [`Error::PlainTable`] if it keeps no versions and this transaction has not
    /// created it; [`Error::NoSuchTable`] if this transaction does not see it. Also if it cannot be read, or the database is
    /// open for reading only.
    pub fn bulk_loader<'t, K, V>(&'t self, table: &'t Table<K, V>) -> Result<BulkLoader<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        self.bulk_loader_with(table, &BulkOptions::default())
    }

    /// As [`bulk_loader`](Self::bulk_loader), with options.
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader).
    pub fn bulk_loader_with<'t, K, V>(
        &'t self,
        table: &'t Table<K, V>,
        options: &BulkOptions,
    ) -> Result<BulkLoader<'t, K, V>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let handle = &table.handle;
        let part = self.begin_load(handle)?;
        let load = Tree::open(handle.pool(), part.tree.root).bulk_load(options.fill_percent)?;
        let root = part.tree.root;
        Ok(BulkLoader::new(load, (handle, root), Some(Box::new(part))))
    }

    /// Loads entries in key order into a table, which must be empty, and returns their number. They are part of this
    /// transaction: see [`bulk_loader`](Self::bulk_loader). After an error the table is as it was.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let fruit = database.create_table("fruit")?;
    /// let transaction = database.begin()?;
    /// assert_eq!(transaction.bulk_load(&fruit, [("apple", "red"), ("pear", "green")])?, 2);
    /// assert!(fruit.first()?.is_none());
    /// transaction.commit()?;
    /// assert_eq!(fruit.get("pear")?.as_deref(), Some(&b"green"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`bulk_loader`](Self::bulk_loader), [`BulkLoader::push`] and [`BulkLoader::finish`].
    pub fn bulk_load<K, V, Q: AsKey<K>, W: AsValue<V>>(
        &self,
        table: &Table<K, V>,
        entries: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<u64>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
    {
        let mut loader = self.bulk_loader(table)?;
        for (key, value) in entries {
            loader.push(key, value)?;
        }
        loader.finish()
    }

    /// Takes ownership of an empty table for this transaction, and makes a tree for the entries to be loaded.
    fn begin_load(&self, table: &Handle) -> Result<TransactionPart<'_>> {
        let seen = self.root_to_load(table)?;
        // Noted as read if the transaction is serializable: the outcome depends on whether the table is empty.
        if !table.is_plain()
            && self.read_range(table, &(Bound::Unbounded, Bound::Unbounded))?.next()?.is_some()
        {
            return Err(AccessError::NotEmpty.into());
        }
        let (name, _) = self.record_of(table, seen)?;
        self.own(&self.changing(), (&name, &table.open), seen, Fate::Reserved)?;
        self.check_empty(table, seen)?;
        Ok(TransactionPart { transaction: self, tree: self.new_tree(&table.open)? })
    }

    /// The root of the tree of a table that this transaction may load. A plain table is none, unless this transaction
    /// has created it: nobody else uses it before the commit, so nobody misses the versions.
    fn root_to_load(&self, table: &Handle) -> Result<PageId> {
        let is_created_here = || lock(&self.open.owned).has_created(&table.open);
        if table.is_plain() && Arc::ptr_eq(&table.inner, &self.open.inner) && is_created_here() {
            let seen = table.seen_by(&self.open)?.map(|generation| generation.root);
            return seen.ok_or_else(|| Error::NoSuchTable { name: table.name.as_ref().to_owned() });
        }
        let tree = table.tree_of(&self.open).map_err(|error| self.note_absence(table, error))?;
        Ok(tree.root())
    }

    /// Makes the loaded tree the contents of the table.
    fn finish_load(&self, table: &Handle, tree: NewTree, load: BulkLoad<'_, Pool>) -> Result<u64> {
        // Held to the end: meanwhile nothing of this transaction can be rolled back to a savepoint, and so the tree
        // stays.
        let changing = self.changing();
        self.check()?;
        // The table may have been cleared or dropped in this transaction.
        let seen = self.root_to_load(table)?;
        let (name, record) = self.record_of(table, seen)?;
        // The transaction owns the table already, unless that was rolled back.
        self.own(&changing, (&name, &table.open), seen, Fate::Reserved)?;
        self.check_empty(table, seen)?;
        self.replace_tree(&changing, (&name, &record), tree)?;
        let Writer::Transaction(number) = self.writing()?.writer else { return Err(Error::Ended) };
        load.finish_in(number).map_err(|error| table.named(error))
    }

    /// Makes sure that a tree of a table that this transaction owns is empty.
    fn check_empty(&self, table: &Handle, root: PageId) -> Result<()> {
        if is_planted("vellum", Plant::LoadedOverOthers)
            || self.open.inner.is_planted(Plant::LoadedOverOthers)
        {
            return Ok(());
        }
        // The contents, whether committed or not. A single operation that was under way when the table was taken has
        // checked under the latch of its leaf whether a transaction is open. If it found none, it is done before this
        // transaction reads the leaf.
        let tree = Tree::open(self.open.inner.pool(), root);
        let mut cursor = tree.range(Bound::Unbounded, Bound::Unbounded)?;
        let Some(entry) = cursor.next()? else { return Ok(()) };
        let key = entry.key().to_vec();
        // Only this transaction can have loaded something in a plain table, which it has created.
        if table.is_plain() || self.read_untracked(table)?.value_length(&key)?.is_some() {
            return Err(AccessError::NotEmpty.into());
        }
        Err(self.die(Error::Conflict { table: table.name_now(), key, committed: true }))
    }

    /// The name and the record of a table of which this transaction sees the tree with this root.
    fn record_of(&self, table: &Handle, root: PageId) -> Result<(String, TableRecord)> {
        if let Some(record) = self.look_up(&table.name)?.filter(|record| record.root == root) {
            return Ok((table.name.as_ref().to_owned(), record));
        }
        // The table has been renamed since. Only the record that is found counts as read, and not those of other tables.
        let found = catalog::list(self.catalog()?)?.into_iter().find(|(_, record)| record.root == root);
        let found = found.ok_or_else(|| Error::NoSuchTable { name: table.name.as_ref().to_owned() })?;
        self.look_up(&found.0)?;
        Ok(found)
    }
}

/// A load as part of a transaction.
struct TransactionPart<'t> {
    transaction: &'t Transaction,
    tree: NewTree,
}

impl Part for TransactionPart<'_> {
    fn finish(self: Box<Self>, table: &Handle, load: BulkLoad<'_, Pool>) -> Result<u64> {
        self.transaction.finish_load(table, self.tree, load)
    }
}

impl Handle {
    /// Registers a load outside of transactions whose records, if there are any, are about to be put into the tree with this
    /// root.
    ///
    /// # Errors
    /// As for [`OpenTable::begin_owning`].
    pub(crate) fn begin_finishing(&self, root: PageId, is_empty: bool) -> Result<Finishing<'_>> {
        /// For how long it waits for operations that are in its way. What it has written would be in vain.
        const PATIENCE: Duration = Duration::from_millis(20);
        const PAUSE: Duration = Duration::from_micros(20);
        // No transaction has this number, and no other load.
        let number = u64::MAX - LOADS.fetch_add(1, atomic::Ordering::Relaxed);
        let (open, started) = (&*self.open, Instant::now());
        // The tree is empty, or is refused later. What a snapshot sees of it is among the versions, where nobody would look
        // behind pages that were written past the log.
        let is_seen = Cell::new(false);
        let begin = || {
            if open.is_plain {
                return open.begin_writing(None, root).map(Finishing::Beside);
            }
            open.begin_owning(number, (root, false))?;
            let owning = Owning(open);
            let durable = &self.inner.durable;
            is_seen.set(durable.is_any_kept(root)?);
            if is_seen.get() {
                return Err(conflict(&open.name, true));
            }
            let loading = (!is_empty).then(|| durable.begin_load(root));
            Ok(Finishing::Alone((loading, owning)))
        };
        loop {
            match begin().or_else(|_| self.inner.try_again(open, begin)) {
                // Single operations have snapshots, too, for a moment.
                Err(Error::Conflict { committed, .. })
                    if (!committed || is_seen.get()) && started.elapsed() < PATIENCE =>
                {
                    thread::sleep(PAUSE);
                }
                done => return with_name(done, || self.name_now()),
            }
        }
    }
}

/// How many loads outside of transactions have been finished.
static LOADS: atomic::AtomicU64 = atomic::AtomicU64::new(0);

/// A load outside of transactions whose records are being put into its tree.
pub(crate) enum Finishing<'t> {
    /// In a table without versions, which no transaction changes.
    Beside(#[expect(dead_code, reason = "it is dropped at the end")] Writing),
    /// Nothing else is changed in the table. What a transaction had removed or reserved would not be in the leaf that is
    /// replaced, and undoing it would replace what was loaded.
    Alone(
        #[expect(dead_code, reason = "they are dropped in this order at the end")]
        (Option<Loading<'t>>, Owning<'t>),
    ),
}

/// The table belongs to this load.
pub(crate) struct Owning<'t>(&'t OpenTable);

impl Drop for Owning<'_> {
    fn drop(&mut self) {
        self.0.end_owning(false, None);
    }
}
