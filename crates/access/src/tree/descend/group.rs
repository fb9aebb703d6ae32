//! Many operations side by side, as long as all pages that they need are in memory (*group prefetching*: Chen,
//! Ailamaki, Gibbons, Mowry, ICDE 2004).
//!
//! They go down the tree level by level: all choose their children, then all children are fetched into the processor's
//! cache, first their headers, then slots, then the keys to compare with, and then all follow. So their cache misses overlap, and no operation needs a state of its own. Where one
//! operation cannot go on (its page is not in memory, is latched, or has changed), the group ends.
//!
//! The fetches of a level are issued right after one another, so that their address translations overlap: an
//! instruction that waits for a translation keeps later instructions from starting.

use super::{Approach, Descent, Towards};
use crate::tree::{Tree, check_key};
use vellum_pool::Pager;

/// How many operations go side by side: enough that a fetch is done when the operation's next turn comes, and few
/// enough that the fetched line is still in the innermost cache.
pub(in crate::tree) const GROUP_SIZE: usize = 32;

impl<'p, P: Pager> Tree<'p, P> {
    /// The leaves that cover the keys of up to [`GROUP_SIZE`] items; what a search in them will read is being fetched
    /// into the cache. Array elements beyond the number of items are meaningless. `None` if a leaf cannot be reached
    /// without waiting, or a key is too long.
    #[inline]
    pub(in crate::tree) fn leaves<'t, T>(
        &self,
        items: &'t [T],
        key: impl Fn(&'t T) -> &'t [u8],
    ) -> Option<[P::Optimistic<'p>; GROUP_SIZE]> {
        debug_assert!(items.len() <= GROUP_SIZE);
        if items.iter().any(|item| check_key(key(item)).is_err()) {
            return None;
        }
        let root = Descent::<P>::begin(self.pager, self.root()).ok()?;
        // All are at the same level, which is therefore kept only once.
        let mut nodes = [root.node; GROUP_SIZE];
        let mut places = [root.place; GROUP_SIZE];
        for level in (1..=root.level).rev() {
            let at = |(node, place): (&P::Optimistic<'p>, &usize)| Descent::<P> {
                node: *node,
                level,
                place: *place,
            };
            for ((node, place), item) in nodes.iter().zip(&mut places).zip(items) {
                let mut descent = at((node, place));
                descent.choose(Towards::Key(key(item)));
                *place = descent.place;
            }
            // The inner nodes right below the root are in the cache anyway, because every operation reads them.
            let fetched = level == 1 || level < root.level;
            if fetched {
                let all = nodes.iter().zip(&places).zip(items);
                all.for_each(|(here, _)| at(here).child_header().begin(self.pager));
            }
            for ((node, place), _) in nodes.iter_mut().zip(&places).zip(items) {
                let mut descent = at((node, place));
                descent.follow(self.pager, Approach::Fetched).ok()?;
                *node = descent.node;
            }
            if fetched {
                let all = nodes.iter().zip(&places).zip(items);
                all.clone().for_each(|(here, item)| at(here).slots_for(key(item)).begin(self.pager));
                for (here, item) in all {
                    at(here).fetch_compared(self.pager, key(item));
                }
            }
        }
        Some(nodes)
    }
}
