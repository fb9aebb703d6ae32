//! The file is made shorter while others go on.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};
use vellum::{
    Backup, BackupOptions, Compaction, Database, Error, ErrorKind, Options, RestoreOptions, Table,
    TableOptions,
};
use vellum_vm::{Directory, FileOperation, SimulatedDisk};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::default()
        .pool_bytes(1 << 20)
        .capacity_bytes(1 << 30)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .huge_pages(false)
}

fn create(disk: &SimulatedDisk, options: &Options) -> Database {
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    Database::create_in(directory, "data", options).unwrap()
}

fn open(disk: &SimulatedDisk, options: &Options) -> Database {
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    Database::open_in(directory, "data", options).unwrap()
}

fn value(random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..40) {
        0 => random.random_range(2000..60_000),
        _ => random.random_range(0..400),
    };
    vec![random.random(); length]
}

fn all(table: &Table) -> Model {
    table.range(..).unwrap().map(Result::unwrap).collect()
}

fn check(database: &Database) {
    let report = database.verify(|_| ());
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Stores records in turns in two tables, and removes nine of ten.
fn fill(database: &Database, tables: [&Table; 2], random: &mut StdRng) -> [Model; 2] {
    let mut models = [Model::new(), Model::new()];
    for number in 0..6000_u32 {
        let which = (number % 2) as usize;
        let (key, value) = (random.random::<u64>().to_be_bytes().to_vec(), value(random));
        tables[which].put(&key, &value).unwrap();
        models[which].insert(key, value);
    }
    for (table, model) in tables.iter().zip(&mut models) {
        let keys: Vec<_> = model.keys().filter(|_| random.random_ratio(9, 10)).cloned().collect();
        for key in keys {
            assert!(table.remove(&key).unwrap());
            model.remove(&key);
        }
    }
    let _ = database.checkpoint();
    models
}

fn is_short(done: &Compaction) {
    assert!(done.nodes_moved > 0 && done.values_moved > 0, "{done:?}");
    assert!(done.file_bytes * 4 < done.file_bytes_before, "{done:?}");
}

#[test]
fn a_file_becomes_as_short_as_what_it_holds() {
    for (seed, with_log) in [(1, true), (2, false)] {
        let (disk, options) = (SimulatedDisk::new(seed), options().log(with_log));
        let mut random = StdRng::seed_from_u64(seed);
        let database = create(&disk, &options);
        let first = database.create_table("first").unwrap();
        let plain = database.create_table_with("plain", TableOptions::default().versions(false)).unwrap();
        let models = fill(&database, [&first, &plain], &mut random);
        let done = database.compact(|_| true).unwrap();
        is_short(&done);
        assert_eq!(disk.file("data").snapshot().to_vec().len() as u64, done.file_bytes);
        assert_eq!([all(&first), all(&plain)], models);
        check(&database);
        let again = database.compact(|_| true).unwrap();
        assert!(again.file_bytes <= done.file_bytes, "{again:?}");
        // It grows again.
        for number in 0..2000_u32 {
            first.put(number.to_be_bytes(), [7; 500]).unwrap();
        }
        drop((first, plain));
        database.close().unwrap();
        let database = open(&disk, &options);
        let plain = database.table("plain").unwrap();
        assert_eq!(all(&plain), models[1]);
        check(&database);
    }
}

/// The holes at the beginning are too short for the values at the end. A longer one lies behind the first limit.
#[test]
fn values_that_fit_only_behind_other_holes_are_moved_there() {
    let database = create(&SimulatedDisk::new(18), &options().pool_bytes(4 << 20));
    let table = database.create_table("table").unwrap();
    let key = |kind: u8, number: u8| [kind, number];
    for number in 0..50 {
        table.put(key(0, number), vec![number; 60_000]).unwrap();
        table.put(key(1, number), vec![number; 36_000]).unwrap();
    }
    table.put(key(2, 0), vec![2; 1_500_000]).unwrap();
    for number in 0..10 {
        table.put(key(3, number), vec![number; 60_000]).unwrap();
    }
    for number in 0..50 {
        assert!(table.remove(key(1, number)).unwrap());
    }
    assert!(table.remove(key(2, 0)).unwrap());
    let model = all(&table);
    // Moves the nodes, so that the next one has only values to move.
    database.compact(|done| done.values_moved == 0).unwrap();
    let done = database.compact(|_| true).unwrap();
    let allocated = database.statistics().pages_allocated * 4096;
    assert!(done.file_bytes < allocated * 7 / 4, "{done:?}, {allocated} bytes are allocated");
    assert_eq!(all(&table), model);
    check(&database);
}

#[test]
fn others_go_on_meanwhile() {
    let (disk, options) = (SimulatedDisk::new(3), options().pool_bytes(512 << 10));
    let mut random = StdRng::seed_from_u64(3);
    let database = create(&disk, &options);
    let (first, second) = (database.create_table("first").unwrap(), database.create_table("second").unwrap());
    let models = fill(&database, [&first, &second], &mut random);
    let before = disk.file("data").snapshot().to_vec().len() as u64;
    let (snapshot, stop) = (database.begin().unwrap(), AtomicBool::new(false));
    let after = thread::scope(|scope| {
        let writers = [(&first, 0_u8), (&first, 1), (&second, 2)].map(|(table, writer)| {
            let (stop, database) = (&stop, &database);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(writer.into());
                let mut own = Model::new();
                while !stop.load(Ordering::Relaxed) {
                    // Keys of its own, among all others.
                    let key = [&random.random::<u64>().to_be_bytes()[..3], &[writer]].concat();
                    let value = value(&mut random);
                    match random.random_range(0..4) {
                        0 => {
                            let key = own.keys().nth(own.len() / 2).cloned().unwrap_or(key);
                            assert_eq!(table.remove(&key).unwrap(), own.remove(&key).is_some());
                        }
                        1 => {
                            let put = database.run(|transaction| transaction.put(table, &key, &value));
                            put.unwrap();
                            own.insert(key, value);
                        }
                        _ => {
                            table.put(&key, &value).unwrap();
                            own.insert(key, value);
                        }
                    }
                    if own.len() > 300 {
                        own.clone().into_keys().for_each(|key| assert!(table.remove(&key).unwrap()));
                        own.clear();
                    }
                }
                own
            })
        });
        let mut moved = 0;
        for _ in 0..4 {
            moved += database.compact(|_| true).unwrap().nodes_moved;
            let seen: Model = snapshot.range(&first, ..).unwrap().map(Result::unwrap).collect();
            assert_eq!(seen, models[0]);
        }
        assert!(moved > 0);
        stop.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().unwrap())
    });
    drop(snapshot);
    let [mut expected, mut other] = models;
    let [a, b, c] = after;
    expected.extend(a.into_iter().chain(b));
    other.extend(c);
    let done = database.compact(|_| true).unwrap();
    assert!(done.file_bytes * 3 < before, "{done:?}, {before} before");
    assert_eq!((all(&first), all(&second)), (expected, other));
    check(&database);
}

