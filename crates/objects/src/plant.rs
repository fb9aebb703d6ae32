//! Bugs that the tests of crashes plant in a heap, one at a time, to show that they would find them.

use vellum_base::plant::is_planted;

/// What is done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// What was read of an object counts though its page has changed meanwhile.
    ReadNotValidated,
    /// A change overwrites a page though that has changed since it was read.
    LostUpdate,
    /// What a change has read, and does not write, may have changed when it ends.
    ReadsNotCompared,
    /// What a change has read is compared before it latches what it writes.
    ReadsComparedTooEarly,
    /// An object that takes the place of a deleted one has the same generation.
    GenerationStays,
}

/// Whether this one is planted.
#[inline(always)]
pub(crate) fn planted(bug: Plant) -> bool {
    is_planted("objects", bug)
}
