//! Full files in which a large table is dropped or cleared: what comes next finds room, although the table's pages are freed
//! later, in the background.

use crate::support::{assert_clean, options};
use std::{sync::Arc, thread, time::Duration, time::Instant};
use vellum::{BulkOptions, Database, ErrorKind, Result, Table, TableOptions};
use vellum_vm::{Faults, SimulatedDisk};

/// What the file is full of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Limit {
    Disk,
    Capacity,
}

/// What happens to the large table.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Drop,
    Clear,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Next {
    Put,
    MultiPut,
    Commit,
    Value,
    LongValue,
    Load,
    LoadInTransaction,
    Create,
}

const ALL: [Next; 8] = [
    Next::Put,
    Next::MultiPut,
    Next::Commit,
    Next::Value,
    Next::LongValue,
    Next::Load,
    Next::LoadInTransaction,
    Next::Create,
];

const CAPACITY: u64 = 6 << 20;
/// More parts than are freed at once: separators are long, so a node refers to few leaves.
const ENTRIES: u32 = 4_000;
/// How many records take about three quarters of the room of the large table.
const COUNT: u32 = 2_200;

struct Place {
    disk: SimulatedDisk,
    database: Database,
    filler: Table,
    /// A table that is cleared keeps its handle.
    large: Option<Table>,
}

impl Place {
    /// A database with a large table, a small one, and room.
    fn new(limit: Limit) -> Self {
        let disk = SimulatedDisk::new(1);
        let options = if limit == Limit::Capacity { options().capacity_bytes(CAPACITY) } else { options() };
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let filler = database.create_table("filler").unwrap();
        filler.put([], []).unwrap();
        let large: Table = database.create_table("large").unwrap();
        for number in 0..ENTRIES {
            let key = format!("{:06}{:x<150}{}", number / 6, "", number % 6);
            large.put(key, [number as u8; 600]).unwrap();
        }
        let place = Self { disk, database, filler, large: Some(large) };
        if limit == Limit::Disk {
            place.set_faults(Faults::default());
        }
        place
    }

    /// The file stays full.
    fn set_faults(&self, faults: Faults) {
        self.disk.file("data").set_faults(Faults { capacity_bytes: Some(CAPACITY), ..faults });
    }

    fn fill(&self) {
        let refused = (0_u32..).find_map(|number| self.filler.put(number.to_be_bytes(), [1; 900]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::OutOfSpace));
    }

    fn end(&mut self, end: End) {
        match end {
            End::Drop => {
                self.large = None;
                self.database.drop_table("large").unwrap();
            }
            End::Clear => self.database.clear_table("large").unwrap(),
        }
    }

    fn take_room(&self, next: Next) -> Result<()> {
        let (database, filler) = (&self.database, &self.filler);
        let key = |number: u32| [9, 9, 9, 9, 9, number.to_be_bytes()[2], number.to_be_bytes()[3]];
        let entries = || (0..COUNT).map(|number| (key(number), [2; 900]));
        match next {
            Next::Put => entries().try_for_each(|(key, value)| filler.put(key, value).map(drop)),
            Next::MultiPut => {
                let entries: Vec<_> = entries().collect();
                filler.multi_put(&entries).into_iter().try_for_each(|done| done.map(drop))
            }
            Next::Commit => database.run(|transaction| {
                entries().try_for_each(|(key, value)| transaction.put(filler, key, value).map(drop))
            }),
            Next::Value => (0..30).try_for_each(|number| filler.put(key(number), vec![3; 60_000]).map(drop)),
            Next::LongValue => filler.put(key(0), vec![4; 1_500_000]).map(drop),
            Next::Load => {
                let table = database.create_table("loaded")?;
                table.bulk_load(entries()).map(drop)
            }
            Next::LoadInTransaction => database.run(|transaction| {
                let table = transaction.create_table("loaded")?;
                let mut loader = transaction.bulk_loader_with(&table, &BulkOptions::default())?;
                entries().try_for_each(|(key, value)| loader.push(key, value))?;
                loader.finish().map(drop)
            }),
            Next::Create => (0..40)
                .try_for_each(|number| database.create_table(&format!("new {number}")).map(drop::<Table>)),
        }
    }
}

/// Until freeing helped, some of these were refused: the disk was full of what was about to be freed.
#[test]
fn what_comes_after_it_finds_room() {
    for (limit, end) in [(Limit::Disk, End::Drop), (Limit::Capacity, End::Clear)] {
        for next in ALL {
            let mut place = Place::new(limit);
            let spare: Table = place.database.create_table("spare").unwrap();
            (0_u32..30).for_each(|number| _ = spare.put(number.to_be_bytes(), [0; 900]).unwrap());
            drop(spare);
            place.fill();
            // Clearing takes pages, too.
            place.database.drop_table("spare").unwrap();
            place.set_faults(Faults { delay_max: Duration::from_millis(1), ..Faults::default() });
            place.end(end);
            let taken = place.take_room(next);
            taken.unwrap_or_else(|error| panic!("{limit:?}, {end:?}, {next:?}: {error}"));
            assert_clean(&place.database);
        }
    }
}

