//! Isolation levels of transactions.

/// How transactions are isolated from each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum IsolationLevel {
    /// A transaction sees the database as it was when it began. If two transactions change the same record, one fails.
    /// Two transactions that each read what the other changes, and change different records, can both be committed
    /// (*write skew*).
    #[default]
    Snapshot,
    /// As if transactions ran one after the other, in the order in which they are committed.
    ///
    /// A transaction remembers which keys it has looked up, whether they were there or not, and which ranges it has
    /// walked. [`commit`](crate::Transaction::commit) tests these against what was committed since it began, and fails
    /// with [`Error::Conflict`](crate::Error::Conflict) if any of them was changed, inserted or removed. Other records
    /// never matter, even on the same page.
    ///
    /// A transaction that has changed nothing is never refused: it counts as having happened when it began. For that,
    /// and for the guarantee as a whole, *all* transactions that change something need this level, because the reads of
    /// the others are not tested; see [`Options::isolation`](crate::Options::isolation). Operations outside of
    /// transactions need nothing, because each stands alone, except
    /// [`Table::remove_range`](crate::Table::remove_range): it is a transaction, and has this level if the options of the
    /// database say so.
    Serializable,
}
