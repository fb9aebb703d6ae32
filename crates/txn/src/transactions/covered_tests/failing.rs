//! The file of versions fails while snapshots are being covered.

use super::*;
use std::{
    error::Error as _,
    thread,
    time::{Duration, Instant},
};
use vellum_pool::PoolError;
use vellum_vm::FileOperation;

/// How much memory versions may take: more than the pool of their file has.
const ROOM: usize = 4 << 20;
const RECORDS: u32 = 2_000;
const VALUE_BYTES: usize = 800;
/// Longer than the first pause after a failure.
const PAUSE: Duration = Duration::from_millis(150);

/// Transactions with snapshots of several moments; all records have the number of the round as their values.
struct Rounds {
    disk: SimulatedDisk,
    transactions: Transactions,
    /// The snapshot of each round, and the records that were changed in it before the snapshot was covered: what leaves
    /// held at that moment is not played here.
    snapshots: Vec<(Snapshot, u32)>,
    /// What has been refused for lack of room.
    errors: Vec<PoolError>,
}

impl Rounds {
    fn new() -> Self {
        let disk = SimulatedDisk::new(1);
        let spill = Spill::new(Some(Arc::new(disk.clone())), ROOM as u64);
        let places = Places::Clock(Arc::default());
        let transactions = Transactions::new(1, SnapshotLimit::default(), spill, Default::default(), places);
        Self { disk, transactions, snapshots: Vec::new(), errors: Vec::new() }
    }

    fn frozen_bytes(&self) -> usize {
        self.transactions.versions.generations().frozen_bytes()
    }

    /// Makes room as a transaction does that is about to change something; returns whether it may.
    fn make_room(&mut self) -> bool {
        self.transactions.make_room(|| Lsn(400)).map_err(|error| self.errors.push(error)).is_ok()
    }

    /// A snapshot is taken, and then the records are changed, as far as there is room.
    fn round(&mut self) {
        let value = [self.snapshots.len() as u8; VALUE_BYTES];
        let snapshot = begin(&self.transactions, false);
        let (mut changed, mut before_cover) = (0, None);
        while changed < RECORDS && self.make_room() {
            if before_cover.is_none() && self.transactions.versions.generations().covers(snapshot.id) {
                before_cover = Some(changed);
            }
            let own = begin(&self.transactions, false);
            let writes = begin_writing(&self.transactions, &own);
            for record in changed..changed + 50 {
                let value = Some(ValueImage { kind: ValueKind::Inline, bytes: &value });
                let record = (TREE, &key(record)[..], Lsn(500));
                let claimed =
                    self.transactions.claim((&writes, &own), record, value, Intent::SameLength).unwrap();
                claimed.unwrap_or_else(|refusal| panic!("{refusal:?}")).note_change(Lsn(500), Lsn(510));
            }
            changed += 50;
            self.prune(&commit_writes(&self.transactions, &writes, &own, None).unwrap());
        }
        self.snapshots.push((snapshot, before_cover.unwrap_or(changed)));
        self.transactions.enter_all();
    }

    fn prune(&self, ended: &Ended) {
        self.transactions.prune(ended);
        self.transactions.versions.prune_spilled(&ended.oldest);
    }

    /// Each snapshot sees its moment.
    fn look(&self) {
        for (round, (snapshot, changed)) in self.snapshots.iter().enumerate() {
            for record in (0..*changed).step_by(37) {
                let found = self.transactions.versions.seen(TREE, &key(record), snapshot.sight()).unwrap();
                assert_eq!(found, shown(&[round as u8; VALUE_BYTES]), "{record} in round {round}");
            }
        }
    }

    fn end(mut self) {
        for (snapshot, _) in std::mem::take(&mut self.snapshots) {
            self.prune(&self.transactions.end(&snapshot));
        }
        assert_eq!(self.frozen_bytes(), 0);
        assert_eq!(self.transactions.versions.generations().covers_count(), 0);
    }
}

/// The operation of this kind with this number fails while frozen versions are written. False if there are fewer.
fn fail_once(operation: FileOperation, number: u64) -> bool {
    let mut rounds = Rounds::new();
    rounds.round();
    rounds.disk.fail_nth_of(operation, number);
    let mut most = 0;
    for _ in 0..2 {
        rounds.round();
        most = most.max(rounds.frozen_bytes());
    }
    let has_failed = rounds.disk.counts().scheduled_failures > 0;
    assert!(rounds.errors.is_empty(), "{operation} {number}: {:?}", rounds.errors);
    rounds.disk.heal();
    rounds.look();
    thread::sleep(PAUSE);
    assert!(rounds.make_room());
    assert!(
        rounds.frozen_bytes() <= ROOM / 2,
        "{operation} {number}: of {most} bytes nothing was given back"
    );
    rounds.look();
    rounds.end();
    has_failed
}

#[test]
fn a_generation_that_could_not_be_written_is_written_later() {
    for operation in [FileOperation::Write, FileOperation::Read] {
        let mut number = 1;
        while fail_once(operation, number) {
            number += 1 + number / 2;
        }
        println!("up to {number} of the kind {operation}");
        assert!(number > 1 || operation != FileOperation::Write);
    }
}

#[test]
fn while_no_generation_can_be_written_memory_is_bounded_and_the_error_says_why() {
    let mut rounds = Rounds::new();
    rounds.round();
    rounds.disk.fail_from_of(FileOperation::Write, 1);
    let (mut frozen_most, begun) = (0, Instant::now());
    for _ in 0..40 {
        rounds.round();
        frozen_most = frozen_most.max(rounds.frozen_bytes());
        rounds.look();
    }
    let version_bytes = rounds.transactions.history(Lsn(0)).version_bytes as usize;
    assert!(frozen_most + version_bytes < ROOM + ROOM / 4, "{frozen_most} and {version_bytes} bytes");
    assert!(rounds.errors.len() > 20, "{} were refused", rounds.errors.len());
    let failures = rounds.disk.counts().scheduled_failures;
    // On a slow machine one more attempt each second.
    let allowed = 20 + 2 * begun.elapsed().as_secs();
    assert!(failures < allowed, "{failures} writes have failed");
    for error in &rounds.errors {
        assert!(error.to_string().contains("memory"), "{error}");
        let mut cause = error.source().unwrap();
        while let Some(next) = cause.source() {
            cause = next;
        }
        assert!(cause.downcast_ref::<std::io::Error>().is_some(), "{cause:?}");
    }
    rounds.disk.heal();
    rounds.errors.clear();
    // Somewhat longer than the longest pause while room is lacking.
    thread::sleep(PAUSE * 8);
    rounds.round();
    assert!(rounds.errors.is_empty(), "{:?}", rounds.errors);
    assert!(rounds.frozen_bytes() <= ROOM / 2);
    rounds.look();
    rounds.end();
}
