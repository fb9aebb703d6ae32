//! Options for creating a table.

/// Options for creating a table: see [`Database::create_table_with`](crate::Database::create_table_with).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableOptions {
    pub(crate) versions: bool,
    /// The types of its keys and values, if they differ from those of its name.
    pub(crate) types: Option<(String, String)>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { versions: true, types: None }
    }
}

impl TableOptions {
    /// Whether earlier versions of the table's records are kept for transactions that may see them. Default true.
    ///
    /// A table without versions is *plain*: operations on it are atomic one by one, logged and durable like all others,
    /// and cost the same whatever transactions are open, because they take no notice of transactions. Therefore
    /// transactions cannot read or change a plain table: that is [`Error::PlainTable`](crate::Error::PlainTable). They
    /// create, rename and drop it like any other, and load what they have created. This option cannot be changed after creation.
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

    /// The names of the types of keys and values ([`KeyType::type_name`](crate::KeyType::type_name)), for a program
    /// that does not know the types themselves: one that copies tables or follows changes. Such a program names the
    /// table by a string alone, gets a handle of bytes, and stores the encodings that it has; programs that know the
    /// types open the table with them.
    ///
    /// ```
    /// use vellum::{TableName, TableOptions};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
    /// let squares = TableName::<u32, u64>::new("squares");
    /// database.create_table(squares)?.put(3, 9)?;
    /// // Another database gets a copy of all tables, whatever they are.
    /// let other = vellum::Database::create(directory.path().join("other"), &vellum::Options::default())?;
    /// for table in database.tables()? {
    ///     let options = TableOptions::default().versions(!table.is_plain).types(&table.key_type, &table.value_type);
    ///     let copy = other.create_table_with(&table.name[..], options)?;
    ///     for entry in database.table_as_bytes(&table.name)?.range(..)? {
    ///         let (key, value) = entry?;
    ///         copy.put(key, value)?;
    ///     }
    /// }
    /// assert_eq!(other.table(squares)?.get(3)?, Some(9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn types(mut self, key_type: impl Into<String>, value_type: impl Into<String>) -> Self {
        self.types = Some((key_type.into(), value_type.into()));
        self
    }
}