#[test]
fn one_inside_another_is_refused() {
    let database = create(&SimulatedDisk::new(11), &options());
    let tables = ["a", "b"].map(|name| database.create_table(name).unwrap());
    fill(&database, [&tables[0], &tables[1]], &mut StdRng::seed_from_u64(11));
    tables[0].clone().range(..).unwrap().for_each(|entry| drop(tables[0].remove(entry.unwrap().0)));
    let mut refused = 0;
    let again = database.clone();
    database
        .compact(|_| {
            refused += usize::from(matches!(again.compact(|_| true), Err(Error::NestedCompaction)));
            assert!(again.verify(|_| {}).is_clean());
            again.checkpoint().unwrap();
            true
        })
        .unwrap();
    assert!(refused > 0);
    database.compact(|_| true).unwrap();
    check(&database);
}

/// A backup whose progress compacts, and a compaction whose callback makes a backup: one of them hears that it cannot.
#[test]
fn two_that_would_wait_for_each_other_do_not() {
    let database = create(&SimulatedDisk::new(16), &options());
    let tables = ["a", "b"].map(|name| database.create_table(name).unwrap());
    let models = fill(&database, [&tables[0], &tables[1]], &mut StdRng::seed_from_u64(16));
    let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(17));
    let (meet, refused) = (Barrier::new(2), AtomicU32::new(0));
    let count = |done: vellum::Result<()>| {
        if let Err(error) = done {
            assert!(matches!(error, Error::NestedBackup | Error::NestedCompaction), "{error}");
            refused.fetch_add(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut is_first = true;
            let mut progress = |_| {
                if std::mem::take(&mut is_first) {
                    meet.wait();
                    count(database.compact(|_| true).map(drop));
                }
                true
            };
            let how = BackupOptions::default().progress(&mut progress);
            database.backup_in(target.clone(), "outer", how).unwrap();
        });
        let mut is_first = true;
        database
            .compact(|_| {
                if std::mem::take(&mut is_first) {
                    meet.wait();
                    count(database.backup_in(target.clone(), "inner", BackupOptions::default()).map(drop));
                }
                true
            })
            .unwrap();
    });
    assert_eq!(refused.into_inner(), 1);
    // Afterwards both may.
    let mut done = 0;
    database
        .compact(|_| {
            done += 1;
            let name = format!("later {done}");
            database.backup_in(target.clone(), &name, BackupOptions::default()).unwrap();
            done < 2
        })
        .unwrap();
    assert_eq!([all(&tables[0]), all(&tables[1])], models);
    check(&database);
}

