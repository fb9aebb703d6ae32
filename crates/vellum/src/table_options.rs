//! How a table is created.

/// How a table is created: see [`Database::create_table_with`](crate::Database::create_table_with).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOptions {
    pub(crate) versions: bool,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { versions: true }
    }
}

impl TableOptions {
    /// Whether earlier versions of the table's records are kept for transactions that may see them. Default true.
    ///
    /// A table without is *plain*: operations on it are atomic, each by itself, logged and durable like all others, and cost the
    /// same whatever transactions are open beside them, for they know nothing of these. So transactions cannot use it: that is
    /// [`Error::PlainTable`](crate::Error::PlainTable). They create, rename and drop it like any other. A table is and remains
    /// what it was created as.
    ///
    /// ```
    /// use vellum::{Error, TableOptions};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let hits = database.create_table_with("hits", TableOptions::default().versions(false))?;
    /// let transaction = database.begin()?;
    /// hits.put("page", "1")?;
    /// assert!(matches!(transaction.get(&hits, "page"), Err(Error::PlainTable { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn versions(mut self, versions: bool) -> Self {
        self.versions = versions;
        self
    }
}
