//! Bugs that the tests of histories plant in a database, one at a time, to show that the tests detect them.

/// The planted bugs.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// What a serializable transaction has read is not tested.
    NothingTested,
    /// A requested range is noted as the keys that it returned.
    RangeAsItsKeys,
    /// A range that a cursor has exhausted is noted up to the last key.
    RangeToItsLastKey,
    /// The places where a cursor turns are not noted.
    TurnsForgotten,
    /// Only keys that were found are noted, not absent ones.
    AbsentKeysForgotten,
    /// The read implied by a change that changed nothing is not noted.
    UnchangedForgotten,
    /// A transaction can be committed after a conflict. The tests of crashes find it.
    CommitAfterConflict,
    /// A transaction whose snapshot was covered uses the tables that were made later. The tests of crashes find it.
    LaterTreeUsed,
    /// A load in a transaction does not check whether another transaction has stored something in the table.
    LoadedOverOthers,
    /// A table whose drop was taken back still belongs to the transaction that has dropped it. The tests of crashes find it.
    DropNotTakenBack,
    /// A transaction clears or drops a table of which another one has changed records. The tests of crashes find it.
    WritersOverlooked,
    /// A plain table is changed though a transaction has cleared or dropped it. The tests of crashes find it.
    OwnerOverlooked,
}

#[cfg(all(test, not(shuttle)))]
impl Plant {
    pub(crate) const ALL: [Self; 6] = [
        Self::NothingTested,
        Self::RangeAsItsKeys,
        Self::RangeToItsLastKey,
        Self::TurnsForgotten,
        Self::AbsentKeysForgotten,
        Self::UnchangedForgotten,
    ];
}