#[test]
fn the_callback_of_a_verification_may_do_anything() {
    let database = create(&SimulatedDisk::new(13), &options());
    let table = database.create_table("a").unwrap();
    table.put("key", "value").unwrap();
    let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(14));
    let other = create(&SimulatedDisk::new(15), &options());
    let mut calls = 0;
    let report = database.verify(|_| {
        calls += 1;
        database.backup_in(target.clone(), &format!("backup {calls}"), BackupOptions::default()).unwrap();
        database.checkpoint().unwrap();
        database.compact(|_| true).unwrap();
        assert!(database.verify(|_| {}).is_clean());
        assert_eq!(table.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        table.put(format!("key {calls}"), vec![1; 10_000]).unwrap();
        other.checkpoint().unwrap();
        assert!(other.verify(|_| {}).is_clean());
    });
    assert!(calls > 0 && report.is_clean(), "{:?}", report.problems);
    check(&database);
}

#[test]
fn it_ends_when_it_is_told_to_and_tables_are_dropped_meanwhile() {
    let (disk, options) = (SimulatedDisk::new(4), options());
    let mut random = StdRng::seed_from_u64(4);
    let database = create(&disk, &options);
    let (first, second) = (database.create_table("a").unwrap(), database.create_table("b").unwrap());
    let models = fill(&database, [&first, &second], &mut random);
    let mut steps = 0;
    let done = database.compact(|done| {
        steps += 1;
        assert!(done.file_bytes <= done.file_bytes_before);
        done.nodes_moved < 5
    });
    assert_eq!(done.unwrap().nodes_moved, 5);
    assert_eq!([all(&first), all(&second)], models);
    drop(first);
    let mut is_dropped = false;
    let done = database.compact(|_| {
        if !std::mem::replace(&mut is_dropped, true) {
            assert_eq!(database.drop_table("b").unwrap_err().kind(), ErrorKind::Busy);
            database.drop_table("a").unwrap();
            database.create_table("a").unwrap();
        }
        true
    });
    is_short(&done.unwrap());
    assert_eq!(all(&second), models[1]);
    assert!(all(&database.table("a").unwrap()).is_empty());
    check(&database);
}

#[test]
fn backups_and_compactions_go_on_beside_each_other() {
    let (disk, backups) = (SimulatedDisk::new(6), SimulatedDisk::new(7));
    let options = options();
    let mut random = StdRng::seed_from_u64(6);
    let database = create(&disk, &options);
    let (first, second) = (database.create_table("first").unwrap(), database.create_table("second").unwrap());
    let at_first = fill(&database, [&first, &second], &mut random);
    let back_up = |name: &str, progress: &mut dyn FnMut()| {
        let mut progress = |_| {
            progress();
            true
        };
        let how = BackupOptions::default().progress(&mut progress);
        database.backup_in(Arc::new(backups.clone()), name, how).unwrap();
    };
    // While a backup reads the file it is not cut.
    let mut beside = None;
    back_up("compacted meanwhile", &mut || {
        beside.get_or_insert_with(|| database.compact(|_| true).unwrap());
    });
    let beside = beside.unwrap();
    assert!(beside.nodes_moved > 0 && beside.file_bytes >= beside.file_bytes_before, "{beside:?}");
    let mut later = at_first.clone();
    for (model, more) in later.iter_mut().zip(fill(&database, [&first, &second], &mut random)) {
        model.extend(more);
    }
    let mut is_made = false;
    let done = database.compact(|_| {
        if !std::mem::replace(&mut is_made, true) {
            back_up("made meanwhile", &mut || ());
        }
        true
    });
    let done = done.unwrap();
    assert!(is_made && done.file_bytes * 3 < done.file_bytes_before, "{done:?}");
    for (name, models) in [("compacted meanwhile", at_first), ("made meanwhile", later)] {
        let disk = SimulatedDisk::new(8);
        let backup = Backup::open_in(&backups, name).unwrap();
        let directory: Arc<dyn Directory> = Arc::new(disk.clone());
        Backup::restore_in(&[backup], directory, "data", &options, RestoreOptions::default()).unwrap();
        let restored = open(&disk, &options);
        let tables = ["first", "second"].map(|name| all(&restored.table(name).unwrap()));
        assert_eq!(tables, models, "{name}");
        check(&restored);
    }
}

