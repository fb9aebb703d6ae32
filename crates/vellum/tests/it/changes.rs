//! The feed of changes: waiting for it, going on with it, contents that are there or gone, and its errors.

use std::{
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use vellum::{
    Backup, BackupOptions, Changes, ChangesFrom, ChangesOptions, ChangesPosition, Commit, Contents, Database,
    Durability, Error, ErrorKind, Event, Lsn, Options, RestoreOptions, TransactionOptions,
};
use vellum_vm::{Directory, FileOperation, SimulatedDisk};

const NAME: &str = "data";
/// Longer than anything takes that ends.
const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options::default()
        .pool_bytes(4 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(64 << 10)
        .log_buffer_bytes(4 << 20)
        .background_checkpoints(false)
        .huge_pages(false)
}

fn create(disk: &SimulatedDisk, options: &Options) -> Database {
    Database::create_in(Arc::new(disk.clone()), NAME, options).unwrap()
}

fn all(changes: &mut Changes) -> Vec<Commit> {
    std::iter::from_fn(|| changes.next().unwrap()).collect()
}

/// The value of the only change of a commit.
fn contents(commit: &Commit) -> Contents {
    match &commit.changes[..] {
        [change] => match &change.event {
            Event::Inserted { value, .. } | Event::Replaced { value, .. } => value.read().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn large(byte: u8) -> Vec<u8> {
    vec![byte; 20_000]
}

#[test]
fn a_thread_waits_for_commits_of_any_durability() {
    let database = create(&SimulatedDisk::new(1), &options());
    let table = database.create_table("table").unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    assert!(changes.next_within(Duration::from_millis(5)).unwrap().is_none());
    let (sender, receiver) = mpsc::channel();
    let follower = thread::spawn(move || {
        for _ in 0..30 {
            let commit = changes.next_within(LONG).unwrap().expect("one comes");
            sender.send(contents(&commit)).unwrap();
        }
    });
    for number in 0..30_u8 {
        let durability =
            [Durability::Synced, Durability::Buffered, Durability::Deferred][number as usize % 3];
        if number.is_multiple_of(4) {
            thread::sleep(Duration::from_millis(3));
        }
        let put = |transaction: &vellum::Transaction| transaction.put(&table, [number], [number]);
        database.run_with(TransactionOptions::default().durability(durability), put).unwrap();
        assert_eq!(receiver.recv_timeout(LONG).unwrap(), Contents::Value(vec![number]));
    }
    follower.join().unwrap();
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_task_is_woken_by_the_flush_that_makes_the_commit_durable() {
    let disk = SimulatedDisk::new(2);
    let database = create(&disk, &options());
    let table = database.create_table("table").unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    for number in 0..20_u8 {
        {
            // One that is dropped loses nothing.
            let mut next = pin!(changes.next_async());
            assert!(next.as_mut().poll(&mut context).is_pending());
        }
        let mut next = pin!(changes.next_async());
        assert!(next.as_mut().poll(&mut context).is_pending());
        let table = table.clone();
        let writer = thread::spawn(move || table.put([number], [number]).unwrap());
        let commit = loop {
            match next.as_mut().poll(&mut context) {
                Poll::Ready(commit) => break commit.unwrap(),
                Poll::Pending => thread::park_timeout(LONG),
            }
        };
        writer.join().unwrap();
        assert_eq!(contents(&commit), Contents::Value(vec![number]));
        assert_eq!(changes.position(), commit.position);
    }
    // A log that fails says so to those that wait.
    let follower = thread::spawn(move || changes.next_within(LONG));
    thread::sleep(Duration::from_millis(20));
    disk.fail_from_of(FileOperation::Sync, 1);
    disk.fail_from_of(FileOperation::Write, 1);
    table.put("one", "more").unwrap_err();
    assert_eq!(follower.join().unwrap().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

#[test]
fn whole_values_are_told_if_the_log_holds_them() {
    for holds in [true, false] {
        let options = options().log_whole_values(holds);
        let database = create(&SimulatedDisk::new(3), &options);
        let table = database.create_table("table").unwrap();
        let loaded = database.create_table("loaded").unwrap();
        table.put("small", "abcdef").unwrap();
        let mut changes = database.changes(ChangesFrom::Now).unwrap();
        table.modify("small", |value| value[2] = b'x').unwrap();
        table.modify("small", |_| {}).unwrap();
        database.run(|transaction| transaction.modify(&table, "small", |value| value[0] = b'y')).unwrap();
        table.put("large", large(1)).unwrap();
        table.put("large", large(2)).unwrap();
        table.remove("large").unwrap();
        let entry =
            |key: u32| (key.to_be_bytes(), if key.is_multiple_of(97) { large(3) } else { vec![7; 90] });
        let mut loader = loaded.bulk_loader().unwrap();
        (0..500).for_each(|key| loader.push(entry(key).0, entry(key).1).unwrap());
        loader.finish().unwrap();
        database.run(|transaction| transaction.remove_range(&loaded, ..)).unwrap();
        // What was there is used again.
        for key in 0..200_u32 {
            table.put(key.to_be_bytes(), large(9)).unwrap();
        }
        database.checkpoint().unwrap();

        let commits = all(&mut changes);
        let patches: Vec<_> = commits[..2]
            .iter()
            .map(|commit| match &commit.changes[0].event {
                Event::Replaced { value, .. } => (0, value.inline().unwrap().to_vec()),
                Event::Patched { offset, bytes, .. } => (*offset, bytes.clone()),
                other => panic!("{other:?}"),
            })
            .collect();
        let (value, first) = (contents(&commits[2]), contents(&commits[3]));
        assert!(matches!(&commits[4].changes[0].event, Event::Removed { key } if key == b"large"));
        let Event::Loaded { records } = &commits[5].changes[0].event else { panic!("{:?}", commits[5]) };
        let mut found = Vec::new();
        let is_whole = records.for_each(|key, value| {
            found.push((key, value.read()?.value().unwrap()));
            Ok(true)
        });
        assert_eq!(is_whole.unwrap(), holds);
        if holds {
            assert_eq!(patches, [(0, b"abxdef".to_vec()), (0, b"ybxdef".to_vec())]);
            assert_eq!((value, first), (Contents::Value(large(1)), Contents::Value(large(2))));
            let expected = (0..500).map(entry).map(|(key, value)| (key.to_vec(), value));
            assert!(found.into_iter().eq(expected));
        } else {
            assert_eq!(patches, [(2, b"x".to_vec()), (0, b"y".to_vec())]);
            assert_eq!((value, first), (Contents::Gone, Contents::Gone));
        }
    }
}

/// Commits of transactions that overlap, and where the feed was after each.
fn history(database: &Database, changes: &mut Changes) -> Vec<(ChangesPosition, Vec<u8>)> {
    let table = database.create_table("table").unwrap();
    let mut open = std::collections::VecDeque::new();
    for number in 0..60_u8 {
        let transaction = database.begin().unwrap();
        transaction.put(&table, [number], vec![number; 2000]).unwrap();
        open.push_back(transaction);
        // In another order than that in which they began.
        if open.len() > 6 {
            open.swap(0, number as usize % 6);
            let transaction = open.pop_front().unwrap();
            transaction.put(&table, [number, 0], [number]).unwrap();
            transaction.commit().unwrap();
        }
        if number.is_multiple_of(10) {
            database.checkpoint().unwrap();
        }
    }
    open.into_iter().for_each(|transaction| transaction.commit().unwrap());
    all(changes).into_iter().map(|commit| (commit.position, shown(&commit))).collect()
}

fn shown(commit: &Commit) -> Vec<u8> {
    format!("{} {:?}", commit.lsn, commit.changes).into_bytes()
}

#[test]
fn a_feed_goes_on_exactly_after_any_commit() {
    let disk = SimulatedDisk::new(4);
    let archive: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(5));
    let options = options().log_archive_in(archive);
    let mut database = create(&disk, &options);
    let begin = database.changes(ChangesFrom::Now).unwrap().position().lsn();
    let mut changes = database.changes(begin).unwrap();
    let commits = history(&database, &mut changes);
    drop(changes);
    for round in 0..3 {
        for (index, (position, _)) in commits.iter().enumerate() {
            let text = position.to_string();
            let mut changes = database.changes(text.parse::<ChangesPosition>().unwrap()).unwrap();
            assert_eq!(changes.position(), *position);
            let rest: Vec<_> = all(&mut changes).iter().map(shown).collect();
            let expected: Vec<_> = commits[index + 1..].iter().map(|(_, commit)| commit.clone()).collect();
            assert!(rest == expected, "{round}, from {position} on: {} of {}", rest.len(), expected.len());
        }
        if round < 2 {
            database.close().unwrap();
            database = Database::open_in(Arc::new(disk.clone()), NAME, &options).unwrap();
        }
    }
    // The archive has all of it.
    let all_of_it = all(&mut database.changes(Lsn(0)).unwrap());
    let told: Vec<_> = all_of_it.iter().map(|commit| commit.position).collect();
    assert!(told.ends_with(&commits.iter().map(|(position, _)| *position).collect::<Vec<_>>()));
    // No record begins there.
    for position in [begin.0 + 1, begin.0 + 8, commits[3].0.lsn().0 - 1, commits[20].0.lsn().0 + 16] {
        let error = database.changes(Lsn(position)).unwrap_err();
        assert!(matches!(error, Error::NoSuchPosition { .. }), "{position}: {error}");
    }
    let error = database.changes(Lsn(u64::MAX)).unwrap_err();
    assert!(matches!(error, Error::NoSuchPosition { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Somebody removes files of a log that is kept, under an open feed, whose tables and transactions are told all the same.
#[test]
fn a_feed_reads_the_archive_where_files_of_the_log_were_removed() {
    let disk = SimulatedDisk::new(16);
    let options = options().log_archive_in(Arc::new(SimulatedDisk::new(17)));
    let database = create(&disk, &options);
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let begin = changes.position();
    let mut commits = history(&database, &mut changes);
    let mut living = database.changes(begin).unwrap();
    let first = living.next().unwrap().unwrap();
    let table = database.create_table("later").unwrap();
    for number in 0..200_u32 {
        table.put(number.to_be_bytes(), [7; 900]).unwrap();
    }
    let later = all(&mut changes);
    commits.extend(later.into_iter().map(|commit| (commit.position, shown(&commit))));
    database.archive_log().unwrap();
    let mut segments = disk.names().unwrap();
    segments.retain(|name| name.starts_with("segment-"));
    segments.sort();
    assert!(segments.len() > 4, "{segments:?}");
    segments[..4].iter().for_each(|name| disk.remove(name).unwrap());
    let told: Vec<_> = [first].iter().chain(&all(&mut living)).map(shown).collect();
    let expected: Vec<_> = commits.iter().map(|(_, commit)| commit.clone()).collect();
    assert!(told == expected, "{} of {}", told.len(), expected.len());
}

#[test]
fn what_was_given_up_is_an_error_that_says_what_to_do() {
    let disk = SimulatedDisk::new(6);
    let database = create(&disk, &options());
    let table = database.create_table("table").unwrap();
    let mut slow =
        database.changes_with(ChangesFrom::Now, ChangesOptions::default().keep_bytes(100 << 10)).unwrap();
    let mut patient = database.changes(ChangesFrom::Now).unwrap();
    for number in 0..1000_u32 {
        table.put(number.to_be_bytes(), [7; 900]).unwrap();
    }
    database.checkpoint().unwrap();
    let first = patient.position();
    // It is kept for one of them, and so for both.
    assert_eq!(all(&mut patient).len(), 1000);
    database.checkpoint().unwrap();
    let error = slow.next().unwrap_err();
    assert!(matches!(error, Error::ChangesDiscarded { from, .. } if from == first.lsn()), "{error}");
    assert!(error.to_string().contains("Options::log_archive"), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        matches!(database.changes(first).unwrap_err(), Error::ChangesDiscarded { from, .. } if from == first.lsn())
    );
    // No record begins before the log, so zero is the place where it first began.
    let error = database.changes(Lsn(0)).unwrap_err();
    assert!(matches!(error, Error::ChangesDiscarded { from: Lsn(0), oldest: Some(_) }), "{error}");
    let last = patient.position();
    assert!(all(&mut database.changes(last).unwrap()).is_empty());
    drop((slow, patient, table));

    // A database that is closed has no log; a feed that was at its end goes on.
    database.close().unwrap();
    let database = Database::open_in(Arc::new(disk), NAME, &options()).unwrap();
    assert!(matches!(database.changes(first).unwrap_err(), Error::ChangesDiscarded { .. }));
    let mut changes = database.changes(last).unwrap();
    database.table("table").unwrap().put("one", "more").unwrap();
    assert_eq!(contents(&changes.next().unwrap().unwrap()), Contents::Value(b"more".to_vec()));
}

#[test]
fn a_transaction_that_is_larger_than_what_is_gathered_is_told_whole() {
    let database = create(&SimulatedDisk::new(7), &options().log_segment_bytes(1 << 20));
    let table = database.create_table("table").unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let transaction = database.begin().unwrap();
    for number in 0..30_000_u32 {
        transaction.put(&table, number.to_be_bytes(), [number as u8; 700]).unwrap();
        if number == 20_000 {
            let savepoint = transaction.savepoint();
            transaction.put(&table, "taken", "back").unwrap();
            transaction.rollback_to(savepoint).unwrap();
            database.checkpoint().unwrap();
            table.put("between", "them").unwrap();
            assert_eq!(all(&mut changes).len(), 1);
        }
    }
    transaction.commit().unwrap();
    let commit = changes.next().unwrap().unwrap();
    let keys = commit.changes.iter().map(|change| match &change.event {
        Event::Inserted { key, .. } => key.clone(),
        other => panic!("{other:?}"),
    });
    assert!(keys.eq((0..30_000_u32).map(|key| key.to_be_bytes().to_vec())));
    assert!(changes.next().unwrap().is_none());
}

/// Threads count in transactions, beside checkpoints. Their commits are told in their order, none twice.
fn count(options: &Options, seed: u64) {
    const THREADS: u64 = 3;
    const COMMITS: u64 = 250;
    let database = create(&SimulatedDisk::new(seed), options);
    let table = database.create_table("table").unwrap();
    table.put("count", 0_u64.to_be_bytes()).unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (database, table) = (&database, &table);
            scope.spawn(move || {
                for commit in 0..COMMITS {
                    let counted = database.run(|transaction| {
                        let count = transaction.get_for_update(table, "count")?.unwrap();
                        let count = u64::from_be_bytes(count.try_into().unwrap()) + 1;
                        transaction.put(
                            table,
                            (number * COMMITS + commit).to_be_bytes(),
                            [number as u8; 700],
                        )?;
                        transaction.put(table, "count", count.to_be_bytes()).map(drop)
                    });
                    counted.unwrap();
                    if number == 0 && commit.is_multiple_of(20) {
                        database.checkpoint().unwrap();
                    }
                }
            });
        }
        for expected in 1..=THREADS * COMMITS {
            let commit = changes.next_within(LONG).unwrap().expect("one comes");
            let told = commit.changes.iter().find_map(|change| match &change.event {
                Event::Replaced { key, value } if key == b"count" => value.inline().map(<[u8]>::to_vec),
                _ => None,
            });
            assert_eq!((told, commit.changes.len()), (Some(expected.to_be_bytes().to_vec()), 2));
            if expected.is_multiple_of(7) {
                changes = database.changes(commit.position).unwrap();
            }
        }
    });
    assert!(changes.next().unwrap().is_none());
}

#[test]
fn commits_of_several_threads_are_told_in_their_order() {
    for (seed, durability) in (20..).zip([Durability::Synced, Durability::Buffered, Durability::Deferred]) {
        let options = options().durability(durability);
        count(&options, seed);
        count(&options.log_archive_in(Arc::new(SimulatedDisk::new(seed + 10))), seed);
    }
}

#[test]
fn a_database_without_a_log_has_no_feed() {
    let database = create(&SimulatedDisk::new(8), &options().log(false));
    assert!(matches!(database.changes(ChangesFrom::Now), Err(Error::WithoutLog)));
}

/// What a commit frees of earlier values is logged after it, and is not what is waited for.
#[test]
fn the_place_of_a_commit_is_that_of_its_record_whatever_it_frees() {
    let database = create(&SimulatedDisk::new(3), &options());
    let table = database.create_table("table").unwrap();
    table.put("large", large(1)).unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    let mut places = Vec::new();
    for round in 0..6_u8 {
        let transaction = database.begin().unwrap();
        match round % 3 {
            0 => _ = transaction.put(&table, "large", large(round)).unwrap(),
            1 => _ = transaction.remove(&table, "large").unwrap(),
            _ => transaction.clear_table("table").unwrap(),
        }
        transaction.put(&table, "small", [round]).unwrap();
        places.push(transaction.commit_async().unwrap().unwrap().lsn());
        table.put("large", large(round)).unwrap();
    }
    database.sync().unwrap();
    let followed: Vec<Lsn> = all(&mut changes).iter().step_by(2).map(|commit| commit.lsn).collect();
    assert_eq!(places, followed);
    // A transaction that has changed nothing waits for nothing, though its end may free what only it could see.
    let old = database.begin().unwrap();
    let held = old.get(&table, "large").unwrap();
    assert!(held.is_some());
    table.put("large", large(9)).unwrap();
    assert!(old.commit_async().unwrap().is_none());
}

/// A database that was restored lacks what its archive lacked. A feed that has told that of the lost one does not go on with the restored one
/// as if nothing had happened.
#[test]
fn a_place_that_the_lost_database_has_told_is_none_of_the_restored_one() {
    let disk = |seed| Arc::new(SimulatedDisk::new(seed));
    let (archive, backups, made, later) = (disk(32), disk(33), disk(34), disk(35));
    let lost = create(&disk(31), &options().log_archive_in(archive.clone()));
    let table = lost.create_table("table").unwrap();
    lost.backup_in(backups.clone(), "backup", BackupOptions::default()).unwrap();
    let mut changes = lost.changes(ChangesFrom::Now).unwrap();
    // The restored one has to undo something, so its log does not end where a segment begins.
    let held = lost.begin().unwrap();
    held.put(&table, "held", "value").unwrap();
    table.put("kept", "value").unwrap();
    let kept = changes.next().unwrap().unwrap().position;
    let archived = lost.archive_log().unwrap();
    let backup = Backup::open_in(&*backups, "backup").unwrap();
    let how = RestoreOptions::default().archive_in(archive);
    Backup::restore_in(&[backup], made.clone(), NAME, &options(), how).unwrap();
    let mut told = Vec::new();
    for number in 0..100_u8 {
        table.put([number], [7; 900]).unwrap();
        told.push(changes.next().unwrap().unwrap().position);
    }
    assert!(told.iter().all(|position| position.lsn() > archived));
    let open = || Database::open_in(made.clone(), NAME, &options().log_archive_in(later.clone())).unwrap();
    let mut restored = open();
    let begin = restored.changes(ChangesFrom::Now).unwrap().position();
    assert!(told.iter().any(|position| position.lsn() < begin.lsn()));
    for is_archived in [false, true] {
        restored.table("table").unwrap().put([is_archived.into()], "of the restored one").unwrap();
        for position in &told {
            let error = restored.changes(*position).map(|changes| changes.position());
            let error = error.expect_err("it is of the lost one");
            assert!(matches!(error, Error::NoSuchPosition { .. }), "{position}: {error}");
        }
        // It has had this one, though no longer in its log.
        let error = restored.changes(kept).unwrap_err();
        assert!(matches!(error, Error::ChangesDiscarded { .. }), "{kept}: {error}");
        let count = all(&mut restored.changes(begin).unwrap()).len();
        assert_eq!(count, 1 + usize::from(is_archived));
        if !is_archived {
            restored.archive_log().unwrap();
            restored.close().unwrap();
            restored = open();
        }
    }
}

/// A database that was opened, and has changed nothing, has logged nothing after where it was closed. What it tells there is true of that state,
/// and not of what a restored one, or the one of which a backup was restored, has at the same place.
#[test]
fn what_a_database_tells_before_it_changes_something_is_none_of_another_history() {
    let disk = |seed| Arc::new(SimulatedDisk::new(seed));
    let (first, backups, made) = (disk(41), disk(42), disk(43));
    let open = |disk: &Arc<SimulatedDisk>| Database::open_in(disk.clone(), NAME, &options()).unwrap();
    let database = create(&first, &options());
    let table = database.create_table("table").unwrap();
    database.backup_in(backups.clone(), "backup", BackupOptions::default()).unwrap();
    for number in 0..20_u8 {
        table.put([number], [7; 900]).unwrap();
    }
    drop(table);
    database.close().unwrap();
    let database = open(&first);
    let of_lost = database.changes(ChangesFrom::Now).unwrap().position();
    database.close().unwrap();
    let backup = Backup::open_in(&*backups, "backup").unwrap();
    Backup::restore_in(&[backup], made.clone(), NAME, &options(), RestoreOptions::default()).unwrap();
    let restored = open(&made);
    let of_restored = restored.changes(ChangesFrom::Now).unwrap().position();
    let table = restored.table("table").unwrap();
    let lost = open(&first);
    for number in 0..100_u8 {
        table.put([number], [8; 900]).unwrap();
        let refused = restored.changes(of_lost).map(|changes| changes.position());
        assert!(matches!(refused, Err(Error::NoSuchPosition { .. })), "{number}: {refused:?}");
    }
    let refused = lost.changes(of_restored).map(|changes| changes.position());
    assert!(
        matches!(refused, Err(Error::NoSuchPosition { .. } | Error::ChangesDiscarded { .. })),
        "{refused:?}"
    );
    // Each goes on where it was itself.
    assert_eq!(all(&mut restored.changes(of_restored).unwrap()).len(), 100);
    lost.table("table").unwrap().put("new", "value").unwrap();
    assert_eq!(all(&mut lost.changes(of_lost).unwrap()).len(), 1);
}

#[test]
fn a_feed_goes_on_after_the_process_was_killed_that_had_changed_nothing() {
    for is_killed in [true, false] {
        let (mut disk, archive) = (SimulatedDisk::new(44), SimulatedDisk::new(45));
        let options = options().log_archive_in(Arc::new(archive));
        let database = create(&disk, &options);
        database.create_table("table").unwrap().put("a", "value").unwrap();
        database.close().unwrap();
        let mut position = None;
        for _ in 0..3 {
            let database = Database::open_in(Arc::new(disk.clone()), NAME, &options).unwrap();
            let now = database.changes(ChangesFrom::Now).unwrap().position();
            let position = *position.get_or_insert(now);
            assert!(all(&mut database.changes(position).unwrap()).is_empty());
            if is_killed {
                disk = disk.kill();
            }
            database.close().unwrap();
        }
        let database = Database::open_in(Arc::new(disk), NAME, &options).unwrap();
        database.table("table").unwrap().put("b", "value").unwrap();
        assert_eq!(all(&mut database.changes(position.unwrap()).unwrap()).len(), 1, "{is_killed}");
    }
}

/// What is changed without a log is told by no feed: none goes on after it as if nothing had happened.
#[test]
fn no_feed_goes_on_across_what_was_changed_without_a_log() {
    let disk = Arc::new(SimulatedDisk::new(46));
    let open = |has_log| Database::open_in(disk.clone(), NAME, &options().log(has_log)).unwrap();
    let database = create(&disk, &options());
    let table = database.create_table("table").unwrap();
    let mut changes = database.changes(ChangesFrom::Now).unwrap();
    table.put("a", "value").unwrap();
    assert_eq!(all(&mut changes).len(), 1);
    let position = changes.position();
    drop((table, changes));
    database.close().unwrap();
    // Nothing is changed.
    open(false).close().unwrap();
    let database = open(true);
    assert!(all(&mut database.changes(position).unwrap()).is_empty());
    database.close().unwrap();
    let database = open(false);
    database.table("table").unwrap().put("b", "not logged").unwrap();
    database.close().unwrap();
    let database = open(true);
    for is_changed in [false, true] {
        if is_changed {
            database.table("table").unwrap().put("c", "value").unwrap();
        }
        let refused = database.changes(position).map(|changes| changes.position());
        assert!(matches!(refused, Err(Error::ChangesDiscarded { .. })), "{refused:?}");
    }
}

/// Both go on at the same place of their logs.
#[test]
fn a_feed_does_not_go_on_in_a_copy_that_was_changed_without_a_log_as_well() {
    let (disk, copy) = {
        let disk = SimulatedDisk::new(47);
        create(&disk, &options()).close().unwrap();
        (disk.kill(), disk.kill())
    };
    let change = |disk: &SimulatedDisk, key: &str| {
        let database = Database::open_in(Arc::new(disk.clone()), NAME, &options().log(false)).unwrap();
        database.create_table("table").unwrap().put(key, "not logged").unwrap();
        database.close().unwrap();
        Database::open_in(Arc::new(disk.clone()), NAME, &options()).unwrap()
    };
    let database = change(&disk, "a");
    let position = database.changes(ChangesFrom::Now).unwrap().position();
    let other = change(&copy, "b");
    assert_eq!(other.changes(ChangesFrom::Now).unwrap().position().lsn(), position.lsn());
    let refused = other.changes(position).map(|changes| changes.position());
    assert!(matches!(refused, Err(Error::NoSuchPosition { .. })), "{refused:?}");
    database.table("table").unwrap().put("c", "value").unwrap();
    assert_eq!(all(&mut database.changes(position).unwrap()).len(), 1);
}
