//! Snapshots that are old, and are shown leaves as they were.

use crate::support::{assert_clean, options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use vellum::{Database, Durability, ErrorKind, Options, Table, Transaction};
use vellum_vm::SimulatedDisk;

fn small(room: u64) -> Options {
    options().version_memory_bytes(room).durability(Durability::Deferred)
}

fn create(disk: &SimulatedDisk, options: &Options) -> (Database, Table) {
    let database = Database::create_in(Arc::new(disk.clone()), "data", options).unwrap();
    let table = database.create_table("table").unwrap();
    (database, table)
}

#[test]
fn they_see_their_moment_while_threads_change_everything() {
    let directory = tempfile::tempdir().unwrap();
    let options = small(50_000).pool_bytes(2 << 20).background_eviction(true);
    let database = Database::create(directory.path().join("data"), &options).unwrap();
    let table = database.create_table("accounts").unwrap();
    for number in 0..1000u32 {
        table.put(number.to_be_bytes(), 100u64.to_le_bytes()).unwrap();
    }
    let is_over = AtomicBool::new(false);
    let total = |transaction: &Transaction| {
        let sum = |entry: vellum::Result<(Vec<u8>, Vec<u8>)>| {
            u64::from_le_bytes(entry.unwrap().1.as_slice().try_into().unwrap())
        };
        transaction.range(&table, ..).unwrap().map(sum).sum::<u64>()
    };
    let mut kept = 0;
    thread::scope(|scope| {
        for seed in 0..2 {
            let (database, table, is_over) = (&database, &table, &is_over);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while !is_over.load(Ordering::Relaxed) {
                    // An account is closed from time to time, and another one opened with what it had.
                    let (from, to) = (random.random_range(0..2000u32), random.random_range(0..2000u32));
                    let moved = database.run(|transaction| {
                        let Some(balance) = transaction.get(table, from.to_be_bytes())? else {
                            return Ok(());
                        };
                        let balance = u64::from_le_bytes(balance.try_into().unwrap());
                        let had = if from == to { None } else { transaction.get(table, to.to_be_bytes())? };
                        let had = had.map_or(0, |had| u64::from_le_bytes(had.try_into().unwrap()));
                        transaction.remove(table, from.to_be_bytes())?;
                        transaction.put(table, to.to_be_bytes(), (balance + had).to_le_bytes())?;
                        Ok(())
                    });
                    moved.unwrap();
                }
            });
        }
        for _ in 0..4 {
            let old = database.begin().unwrap();
            let first: Vec<_> = old.range(&table, ..).unwrap().map(Result::unwrap).collect();
            for _ in 0..6 {
                thread::sleep(std::time::Duration::from_millis(60));
                let again: Vec<_> = old.range(&table, ..).unwrap().map(Result::unwrap).collect();
                assert!(first == again);
                let back = old.range(&table, ..).unwrap().rev().map(Result::unwrap);
                assert!(back.eq(first.iter().rev().cloned()));
                let young = database.begin().unwrap();
                assert_eq!((total(&old), total(&young)), (100_000, 100_000));
                kept = kept.max(database.history().kept_leaves);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(kept > 0);
    assert_clean(&database);
}

#[test]
fn they_see_the_tables_of_their_moment_after_a_compaction() {
    let disk = SimulatedDisk::new(7);
    let (database, table) = create(&disk, &small(20_000));
    // Large enough that the leaves of the catalog come to lie behind it.
    let mut names = vec!["table".to_owned()];
    for number in 0..20_000u32 {
        table.put(number.to_be_bytes(), [1; 200]).unwrap();
        if number.is_multiple_of(50) {
            names.push(format!("table {number:05} {}", "x".repeat(100)));
            let name = names.last().unwrap();
            drop(database.create_table(name.as_str()).unwrap());
        }
    }
    names.sort_unstable();
    database.run(|transaction| transaction.remove_range(&table, 100u32.to_be_bytes()..)).unwrap();
    let old = database.begin().unwrap();
    let tables = |transaction: &Transaction| -> Vec<String> {
        transaction.tables().unwrap().into_iter().map(|table| table.name).collect()
    };
    assert!(tables(&old) == names, "it sees others");
    let mut round = 0;
    while database.history().kept_leaves == 0 {
        for number in 0..100u32 {
            database
                .run(|transaction| transaction.put(&table, number.to_be_bytes(), [round; 200]).map(drop))
                .unwrap();
        }
        round += 1;
    }
    let done = database.compact(|_| true).unwrap();
    assert!(done.nodes_moved > 0, "{done:?}");
    for name in names.iter().filter(|name| *name != "table").step_by(3) {
        database.drop_table(name).unwrap();
    }
    for number in 0..30 {
        drop(database.create_table(format!("table {number:05}").as_str()).unwrap());
    }
    assert!(tables(&old) == names, "it sees others");
    drop(old);
    assert_clean(&database);
}

#[test]
fn they_see_nothing_of_trees_that_were_made_later() {
    let disk = SimulatedDisk::new(8);
    let (database, table) = create(&disk, &small(20_000));
    let old = database.begin().unwrap();
    let early = database.create_table("early").unwrap();
    assert_eq!(old.get(&early, b"key").unwrap(), None);
    let mut round = 0;
    let mut change = || {
        for number in 0..100u32 {
            let put = |transaction: &Transaction| transaction.put(&table, number.to_be_bytes(), [round; 200]);
            database.run(|transaction| put(transaction).map(drop)).unwrap();
        }
        round += 1;
    };
    change();
    while database.history().kept_leaves == 0 {
        change();
    }
    // One that was there, and gets another tree; and one that is new.
    database.run(|transaction| transaction.bulk_load(&early, [(b"key", b"loaded")]).map(drop)).unwrap();
    let late = database.create_table("late").unwrap();
    late.put(b"key", b"committed").unwrap();
    let open = database.begin().unwrap();
    open.put(&late, b"other", b"not committed").unwrap();
    for (table, key) in [(&early, b"key".as_slice()), (&late, b"key"), (&late, b"other")] {
        let kind = |error: vellum::Error| error.kind();
        assert_eq!(old.get(table, key).map_err(kind), Err(ErrorKind::NotFound), "{key:?}");
        assert_eq!(old.put(table, key, b"lost").map_err(kind), Err(ErrorKind::NotFound), "{key:?}");
        assert_eq!(old.range(table, ..).map(drop).map_err(kind), Err(ErrorKind::NotFound), "{key:?}");
    }
    // Its own ones it sees.
    let own = old.create_table("own").unwrap();
    old.put(&own, b"key", b"put").unwrap();
    let loaded = old.create_table("loaded").unwrap();
    assert_eq!(old.bulk_load(&loaded, [(b"key", b"loaded")]).unwrap(), 1);
    assert_eq!(old.get(&own, b"key").unwrap().as_deref(), Some(&b"put"[..]));
    assert_eq!(old.get(&loaded, b"key").unwrap().as_deref(), Some(&b"loaded"[..]));
    old.commit().unwrap();
    drop(open);
    assert_clean(&database);
}

/// What is kept of a tree goes with the tree: its root may be that of another one later.
#[test]
fn they_see_nothing_of_trees_whose_roots_are_used_again() {
    let disk = SimulatedDisk::new(10);
    let (database, table) = create(&disk, &small(20_000));
    let own = database.create_table("own").unwrap();
    let entries = BTreeMap::from_iter((0..10u32).map(|number| (number.to_be_bytes(), "loaded")));
    let old = database.begin().unwrap();
    let before = old.savepoint();
    // A tree that it takes back itself, and those of another one.
    old.bulk_load(&own, &entries).unwrap();
    old.put(&own, 3u32.to_be_bytes(), "put").unwrap();
    let other = database.begin().unwrap();
    let load = |number| {
        let made = other.create_table(format!("made {number}")).unwrap();
        other.bulk_load(&made, &entries).unwrap();
        other.put(&made, 3u32.to_be_bytes(), "put").unwrap();
        made
    };
    let made = [0, 1, 2].map(load);
    let change = || {
        for number in 0..100u32 {
            let put = |transaction: &Transaction| transaction.put(&table, number.to_be_bytes(), [1; 200]);
            database.run(|transaction| put(transaction).map(drop)).unwrap();
        }
    };
    while database.history().kept_leaves == 0 {
        change();
    }
    // What has been changed since is noted when its versions go.
    let late = 100..400u32;
    for made in &made {
        late.clone().for_each(|number| _ = other.put(made, number.to_be_bytes(), "late").unwrap());
    }
    drop(made);
    old.rollback_to(before).unwrap();
    other.rollback().unwrap();
    (0..20).for_each(|_| change());
    database.checkpoint().unwrap();
    old.clear_table("own").unwrap();
    let made: Vec<_> = (0..8).map(|number| old.create_table(format!("old {number}")).unwrap()).collect();
    for table in made.iter().chain([&own]) {
        let name = table.name();
        assert_eq!(old.count(table, ..).unwrap(), 0, "{name}");
        assert_eq!(old.get(table, 4u32.to_be_bytes()).unwrap(), None, "{name}");
        late.clone().for_each(|number| _ = old.put(table, number.to_be_bytes(), "again").unwrap());
        assert_eq!(old.count(table, ..).unwrap(), 300, "{name}");
        old.clear_table(name).unwrap();
        old.bulk_load(table, &entries).unwrap();
        let found: Vec<_> = old.range(table, ..).unwrap().map(|entry| entry.unwrap().1).collect();
        assert_eq!(found, [b"loaded"; 10], "{name}");
    }
    old.commit().unwrap();
    assert_eq!(own.count(..).unwrap(), 10);
    assert_clean(&database);
}

#[test]
fn one_for_which_leaves_cannot_be_kept_ends_and_nothing_else() {
    let mut ended = 0;
    for kibibytes in [0, 100, 400, 1500, 4000, 100_000] {
        let disk = SimulatedDisk::new(kibibytes);
        // Without a log nothing else is written.
        let (database, table) = create(&disk, &small(100_000).log(false).pool_bytes(16 << 20));
        for number in 0..30_000u32 {
            table.put(number.to_be_bytes(), [1; 100]).unwrap();
        }
        let old = database.begin().unwrap();
        let change = |number: u32| {
            database.run(|transaction| transaction.put(&table, number.to_be_bytes(), [2; 90]).map(drop))
        };
        let mut rounds = 0;
        while database.history().kept_leaves == 0 {
            (0..200).for_each(|number| change(rounds * 200 + number).unwrap());
            rounds += 1;
        }
        disk.leave_free(kibibytes << 10);
        for number in (0..30_000).step_by(20) {
            // Versions for which there is no room in memory may have none there either.
            let _ = change(number);
        }
        match old.range(&table, ..).and_then(Iterator::collect::<vellum::Result<Vec<_>>>) {
            Ok(seen) => assert!(seen.iter().all(|(_, value)| *value == [1; 100]), "{kibibytes} KiB"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{kibibytes} KiB: {error}");
                ended += 1;
            }
        }
        disk.heal();
        drop(old);
        // The file is tried again after a pause; until then it may be missing to other transactions, too.
        for number in 0..100 {
            while change(number).is_err() {
                thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        assert_eq!(database.begin().unwrap().get(&table, 3u32.to_be_bytes()).unwrap().unwrap(), [2; 90]);
    }
    assert!((1..6).contains(&ended), "{ended} were ended");
}

/// Many more than one leaf has, so they are shown in portions. Some keys are so long that they are not in order in the file
/// of versions.
#[test]
fn removed_records_are_shown_whatever_their_number_and_wherever_they_are() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let room = [2_000, 40_000, 64 << 20][seed as usize % 3];
        let (database, table) = create(&SimulatedDisk::new(seed), &small(room).pool_bytes(8 << 20));
        let key = |number: u32| {
            let length = if number.is_multiple_of(3) { 12 } else { 1024 };
            let mut key = vec![b'k'; length];
            // Those of 512 neighbours differ in their last bytes only.
            key[..4].copy_from_slice(&(number / 512).to_be_bytes());
            key[length - 4..].copy_from_slice(&number.to_be_bytes());
            key
        };
        let mut model = BTreeMap::new();
        for number in 0..1500 {
            let value = vec![number as u8; random.random_range(0..60)];
            table.put(key(number), &value).unwrap();
            model.insert(key(number), value);
        }
        let olds: Vec<_> = (0..2).map(|_| database.begin().unwrap()).collect();
        for _ in 0..1500 - random.random_range(0..3) * 5 {
            database.run(|transaction| transaction.pop_first(&table).map(drop)).unwrap();
            if random.random_range(0..100) == 0 {
                table.put(key(random.random_range(0..1500)), "again").unwrap();
            }
        }
        for old in &olds {
            let all: Vec<_> = old.range(&table, ..).unwrap().map(Result::unwrap).collect();
            assert!(all.iter().map(|(key, value)| (key, value)).eq(&model), "seed {seed}: {}", all.len());
            let back: Vec<_> = old.range(&table, ..).unwrap().rev().map(|entry| entry.unwrap().0).collect();
            assert!(back.iter().eq(model.keys().rev()), "seed {seed}: {}", back.len());
            assert_eq!(old.first(&table).unwrap().unwrap().0, *model.keys().next().unwrap());
            assert_eq!(old.last(&table).unwrap().unwrap().0, *model.keys().next_back().unwrap());
            for _ in 0..30 {
                let (from, count) = (key(random.random_range(0..1500)), random.random_range(1..700));
                let part = old.range(&table, from.clone()..).unwrap().take(count);
                let part: Vec<_> = part.map(|entry| entry.unwrap().0).collect();
                assert!(part.iter().eq(model.range(from.clone()..).map(|entry| entry.0).take(count)));
                let until = key(random.random_range(0..1500));
                let part = old.range(&table, ..=until.clone()).unwrap().rev().take(count);
                let part: Vec<_> = part.map(|entry| entry.unwrap().0).collect();
                assert!(part.iter().eq(model.range(..=until.clone()).rev().map(|entry| entry.0).take(count)));
                if from < until {
                    let part = || old.range(&table, from.clone()..until.clone()).unwrap();
                    let forth: Vec<_> = part().map(|entry| entry.unwrap().0).collect();
                    let mut back: Vec<_> = part().rev().map(|entry| entry.unwrap().0).collect();
                    back.reverse();
                    assert!(
                        forth.iter().eq(model.range(from.clone()..until.clone()).map(|entry| entry.0)),
                        "seed {seed}"
                    );
                    assert_eq!(back, forth, "seed {seed}");
                }
            }
        }
        drop(olds);
        drop(table);
        database.close().unwrap();
    }
}

/// Cursors of an old snapshot turn round anywhere, also within portions, while others remove records or put them back, and
/// while younger snapshots end. Some keys begin with others, and the transaction has changed some records itself.
#[test]
fn removed_records_are_shown_to_and_fro_while_others_change_them() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let room = [2_000, 40_000, 64 << 20][seed as usize % 3];
        let (database, table) = create(&SimulatedDisk::new(seed), &small(room).pool_bytes(8 << 20));
        let key = |number: u32| {
            let mut key = (number / 4).to_be_bytes().to_vec();
            key.resize(4 + number as usize % 4, 0);
            key
        };
        let mut model = BTreeMap::new();
        for number in 0..1600 {
            let value = vec![number as u8; random.random_range(0..60)];
            table.put(key(number), &value).unwrap();
            model.insert(key(number), value);
        }
        let old = database.begin().unwrap();
        let is_own = |number: u32| number % 97 == 5;
        for number in (0..1600).filter(|number| is_own(*number)) {
            if number.is_multiple_of(2) {
                assert!(old.remove(&table, key(number)).unwrap());
                model.remove(&key(number));
            } else {
                old.put(&table, key(number), "own").unwrap();
                model.insert(key(number), b"own".to_vec());
            }
        }
        let mut younger = Vec::new();
        let mut change = |random: &mut StdRng, number: u32, removes: bool| {
            if random.random_ratio(1, 60) {
                younger.push(database.begin().unwrap());
            }
            if random.random_ratio(1, 60) && !younger.is_empty() {
                drop(younger.swap_remove(random.random_range(0..younger.len())));
            }
            // Keys beyond the model's last one are new.
            if !is_own(number) {
                let change = |transaction: &Transaction| match removes {
                    true => transaction.remove(&table, key(number)).map(drop),
                    false => transaction.put(&table, key(number), "others").map(drop),
                };
                database.run(change).unwrap();
            }
        };
        // Nearly all are removed: from the front, from the back, or anywhere.
        for number in 0..1400 {
            let number = [number, 1599 - number, random.random_range(0..1600)][seed as usize / 3 % 3];
            change(&mut random, number, true);
        }
        for _ in 0..12 {
            let ends = [random.random_range(0..1700), random.random_range(0..1700)];
            let (from, to) = (key(*ends.iter().min().unwrap()), key(*ends.iter().max().unwrap()));
            let whole = random.random();
            let (mut cursor, expected): (_, Vec<_>) = if whole {
                (old.cursor(&table, ..).unwrap(), model.iter().collect())
            } else {
                let cursor = old.cursor(&table, from.clone()..=to.clone()).unwrap();
                (cursor, model.range(from.clone()..=to.clone()).collect())
            };
            let mut position = 0;
            for _ in 0..12 {
                match random.random_range(0..6) {
                    0 => {
                        cursor.seek_to_start();
                        position = 0;
                    }
                    1 => {
                        cursor.seek_to_end();
                        position = expected.len();
                    }
                    2 => {
                        let at = key(random.random_range(0..1700));
                        cursor.seek(&at).unwrap();
                        position = expected.partition_point(|(key, _)| **key < at);
                    }
                    _ => {}
                }
                if random.random_ratio(1, 4) {
                    cursor.expect(random.random_range(1..30));
                }
                let (is_forward, count) = (random.random(), [3, 40, 600][random.random_range(0..3)]);
                for _ in 0..count {
                    let next = if is_forward { Some(position) } else { position.checked_sub(1) };
                    let next = next.and_then(|next| expected.get(next));
                    let entry = if is_forward { cursor.next() } else { cursor.previous() }.unwrap();
                    let entry =
                        entry.map(|entry| (entry.key().to_vec(), entry.inline_value().unwrap().to_vec()));
                    assert_eq!(entry.as_ref().map(|(key, value)| (key, value)), next.copied(), "seed {seed}");
                    if next.is_none() {
                        break;
                    }
                    position = if is_forward { position + 1 } else { position - 1 };
                    if random.random_ratio(1, 12) {
                        let (number, removes) = (random.random_range(0..1700), random.random_ratio(2, 3));
                        change(&mut random, number, removes);
                    }
                }
            }
        }
        drop((younger, old));
        drop(table);
        database.close().unwrap();
    }
}
