//! Keys of removed records that have versions in generations.

use super::{
    Generation, Generations,
    stored::{PREFIX_BYTES, place_of_prefix, whole_key},
};
use crate::{removed_range::RemovedRange, writer::Sight};
use std::ops::Bound;
use vellum_base::PageId;
use vellum_pool::PoolError;

impl Generations {
    /// Adds the keys of removed records of a tree that a snapshot may see.
    pub fn add_removed(
        &self,
        sight: Sight,
        tree: PageId,
        range: &mut RemovedRange<'_>,
    ) -> Result<(), PoolError> {
        let is_covered = self.covers(sight.own);
        for generation in self.all().iter().filter(|generation| self.has_removed_in(generation, sight)) {
            if is_covered || generation.may_have_unseen_removal(tree, sight) {
                range.begin();
                generation.add_removed(tree, range)?;
            }
        }
        Ok(())
    }
}

impl Generation {
    fn add_removed(&self, tree: PageId, range: &mut RemovedRange<'_>) -> Result<(), PoolError> {
        if let Some(frozen) = self.frozen() {
            frozen.add_removed(tree, range);
            return Ok(());
        }
        // Truncated keys are ordered by their prefixes only, so the scan looks at some keys beyond the bounds.
        let lower = match range.lower() {
            Bound::Included(key) | Bound::Excluded(key) => place_of_prefix(tree, key),
            Bound::Unbounded => tree.0.to_be_bytes().to_vec(),
        };
        let upper = match range.upper() {
            Bound::Included(key) | Bound::Excluded(key) => {
                let mut place = place_of_prefix(tree, key);
                if place.len() == 8 + PREFIX_BYTES {
                    place.extend_from_slice(&[0xff; 8]);
                }
                Bound::Included(place)
            }
            Bound::Unbounded => Bound::Excluded((tree.0 + 1).to_be_bytes().to_vec()),
        };
        let upper = match &upper {
            Bound::Included(upper) => Bound::Included(&upper[..]),
            Bound::Excluded(upper) => Bound::Excluded(&upper[..]),
            Bound::Unbounded => Bound::Unbounded,
        };
        self.tree.scan(Bound::Included(&lower), upper, |place, chain| {
            if chain.first() == Some(&1)
                && let Some(whole) = whole_key(chain)
            {
                let key = if whole.is_empty() { place.get(8..).unwrap_or_default() } else { whole };
                if range.is_full() && range.last().is_some_and(|last| !are_together(last, key)) {
                    range.cut();
                    return None;
                }
                range.add(key);
            }
            Some(())
        })
    }
}

/// Whether the order of two keys is not that of their places.
fn are_together(one: &[u8], other: &[u8]) -> bool {
    let prefix = one.get(..PREFIX_BYTES);
    prefix.is_some() && prefix == other.get(..PREFIX_BYTES)
}
