//! Bugs that the crash tests plant in a pool with a log, one at a time, to show that they would find them.

/// What is done wrong.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// A page counts as clean after a copy of it was written, though it has changed since.
    CleanThoughChanged,
    /// The evictor writes and evicts pages whose copies are on their way.
    CopyForgotten,
    /// Space is reused while a copy of its old contents is on its way.
    ReusedUnderCopy,
    /// Space is reused before the record that frees it is durable.
    NoQuarantine,
    /// The map of a checkpoint includes the events of records after its place.
    EventsBeyondRedo,
    /// A checkpoint ends before the records that free what it has not written are durable.
    FreesNotDurable,
    /// A page is written before the record of its last change is durable.
    PageBeforeLog,
    /// A checkpoint's place is published before what it wrote is durable.
    MapNotSynced,
    /// A write error of a checkpoint is swallowed.
    SwallowedWriteError,
    /// The place of a map is free although a superblock may name it.
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
