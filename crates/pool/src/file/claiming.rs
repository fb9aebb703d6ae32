//! Claims space in the file, and leaves what is kept for undo: see [`undo_space`](crate::undo_space).
//!
//! # Invariants
//! - The file has room for the *assured* pages: free ones, and those by which it has been made longer. As long as no more
//!   are kept, no thread needs to look.
//!
//! # Lock order
//! `assured` is written with the space map locked.

use crate::{
    error::PoolError,
    file::storage::{Storage, is_full},
    primitive::{Bug, Ordering, planted},
    space::Claimed,
    undo_space::is_undoing,
};
use std::ops::{Range, RangeInclusive};
use vellum_base::Extent;

impl Storage {
    /// Claims room for an extent; see [`SpaceMap::allocate`]. If the file grows, `grown` gets its new end, with the map
    /// locked.
    ///
    /// # Errors
    /// If the file cannot grow; then nothing is claimed.
    pub(crate) fn allocate(&self, pages: u32, mut grown: impl FnMut(u64)) -> Result<Extent, PoolError> {
        self.claim(|| {
            let admit =
                |claimed: &Claimed| self.admit_claim(claimed).map(|()| claimed.note_grown(&mut grown));
            self.space.allocate(pages, admit)
        })
    }

    /// Claims room for an extent before page `limit`, if there is any; see [`SpaceMap::claim_before`].
    pub(crate) fn claim_before(&self, limit: u64, pages: u32) -> Option<Extent> {
        if let Some(logged) = self.logged() {
            logged.release_durable(&self.space);
        }
        self.space.claim_before(limit, pages, || self.doubt_undo_space())
    }

    /// Claims up to `most` consecutive pages; see [`SpaceMap::claim_run`].
    ///
    /// # Errors
    /// If the file cannot grow, and no page of it is free.
    pub(crate) fn claim_run(&self, most: u32, mut grown: impl FnMut(u64)) -> Result<Range<u64>, PoolError> {
        self.claim(|| {
            let admit =
                |claimed: &Claimed| self.admit_claim(claimed).map(|()| claimed.note_grown(&mut grown));
            self.space.claim_run(most, admit)
        })
    }

    /// Claims space. If there is no room, and freed space waits for the log, makes the log durable first; space that a
    /// backup holds comes next. If there is still none, the log gives up the space that it keeps in reserve.
    pub(super) fn claim<T>(&self, mut claim: impl FnMut() -> Result<T, PoolError>) -> Result<T, PoolError> {
        let Some(logged) = self.logged() else { return claim() };
        logged.release_durable(&self.space);
        let mut claimed = claim();
        if !is_full(&claimed) {
            return claimed;
        }
        // If nothing is waiting, another thread may have just released it.
        logged.release_all(&self.space)?;
        claimed = claim();
        let mut until = None;
        while is_full(&claimed) && logged.reclaim_held(&self.space, &mut until) {
            logged.release_durable(&self.space);
            claimed = claim();
        }
        match claimed {
            Err(PoolError::StorageFull { .. }) if logged.log().give_up_spare() => claim(),
            claimed => claimed,
        }
    }

    /// Makes the file have room for the pages that are kept for undo, apart from `own` pages.
    ///
    /// # Errors
    /// If the file cannot grow.
    pub(crate) fn admit_growth(&self, own: u64) -> Result<(), PoolError> {
        /// How many more pages are assured, so that the next thread need not ask again.
        const MORE: RangeInclusive<u64> = 64..=4096;
        self.claim(|| {
            self.space.with_free(|end, free| {
                let kept = self.undo.kept();
                let ahead = kept + (kept / 8).clamp(*MORE.start(), *MORE.end());
                let enough = [ahead, kept].into_iter().find(|pages| self.has_room(end, free, *pages).is_ok());
                self.undo.assure(enough.unwrap_or(0));
                self.undo.note_refused(if enough.is_some() { 0 } else { kept });
                match enough {
                    Some(_) => Ok(()),
                    None => self.has_room(end, free, kept.saturating_sub(own)),
                }
            })
        })
    }

    /// Admits a claim of space, with the map locked: the file grows to hold it, and what is kept for undo is left.
    /// A thread that is undoing takes of that.
    ///
    /// # Errors
    /// If the file cannot grow.
    pub(crate) fn admit_claim(&self, claimed: &Claimed) -> Result<(), PoolError> {
        let Claimed { end, free, pages, has_grown } = *claimed;
        if is_undoing() {
            let admitted = if has_grown { self.grow_file_for(end) } else { Ok(()) };
            return admitted.inspect(|()| self.undo.assure(self.undo.assured().saturating_sub(pages)));
        }
        let kept = self.undo.kept();
        let most = self.undo.assured().max(kept);
        if !has_grown && most <= free {
            return Ok(());
        }
        let admitted = self.grow_file_for(end + most.saturating_sub(free));
        if admitted.is_ok() || most == kept {
            return admitted;
        }
        if !planted(Bug::ClaimNotSaid) {
            self.undo.assure(kept);
        }
        if !has_grown && kept <= free {
            return Ok(());
        }
        self.grow_file_for(end + kept.saturating_sub(free))
    }

    /// The room for undo is to be looked for again, because space was claimed that may be part of it. The map is still
    /// locked: who sees the space claimed sees this.
    pub(super) fn doubt_undo_space(&self) {
        if !planted(Bug::ClaimNotSaid) {
            self.undo.assure(0);
        }
    }

    /// How many pages a file with so many, of which some are free, must hold for what is kept for undo.
    pub(crate) fn end_for_undo(&self, end: u64, free: u64) -> u64 {
        let kept = self.undo.kept();
        // What is beyond may be cut off.
        self.undo.assure(self.undo.assured().min(kept));
        end + kept.saturating_sub(free)
    }

    fn has_room(&self, end: u64, free: u64, pages: u64) -> Result<(), PoolError> {
        if pages <= free { Ok(()) } else { self.grow_file_for(end + (pages - free)) }
    }

    /// Cuts off what is neither allocated nor part of the last checkpoint, except the room for maps.
    pub(crate) fn cut_unused(&self) {
        let superblock = self.lock_superblock();
        // While a file without a log is in use, the end in its superblock is meaningless.
        let kept = if self.logged().is_some() || !self.is_in_use() { superblock.end } else { 0 };
        let kept = kept.max(self.former_end.load(Ordering::Relaxed));
        self.space.with_free(|end, free| {
            let end = self.end_for_undo(end, free);
            self.cut_file(kept.max(end + self.map_room_pages(end)));
        });
    }
}
