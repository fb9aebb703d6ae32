//! What transactions have left behind that were open at a moment.

use super::{Snapshot, Transactions};
use crate::{
    before::Before,
    exposure::Exposure,
    leftovers::{Large, Leftovers},
    places::Places,
    settings::SnapshotLimit,
    undo_buffer::UndoBuffer,
    versions::Spill,
    write_set::WriteSet,
};
use std::{panic::Location, sync::Arc};
use vellum_access::BlobReference;
use vellum_base::{Lsn, PageId};

#[test]
fn what_a_later_commit_has_taken_over_is_still_left() {
    let spill = Spill::new(None, 1 << 20);
    let places = Places::Clock(Arc::default());
    let transactions = Transactions::new(1, SnapshotLimit::default(), spill, Default::default(), places);
    let begin = || transactions.begin(false, Location::caller(), || (), || Lsn(100));
    let commit = |snapshot: &Snapshot, number: u64| {
        let writes = Arc::new(WriteSet::new(snapshot.id));
        transactions.begin_writing(&writes, || Lsn(100));
        let record = Before::new((PageId(9), &[number as u8]), 0, None);
        let reference = BlobReference { head: PageId(number), length: 1, digest: 0 };
        let large = vec![Large { record: record.clone(), reference }];
        let left = Leftovers::new((UndoBuffer::default(), vec![record], None), large, 1, Exposure::Entered);
        let committed =
            transactions.commit((writes.writer(), snapshot), (Lsn(100), left), None, |_| Lsn(200));
        committed.unwrap_or_else(|refused| panic!("{:?}", refused.0)).1
    };
    let first = begin();
    // The first is open now; what it replaces is needed by a snapshot that begins later.
    let (next, mut commit_time, mut freeing) = (transactions.next_id(), None, None);
    let mut are_over = || transactions.are_over(next, (&mut commit_time, &mut freeing));
    let later = begin();
    assert!(!are_over());
    assert!(commit(&first, 1).free.is_empty());
    assert!(!are_over());
    // No snapshot is between the two, so the second takes over what the first has left behind.
    assert!(commit(&begin(), 2).free.is_empty());
    assert_eq!(transactions.history(Lsn(0)).leftovers, 1);
    assert!(!are_over());
    assert!(!transactions.are_at_rest());
    let free = transactions.end(&later).free;
    assert!(transactions.none_open() && !are_over() && !transactions.are_at_rest(), "it is being freed");
    free.iter().for_each(|(number, _)| transactions.cleaned_up(*number));
    assert!(are_over() && transactions.are_at_rest());
}
