//! Extents to which nothing refers for a while, so that a verification beside that does not take them for lost.

use vellum_pool::Pager;

/// As long as one exists, extents may be allocated to which nothing refers: not yet, or not any more. So they are not taken for
/// lost.
pub(crate) struct UnlinkedExtents<'p, P: Pager> {
    pager: &'p P,
    number: u64,
}

impl<'p, P: Pager> UnlinkedExtents<'p, P> {
    /// Begins, before the first one is allocated, or before something ceases to refer to the first one.
    pub fn begin(pager: &'p P) -> Self {
        Self { pager, number: pager.begin_unfinished() }
    }
}

impl<P: Pager> Drop for UnlinkedExtents<'_, P> {
    fn drop(&mut self) {
        self.pager.end_unfinished(self.number);
    }
}
