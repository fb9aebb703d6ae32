//! Bugs that the tests of whole databases plant here, one at a time, to show that they would find them.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A record is redone twice.
    RedoTwice,
    /// The first records of a group count though its last one is not there.
    GroupWithoutEnd,
    /// A checkpoint gives up the log that undoing open transactions needs.
    CutTooEarly,
    /// After a crash, uncommitted changes are not undone.
    LosersNotUndone,
    /// The last transaction to be undone after a crash is not undone.
    LoserForgotten,
    /// Pages are not logged whole, so those that a crash tears are not mended.
    NoImages,
    /// Records of a page's earlier life are redone in its present one.
    EarlierLifeRedone,
    /// A checkpoint is taken while there are pages left to redo.
    CheckpointBeforeRedo,
    /// Others see what open transactions have changed.
    UncommittedRead,
    /// Restoring goes one commit past its target.
    BeyondTarget,
    /// Restoring forgets contents that lie before the redo point of its backup.
    EarlyContentsForgotten,
    /// Restoring writes such contents also where something else has been since.
    EarlyContentsAnywhere,
    /// A transaction is undone as far back as its savepoint only.
    HalfRollback,
    /// Versions that went to a file are dropped though a snapshot needs them.
    SpilledDroppedEarly,
    /// Versions that went to a file do not say that their records were removed.
    SpilledRemovalForgotten,
    /// A change of a record is not noted for covered snapshots, so their transactions change the record as well.
    CoveredChangeForgotten,
    /// Once a snapshot had nothing to look for in the file, later snapshots do not look there, though more has gone
    /// there since.
    SpilledOverlooked,
    /// A feed reports changes before their transaction is committed.
    ToldUncommitted,
    /// A feed reports commits that are not durable.
    ToldNotDurable,
    /// A feed does not know that changes were taken back by a savepoint.
    ToldTakenBack,
    /// A feed goes on at a place that only another history of the database has told.
    OtherHistoryFollowed,
    /// Restoring takes what another history of the database has archived.
    OtherHistoryRestored,
    /// The changes of a transaction that is alone are entered among the versions shortly before another snapshot is
    /// taken; in between, the next such transaction may begin.
    PublishedTooEarly,
    /// A transaction whose snapshot is covered keeps its changes private like one that is alone.
    PrivateThoughCovered,
    /// A version counts as dead as soon as it is committed, though a snapshot needs it.
    DeadTooEarly,
    /// The filter of an undo buffer lacks what its transaction has changed.
    BufferOverlooked,
    /// An undo buffer is no longer searched once its transaction is committed, though a snapshot needs it.
    BufferForgottenEarly,
    /// What is entered in the table of versions, so that undo buffers need no longer be searched for it, is not looked up.
    EnteredOverlooked,
    /// What an undo buffer has is not noted for covered snapshots when it is no longer searched.
    BufferNotNoted,
}

/// Whether this bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    vellum_base::plant::is_planted("txn", bug)
}
