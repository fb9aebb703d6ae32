//! Models of threads that claim space while others keep pages for undo.

use super::{check, note};
use crate::{
    file::{
        storage::Storage,
        superblock::{SUPERBLOCKS, Superblock},
    },
    space::SpaceMap,
};
use loom::thread;
use std::sync::Arc;
use vellum_vm::SimulatedFile;

/// The pages of a large extent.
const LARGE: u32 = 64;
/// The pages that the file can hold: a large extent, one more page, and the room for a map.
const CAPACITY: u64 = SUPERBLOCKS + LARGE as u64 + 2;

/// A file that has room for all that is kept, which is one page, and for a large extent.
fn storage() -> Arc<Storage> {
    let file = Arc::new(SimulatedFile::new(1));
    let space = SpaceMap::new(CAPACITY, SUPERBLOCKS).unwrap();
    let storage = Storage::new(file, space, Superblock::default(), CAPACITY, false, true, None).unwrap();
    storage.undo_space().keep(1);
    storage.admit_growth(0).unwrap();
    assert!(!storage.undo_space().is_scarce());
    Arc::new(storage)
}

/// One thread keeps one more page, the other claims a large extent. If it gets that, only one page is left, and that is
/// known.
fn keep_beside(claim: impl FnOnce(&Storage) -> bool) {
    let storage = storage();
    let changer = {
        let storage = storage.clone();
        thread::spawn(move || storage.undo_space().keep(1))
    };
    let has_claimed = claim(&storage);
    note(has_claimed.into());
    changer.join().unwrap();
    let is_scarce = storage.undo_space().is_scarce();
    assert_eq!(storage.admit_growth(0).is_ok(), !has_claimed);
    assert!(is_scarce || !has_claimed, "nobody knows that the room that undo may need is gone");
    storage.admit_growth(1).unwrap();
}

model!(a_claim_of_what_undo_may_need_is_known, [RelaxedKeep, RelaxedAssurance, ClaimNotSaid], [0, 1], || {
    keep_beside(|storage| storage.allocate(LARGE, |_| ()).is_ok());
});
