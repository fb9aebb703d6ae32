//! Databases that crashed or are damaged, looked at without changing them.

use crate::support::options;
use std::{collections::BTreeMap, sync::Arc};
use vellum::{Database, Directory, Error, ErrorKind, LeftBy, Piece, Salvage};
use vellum_vm::SimulatedDisk;

type World = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; if number.is_multiple_of(300) { 9000 } else { 80 }]
}

/// A database of two tables, most of it in the file and some of it in the log; a transaction is open.
fn crashed(seed: u64) -> (SimulatedDisk, World) {
    let disk = SimulatedDisk::new(seed);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    let (table, other) = (database.create_table("table").unwrap(), database.create_table("other").unwrap());
    let mut world = World::new();
    for number in 0..3000u32 {
        table.put(number.to_be_bytes(), value(number)).unwrap();
        world.insert(number.to_be_bytes().to_vec(), value(number));
    }
    other.put(b"other", b"value").unwrap();
    database.checkpoint().unwrap();
    for number in (0..3000u32).step_by(1000) {
        table.put(number.to_be_bytes(), b"later").unwrap();
        world.insert(number.to_be_bytes().to_vec(), b"later".to_vec());
    }
    let transaction = database.begin().unwrap();
    transaction.put(&table, 5u32.to_be_bytes(), b"never").unwrap();
    database.sync().unwrap();
    let crashed = disk.crash();
    std::mem::forget(transaction);
    (crashed, world)
}

/// The bytes of all files.
fn files(disk: &SimulatedDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.names().unwrap().into_iter();
    names
        .map(|name| {
            let bytes = disk.file(&name).snapshot().to_vec();
            (name, bytes)
        })
        .collect()
}

#[test]
fn a_crashed_database_is_read_and_stays_as_it_is() {
    for seed in 0..4 {
        let (disk, world) = crashed(seed);
        let before = files(&disk);
        let directory: Arc<dyn Directory> = Arc::new(disk.clone());
        let database = Database::open_in(directory.clone(), "data", &options().read_only(true)).unwrap();
        let recovery = database.recovery().unwrap();
        assert_eq!((recovery.undone_transactions, recovery.undone_changes), (1, 1));
        assert!(database.verify(|_| {}).is_clean());
        let table = database.table("table").unwrap();
        for (key, value) in &world {
            assert_eq!(table.get(key).unwrap().as_ref(), Some(value));
        }
        assert_eq!(table.put(b"key", b"value").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(database.create_table("new").unwrap_err().kind(), ErrorKind::ReadOnly);
        // An increment could not follow on a backup of a state that is nowhere.
        let target: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(1));
        let error = database.backup_in(target, "backup", vellum::BackupOptions::default()).unwrap_err();
        assert!(error.to_string().contains("in memory only"), "{error}");
        drop(table);
        database.close().unwrap();
        assert!(files(&disk) == before, "seed {seed}");
        // For writing it is recovered in its file.
        let database = Database::open_in(directory, "data", &options()).unwrap();
        assert_eq!(database.recovery().unwrap().records, recovery.records);
    }
}

/// What can be read of a table, and the ranges that are lost.
type Ranges = Vec<(Option<Vec<u8>>, Option<Vec<u8>>)>;

fn salvaged(salvage: &Salvage) -> (World, Ranges) {
    let (mut found, mut lost) = (World::new(), Ranges::new());
    let mut last: Option<Vec<u8>> = None;
    let walked = salvage.table("table", |piece| {
        match piece {
            Piece::Entry { key, value } => {
                assert!(last.as_deref().is_none_or(|last| last < key), "in the order of keys");
                last = Some(key.to_vec());
                found.insert(key.to_vec(), value.to_vec());
            }
            Piece::LostValue { key, error } => {
                assert_eq!(error.kind(), ErrorKind::Corruption);
                let before = u32::from_be_bytes(key.try_into().unwrap()).checked_sub(1);
                lost.push((before.map(|before| before.to_be_bytes().to_vec()), Some(key.to_vec())));
            }
            Piece::LostRange { after, upto, error } => {
                assert_eq!(error.kind(), ErrorKind::Corruption);
                lost.push((after.map(<[u8]>::to_vec), upto.map(<[u8]>::to_vec)));
            }
            _ => {}
        }
        Ok(())
    });
    if let Err(error) = walked {
        assert!(matches!(error.kind(), ErrorKind::Corruption | ErrorKind::NotFound), "{error}");
        lost.push((None, None));
    }
    (found, lost)
}

