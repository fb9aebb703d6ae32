//! How transactions are kept apart from each other.

/// How transactions are kept apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum IsolationLevel {
    /// A transaction sees the database as it was when it began. Of two that change the same record, one fails. Two that read
    /// what the other changes, and change different records, are not kept apart (*write skew*).
    #[default]
    Snapshot,
    /// As if transactions happened one after the other, in the order in which they are committed.
    ///
    /// A transaction keeps which keys it has looked up, whether they were there or not, and which ranges it has walked.
    /// [`commit`](crate::Transaction::commit) tests these against what was committed since it began, and fails with
    /// [`Error::Conflict`](crate::Error::Conflict) if any of that was changed, inserted or removed. Other records never matter, be they on the same page.
    ///
    /// One that has changed nothing is never refused: it happens when it began. For that, and for the guarantee as a
    /// whole, *all* transactions that change something need this level, because what the others have read is not tested; see
    /// [`Options::isolation`](crate::Options::isolation). Operations outside of transactions need nothing, for each is by itself.
    Serializable,
}