#[test]
fn a_panic_ends_it_and_nothing_else() {
    let (disk, options) = (SimulatedDisk::new(9), options());
    let mut random = StdRng::seed_from_u64(9);
    let database = create(&disk, &options);
    let (first, second) = (database.create_table("first").unwrap(), database.create_table("second").unwrap());
    let models = fill(&database, [&first, &second], &mut random);
    let panics = || database.compact(|done| panic!("after {} nodes", done.nodes_seen));
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    // The only handle is the program's.
    assert_eq!(database.drop_table("first").unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!([all(&first), all(&second)], models);
    is_short(&database.compact(|_| true).unwrap());
    check(&database);
}

/// The operation of this kind with this number fails while a file is compacted. False if there are fewer.
fn fail(disk: &SimulatedDisk, models: &[Model; 2], operation: FileOperation, number: u64) -> bool {
    // A copy.
    let disk = disk.kill();
    let options = options();
    let database = open(&disk, &options);
    disk.fail_nth_of(operation, number);
    let failures = disk.counts().scheduled_failures;
    let done = database.compact(|_| true);
    let has_failed = disk.counts().scheduled_failures > failures;
    disk.heal();
    assert!(has_failed || done.is_ok(), "{done:?}");
    let database = match database.checkpoint() {
        Ok(()) => database,
        Err(_) => {
            drop(database);
            open(&disk, &options)
        }
    };
    let tables = || ["first", "second"].map(|name| all(&database.table(name).unwrap()));
    assert_eq!(&tables(), models, "{operation} {number}");
    check(&database);
    let done = database.compact(|_| true).unwrap();
    assert!(done.file_bytes < 1 << 20, "{operation} {number}: {done:?}");
    assert_eq!(&tables(), models, "{operation} {number}");
    check(&database);
    has_failed
}

#[test]
fn an_error_ends_it_and_nothing_else() {
    let disk = SimulatedDisk::new(10);
    let mut random = StdRng::seed_from_u64(10);
    let database = create(&disk, &options());
    let (first, second) = (database.create_table("first").unwrap(), database.create_table("second").unwrap());
    let models = fill(&database, [&first, &second], &mut random);
    drop((first, second));
    database.close().unwrap();
    for operation in [FileOperation::Read, FileOperation::Write, FileOperation::Sync, FileOperation::Name] {
        let mut number = 1;
        while fail(&disk, &models, operation, number) {
            number += 1 + number / 3;
        }
        println!("up to {number} of the kind {operation}");
    }
}

#[test]
fn a_database_that_is_read_only_is_not_compacted() {
    let (disk, options) = (SimulatedDisk::new(5), options());
    create(&disk, &options).close().unwrap();
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    let database = Database::open_in(directory, "data", &options.clone().read_only(true)).unwrap();
    let before = disk.file("data").snapshot().to_vec();
    assert_eq!(database.compact(|_| true).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(disk.file("data").snapshot().to_vec() == before);
}

#[test]
fn a_file_becomes_shorter_after_a_panic_in_a_backup() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().pool_bytes(4 << 20).capacity_bytes(1 << 30);
    let database = Database::create(directory.path().join("data"), &options).unwrap();
    let table = database.create_table("table").unwrap();
    for number in 0..4000u32 {
        table.put(number.to_be_bytes(), [1; 1000]).unwrap();
    }
    let backup = directory.path().join("backup");
    let mut progress = |_| -> bool { panic!("a caller's code") };
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        database.backup_with(&backup, BackupOptions::default().progress(&mut progress))
    }));
    assert!(panicked.is_err());
    assert!(!directory.path().join("backup.unfinished").exists());
    table.remove_range(100u32.to_be_bytes()..).unwrap();
    let done = database.compact(|_| true).unwrap();
    assert!(done.file_bytes < done.file_bytes_before / 4, "{done:?}");
    database.backup(&backup).unwrap();
}
