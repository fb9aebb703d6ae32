//! Bugs that the tests of whole databases plant here, one at a time, to show that they would find them.

/// What is done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A record is redone twice.
    RedoTwice,
    /// The first records of a group count though its last one is not there.
    GroupWithoutEnd,
    /// A checkpoint gives up the log that undoing open transactions needs.
    CutTooEarly,
    /// What was not committed is not undone after a crash.
    LosersNotUndone,
    /// The transaction that is undone last after a crash is not undone.
    LoserForgotten,
    /// Pages are not logged whole, so those that a crash tears are not mended.
    NoImages,
    /// Records of a page's earlier life are redone in its present one.
    EarlierLifeRedone,
    /// A checkpoint is taken while pages are to be redone.
    CheckpointBeforeRedo,
    /// What open transactions have changed is seen by others.
    UncommittedRead,
    /// Restoring goes past its target by a commit.
    BeyondTarget,
    /// A transaction is undone as far as its savepoint only.
    HalfRollback,
    /// Versions that went to a file are dropped though a snapshot needs them.
    SpilledDroppedEarly,
    /// Versions that went to a file do not tell that their records were removed.
    SpilledRemovalForgotten,
    /// Who changes a record does not note it for snapshots that are covered, so their transactions change it as well.
    CoveredChangeForgotten,
    /// No snapshot looks into the file that began after one had nothing to look for there, though more has gone there since.
    SpilledOverlooked,
    /// A feed tells of changes before their transaction is committed.
    ToldUncommitted,
    /// A feed tells of commits that are not durable.
    ToldNotDurable,
    /// A feed does not know that changes were taken back by a savepoint.
    ToldTakenBack,
    /// The changes of a transaction that is alone are entered among the versions a moment before another snapshot is there, in which
    /// the next may begin.
    PublishedTooEarly,
    /// A transaction whose snapshot was covered keeps its changes to itself like one that is alone.
    PrivateThoughCovered,
    /// A version counts as dead as soon as it is committed, though a snapshot needs it.
    DeadTooEarly,
    /// The filter of an undo buffer does not have what its transaction has changed.
    BufferOverlooked,
    /// An undo buffer is searched no more once its transaction is committed, though a snapshot needs it.
    BufferForgottenEarly,
}

/// Whether this is done.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    vellum_base::plant::is_planted("txn", bug)
}
