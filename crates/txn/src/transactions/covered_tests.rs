//! What commits leave behind while covered transactions are open.

mod failing;

use super::{Ended, Refused, Snapshot, Transactions};
use crate::{
    before::hash_of,
    generations::Covered,
    places::Places,
    reads::ReadSet,
    settings::SnapshotLimit,
    versions::{Refusal, Spill},
    write_set::{State, WriteSet},
    writer::Sight,
};
use std::{ops::Bound, panic::Location, sync::Arc};
use vellum_access::{
    BlobReference, Direction, Intent, Seen, SharedBytes, ValueImage,
    node::{NODE_BYTES, NodeMut, ValueKind},
};
use vellum_base::{Lsn, PageId};
use vellum_pool::{LsnClock, PageKeeper as _};
use vellum_vm::SimulatedDisk;

const TREE: PageId = PageId(9);

/// Transactions for whose versions memory has no room.
fn transactions() -> Transactions {
    with_room_for(0)
}

/// Transactions whose versions may take this many bytes in memory.
fn with_room_for(bytes: u64) -> Transactions {
    let spill = Spill::new(Some(Arc::new(SimulatedDisk::new(1))), bytes);
    let places = Places::Clock(Arc::default());
    Transactions::new(1, SnapshotLimit::default(), spill, Default::default(), places)
}

