//! Large tables that are dropped or cleared: their pages are freed in the background, whatever comes between.

use crate::support::{assert_clean, options};
use std::{sync::Arc, thread, time::Duration, time::Instant};
use vellum::{Database, Table};
use vellum_vm::{FileOperation, SimulatedDisk};

/// More parts than are freed at once: separators are long, so a node refers to few leaves.
const ENTRIES: u32 = 4_000;

/// How a session ends while something is being freed.
#[derive(Clone, Copy)]
enum Ending {
    Close,
    Kill,
    Crash,
}

fn key(number: u32) -> String {
    format!("{:06}{:x<150}{}", number / 6, "", number % 6)
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; if number.is_multiple_of(40) { 9000 } else { 700 }]
}

fn fill(table: &Table) {
    (0..ENTRIES).for_each(|number| _ = table.put(key(number), value(number)).unwrap());
}

fn open(disk: &SimulatedDisk) -> Database {
    Database::open_in(Arc::new(disk.clone()), "data", &options()).unwrap()
}

/// A database with a small table, and a large one without handles.
fn filled(disk: &SimulatedDisk) -> Database {
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options()).unwrap();
    database.create_table("small").unwrap().put("key", "value").unwrap();
    fill(&database.create_table("large").unwrap());
    database
}

fn allocated(database: &Database) -> u64 {
    database.statistics().pages_allocated
}

/// Waits until what is allocated is less than this, and returns it.
fn wait_below(database: &Database, pages: u64) -> u64 {
    let (began, small) = (Instant::now(), database.table("small").unwrap());
    loop {
        match allocated(database) {
            now if now < pages => return now,
            now => assert!(began.elapsed() < Duration::from_secs(30), "{now} pages are still allocated"),
        }
        thread::sleep(Duration::from_millis(1));
        // What is freed counts as allocated until it is durable, and found; and what could not be truncated is tried again
        // when a transaction ends.
        database.run(|transaction| transaction.put(&small, "key", "value").map(drop)).unwrap();
        database.checkpoint().unwrap();
    }
}

#[test]
fn what_is_dropped_or_cleared_is_freed_after_the_commit() {
    let mut between = 0;
    // A thread that the system does not run may come too late to see anything in between.
    for (round, is_cleared) in (0..20).flat_map(|round| [(round, false), (round, true)]) {
        if round > 0 && between > 0 {
            break;
        }
        let database = filled(&SimulatedDisk::new(1));
        database.checkpoint().unwrap();
        let before = allocated(&database);
        let end = |database: &Database| match is_cleared {
            true => database.clear_table("large"),
            false => database.drop_table("large"),
        };
        let handle = is_cleared.then(|| database.table("large").unwrap());
        end(&database).unwrap();
        // Freeing is interrupted, and what is left of the tree is sound.
        for _ in 0..1000 {
            assert_clean(&database);
            between += usize::from((before / 10..before * 9 / 10).contains(&allocated(&database)));
        }
        wait_below(&database, before / 10);
        assert_clean(&database);
        if let Some(table) = handle {
            assert_eq!(table.count(..).unwrap(), 0);
            fill(&table);
            assert_eq!(table.get(key(40)).unwrap(), Some(value(40)));
        }
        assert_clean(&database);
    }
    assert!(between > 0, "it was not freed in parts");
}

