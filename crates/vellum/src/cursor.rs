//! Cursors over a table.

use crate::{
    Result, Value,
    coverage::{Coverage, Step},
    nested,
    shown::shown_key,
};
use std::ops::ControlFlow;
use vellum_access::CursorPosition;
use vellum_pool::Pool;

/// Walks the entries of a range in both directions. See [`Table::cursor`](crate::Table::cursor).
///
/// A cursor stands *between* two entries: [`next`](Self::next) returns the entry after it and steps over it,
/// [`previous`](Self::previous) the entry before it. A new cursor stands at the beginning of its range.
///
/// It holds no latch except in [`scan`](Self::scan): others may change the table meanwhile. It reads entries in groups (a
/// few at first, later a few dozen). The entries of a group belong to one moment, different groups to different moments; an entry that exists all
/// the while is shown exactly once. Other transactions may be committed between two entries of a group. A cursor of a
/// [`Transaction`](crate::Transaction) shows one moment throughout; what the transaction itself changes meanwhile may be
/// shown or not.
pub struct Cursor<'t> {
    pub(crate) cursor: vellum_access::Cursor<'t, Pool>,
    pub(crate) pool: &'t Pool,
    /// The stretches it has read, if its transaction is serializable.
    pub(crate) coverage: Option<Box<Coverage<'t>>>,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(cursor: vellum_access::Cursor<'t, Pool>, pool: &'t Pool) -> Self {
        Self { cursor, pool, coverage: None }
    }

    /// Steps over the next entry and returns it; `None` at the end of the range.
    ///
    /// # Errors
    /// If a page cannot be read or is damaged.
    // Inlined, like `previous`: an entry is five words, and copying them through memory causes a delay.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "the entry borrows from the cursor")]
    pub fn next(&mut self) -> Result<Option<Entry<'_, 't>>> {
        nested::check(self.pool);
        if let Some(coverage) = &mut self.coverage {
            coverage.step(Step::Forward, self.cursor.position());
        }
        Ok(self.cursor.next()?.map(|entry| Entry { entry, pool: self.pool }))
    }

    /// Steps back over the previous entry and returns it; `None` at the beginning of the range.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    #[inline(always)]
    pub fn previous(&mut self) -> Result<Option<Entry<'_, 't>>> {
        nested::check(self.pool);
        if let Some(coverage) = &mut self.coverage {
            coverage.step(Step::Backward, self.cursor.position());
        }
        Ok(self.cursor.previous()?.map(|entry| Entry { entry, pool: self.pool }))
    }

    /// Steps over the entries after the cursor and shows each to `visit`, until it breaks or the range ends; returns
    /// whether it broke, and with what. This is the fastest way to read many entries: small values are shown where they
    /// lie, and nothing is copied but keys. Small entries take 0.8 of the time of [`next`](Self::next), entries of some
    /// hundred bytes 0.95.
    ///
    /// The page of a small value is latched in shared mode while `visit` runs: other threads read it meanwhile, and wait to
    /// change it. So `visit` should be short, must not wait for another thread, and must not use the database except
    /// by [`Entry::value`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let table = database.create_table("table")?;
    /// for number in 0..100_u32 {
    ///     table.put(number.to_be_bytes(), vec![0; number as usize])?;
    /// }
    /// // The first key from 40 on with which the values have more than 1000 bytes.
    /// let mut bytes = 0;
    /// let found = table.cursor(40_u32.to_be_bytes()..)?.scan(|entry| {
    ///     bytes += entry.value_length();
    ///     if bytes > 1000 { ControlFlow::Break(entry.key().to_vec()) } else { ControlFlow::Continue(()) }
    /// })?;
    /// assert_eq!(found, ControlFlow::Break(60_u32.to_be_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    ///
    /// # Panics
    /// In debug builds, if `visit` uses the database in another way while it is shown a small value. In release builds it
    /// may wait for itself for ever if it changes the table.
    pub fn scan<B>(
        &mut self,
        mut visit: impl FnMut(Entry<'_, 't>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        nested::check(self.pool);
        if let Some(coverage) = &mut self.coverage {
            coverage.step(Step::Forward, self.cursor.position());
        }
        let pool = self.pool;
        Ok(self.cursor.scan(|entry| {
            let entry = Entry { entry, pool };
            match entry.inline_value() {
                Some(_) => nested::latched(pool, || visit(entry)),
                None => visit(entry),
            }
        })?)
    }

    /// Prepares a step that need not wait. If that is impossible, returns a key whose lookup reads what the step would
    /// wait for.
    pub(crate) fn prepare(&mut self, step: Step) -> Result<Option<Vec<u8>>> {
        nested::check(self.pool);
        let cursor = &mut self.cursor;
        Ok(match step {
            Step::Forward => (!cursor.prepare_next()?).then(|| cursor.key_ahead()),
            Step::Backward => (!cursor.prepare_previous()?).then(|| cursor.key_behind()),
        })
    }

    pub(crate) fn position(&self) -> CursorPosition<'_> {
        self.cursor.position()
    }

    /// How many entries are left after the cursor.
    pub(crate) fn count(mut self) -> Result<u64> {
        let mut count = 0;
        let _ = self.scan(|_| {
            count += 1;
            ControlFlow::<()>::Continue(())
        })?;
        Ok(count)
    }

    /// Goes to the beginning of the range.
    pub fn seek_to_start(&mut self) {
        self.put(vellum_access::Cursor::seek_to_start);
    }

    /// Announces that at most `entries` more entries will be asked for. If that is at most 1024, the pages of the range
    /// that are not in memory are read in parallel, and none that lies beyond them. More entries may still be asked
    /// for. [`Entries::limit`](crate::Entries::limit) does the same for iterators.
    pub fn expect(&mut self, entries: usize) {
        self.cursor.expect(entries);
    }

    /// Goes to the end of the range, to walk backwards.
    pub fn seek_to_end(&mut self) {
        self.put(vellum_access::Cursor::seek_to_end);
    }

    /// Goes to just before `key`, whether or not the key is there.
    ///
    /// # Errors
    /// If the key is too long.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.put(|cursor| cursor.seek(key.as_ref()))?)
    }

    fn put<T>(&mut self, put: impl FnOnce(&mut vellum_access::Cursor<'t, Pool>) -> T) -> T {
        if let Some(coverage) = &mut self.coverage {
            coverage.leave(self.cursor.position());
        }
        let result = put(&mut self.cursor);
        if let Some(coverage) = &mut self.coverage {
            coverage.arrive(self.cursor.position());
        }
        result
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        if let Some(coverage) = &mut self.coverage {
            coverage.end(self.cursor.position());
        }
    }
}

/// An entry of a table, valid until the cursor moves.
pub struct Entry<'c, 't> {
    entry: vellum_access::Entry<'c, 't, Pool>,
    pool: &'t Pool,
}

impl<'c, 't> Entry<'c, 't> {
    /// The key.
    pub fn key(&self) -> &'c [u8] {
        self.entry.key()
    }

    /// The length of the value in bytes, known without reading it.
    pub fn value_length(&self) -> u64 {
        self.entry.value_length()
    }

    /// The value, if it is small (up to 1 KiB), which the cursor already has.
    pub fn inline_value(&self) -> Option<&'c [u8]> {
        self.entry.inline_value()
    }

    /// The value. A large value is looked up again, and is the present value of the key; `None` if the key was removed
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`Table::value`](crate::Table::value).
    pub fn value(&self) -> Result<Option<Value<'t>>> {
        if self.inline_value().is_none() {
            nested::check(self.pool);
        }
        Ok(self.entry.value()?.map(Value))
    }
}

impl std::fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cursor")
    }
}

impl std::fmt::Debug for Entry<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "entry \"{}\" of {} bytes", shown_key(self.key()), self.value_length())
    }
}
