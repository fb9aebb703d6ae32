//! Bugs that the tests of crashes plant in a pool with a log, one at a time, to show that they would find them.

/// What is done wrongly.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// A page is clean when a copy of it was written, though it was changed since.
    CleanThoughChanged,
    /// The evictor writes and evicts pages of which a copy is on its way.
    CopyForgotten,
    /// Space is reused while a copy of what it held is on its way.
    ReusedUnderCopy,
    /// Space is reused before the record that frees it is durable.
    NoQuarantine,
    /// The map of a checkpoint has what the records behind its place say.
    EventsBeyondRedo,
    /// A checkpoint ends before the records are durable that free what it has not written.
    FreesNotDurable,
    /// A page is written before the record of its last change is durable.
    PageBeforeLog,
    /// A checkpoint's place is named before what it wrote is durable.
    MapNotSynced,
    /// An error of a checkpoint's write is swallowed.
    SwallowedWriteError,
    /// The place of a map is free though a superblock may name it.
    NamedMapFreed,
    /// A record refers to the nodes of a bulk load before they are durable. The tests of whole databases find it.
    LoadNotDurable,
    /// A page is read without having been redone. The tests of whole databases find it.
    ReadNotRedone,
}

#[cfg(test)]
impl Plant {
    pub(crate) const ALL: [Self; 10] = [
        Self::CleanThoughChanged,
        Self::CopyForgotten,
        Self::ReusedUnderCopy,
        Self::NoQuarantine,
        Self::EventsBeyondRedo,
        Self::FreesNotDurable,
        Self::PageBeforeLog,
        Self::MapNotSynced,
        Self::SwallowedWriteError,
        Self::NamedMapFreed,
    ];
}
