//! Databases whose superblocks, space map or catalog are damaged: what can be found without them.

use crate::support::options;
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Directory, ErrorKind, LeftBy, Piece, Salvage};
use vellum_vm::{AlignedBuffer, File, SimulatedDisk};

type World = BTreeMap<Vec<u8>, Vec<u8>>;
type Tables = BTreeMap<String, World>;

const PAGE: u64 = 4096;

fn value(number: u32, generation: u8) -> Vec<u8> {
    let mut value = vec![generation; if number.is_multiple_of(250) { 9000 } else { 60 }];
    value[..4].copy_from_slice(&number.to_be_bytes());
    value
}

fn disk_of(disk: &SimulatedDisk) -> Arc<dyn Directory> {
    Arc::new(disk.clone())
}

/// A database with a history: records were removed and replaced, tables dropped, pages freed. It is closed, or it crashed with changes in its
/// log that are not in its file.
fn database(seed: u64, closes: bool) -> (SimulatedDisk, Tables) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(disk_of(&disk), "data", &options()).unwrap();
    let mut tables = Tables::new();
    for (name, count) in [("alpha", 4000u32), ("beta", 900), ("empty", 0), ("gone", 1500), ("gamma", 3)] {
        let table = database.create_table(name).unwrap();
        let world = tables.entry(name.to_owned()).or_default();
        for number in 0..count {
            table.put(number.to_be_bytes(), value(number, 1)).unwrap();
            world.insert(number.to_be_bytes().to_vec(), value(number, 1));
        }
    }
    database.checkpoint().unwrap();
    database.drop_table("gone").unwrap();
    tables.remove("gone");
    let alpha = database.table("alpha").unwrap();
    let world = tables.get_mut("alpha").unwrap();
    for number in (1000..3500u32).filter(|number| number % 50 != 0) {
        alpha.remove(number.to_be_bytes()).unwrap();
        world.remove(&number.to_be_bytes()[..]);
    }
    database.checkpoint().unwrap();
    for number in (0..4000u32).step_by(125) {
        alpha.put(number.to_be_bytes(), value(number, 2)).unwrap();
        world.insert(number.to_be_bytes().to_vec(), value(number, 2));
    }
    drop(alpha);
    if closes {
        database.close().unwrap();
        return (disk, tables);
    }
    database.sync().unwrap();
    (disk.crash(), tables)
}

/// The space map's first page, as a superblock says.
fn space_map(disk: &SimulatedDisk) -> u64 {
    let bytes = disk.file("data").snapshot().to_vec();
    u64::from_le_bytes(bytes[80..88].try_into().unwrap())
}

fn damage(disk: &SimulatedDisk, page: u64) {
    disk.file("data").flip_bit(page * PAGE * 8 + 3000);
}

fn damage_superblocks(disk: &SimulatedDisk) {
    damage(disk, 0);
    damage(disk, 1);
}

/// The entries of all tables that can be read, and how much is lost.
fn saved(salvage: &Salvage) -> (Tables, usize) {
    let (names, errors) = salvage.tables();
    let (mut tables, mut lost) = (Tables::new(), errors.len());
    for name in names {
        let world = tables.entry(name.clone()).or_default();
        let walked = salvage.table(&name, |piece| {
            match piece {
                Piece::Entry { key, value } => {
                    let before = world.insert(key.to_vec(), value.to_vec());
                    assert!(before.is_none(), "{key:?} comes twice");
                }
                _ => lost += 1,
            }
            Ok(())
        });
        walked.unwrap();
    }
    (tables, lost)
}

fn open(disk: &SimulatedDisk) -> Salvage {
    Salvage::open_in(disk_of(disk), "data", &options()).unwrap()
}

/// Saves what is left, and makes sure that nothing was changed for that.
fn saved_of(disk: &SimulatedDisk) -> (Tables, usize, Salvage) {
    let files = || {
        disk.names().unwrap().into_iter().map(|name| disk.file(&name).snapshot().to_vec()).collect::<Vec<_>>()
    };
    let before = files();
    let salvage = open(disk);
    let (tables, lost) = saved(&salvage);
    assert!(files() == before, "it was changed");
    (tables, lost, salvage)
}

#[test]
fn a_sound_database_gives_the_same_with_its_superblocks_and_without() {
    for seed in 0..4 {
        let (disk, wanted) = database(seed, true);
        let (with, lost, salvage) = saved_of(&disk);
        assert!(with == wanted && lost == 0 && salvage.scanned().is_none(), "seed {seed}");
        drop(salvage);
        damage_superblocks(&disk);
        assert!(Database::open_in(disk_of(&disk), "data", &options()).is_err());
        let (without, lost, salvage) = saved_of(&disk);
        assert!(without == wanted && lost == 0, "seed {seed}: {:?}", without.keys());
        let scanned = salvage.scanned().unwrap();
        assert!(scanned.without_superblocks && scanned.nodes > 50 && scanned.values >= 4, "{scanned:?}");
        assert_eq!(scanned.error.kind(), ErrorKind::Corruption);
        assert!(matches!(salvage.left_by(), LeftBy::Unknown { has_log: false }), "{:?}", salvage.left_by());
        assert_eq!(salvage.nameless().count(), 0);
    }
}