/// The thread in the background is waiting until it tries again.
#[test]
fn it_is_not_waited_for_until_freeing_is_tried_again() {
    for (limit, odd) in [(Limit::Disk, 0), (Limit::Capacity, 1)] {
        for next in ALL.into_iter().skip(odd).step_by(2) {
            let mut place = Place::new(limit);
            // It needs the table, and ends when nothing can be read.
            let reader = place.database.begin().unwrap();
            place.end(End::Drop);
            place.fill();
            place.set_faults(Faults { read_error: 1.0, ..Faults::default() });
            drop(reader);
            thread::sleep(Duration::from_millis(900));
            place.set_faults(Faults::default());
            let taken = place.take_room(next);
            taken.unwrap_or_else(|error| panic!("{limit:?}, {next:?}: {error}"));
            assert_clean(&place.database);
        }
    }
}

/// The root of the table stays, and no page is left for the root of what is to be freed.
#[test]
fn what_is_cleared_is_freed_without_a_page() {
    for limit in [Limit::Disk, Limit::Capacity] {
        let mut place = Place::new(limit);
        let options = TableOptions::default().versions(false);
        let plain: Table = place.database.create_table_with("plain", options).unwrap();
        let reader = place.database.begin().unwrap();
        place.end(End::Clear);
        place.fill();
        // No transaction, so no page is kept for undoing it.
        assert!((0_u32..).find_map(|number| plain.put(number.to_be_bytes(), [1; 900]).err()).is_some());
        drop(reader);
        let taken = place.take_room(Next::Put);
        taken.unwrap_or_else(|error| panic!("{limit:?}: {error}"));
        assert_clean(&place.database);
    }
}

/// What is not free, and will not be as long as a snapshot sees it, is refused at once.
#[test]
fn a_full_file_is_still_refused() {
    for limit in [Limit::Disk, Limit::Capacity] {
        let mut place = Place::new(limit);
        let reader = place.database.begin().unwrap();
        place.end(End::Drop);
        place.fill();
        let begun = Instant::now();
        for next in ALL {
            let refused = place.take_room(next).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfSpace, "{limit:?}, {next:?}: {refused}");
        }
        // Nothing of it can be freed.
        place.set_faults(Faults { read_error: 1.0, ..Faults::default() });
        drop(reader);
        let refused = place.take_room(Next::Put).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfSpace, "{limit:?}: {refused}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

/// A thread that is in a callback of a verification has paused freeing: it must not wait for that.
#[test]
fn a_callback_of_a_verification_does_not_wait_for_itself() {
    let mut place = Place::new(Limit::Disk);
    let reader = place.database.begin().unwrap();
    place.end(End::Drop);
    place.fill();
    place.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    drop(reader);
    place.set_faults(Faults::default());
    let mut calls = 0;
    let report = place.database.verify(|_| {
        if calls == 0 {
            let refused = place.take_room(Next::Put).map_err(|error| error.kind());
            assert!(matches!(refused, Ok(()) | Err(ErrorKind::OutOfSpace)), "{refused:?}");
        }
        calls += 1;
    });
    assert!(calls > 0, "{report:?}");
    place.take_room(Next::Put).unwrap();
    assert_clean(&place.database);
}

/// Many threads want what is freed.
#[test]
fn many_threads_find_room() {
    for limit in [Limit::Disk, Limit::Capacity] {
        let mut place = Place::new(limit);
        place.fill();
        place.set_faults(Faults { delay_max: Duration::from_millis(1), ..Faults::default() });
        place.end(End::Drop);
        thread::scope(|scope| {
            for thread in 0..4_u8 {
                let table = &place.filler;
                scope.spawn(move || {
                    for number in 0..COUNT as u16 / 4 {
                        let [high, low] = number.to_be_bytes();
                        table.put([9, 9, 9, 9, 9, thread, high, low], [thread; 900]).unwrap();
                    }
                });
            }
        });
        assert_clean(&place.database);
    }
}

/// Without a log nothing waits for one.
#[test]
fn it_finds_room_without_a_log_too() {
    let disk = SimulatedDisk::new(1);
    let options = options().capacity_bytes(CAPACITY).log(false);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let filler = database.create_table("filler").unwrap();
    let large: Table = database.create_table("large").unwrap();
    for number in 0..ENTRIES {
        large.put(format!("{number:0150}"), [number as u8; 600]).unwrap();
    }
    let place = Place { disk, database, filler, large: None };
    drop(large);
    let reader = place.database.begin().unwrap();
    place.database.drop_table("large").unwrap();
    place.fill();
    place.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    drop(reader);
    place.set_faults(Faults::default());
    place.take_room(Next::Put).unwrap();
    assert_clean(&place.database);
}
