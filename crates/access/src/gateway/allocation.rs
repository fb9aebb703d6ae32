//! Allocation of new pages while nothing is latched.

use vellum_base::PageKind;
use vellum_pool::{Pager, PoolError};

/// Allocates an extent for a thread that holds no latch and no other new page: if there is no room, it is made.
pub(super) fn allocate<P: Pager>(
    pager: &P,
    pages: u32,
    kind: PageKind,
) -> Result<P::Allocated<'_>, PoolError> {
    loop {
        match pager.allocate(pages, kind) {
            Err(refused) => pager.resolve(refused.into())?,
            allocated => return allocated,
        }
    }
}