#[test]
fn superblocks_of_zeroes_are_no_hindrance_and_other_files_are_no_databases() {
    let (disk, wanted) = database(1, true);
    disk.file("data").write_from(0, &AlignedBuffer::new(2 * PAGE as usize)).unwrap();
    let (found, lost, _) = saved_of(&disk);
    assert!(found == wanted && lost == 0);
    let other = SimulatedDisk::new(1);
    let file = other.file("data");
    file.grow(64 * PAGE).unwrap();
    let mut bytes = AlignedBuffer::new(64 * PAGE as usize);
    bytes.fill(7);
    file.write_from(0, &bytes).unwrap();
    let error = Salvage::open_in(disk_of(&other), "data", &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

#[test]
fn without_its_space_map_a_database_is_read_as_a_whole() {
    for closes in [true, false] {
        for seed in 0..4 {
            let (disk, wanted) = database(seed, closes);
            damage(&disk, space_map(&disk));
            assert!(Database::open_in(disk_of(&disk), "data", &options()).is_err());
            let (found, lost, salvage) = saved_of(&disk);
            // The superblocks say where the log goes on, which is done again in memory.
            assert!(found == wanted && lost == 0, "seed {seed}, {closes}: {lost} {:?}", found.keys());
            assert!(!salvage.scanned().unwrap().without_superblocks && salvage.damage().is_empty());
            match salvage.left_by() {
                LeftBy::Closing => assert!(closes),
                LeftBy::Crash(recovery) => assert!(!closes && recovery.records > 30, "{recovery:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn without_superblocks_a_crashed_database_shows_what_its_file_holds() {
    for seed in 0..4 {
        let (disk, wanted) = database(seed, false);
        damage_superblocks(&disk);
        let (found, lost, salvage) = saved_of(&disk);
        assert!(matches!(salvage.left_by(), LeftBy::Unknown { has_log: true }));
        assert_eq!(lost, 0);
        assert!(found.keys().eq(wanted.keys()), "{:?}", found.keys());
        let (found, wanted) = (&found["alpha"], &wanted["alpha"]);
        // What was put after the last checkpoint need not be there.
        let number_of = |key: &[u8]| u32::from_be_bytes(key.try_into().unwrap());
        assert!(found.keys().all(|key| wanted.contains_key(key)));
        assert!(wanted.keys().all(|key| found.contains_key(key) || number_of(key).is_multiple_of(125)));
        let older = found.iter().filter(|(key, value)| wanted[*key] != **value);
        assert!(older.clone().count() <= 32);
        for (key, found) in older {
            let number = number_of(key);
            assert_eq!(*found, value(number, 1), "{number} is as it was at the checkpoint");
        }
    }
}

#[test]
fn tables_that_a_damaged_catalog_does_not_name_are_found() {
    for (closes, without_superblocks) in [(true, false), (false, false), (true, true)] {
        let (disk, wanted) = database(3, closes);
        damage(&disk, 2);
        if without_superblocks {
            damage_superblocks(&disk);
        }
        let (found, lost, salvage) = saved_of(&disk);
        assert!(lost > 0, "the catalog");
        assert_eq!(salvage.nameless().count(), found.len());
        assert!(found.keys().enumerate().all(|(number, name)| *name == format!("lost-{}", number + 1)));
        // What was dropped comes back only if nothing says that it is free.
        let mut wanted: Vec<_> = wanted.into_values().collect();
        for world in found.values() {
            match wanted.iter().position(|wanted| wanted == world) {
                Some(index) => drop(wanted.swap_remove(index)),
                None => assert!(without_superblocks, "{} entries of no table", world.len()),
            }
        }
        assert!(wanted.is_empty(), "{} tables are missing: {closes} {without_superblocks}", wanted.len());
        let error = salvage.table("alpha", |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
}

#[test]
fn what_else_is_damaged_is_told_by_its_keys() {
    for without_superblocks in [true, false] {
        let (disk, wanted) = database(5, true);
        if without_superblocks {
            damage_superblocks(&disk);
        } else {
            damage(&disk, space_map(&disk));
        }
        let pages = disk.file("data").snapshot().size() / PAGE;
        for page in (7..pages).step_by(9).filter(|page| *page != space_map(&disk)) {
            damage(&disk, page);
        }
        let salvage = open(&disk);
        let (mut found, mut lost) = (World::new(), Vec::new());
        let walked = salvage.table("alpha", |piece| {
            match piece {
                Piece::Entry { key, value } => assert!(found.insert(key.to_vec(), value.to_vec()).is_none()),
                Piece::LostValue { key, error } => {
                    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                    lost.push((Some(key.to_vec()), Some(key.to_vec())));
                }
                Piece::LostRange { after, upto, error } => {
                    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                    lost.push((after.map(<[u8]>::to_vec), upto.map(<[u8]>::to_vec)));
                }
                _ => {}
            }
            Ok(())
        });
        walked.unwrap();
        assert!(!lost.is_empty());
        let is_lost = |key: &Vec<u8>| {
            lost.iter().any(|(after, upto)| {
                let value = after == upto && after.as_ref() == Some(key);
                let below = after.as_ref().is_none_or(|after| after < key);
                value || below && upto.as_ref().is_none_or(|upto| key <= upto)
            })
        };
        for (key, value) in &wanted["alpha"] {
            match found.get(key) {
                Some(found) => assert!(found == value, "{key:?}"),
                None => assert!(is_lost(key), "{key:?} is neither there nor lost"),
            }
        }
        assert!(found.keys().all(|key| wanted["alpha"].contains_key(key)));
    }
}