#[test]
fn whatever_page_is_damaged_what_the_others_hold_is_saved() {
    let mut damaged = 0;
    for closes in [true, false] {
        for page in (u64::from(closes)..130).step_by(2) {
            let (disk, world) = crashed(7);
            let directory: Arc<dyn Directory> = Arc::new(disk.clone());
            if closes {
                Database::open_in(directory.clone(), "data", &options()).unwrap().close().unwrap();
            }
            if page * 4096 >= disk.file("data").snapshot().size() {
                break;
            }
            disk.file("data").flip_bit(page * 4096 * 8 + 3000);
            let before = files(&disk);
            let salvage = Salvage::open_in(directory.clone(), "data", &options()).unwrap();
            let (found, lost) = salvaged(&salvage);
            damaged += usize::from(!lost.is_empty());
            let is_lost = |key: &Vec<u8>| {
                lost.iter().any(|(after, upto)| {
                    after.as_ref().is_none_or(|after| after < key)
                        && upto.as_ref().is_none_or(|upto| key <= upto)
                })
            };
            for (key, value) in &world {
                match found.get(key) {
                    // What the log could not do in a damaged page is told.
                    Some(found) if found != value => {
                        assert!(!salvage.damage().is_empty(), "{key:?}, page {page}")
                    }
                    Some(_) => {}
                    None => assert!(is_lost(key), "{key:?} is neither there nor lost, page {page}"),
                }
            }
            assert!(found.keys().all(|key| world.contains_key(key) && !is_lost(key)), "page {page}");
            assert!(
                found.len() + 400 > world.len() || lost.contains(&(None, None)),
                "page {page}: {}",
                found.len()
            );
            drop(salvage);
            assert!(files(&disk) == before, "page {page}");
        }
    }
    assert!(damaged > 30, "{damaged}");
}

#[test]
fn without_its_log_a_crashed_database_shows_what_its_file_holds() {
    let (disk, world) = crashed(3);
    for name in disk.names().unwrap().iter().filter(|name| name.starts_with("segment")) {
        disk.remove(name).unwrap();
    }
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    let refused = Database::open_in(directory.clone(), "data", &options().read_only(true)).unwrap_err();
    assert!(matches!(refused, Error::Log(_)), "{refused}");
    let salvage = Salvage::open_in(directory, "data", &options()).unwrap();
    assert!(matches!(salvage.left_by(), LeftBy::CrashWithoutLog(_)));
    let (found, lost) = salvaged(&salvage);
    assert!(lost.is_empty());
    let differ = world.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
    assert!(differ <= 4 && found.len() == world.len(), "{differ}");
    assert_eq!(salvage.tables().0, ["other", "table"]);
}

#[test]
fn a_large_value_is_saved_if_its_extent_is_damaged_behind_it() {
    const PAGE: usize = 4096;
    let (disk, world) = crashed(5);
    let directory: Arc<dyn Directory> = Arc::new(disk.clone());
    Database::open_in(directory.clone(), "data", &options()).unwrap().close().unwrap();
    let bytes = disk.file("data").snapshot().to_vec();
    let wanted = value(300);
    let begins = |page: &usize| bytes[page * PAGE + 32..].starts_with(&wanted);
    let page = (2..bytes.len() / PAGE - 3).find(begins).unwrap();
    // Its extent is of three pages, and the value and its checksums end in the third.
    disk.file("data").flip_bit(((page + 3) * PAGE - 1) as u64 * 8);
    let database = Database::open_in(directory.clone(), "data", &options().read_only(true)).unwrap();
    assert!(!database.verify(|_| {}).is_clean());
    let table = database.table("table").unwrap();
    assert!(table.get(300u32.to_be_bytes()).is_err());
    drop((table, database));
    let salvage = Salvage::open_in(directory.clone(), "data", &options()).unwrap();
    let (found, lost) = salvaged(&salvage);
    assert!(lost.is_empty() && found == world, "{lost:?}");
    drop(salvage);
    // Within the value, it is lost.
    disk.file("data").flip_bit(((page + 1) * PAGE) as u64 * 8);
    let salvage = Salvage::open_in(directory, "data", &options()).unwrap();
    let (found, lost) = salvaged(&salvage);
    assert_eq!((found.len(), lost.len()), (world.len() - 1, 1));
    assert!(!found.contains_key(&300u32.to_be_bytes()[..]));
}
