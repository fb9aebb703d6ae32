//! Bugs that the tests of crashes plant in a heap, one at a time, to show that the tests detect them.

use vellum_base::plant::is_planted;

/// The planted bugs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// A read of an object is accepted although its page has changed meanwhile.
    ReadNotValidated,
    /// A change overwrites a page although that has changed since it was read.
    LostUpdate,
    /// Pages that a change has read but does not write may have changed when it ends.
    ReadsNotCompared,
    /// Pages that a change has read are compared before it latches the pages that it writes.
    ReadsComparedTooEarly,
    /// An object that takes the place of a deleted one has the same generation.
    GenerationStays,
}

/// Whether this one is planted.
#[inline(always)]
pub(crate) fn planted(bug: Plant) -> bool {
    is_planted("objects", bug)
}
