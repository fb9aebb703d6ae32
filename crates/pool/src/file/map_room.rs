//! Room for the next space map: a full disk must not keep a file from being checkpointed or closed.
//!
//! Without a log a file grows with room for the map that a close writes. With a log each checkpoint writes a map, while
//! the one before must stay: it is free when the superblocks name the new one. So the file grows with room for two
//! maps. When a checkpoint has taken of that, and the file cannot grow, a place is *kept* for the next map: claimed, so
//! that no change takes it. Usually it is the place of the map before, so two places serve by turns.
//!
//! # Invariants
//! - With a log, while the file is marked as in use: a place is kept that is long enough for a map of the file as it is,
//!   or the file has room for one beyond all its pages. Only a file that was opened without such room is an exception,
//!   until pages are freed or it can grow.
//! - The kept place is named by no superblock. A crash forgets it: it is free then, and kept again when the file is
//!   opened.
//!
//! # Lock order
//! The superblock's lock; the lock of the kept place; then the space map's; then the lock of the file's size.

use crate::{
    error::PoolError,
    file::lifecycle::{image_pages, map_place_pages, space_map_pages},
    file::storage::Storage,
    primitive::lock,
};
use vellum_base::Extent;

impl Storage {
    /// Claims room for the map of a checkpoint, which covers `least` pages at least. Returns the extent, the number of
    /// pages that the map will cover, and whether the extent is long enough for that, which it is not if the file has
    /// grown much meanwhile. If the file grows, `grown` gets its new end, with the map locked.
    ///
    /// # Errors
    /// If there is no room, and the file cannot grow; then nothing is claimed.
    pub(crate) fn claim_map(
        &self,
        least: u64,
        mut grown: impl FnMut(u64),
    ) -> Result<(Extent, u64, bool), PoolError> {
        let last = self.space.end();
        let end = last.max(least);
        let too_short = lock(&self.kept_map_room).take_if(|kept| u64::from(kept.pages) < image_pages(end));
        too_short.into_iter().for_each(|place| self.give_back(place));
        let kept = *lock(&self.kept_map_room);
        // Near the beginning, where it does not keep the file from being cut.
        let found = self.claim_before(kept.map_or(last, |kept| kept.head.0), space_map_pages(end));
        let extent = match found.or_else(|| lock(&self.kept_map_room).take()) {
            Some(extent) => extent,
            None => self.claim(|| {
                let mut at_end = |pages| {
                    self.space.allocate(pages, |claimed| {
                        let admitted = if claimed.has_grown { self.grow_file(claimed.end) } else { Ok(()) };
                        admitted.map(|()| claimed.note_grown(&mut grown))
                    })
                };
                // The longer place serves again when a second map has made the file longer.
                at_end(map_place_pages(end) as u32).or_else(|_| at_end(space_map_pages(end)))
            })?,
        };
        let extent = self.shorten(extent, end);
        let end = end.max(extent.end().0);
        Ok((extent, end, image_pages(end) <= extent.pages.into()))
    }

    /// Gives back what is too much of a claimed place: readers refuse a map that is longer than need be.
    fn shorten(&self, mut extent: Extent, end: u64) -> Extent {
        loop {
            let most = space_map_pages(end.max(extent.end().0));
            if extent.pages <= most {
                return extent;
            }
            self.space.unclaim(extent.head.0 + u64::from(most)..extent.end().0);
            extent.pages = most;
        }
    }

    /// Makes sure that there is room for the next map. `places` are claimed: each becomes free, unless it is kept.
    ///
    /// # Errors
    /// If there is no room, and the file cannot grow.
    pub(crate) fn keep_map_room(&self, places: impl IntoIterator<Item = Extent>) -> Result<(), PoolError> {
        let mut kept = lock(&self.kept_map_room);
        let mut places: Vec<Extent> = kept.take().into_iter().chain(places).collect();
        let end = self.space.end();
        if self.grow_file_for(end).is_ok() {
            places.into_iter().for_each(|place| self.give_back(place));
            return Ok(());
        }
        let needed = image_pages(end);
        places.sort_unstable_by_key(|place| place.head);
        let first = places.iter().position(|place| u64::from(place.pages) >= needed);
        let first = first.map(|index| places.remove(index));
        places.into_iter().for_each(|place| self.give_back(place));
        // Near the beginning, as for the map itself.
        let limit = first.map_or(end, |first| first.head.0);
        *kept = self.space.claim_before(limit, needed as u32, || self.doubt_undo_space());
        if kept.is_some() {
            first.into_iter().for_each(|place| self.give_back(place));
        } else {
            *kept = first;
        }
        // Then the file is as long as for the map that is next, but not for one more.
        if kept.is_some() { Ok(()) } else { self.grow_file(end + u64::from(space_map_pages(end))) }
    }

    /// Cuts the file behind its last page when it has been closed. If the disk is full, and no place was kept, which is
    /// free in a closed file, the room for the next map stays, because others would take it.
    pub(crate) fn cut_closed(&self) {
        let end = self.space.end();
        let has_room = self.grow_file_for(end).is_ok() || lock(&self.kept_map_room).is_some();
        self.cut_file(if has_room { end } else { end + u64::from(space_map_pages(end)) });
    }

    fn give_back(&self, place: Extent) {
        self.space.unclaim(place.head.0..place.end().0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        file::superblock::{SUPERBLOCKS, Superblock},
        space::SpaceMap,
    };
    use std::sync::Arc;
    use vellum_base::Lsn;
    use vellum_vm::SimulatedFile;

    #[test]
    fn a_place_that_is_taken_of_the_room_for_undo_is_known() {
        const FREE: u32 = 64;
        const CAPACITY: u64 = SUPERBLOCKS + FREE as u64;
        let (file, space) = (Arc::new(SimulatedFile::new(1)), SpaceMap::new(CAPACITY, SUPERBLOCKS).unwrap());
        let extent = space.allocate(FREE, |_| Ok::<_, ()>(())).unwrap();
        space.publish(extent);
        let storage = Storage::new(file, space, Superblock::default(), CAPACITY, false, true, None).unwrap();
        assert!(storage.free(extent, Lsn(0)));
        storage.undo_space().keep(FREE.into());
        storage.admit_growth(0).unwrap();
        assert!(!storage.undo_space().is_scarce());
        storage.keep_map_room([]).unwrap();
        assert!(storage.undo_space().is_scarce());
        assert!(storage.admit_growth(0).is_err());
    }

    /// Of two places that are made one after the other, each suffices for a file that ends after both.
    #[test]
    fn two_places_at_the_end_of_a_file_serve_by_turns() {
        let near = |page: u64| page.saturating_sub(300).max(2)..page + 300;
        let ends = [2, 16_128, 32_384, 16_000_000, 1 << 30].into_iter().flat_map(near);
        for end in ends.chain((2..2_000_000).step_by(997)) {
            let first = map_place_pages(end);
            let after_first = end + first;
            assert_eq!(u64::from(space_map_pages(after_first)), first, "{end}: the first is not too long");
            let second = u64::from(space_map_pages(after_first)).max(image_pages(after_first));
            let after_both = after_first + second;
            assert!(after_both <= end + 2 * first, "{end}: there is room for both");
            assert!(image_pages(after_both) <= first.min(second), "{end}: both are long enough");
        }
    }
}