fn begin(transactions: &Transactions, is_serializable: bool) -> Snapshot {
    transactions.begin(is_serializable, Location::caller(), || (), || Lsn(100))
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn begin_writing(transactions: &Transactions, snapshot: &Snapshot) -> Arc<WriteSet> {
    let writes = Arc::new(WriteSet::new(snapshot.id));
    let mut state = writes.lock();
    let (number, exposure) = transactions.begin_writing(&writes, || Lsn(100));
    (state.number, state.exposure) = (Some((number, Lsn(100))), exposure);
    drop(state);
    writes
}

fn change(transactions: &Transactions, by: (&WriteSet, &Snapshot), record: u32) -> Result<(), Refusal> {
    let record = (TREE, &key(record)[..], Lsn(500));
    let claimed = transactions.claim(by, record, None, Intent::SameLength).unwrap();
    claimed.map(|mut state| _ = state.note_change(Lsn(500), Lsn(510)))
}

/// A transaction changes these records.
fn commit(
    transactions: &Transactions,
    snapshot: &Snapshot,
    reads: Option<&ReadSet>,
    records: impl IntoIterator<Item = u32>,
) -> Result<Ended, Refused> {
    let writes = begin_writing(transactions, snapshot);
    for record in records {
        change(transactions, (&writes, snapshot), record).unwrap_or_else(|refusal| panic!("{refusal:?}"));
    }
    commit_writes(transactions, &writes, snapshot, reads)
}

/// Commits what a transaction has changed.
fn commit_writes(
    transactions: &Transactions,
    writes: &WriteSet,
    snapshot: &Snapshot,
    reads: Option<&ReadSet>,
) -> Result<Ended, Refused> {
    let mut state = writes.lock();
    let left = state.leave();
    let by = (&**writes.writer(), snapshot);
    let committed = transactions.commit(by, (Lsn(100), left), reads, |_| Lsn(300));
    *state = State::default();
    drop(state);
    committed.map(|(_, ended)| ended).map_err(|refused| refused.0)
}

/// As many commits as make snapshots old, which are covered then.
fn cover(transactions: &Transactions) {
    for number in 0..4 {
        let snapshot = begin(transactions, false);
        let ended = commit(transactions, &snapshot, None, [1_000_000 + number]).unwrap();
        transactions.prune(&ended);
    }
    transactions.make_room(|| Lsn(400)).unwrap();
}

/// How many records a commit has pruned.
fn pruned(ended: &Ended) -> usize {
    let mut records = 0;
    for (_, left) in &ended.pruned.all {
        left.for_each_record(|_| {
            records += 1;
            Some(())
        })
        .unwrap();
    }
    records
}

#[test]
fn each_commit_prunes_its_own_records_under_a_covered_serializable_snapshot() {
    let transactions = transactions();
    let old = begin(&transactions, true);
    cover(&transactions);
    assert!(transactions.versions.generations().covers(old.id));
    for number in 0..500 {
        let snapshot = begin(&transactions, false);
        let ended = commit(&transactions, &snapshot, None, [number, number + 1]).unwrap();
        assert!(pruned(&ended) <= 4, "{} records after {number} commits", pruned(&ended));
        transactions.prune(&ended);
    }
    let left = transactions.history(Lsn(300)).leftovers;
    assert!(left <= 4, "{left} leftovers");
    // So many that not each of them is known.
    for number in 0..501 {
        assert_refused(&transactions, &old, number);
    }
    commit(&transactions, &old, Some(&reads(600)), [2_000_000]).unwrap();
    assert_eq!(transactions.history(Lsn(300)).leftovers, 0);
}

#[test]
fn a_covered_serializable_transaction_is_told_which_of_few_keys_was_changed() {
    let transactions = transactions();
    let old = begin(&transactions, true);
    cover(&transactions);
    for number in 0..20 {
        let snapshot = begin(&transactions, false);
        transactions.prune(&commit(&transactions, &snapshot, None, [number, number + 1]).unwrap());
    }
    for number in 0..21 {
        assert_eq!(assert_refused(&transactions, &old, number), key(number));
    }
    commit(&transactions, &old, Some(&reads(30)), [2_000_000]).unwrap();
}

/// A transaction replaces the large value of a record, which is the one with this number, by the next one. Returns the
/// numbers of those that are freed.
fn replace(transactions: &Transactions, record: u32, number: u64) -> Vec<u64> {
    let snapshot = begin(transactions, false);
    let writes = begin_writing(transactions, &snapshot);
    let value = BlobReference { head: PageId(number), length: 5000, digest: 0 }.encode();
    let value = (number > 0).then_some(ValueImage { kind: ValueKind::Blob, bytes: &value });
    let by = (&*writes, &snapshot);
    let claimed = transactions.claim(by, (TREE, &key(record), Lsn(200)), value, Intent::SameLength).unwrap();
    claimed.unwrap_or_else(|refusal| panic!("{refusal:?}")).note_change(Lsn(200), Lsn(210));
    clean_up(transactions, commit_writes(transactions, &writes, &snapshot, None).unwrap())
}

fn clean_up(transactions: &Transactions, ended: Ended) -> Vec<u64> {
    transactions.prune(&ended);
    let mut freed = Vec::new();
    for (number, left) in ended.free {
        freed.extend(left.large().iter().map(|large| large.reference.head.0));
        transactions.cleaned_up(number);
    }
    freed
}

#[test]
fn large_values_that_no_snapshot_sees_are_freed_though_older_ones_are_open() {
    for is_covered in [false, true] {
        let spill = Spill::new(Some(Arc::new(SimulatedDisk::new(1))), if is_covered { 0 } else { 1 << 20 });
        let places = Places::Clock(Arc::default());
        let transactions = Transactions::new(1, SnapshotLimit::default(), spill, Default::default(), places);
        let old = begin(&transactions, false);
        cover(&transactions);
        assert_eq!(transactions.versions.generations().covers(old.id), is_covered);
        let mut freed = Vec::new();
        let mut young = None;
        for number in 1..200 {
            freed.extend(replace(&transactions, 5, number));
            if number == 100 {
                young = Some(begin(&transactions, false));
            }
        }
        let young = young.unwrap();
        // The old one sees the first, the young one the one that the hundredth was replaced by.
        assert!(!freed.contains(&1) && !freed.contains(&101), "{freed:?}");
        assert!(freed.len() > 150, "{freed:?}");
        assert_ne!(transactions.needed_at(|| Lsn(1000)).1, Lsn(1000));
        freed.extend(clean_up(&transactions, transactions.end(&young)));
        freed.extend(replace(&transactions, 5, 200));
        assert!(!freed.contains(&1), "{freed:?}");
        freed.extend(clean_up(&transactions, transactions.end(&old)));
        freed.sort_unstable();
        assert_eq!(freed, (1..=200).collect::<Vec<_>>(), "each once");
        assert_eq!(transactions.needed_at(|| Lsn(1000)).1, Lsn(1000));
    }
}

#[test]
fn a_large_value_that_was_put_and_removed_under_a_snapshot_is_freed() {
    let transactions = {
        let spill = Spill::new(Some(Arc::new(SimulatedDisk::new(1))), 1 << 20);
        Transactions::new(
            1,
            SnapshotLimit::default(),
            spill,
            Default::default(),
            Places::Clock(Arc::default()),
        )
    };
    let old = begin(&transactions, false);
    cover(&transactions);
    let mut freed = Vec::new();
    for record in 1..100 {
        // It was not there before.
        freed.extend(replace(&transactions, record, 0));
        freed.extend(replace(&transactions, record, u64::from(record)));
        // Another one was there.
        freed.extend(replace(&transactions, 1000 + record, u64::from(1000 + record)));
    }
    assert!(freed.len() > 50 && freed.iter().all(|number| *number < 1000), "{freed:?}");
    freed.extend(clean_up(&transactions, transactions.end(&old)));
    freed.sort_unstable();
    assert_eq!(freed, (1..100).chain(1001..1100).collect::<Vec<_>>());
}

fn reads(record: u32) -> ReadSet {
    let mut reads = ReadSet::default();
    reads.add_key(TREE, &key(record));
    reads.add_tree(TREE);
    reads.finish();
    reads
}

/// A transaction that has read a record is refused because of a key, which is returned.
fn assert_refused(transactions: &Transactions, snapshot: &Snapshot, record: u32) -> Vec<u8> {
    match commit(transactions, snapshot, Some(&reads(record)), []) {
        Err(Refused::Changed(changed)) => {
            assert_eq!(changed.tree, TREE);
            transactions.end_writing(snapshot.id);
            changed.key().to_vec()
        }
        done => panic!("{record}: {:?}", done.map(drop)),
    }
}

#[test]
fn a_covered_transaction_finds_what_was_changed_although_no_undo_buffer_has_it_any_more() {
    let transactions = transactions();
    let covered = begin(&transactions, false);
    cover(&transactions);
    // Once it changes something, what is in undo buffers is entered in the table.
    let writes = begin_writing(&transactions, &covered);
    let commit = |record| commit(&transactions, &begin(&transactions, false), None, [record]).unwrap();
    // After the cover the table is used for a while.
    (100..104).for_each(|record| transactions.prune(&commit(record)));
    let ended = commit(7);
    assert_eq!(ended.forgotten.len(), 1, "it was searched");
    for record in [7, 7] {
        assert_eq!(change(&transactions, (&writes, &covered), record), Err(Refusal::Later));
        transactions.prune(&ended);
    }
    assert!(transactions.versions.buffers().is_empty());
    assert_eq!(transactions.versions.length(TREE, &key(7)), 0);
    change(&transactions, (&writes, &covered), 8).unwrap();
}

#[test]
fn a_commit_that_is_about_to_be_forgotten_is_not_entered_after_later_ones() {
    let transactions = with_room_for(8000);
    let covered = begin(&transactions, false);
    let mut number = 1_000_000;
    while !transactions.versions.generations().covers(covered.id) {
        number += 1;
        let snapshot = begin(&transactions, false);
        transactions.prune(&commit(&transactions, &snapshot, None, [number]).unwrap());
        transactions.make_room(|| Lsn(400)).unwrap();
    }
    let commit = |record| commit(&transactions, &begin(&transactions, false), None, [record]).unwrap();
    // After the cover the table is used for a while.
    (100..104).for_each(|record| transactions.prune(&commit(record)));
    let former = begin(&transactions, false);
    transactions.prune(&commit(7));
    // Nobody needs the version now; the thread does nothing for a while before it forgets it.
    let ended = transactions.end(&former);
    assert_eq!(ended.forgotten.len(), 1, "it was searched");
    let snapshot = begin(&transactions, false);
    // The first of these is entered.
    (7..12).for_each(|record| transactions.prune(&commit(record)));
    assert_eq!(transactions.versions.length(TREE, &key(7)), 1);
    transactions.enter_all();
    assert_eq!(transactions.versions.length(TREE, &key(7)), 1);
    let seen = transactions.versions.seen(TREE, &key(7), snapshot.sight()).unwrap();
    assert_eq!(seen, Seen::Absent, "as before the later change");
    transactions.prune(&ended);
    let writes = begin_writing(&transactions, &covered);
    assert_eq!(change(&transactions, (&writes, &covered), 7), Err(Refusal::Later));
}

/// A leaf that holds a value under one key is about to be changed.
fn keep(transactions: &Transactions, value: &[u8]) {
    keep_in(transactions, TREE, value);
}

/// A leaf of this tree is about to be changed.
fn keep_in(transactions: &Transactions, tree: PageId, value: &[u8]) {
    let mut page = [0; NODE_BYTES];
    let mut leaf = NodeMut::init(&mut page, 0, None, None, PageId(0)).unwrap();
    leaf.insert(b"key", value, ValueKind::Inline).unwrap();
    transactions.versions.generations().keep(tree, &page);
}

/// What a covered snapshot sees under the key.
fn seen_by_covered(transactions: &Transactions, sight: Sight) -> Seen {
    seen_in(transactions, TREE, sight)
}

fn seen_in(transactions: &Transactions, tree: PageId, sight: Sight) -> Seen {
    let record = (tree, &b"key"[..], hash_of(tree, b"key"));
    transactions.versions.generations().seen_by_covered(record, sight).unwrap()
}

fn shown(value: &[u8]) -> Seen {
    Seen::Value(SharedBytes::new(value.into(), 0..value.len()))
}

#[test]
fn a_leaf_that_was_changed_before_a_cover_was_armed_is_shown_as_changed() {
    let transactions = transactions();
    let (generations, spill) = (transactions.versions.generations(), transactions.versions.spill());
    let first = generations.begin_cover(&spill.file, spill.bytes).unwrap();
    generations.arm(&first, || Lsn(100));
    assert!(generations.complete(&first, Covered { id: 1, time: 1 }));
    first.rest();
    // Each time the leaf is about to be changed. The first change is committed before the second snapshot is taken.
    let second = generations.begin_cover(&spill.file, spill.bytes).unwrap();
    keep(&transactions, b"first");
    generations.arm(&second, || Lsn(200));
    keep(&transactions, b"second");
    assert!(generations.complete(&second, Covered { id: 2, time: 2 }));
    second.rest();
    for (number, value) in [(1, &b"first"[..]), (2, b"second")] {
        assert_eq!(seen_by_covered(&transactions, Sight { time: number, own: number }), shown(value));
    }
}

#[test]
fn a_thread_that_is_late_does_not_drop_what_covers_a_later_snapshot() {
    let transactions = transactions();
    let late = transactions.end(&begin(&transactions, false));
    assert!(late.is_last);
    let (covered, open) = (begin(&transactions, false), begin(&transactions, false));
    // So many that they are in the table.
    let writes = begin_writing(&transactions, &open);
    (0..5).for_each(|record| change(&transactions, (&writes, &open), record).unwrap());
    // Commits that change nothing: the only versions are those of the open transaction, which are taken back.
    for _ in 0..4 {
        let ended = commit(&transactions, &begin(&transactions, false), None, []).unwrap();
        transactions.prune(&ended);
    }
    transactions.make_room(|| Lsn(400)).unwrap();
    assert!(transactions.versions.generations().covers(covered.id));
    while writes.lock().changes() > 0 {
        writes.lock().note_undone();
    }
    transactions.roll_back(&writes);
    transactions.end_writing(open.id);
    transactions.end(&open);
    keep(&transactions, b"value");
    transactions.versions.prune_spilled(&late.oldest);
    assert_eq!(seen_by_covered(&transactions, covered.sight()), shown(b"value"));
    let ended = transactions.end(&covered);
    transactions.versions.prune_spilled(&ended.oldest);
    assert_eq!(transactions.history(Lsn(0)).kept_leaves, 0);
}

/// Each takes memory for a filter, room in the file for versions and leaves, and time to look into.
#[test]
fn covers_of_snapshots_that_have_ended_do_not_pile_up_beside_an_older_one() {
    let transactions = transactions();
    let generations = transactions.versions.generations();
    let end = |snapshot: &Snapshot| {
        let ended = transactions.end(snapshot);
        transactions.prune(&ended);
        transactions.versions.prune_spilled(&ended.oldest);
    };
    let old = begin(&transactions, true);
    cover(&transactions);
    keep(&transactions, b"old");
    let other = PageId(11);
    let (mut young, mut first) = (Vec::<(Snapshot, u8)>::new(), begin(&transactions, false));
    for round in 0..40 {
        // The snapshots overlap. The first one needs what changes now, so that it goes to the file.
        transactions
            .prune(&commit(&transactions, &begin(&transactions, false), None, [100 + round]).unwrap());
        let second = begin(&transactions, false);
        cover(&transactions);
        assert!(generations.covers(second.id));
        keep(&transactions, &[round as u8; 3]);
        if round >= 10 {
            keep_in(&transactions, other, &[round as u8; 3]);
        }
        transactions.prune(&commit(&transactions, &begin(&transactions, false), None, [round]).unwrap());
        if round == 20 {
            young.push((second, round as u8));
        } else {
            end(&second);
        }
        end(&std::mem::replace(&mut first, begin(&transactions, false)));
        let (covers, leaves) = (generations.covers_count(), transactions.history(Lsn(0)).kept_leaves);
        assert!(covers <= 4 && leaves <= 8, "{covers} covers of {leaves} leaves after round {round}");
    }
    // Each sees the leaf as it was, and what has changed since is known.
    assert_eq!(seen_by_covered(&transactions, old.sight()), shown(b"old"));
    assert_eq!(seen_in(&transactions, other, old.sight()), shown(&[10; 3]));
    for (snapshot, number) in &young {
        assert_eq!(seen_by_covered(&transactions, snapshot.sight()), shown(&[*number; 3]));
        end(snapshot);
    }
    let writes = begin_writing(&transactions, &old);
    for record in (0..40).chain(100..140) {
        assert_eq!(change(&transactions, (&writes, &old), record), Err(Refusal::Later), "{record}");
    }
    change(&transactions, (&writes, &old), 50).unwrap();
    transactions.roll_back(&writes);
    transactions.end_writing(old.id);
    end(&first);
    end(&old);
    assert_eq!((generations.covers_count(), transactions.history(Lsn(0)).kept_leaves), (0, 0));
}

/// A generation takes versions of an open writer, also too many to know each, and goes before an older snapshot does.
#[test]
fn what_is_committed_after_a_generation_took_it_is_known_when_that_has_gone() {
    for (is_committed, records) in [(true, 7..8), (false, 7..8), (true, 7..13), (false, 7..13)] {
        let transactions = transactions();
        let generations = transactions.versions.generations();
        let end = |ended: Ended| {
            transactions.prune(&ended);
            transactions.versions.prune_spilled(&ended.oldest);
        };
        let old = begin(&transactions, false);
        cover(&transactions);
        let open = begin(&transactions, false);
        let writes = begin_writing(&transactions, &open);
        records.clone().for_each(|record| change(&transactions, (&writes, &open), record).unwrap());
        cover(&transactions);
        if is_committed {
            end(commit_writes(&transactions, &writes, &open, None).unwrap());
        } else {
            records.clone().for_each(|_| _ = writes.lock().note_undone());
            transactions.roll_back(&writes);
            transactions.end_writing(open.id);
            end(transactions.end(&open));
        }
        let young = begin(&transactions, false);
        cover(&transactions);
        end(transactions.end(&begin(&transactions, false)));
        // It had been rolled back when the others were covered.
        assert_eq!(generations.covers_count(), 2, "the one in between");
        let writes = begin_writing(&transactions, &old);
        let expected = if is_committed { Err(Refusal::Later) } else { Ok(()) };
        records.for_each(|record| assert_eq!(change(&transactions, (&writes, &old), record), expected));
        end(transactions.end(&young));
    }
}

/// Its record could be noted only in a filter in which others may note theirs at the same time.
#[test]
fn a_generation_stays_while_it_is_not_known_where_changes_are_noted() {
    let transactions = transactions();
    let generations = transactions.versions.generations();
    let old = begin(&transactions, false);
    cover(&transactions);
    let open = begin(&transactions, false);
    let writes = begin_writing(&transactions, &open);
    change(&transactions, (&writes, &open), 7).unwrap();
    transactions.enter_all();
    let turn = transactions.versions.turn_to_move(|| true).unwrap();
    turn.spill(|| transactions.snapshots_now()).unwrap();
    drop(turn);
    transactions.prune(&commit_writes(&transactions, &writes, &open, None).unwrap());
    let before = generations.records();
    let covering = generations.begin_cover(&transactions.versions.spill().file, 1000).unwrap();
    transactions.versions.prune_spilled(&transactions.end(&begin(&transactions, false)).oldest);
    assert_eq!(generations.records(), before);
    generations.give_up(&covering);
    covering.rest();
    transactions.versions.prune_spilled(&transactions.end(&begin(&transactions, false)).oldest);
    assert!(generations.records() < before, "it was needed for that only");
    let writes = begin_writing(&transactions, &old);
    assert_eq!(change(&transactions, (&writes, &old), 7), Err(Refusal::Later));
}

#[test]
fn a_tree_that_ends_before_a_cover_is_armed_is_another_one_for_what_that_covers() {
    let transactions = transactions();
    let (generations, spill) = (transactions.versions.generations(), transactions.versions.spill());
    let cover = generations.begin_cover(&spill.file, spill.bytes).unwrap();
    transactions.versions.forget(TREE);
    generations.arm(&cover, || Lsn(100));
    keep(&transactions, b"value");
    assert!(generations.complete(&cover, Covered { id: 1, time: 1 }));
    cover.rest();
    assert_eq!(seen_by_covered(&transactions, Sight { time: 1, own: 1 }), shown(b"value"));
}

#[test]
fn a_covered_transaction_sees_its_own_changes_while_another_cover_takes_them() {
    let transactions = transactions();
    let covered = begin(&transactions, false);
    cover(&transactions);
    let generations = transactions.versions.generations();
    let writes = begin_writing(&transactions, &covered);
    let claimed = transactions.claim((&writes, &covered), (TREE, b"key", Lsn(500)), None, Intent::SameLength);
    claimed.unwrap().unwrap_or_else(|refusal| panic!("{refusal:?}")).note_change(Lsn(500), Lsn(510));
    keep(&transactions, b"former");
    let see = || transactions.versions.seen(TREE, b"key", covered.sight()).unwrap();
    assert_eq!(see(), Seen::Leaf);
    let spill = transactions.versions.spill();
    let second = generations.begin_cover(&spill.file, spill.bytes).unwrap();
    let turn = transactions.versions.turn_to_move(|| true).unwrap();
    turn.freeze(&second, (Vec::new(), 1), || generations.arm(&second, || Lsn(600)));
    assert_eq!(see(), Seen::Leaf, "they are not counted yet");
    generations.count(&second);
    second.rest();
    assert_eq!(see(), Seen::Leaf);
}

#[test]
fn a_claim_that_was_taken_back_and_stays_is_found_in_a_settled_leaf() {
    let spill = Spill::new(Some(Arc::new(SimulatedDisk::new(1))), 0);
    let clock = Arc::<LsnClock>::default();
    while clock.advance() <= Lsn(100) {}
    let places = Places::Clock(clock);
    let transactions = Transactions::new(1, SnapshotLimit::default(), spill, Default::default(), places);
    let covered = begin(&transactions, false);
    cover(&transactions);
    // There is a generation, to which its version may be on its way.
    let writes = begin_writing(&transactions, &covered);
    let claim = |by| transactions.claim(by, (TREE, &key(7)[..], Lsn(50)), None, Intent::SameLength).unwrap();
    drop(claim((&*writes, &covered)).unwrap_or_else(|refusal| panic!("{refusal:?}")));
    let mut state = writes.lock();
    let (before, is_first) = state.take_claim().unwrap();
    assert!(is_first);
    transactions.retract(&writes, &mut state, before);
    drop(state);
    let other = begin(&transactions, false);
    assert!(Lsn(50) < other.settled);
    let others = begin_writing(&transactions, &other);
    assert_eq!(claim((&*others, &other)).map(drop), Err(Refusal::Open));
}

/// Otherwise a queue beside a writer that stays open is the slower the more was removed.
#[test]
fn later_snapshots_pass_over_what_was_removed_beside_an_open_writer() {
    for bytes in [0, 1 << 40] {
        let transactions = with_room_for(bytes);
        let old = begin(&transactions, false);
        let writes = begin_writing(&transactions, &old);
        change(&transactions, (&writes, &old), 2_000_000).unwrap();
        let remove = |by: (&WriteSet, &Snapshot), record: u32| {
            let value = Some(ValueImage { kind: ValueKind::Inline, bytes: b"value" });
            let claimed = transactions.claim(by, (TREE, &key(record)[..], Lsn(500)), value, Intent::Remove);
            claimed.unwrap().unwrap_or_else(|refusal| panic!("{refusal:?}")).note_change(Lsn(500), Lsn(510));
        };
        let keys = |sight| {
            let bounds = (Bound::Unbounded, Bound::Included(&key(1_000_000)[..]));
            let portion = (Direction::Forward, usize::MAX);
            transactions.versions.removed(sight, TREE, bounds, portion).unwrap().keys.len()
        };
        for number in 0..2_000 {
            let snapshot = begin(&transactions, false);
            assert!(keys(snapshot.sight()) <= 1, "after {number} removals, {bytes} bytes");
            let own = begin_writing(&transactions, &snapshot);
            remove((&own, &snapshot), number);
            assert_eq!(keys(snapshot.sight()), 0, "its own");
            transactions.prune(&commit_writes(&transactions, &own, &snapshot, None).unwrap());
            if number % 400 == 399 {
                transactions.make_room(|| Lsn(400)).unwrap();
                assert_eq!(transactions.versions.generations().covers(old.id), bytes == 0);
            }
        }
        // What the writer removes is seen by others, and not by itself.
        (5_000..5_100).for_each(|record| remove((&writes, &old), record));
        let other = begin(&transactions, false);
        assert_eq!(keys(other.sight()), 100);
        if bytes > 0 {
            assert_eq!(keys(old.sight()), 2_000);
        }
    }
}
