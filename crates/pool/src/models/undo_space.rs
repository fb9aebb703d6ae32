//! Models of the pages that are kept for undo, and of whether the file has room for them.

use super::{check, note};
use crate::undo_space::UndoSpace;
use loom::{
    sync::{Arc, Mutex},
    thread,
};

/// What is kept for undo, and a leaf with its latch: whether a change has made room in it that others may use.
#[derive(Default)]
struct Shared {
    undo: UndoSpace,
    leaf: Mutex<bool>,
}

impl Shared {
    /// One page is kept, and there is room for so many.
    fn new(assured: u64) -> Arc<Self> {
        let shared = Self::default();
        shared.undo.keep(1);
        assert!(shared.undo.is_scarce());
        shared.undo.assure(assured);
        assert_eq!(shared.undo.is_scarce(), assured == 0);
        Arc::new(shared)
    }

    /// A change that makes room in the leaf, and keeps a page.
    fn make_room(&self) {
        let mut leaf = self.leaf.lock().unwrap();
        self.undo.keep(1);
        *leaf = true;
    }

    /// The next change of the leaf: whether it finds room there, and may take it.
    fn takes_room(&self) -> Option<bool> {
        self.leaf.lock().unwrap().then(|| !self.undo.is_scarce())
    }
}

// Another thread looks at the same time, and finds that now there is room for one page.
model!(nobody_takes_room_in_a_leaf_that_undo_needs, [ShortageForgotten], [0, 1], || {
    let shared = Shared::new(0);
    let changer = {
        let shared = shared.clone();
        thread::spawn(move || shared.make_room())
    };
    let next = {
        let shared = shared.clone();
        thread::spawn(move || {
            let takes = shared.takes_room();
            assert_ne!(takes, Some(true), "a change takes the room that undo needs");
            note(takes.is_some().into());
        })
    };
    shared.undo.assure(1);
    changer.join().unwrap();
    next.join().unwrap();
    assert!(shared.undo.is_scarce());
    shared.undo.assure(2);
    assert!(!shared.undo.is_scarce());
});

// A thread that claims space takes it of what is assured, as far as nothing is kept, while another thread keeps more.
model!(what_is_kept_while_room_is_taken_is_known_to_lack_room, [RelaxedKeep, RelaxedAssurance], || {
    let shared = Shared::new(2);
    let changer = {
        let shared = shared.clone();
        thread::spawn(move || shared.make_room())
    };
    shared.undo.assure(1);
    changer.join().unwrap();
    assert_eq!(shared.takes_room(), Some(false), "a change takes the room that undo needs");
});
