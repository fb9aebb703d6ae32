//! Where objects find room.

use crate::support::{Leaf, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vellum_objects::{Array, Change, HeapState, ObjectError, Persistent, Ref};
use vellum_pool::Pool;

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Long {
    bytes: [u8; 1200],
}

fn leaf(value: u64) -> Leaf {
    Leaf { value, parts: Array::default() }
}

#[test]
fn a_heap_that_is_opened_for_each_object_fills_its_pages() {
    let mut store = Store::new(64);
    let made: Vec<Ref<Leaf>> = (0..300)
        .map(|value| {
            store.state = HeapState::default();
            store.heap().allocate(&leaf(value)).unwrap()
        })
        .collect();
    // An object takes 24 bytes.
    assert_eq!(store.verify().pages, 2);
    for (value, reference) in made.iter().enumerate() {
        assert_eq!(store.heap().get(*reference).unwrap(), leaf(value as u64));
    }
}

#[test]
fn a_page_of_which_no_note_is_left_is_noted_when_an_object_is_deleted() {
    let store = Store::new(64);
    let heap = store.heap();
    let mut made = Vec::new();
    while made.last().is_none_or(|last: &Ref<Leaf>| last.any().page() == made[0].any().page()) {
        made.push(heap.allocate(&leaf(made.len() as u64)).unwrap());
    }
    // The room in the first page is in pieces, so an object that needs more finds none there.
    let long = Long { bytes: [7; 1200] };
    made.iter().step_by(2).for_each(|reference| heap.delete(*reference).unwrap());
    while heap.allocate(&long).unwrap().any().page() == made[made.len() - 1].any().page() {}
    let pages = store.verify().pages;
    made.iter().skip(1).step_by(2).for_each(|reference| heap.delete(*reference).unwrap());
    let first = made[0].any().page();
    assert!((0..400).any(|value| heap.allocate(&leaf(value)).unwrap().any().page() == first));
    assert_eq!(store.verify().pages, pages);
}

#[test]
fn changes_that_are_not_made_leave_the_room_that_they_took() {
    let mut store = Store::new(512);
    let long = Long { bytes: [7; 1200] };
    let flag = store.heap().allocate(&leaf(0)).unwrap();
    // Three of them fill a page.
    let allocate = |change: &mut Change<'_, Pool>| (0..30).try_for_each(|_| change.allocate(&long).map(drop));
    for round in 1..=20 {
        let heap = store.heap();
        let failed = heap.change(|change| {
            allocate(change)?;
            Err::<(), _>(ObjectError::TooLong)
        });
        assert!(matches!(failed, Err(ObjectError::TooLong)), "{failed:?}");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            heap.change(|change| -> Result<(), ObjectError> {
                allocate(change)?;
                panic!("on purpose")
            })
        }));
        assert!(panicked.is_err());
        let mut attempts = 0;
        let made = heap.change(|change| {
            attempts += 1;
            change.get(flag)?;
            allocate(change)?;
            if attempts < 4 {
                // What this change has read is no longer so, and it is repeated.
                std::thread::scope(|scope| {
                    scope.spawn(|| heap.set(flag, &leaf(round * 10 + attempts)).unwrap());
                });
            }
            Ok::<_, ObjectError>(())
        });
        made.unwrap();
        assert_eq!(attempts, 4);
        let pages = store.verify().pages;
        assert!(pages <= 10 * round + 2, "{pages} pages after round {round}");
        if round == 10 {
            store = store.reopen(512);
        }
    }
}
