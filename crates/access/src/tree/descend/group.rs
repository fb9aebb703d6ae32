//! Many operations side by side, as long as all that they need is in memory (*group prefetching*: Chen, Ailamaki,
//! Gibbons, Mowry, ICDE 2004).
//!
//! They go down the tree level by level: all choose their children, then all children are fetched into the processor's
//! cache, then all follow. So their cache misses overlap, and nothing has to be kept about how far each has come. Where
//! one cannot go on (its page is not in memory, is latched, or has changed), the group ends.
//!
//! The fetches of a level stand together, one right after the other. A page that the processor has not looked at for
//! long has to be translated first, and an instruction that waits for that keeps those far behind it from beginning;
//! so the translations overlap.

use super::{
    Towards,
    step::{Approach, Descent},
};
use crate::tree::{Tree, check_key};
use vellum_pool::Pager;

/// How many operations go side by side. Enough that what one of them fetches has come when its next turn does;
/// few enough that it has not been pushed out of the innermost cache again.
pub(in crate::tree) const GROUP_SIZE: usize = 32;

impl<'p, P: Pager> Tree<'p, P> {
    /// Goes to the leaves that cover the keys of up to [`GROUP_SIZE`] items; what a search in them will touch is on its
    /// way into the cache. Behind those of the items stand others. Nothing if one of them cannot be reached without
    /// waiting, or a key is too long.
    #[inline]
    pub(in crate::tree) fn leaves<'t, T>(
        &self,
        items: &'t [T],
        key: impl Fn(&'t T) -> &'t [u8],
    ) -> Option<[Descent<'p, P>; GROUP_SIZE]> {
        debug_assert!(items.len() <= GROUP_SIZE);
        if items.iter().any(|item| check_key(key(item)).is_err()) {
            return None;
        }
        let root = Descent::begin(self.pager, self.root).ok()?;
        let mut group = [root; GROUP_SIZE];
        for level in (1..=root.level).rev() {
            for (descent, item) in group.iter_mut().zip(items) {
                descent.choose(Towards::Key(key(item)));
            }
            // What is right below the root is in the cache anyway, because every operation comes by.
            let fetched = level == 1 || level < root.level;
            if fetched {
                group.iter().zip(items).for_each(|(descent, _)| descent.child_header().begin(self.pager));
            }
            for (descent, _) in group.iter_mut().zip(items) {
                descent.follow(self.pager, Approach::Fetched).ok()?;
            }
            if fetched {
                let all = group.iter().zip(items);
                all.for_each(|(descent, item)| descent.slots_for(key(item)).begin(self.pager));
            }
        }
        Some(group)
    }
}
