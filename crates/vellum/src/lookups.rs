//! Lookups of a sequence of keys, with the reads for later keys already under way.

use crate::{
    AsKey, KeyType, Result, Table, Transaction, ValueType, encoding::KeyBuffer, handle::Handle, nested,
};
use std::marker::PhantomData;
use vellum_access::{NumberedRoot, Tree};
use vellum_base::PageId;
use vellum_pool::Pool;

/// The keys of an iterator, in their order, each with its value. Made by [`Table::lookups`] and
/// [`Transaction::lookups`].
pub struct Lookups<'t, K: KeyType + ?Sized, V: ValueType + ?Sized, I: Iterator<Item: AsKey<K>>> {
    handle: &'t Handle,
    /// The tree in which lookups outside of transactions begin.
    seen: NumberedRoot,
    /// How many have begun in trees that it has replaced. They come first.
    former: usize,
    /// The transaction that reads, if any, and the tree that it saw last.
    reader: Option<(&'t Transaction, Tree<'t, Pool>)>,
    /// The roots of other trees in which it has begun lookups: it has cleared or loaded the table since.
    earlier: Vec<PageId>,
    lookups: vellum_access::Lookups<'t, Pool, EncodedKeys<K, I>>,
    values: PhantomData<fn() -> Box<V>>,
}

/// The keys and their encodings.
struct EncodedKeys<K: ?Sized, I> {
    keys: I,
    kind: PhantomData<fn() -> Box<K>>,
}

/// A key and its encoding.
struct Encoded<Q> {
    key: Q,
    bytes: KeyBuffer,
}

impl<Q> AsRef<[u8]> for Encoded<Q> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<K: KeyType + ?Sized, I: Iterator<Item: AsKey<K>>> Iterator for EncodedKeys<K, I> {
    type Item = Encoded<I::Item>;

    fn next(&mut self) -> Option<Self::Item> {
        self.keys.next().map(|key| Encoded { bytes: KeyBuffer::of::<K>(&key), key })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.keys.size_hint()
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> Table<K, V> {
    /// The values of the keys of an iterator, in their order, each with its key.
    ///
    /// Keys are taken from the iterator in advance, as many as can overlap: in memory a few dozen, beyond memory twice
    /// as many as [`Options::read_depth`](crate::Options::read_depth). So the device is kept busy from the first key to
    /// the last, whereas each call of [`multi_get`](Self::multi_get) waits for its slowest read; and only these keys
    /// and values are held in memory.
    ///
    /// Each value is the one that the key had at some moment between the time when its key was taken and now. What this
    /// thread writes to the table meanwhile may or may not be seen.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// # let table = database.create_table("t")?;
    /// table.put("lime", "green")?;
    /// for (fruit, colour) in table.lookups(["pear", "lime"]) {
    ///     println!("{fruit}: {:?}", colour?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Each lookup has its own error: as for [`get`](Self::get).
    pub fn lookups<I: IntoIterator<Item: AsKey<K>>>(&self, keys: I) -> Lookups<'_, K, V, I::IntoIter> {
        Lookups::new(&self.handle, None, keys.into_iter())
    }
}

impl Transaction {
    /// The values of the keys of an iterator, in their order, each with its key, as this transaction sees them. See
    /// [`Table::lookups`].
    ///
    /// What this transaction itself writes to the table meanwhile may or may not be seen. In a serializable transaction
    /// only keys whose values were returned count as read, not those that were taken in advance.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let stock = database.create_table(vellum::TableName::<str, u32>::new("stock"))?;
    /// stock.put("apples", 5)?;
    /// let sum = database.run(|transaction| {
    ///     let mut sum = 0;
    ///     for (_, count) in transaction.lookups(&stock, ["apples", "pears"])? {
    ///         sum += count?.unwrap_or(0);
    ///     }
    ///     Ok(sum)
    /// })?;
    /// assert_eq!(sum, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`get`](Self::get); also, each lookup has its own error.
    pub fn lookups<'t, K, V, I>(
        &'t self,
        table: &'t Table<K, V>,
        keys: I,
    ) -> Result<Lookups<'t, K, V, I::IntoIter>>
    where
        K: KeyType + ?Sized,
        V: ValueType + ?Sized,
        I: IntoIterator<Item: AsKey<K>>,
    {
        let seen = self.read_untracked(&table.handle);
        let seen = seen.map_err(|error| self.note_absence(&table.handle, error))?;
        Ok(Lookups::new(&table.handle, Some((self, seen)), keys.into_iter()))
    }
}

impl<'t, K: KeyType + ?Sized, V: ValueType + ?Sized, I: Iterator<Item: AsKey<K>>> Lookups<'t, K, V, I> {
    fn new(handle: &'t Handle, reader: Option<(&'t Transaction, Tree<'t, Pool>)>, keys: I) -> Self {
        let keys = EncodedKeys { keys, kind: PhantomData };
        let lookups = vellum_access::Lookups::new(handle.pool(), keys, handle.read_depth());
        let (_, seen) = handle.open.current();
        Self { handle, seen, former: 0, reader, earlier: Vec::new(), lookups, values: PhantomData }
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized, I: Iterator<Item: AsKey<K>>> Iterator
    for Lookups<'_, K, V, I>
{
    type Item = (I::Item, Result<Option<V::Owned>>);

    fn next(&mut self) -> Option<Self::Item> {
        let Self { handle, seen, former, reader, earlier, lookups, .. } = self;
        nested::check(handle.pool());
        let tree = match reader {
            None => {
                let tree = handle.tree();
                if tree.numbered_root() != *seen {
                    (*seen, *former) = (tree.numbered_root(), lookups.begun());
                }
                tree
            }
            Some((transaction, last)) => {
                // If the transaction is over, each key gets that error.
                if let Ok(tree) = transaction.read_untracked(handle) {
                    if tree.root() != last.root() {
                        earlier.push(last.root());
                    }
                    *last = tree;
                }
                *last
            }
        };
        lookups.next_with(tree, |Encoded { key, bytes }, value| {
            let noted = match reader {
                None => Ok(()),
                Some((transaction, _)) => {
                    earlier.iter().for_each(|root| transaction.note_keys(handle, *root, [&bytes]));
                    transaction.read_keys(handle, [&bytes]).map(drop)
                }
            };
            let value = noted.and_then(|()| match value.map_err(|error| handle.refused(error)) {
                // Its tree may have been replaced before it was read.
                Ok(_) if reader.is_none() && (*former > 0 || handle.was_replaced(*seen)) => {
                    handle.value_if_any::<V>(handle.get(bytes.as_ref())?)
                }
                Ok(value) => handle.value_if_any::<V>(value),
                // It is read past the pool, in the tree that is the current one then.
                Err(error) if error.is_about_room() && reader.is_none() => {
                    handle.value_if_any::<V>(handle.get(bytes.as_ref())?)
                }
                Err(error) if error.is_about_room() => {
                    handle.value_if_any::<V>(handle.read_whole(tree, bytes.as_ref())?)
                }
                Err(error) => Err(error),
            });
            *former = former.saturating_sub(1);
            (key, value)
        })
    }
}

impl<K, V, I> std::fmt::Debug for Lookups<'_, K, V, I>
where
    K: KeyType + ?Sized,
    V: ValueType + ?Sized,
    I: Iterator<Item: AsKey<K>>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookups").field("table", &self.handle.name).finish_non_exhaustive()
    }
}
