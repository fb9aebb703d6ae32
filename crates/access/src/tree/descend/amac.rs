//! Many operations as a queue of state machines (*AMAC*, asynchronous memory access chaining: Kocberber, Falsafi, Grot,
//! PVLDB 2015): the state machine of one descent.
//!
//! Unlike the operations of a group, each one is at a node of its own, may wait for a page to be read, and continues
//! from the parent when the page is there. A step touches only what an earlier step has fetched into the processor's
//! cache, and says what the next one will touch; the owner of the queue begins all fetches of a round together.

use super::{Approach, Descent, Fetch, Towards};
use vellum_base::PageId;
use vellum_pool::{Interrupt, Pager};

/// The progress of a descent. It holds no latch.
pub(in crate::tree) enum DescentState<'p, P: Pager + 'p> {
    /// The descent begins at the root.
    Start,
    /// The child that was chosen is being fetched.
    Following(Descent<'p, P>),
    /// The slots of the node that the search will read are being fetched.
    Searching(Descent<'p, P>),
}

impl<'p, P: Pager + 'p> DescentState<'p, P> {
    /// Takes the next step towards `key`, and adds to `fetches` what the step after that will read. Returns the leaf
    /// once it is reached, at every call. After a miss the caller repeats the step; after a conflict it starts again.
    #[inline]
    pub fn advance(
        &mut self,
        pager: &'p P,
        root: PageId,
        key: &[u8],
        fetches: &mut Vec<Fetch>,
    ) -> Result<Option<P::Optimistic<'p>>, Interrupt> {
        let mut descent = match self {
            Self::Start => Self::top(pager, root, key)?,
            Self::Searching(descent) => *descent,
            Self::Following(descent) => {
                let mut descent = *descent;
                descent.follow(pager, Approach::Fetched)?;
                fetches.push(descent.slots_for(key));
                *self = Self::Searching(descent);
                return Ok(None);
            }
        };
        if descent.level == 0 {
            *self = Self::Searching(descent);
            return Ok(Some(descent.node));
        }
        descent.choose(Towards::Key(key));
        fetches.push(descent.child_header());
        *self = Self::Following(descent);
        Ok(None)
    }

    /// The root or, if the root is neither a leaf nor a parent of leaves, the node below it: both are in the cache
    /// anyway, because every operation reads them.
    fn top(pager: &'p P, root: PageId, key: &[u8]) -> Result<Descent<'p, P>, Interrupt> {
        let mut descent = Descent::begin(pager, root)?;
        if descent.level >= 2 {
            descent.step(pager, Towards::Key(key), Approach::Direct)?;
        }
        Ok(descent)
    }
}
