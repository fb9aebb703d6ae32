//! Models of threads that claim space while others keep pages for undo.

use super::{check, note};
use crate::{
    file::{
        storage::Storage,
        superblock::{SUPERBLOCKS, Superblock},
    },
    space::SpaceMap,
};
use loom::{sync::Mutex, thread};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::SimulatedFile;

/// The pages of a large extent.
const LARGE: u32 = 64;
/// The room for a map, in pages.
const MAP: u64 = 1;
/// The pages that the file can hold: besides the room for a map, a large extent and one more.
const CAPACITY: u64 = SUPERBLOCKS + LARGE as u64 + 1 + MAP;

/// A file that has room for all that is kept, which is one page, and for a large extent, in which nothing was ever
/// allocated, or which is free again.
struct Shared {
    storage: Storage,
    /// A leaf with its latch: whether a change has made room in it that others may use.
    leaf: Mutex<bool>,
}

impl Shared {
    fn new(is_free_again: bool) -> Arc<Self> {
        let file = Arc::new(SimulatedFile::new(1));
        let space = SpaceMap::new(CAPACITY, SUPERBLOCKS).unwrap();
        let storage = Storage::new(file, space, Superblock::default(), CAPACITY, false, true, None).unwrap();
        if is_free_again {
            let extent = storage.allocate(LARGE, |_| ()).unwrap();
            storage.space.publish(extent);
            assert!(storage.free(extent, Lsn(0)));
        }
        storage.undo_space().keep(1);
        storage.admit_growth(0).unwrap();
        assert!(!storage.undo_space().is_scarce());
        Arc::new(Self { storage, leaf: Mutex::new(false) })
    }

    /// A change that makes room in the leaf, and keeps a page.
    fn make_room(&self) {
        let mut leaf = self.leaf.lock().unwrap();
        self.storage.undo_space().keep(1);
        *leaf = true;
    }

    /// The next change of the leaf: whether it finds room there, and knows that it may not take it if undo needs it.
    fn look_for_room(&self) {
        let leaf = self.leaf.lock().unwrap();
        let left = self.storage.space.with_free(|end, free| CAPACITY - MAP - end + free);
        if *leaf && left < 2 {
            assert!(self.storage.undo_space().is_scarce(), "a change takes the room that undo needs");
            note(2);
        }
    }

    /// One thread makes room in the leaf, one claims a large extent, and one finds the room. If the second gets the
    /// extent, only one page is left for undo, and that is known.
    fn meet(self: Arc<Self>, claim: impl FnOnce(&Storage) -> bool) {
        let changer = {
            let shared = self.clone();
            thread::spawn(move || shared.make_room())
        };
        let next = {
            let shared = self.clone();
            thread::spawn(move || shared.look_for_room())
        };
        let has_claimed = claim(&self.storage);
        note(has_claimed.into());
        changer.join().unwrap();
        next.join().unwrap();
        let is_scarce = self.storage.undo_space().is_scarce();
        assert!(is_scarce || !has_claimed, "nobody knows that the room that undo needs is gone");
        assert_eq!(self.storage.admit_growth(0).is_ok(), !has_claimed);
        self.storage.admit_growth(1).unwrap();
    }
}

model!(
    a_claim_of_what_undo_may_need_is_known,
    [RelaxedKeep, RelaxedAssurance, ClaimNotSaid],
    [0, 1, 2],
    || {
        Shared::new(false).meet(|storage| storage.allocate(LARGE, |_| ()).is_ok());
    }
);

model!(a_claim_near_the_beginning_is_known, [ClaimNotSaid], [1, 2], || {
    Shared::new(true).meet(|storage| storage.claim_before(u64::MAX, LARGE).is_some());
});
