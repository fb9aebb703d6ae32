//! Backups that hold what has changed since others.

use crate::{
    Place, Real, Simulated,
    load::{Load, check},
    options,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Backup, BackupOptions, Database};

fn name(number: usize) -> String {
    format!("backup-{number}")
}

/// A full backup and increments beside the load; each row of them is restored.
fn beside_writers(place: &dyn Place, increments: usize, seed: u64) {
    let database = place.create();
    let load = Load::start(&database, seed);
    let mut taken = Vec::new();
    for number in 0..=increments {
        let before = load.committed();
        let former = number.checked_sub(1).map(|former| place.open_backup(&name(former)));
        let options = BackupOptions::default();
        let options = match &former {
            Some(former) => options.since(former),
            None => options,
        };
        place.back_up(&database, &name(number), options);
        taken.push((before, load.committed()));
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    load.stop();
    for (number, (before, after)) in taken.into_iter().enumerate() {
        let row: Vec<Backup> = (0..=number).map(|number| place.open_backup(&name(number))).collect();
        let restored = place.restore(&row, &format!("restored-{number}")).unwrap();
        check(&restored, &before, &after);
        restored.close().unwrap();
    }
}

#[test]
fn increments_beside_writers_follow_on_one_another() {
    for seed in 0..3 {
        beside_writers(&Simulated::new(seed), 4, seed);
    }
    beside_writers(&Real::new(), 5, 9);
}

type World = BTreeMap<Vec<u8>, Vec<u8>>;

/// Loads, large values and drops, so that pages change hands between what the log has and what it has not.
fn change(database: &Database, worlds: &mut BTreeMap<String, World>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..30) {
        let name = format!("table-{}", random.random_range(0..4));
        match random.random_range(0..20) {
            0 => {
                if worlds.remove(&name).is_some() {
                    database.drop_table(&name).unwrap();
                }
            }
            1..6 if !worlds.contains_key(&name) => {
                let table = database.create_table(&name).unwrap();
                let tag = random.random_range(0..255);
                let world: World = (0..random.random_range(1..900u32))
                    .map(|key| {
                        let length = if key.is_multiple_of(90) { 6000 } else { 90 };
                        (key.to_be_bytes().to_vec(), vec![tag; length])
                    })
                    .collect();
                table.bulk_load(&world).unwrap();
                worlds.insert(name, world);
            }
            6 => database.checkpoint().unwrap(),
            _ => {
                let Some(world) = worlds.get_mut(&name) else { continue };
                let table = database.table(&name).unwrap();
                let key = random.random_range(0..1000u32).to_be_bytes().to_vec();
                if random.random_ratio(1, 3) {
                    assert_eq!(table.remove(&key).unwrap(), world.remove(&key).is_some());
                } else {
                    let length = [10, 300, 5000, 200_000][random.random_range(0..4)];
                    let value = vec![random.random_range(0..255); length];
                    table.put(&key, &value).unwrap();
                    world.insert(key, value);
                }
            }
        }
    }
}

fn compare(database: &Database, worlds: &BTreeMap<String, World>) {
    let report = database.verify(|_| {});
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(database.tables().unwrap().len(), worlds.len());
    for (name, world) in worlds {
        let table = database.table(name).unwrap();
        let mut cursor = table.cursor(..).unwrap();
        for (key, value) in world {
            let entry = cursor.next().unwrap().unwrap();
            assert_eq!(entry.key(), key);
            assert!(*entry.value().unwrap().unwrap() == **value, "{key:?} of {name}");
        }
        assert!(cursor.next().unwrap().is_none());
    }
}

/// At random, with the database closed and opened in between, recovered after crashes, and backups that follow on any
/// earlier one.
#[test]
fn rows_of_increments_are_what_a_model_says() {
    for seed in 0..25 {
        let mut random = StdRng::seed_from_u64(seed);
        let place = Simulated::new(seed);
        let mut disk = place.database.clone();
        let mut database = place.create();
        let mut worlds = BTreeMap::new();
        // Each backup, the one that it follows on, and what it should hold.
        let mut backups: Vec<(Option<usize>, BTreeMap<String, World>)> = Vec::new();
        for number in 0..8 {
            change(&database, &mut worlds, &mut random);
            match random.random_range(0..4) {
                0 => {
                    database.close().unwrap();
                    database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
                }
                1 => {
                    let crashed = disk.crash();
                    drop(database);
                    disk = crashed;
                    database = Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap();
                }
                _ => {}
            }
            let former = (number > 0 && random.random_ratio(5, 6)).then(|| random.random_range(0..number));
            let opened = former.map(|former| place.open_backup(&name(former)));
            let options = match &opened {
                Some(former) => BackupOptions::default().since(former),
                None => BackupOptions::default(),
            };
            place.back_up(&database, &name(number), options);
            backups.push((former, worlds.clone()));
        }
        for (number, (_, worlds)) in backups.iter().enumerate() {
            let mut row = vec![number];
            while let Some(former) = row.last().and_then(|last| backups[*last].0) {
                row.push(former);
            }
            row.reverse();
            let row: Vec<Backup> = row.into_iter().map(|number| place.open_backup(&name(number))).collect();
            let restored = place.restore(&row, "restored").unwrap();
            compare(&restored, worlds);
        }
    }
}

#[test]
fn an_increment_holds_little_if_little_has_changed() {
    let place = Simulated::new(1);
    let database = place.create();
    let table = database.create_table("table").unwrap();
    table.bulk_load((0..50_000u32).map(|key| (key.to_be_bytes(), [7; 100]))).unwrap();
    table.put(b"large", vec![1; 500_000]).unwrap();
    let full = place.back_up(&database, "full", BackupOptions::default());
    assert!(full.pages > 1400, "{full:?}");
    table.put(5u32.to_be_bytes(), [8; 100]).unwrap();
    let former = place.open_backup("full");
    let increment = place.back_up(&database, "increment", BackupOptions::default().since(&former));
    assert!(increment.pages < 12, "{increment:?}");
    // The large value that was there, and was written past the log, is not new; another in its place is.
    table.put(b"large", vec![2; 500_000]).unwrap();
    let former = place.open_backup("increment");
    let increment = place.back_up(&database, "another", BackupOptions::default().since(&former));
    assert!((120..150).contains(&increment.pages), "{increment:?}");
}