#[test]
fn what_is_left_is_freed_after_the_next_opening() {
    let mut openings = 0;
    for (seed, ending) in
        (0..8).flat_map(|seed| [Ending::Close, Ending::Kill, Ending::Crash].map(|ending| (seed, ending)))
    {
        let mut disk = SimulatedDisk::new(seed);
        let mut database = filled(&disk);
        database.checkpoint().unwrap();
        let before = allocated(&database);
        database.drop_table("large").unwrap();
        let before_it = openings;
        while allocated(&database) > before / 10 {
            openings += 1;
            assert!(openings < before_it + 1000);
            // At any moment while it is being freed.
            thread::sleep(Duration::from_micros(seed * 300));
            match ending {
                Ending::Close => database.close().unwrap(),
                Ending::Kill => disk = disk.kill(),
                Ending::Crash => disk = disk.crash(),
            }
            database = open(&disk);
            assert_clean(&database);
            database.checkpoint().unwrap();
        }
        wait_below(&database, before / 10);
        assert_eq!(database.table("small").unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
        assert_clean(&database);
    }
    assert!(openings > 0);
}

/// Until the database was opened again nothing was freed after an error.
#[test]
fn an_error_that_passes_only_delays_it() {
    for is_cleared in [false, true] {
        for number in [1, 2, 5, 20] {
            let disk = SimulatedDisk::new(3);
            let database = filled(&disk);
            database.checkpoint().unwrap();
            let before = allocated(&database);
            // It needs the table, and ends when nothing can be read.
            let reader = database.begin().unwrap();
            let handle = is_cleared.then(|| database.table("large").unwrap());
            match is_cleared {
                true => database.clear_table("large").unwrap(),
                false => database.drop_table("large").unwrap(),
            }
            disk.fail_from_of(FileOperation::Read, number);
            drop(reader);
            thread::sleep(Duration::from_millis(5));
            assert!(allocated(&database) > before / 2, "the pool has less than the table");
            disk.heal();
            wait_below(&database, before / 10);
            assert_clean(&database);
            drop(handle);
        }
    }
}

#[test]
fn compaction_waits_for_it() {
    let database = filled(&SimulatedDisk::new(4));
    database.drop_table("large").unwrap();
    let done = database.compact(|_| true).unwrap();
    assert!(done.file_bytes < done.file_bytes_before / 4, "{done:?}");
    assert_clean(&database);
}

/// They find what was there, or nothing.
#[test]
fn readers_beside_it_see_no_damage() {
    let database = filled(&SimulatedDisk::new(5));
    let table = database.table("large").unwrap();
    for _ in 0..3 {
        thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|reader| {
                    let table = &table;
                    scope.spawn(move || {
                        let mut number = reader;
                        loop {
                            number = (number * 7 + 11) % ENTRIES;
                            let found = table.get(key(number)).unwrap();
                            assert!(found.is_none_or(|found| found == value(number)));
                            let entries = table.range(key(number)..).unwrap().take(50);
                            let count = entries.map(Result::unwrap).count();
                            if count == 0 && number < ENTRIES / 2 {
                                break;
                            }
                        }
                    })
                })
                .collect();
            database.clear_table("large").unwrap();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        assert_clean(&database);
        fill(&table);
    }
}

/// All of the tree before it stayed.
#[test]
fn a_page_that_cannot_be_read_keeps_little_of_its_table() {
    const PAGE: usize = 4096;
    let disk = SimulatedDisk::new(6);
    let database = filled(&disk);
    let before = allocated(&database);
    database.close().unwrap();
    // A leaf that has one of the last keys.
    let bytes = disk.file("data").snapshot().to_vec();
    let last = format!("{:06}{:x<100}", (ENTRIES - 60) / 6, "");
    let has_key = |page: &&[u8]| page.windows(7).any(|window| window == &last.as_bytes()[..7]);
    let page = bytes.chunks_exact(PAGE).position(|page| has_key(&page)).unwrap();
    disk.file("data").flip_bit((page * PAGE) as u64 * 8 + 3000);
    let database = open(&disk);
    database.drop_table("large").unwrap();
    let left = wait_below(&database, before / 4);
    assert!(left > 10);
    assert_eq!(database.verify(|_| {}).problems.len(), 1);
    // When it can be read again, the rest is freed.
    drop(database);
    disk.file("data").flip_bit((page * PAGE) as u64 * 8 + 3000);
    let database = open(&disk);
    wait_below(&database, 10);
    assert_clean(&database);
}
