//! A database is lost while its log is being archived: the archive ends inside a record, nearly always.

use crate::support::{assert_clean, options};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use vellum::{Backup, BackupOptions, Database, Lsn, Options, RestoreOptions, Until};
use vellum_vm::{Directory, SimulatedDisk};

const PAGE: u64 = 4096;
const LARGE_BYTES: usize = 100_000;

/// What is left of a database that was lost.
struct Lost {
    disk: SimulatedDisk,
    archive: SimulatedDisk,
    backups: SimulatedDisk,
    /// How many entries were acknowledged, the last of them in a segment that is not archived.
    count: u32,
    with_large: bool,
    /// Where the archive ends.
    end: Lsn,
}

fn archived(archive: &SimulatedDisk, segment_bytes: u64) -> Options {
    options().log_segment_bytes(segment_bytes).log_archive_in(Arc::new(archive.clone()))
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// With large values a record takes more than a segment, so more than one is archived without the record's end.
fn value(number: u32, with_large: bool) -> Vec<u8> {
    let bytes = if with_large && number % 2 == 1 { LARGE_BYTES } else { 2000 + number as usize % 37 };
    vec![number as u8; bytes]
}

/// Returns where the archive ends, once all segments are in it that are full.
fn archived_end(database: &Database, segment_bytes: u64) -> Lsn {
    let (begun, payload) = (Instant::now(), segment_bytes - PAGE);
    loop {
        let state = database.log_state().unwrap();
        let full = state.appended_bytes / payload * payload;
        match state.archive.unwrap().end {
            Some(end) if end.0 >= full => return end,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is archived");
    }
}

/// Loses a database with `count` entries or a few more, and a backup of fewer.
fn lose(segment_bytes: u64, count: u32, with_large: bool) -> Lost {
    let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
    let options = archived(&archive, segment_bytes);
    let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
    let table = database.create_table("table").unwrap();
    table.put(key(0), value(0, with_large)).unwrap();
    database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
    let segment = || {
        let appended = database.log_state().unwrap().appended_bytes;
        (appended / (segment_bytes - PAGE), appended % (segment_bytes - PAGE))
    };
    let mut number = 1;
    loop {
        let before = segment();
        table.put(key(number), value(number, with_large)).unwrap();
        number += 1;
        // After a large value the last one is small.
        if number >= count && number % 2 == 1 && before.1 > 0 && before.0 == segment().0 {
            break;
        }
    }
    archived_end(&database, segment_bytes);
    // The log gives up what it need not keep.
    database.checkpoint().unwrap();
    let end = archived_end(&database, segment_bytes);
    // Dropping the database closes it, and archives the rest.
    Lost { disk: disk.crash(), archive: archive.crash(), backups, count: number, with_large, end }
}

impl Lost {
    /// Removes the segments that begin before the archive ends: the log reuses them sooner or later.
    fn remove_archived(&self, segment_bytes: u64) {
        let number = self.end.0 / (segment_bytes - PAGE);
        for name in self.disk.names().unwrap() {
            let its = name.strip_prefix("segment-").and_then(|digits| u64::from_str_radix(digits, 16).ok());
            if its.is_some_and(|its| its < number) {
                self.disk.remove(&name).unwrap();
            }
        }
    }

    /// How many entries are restored, and up to where.
    fn restore(&self, with_log: bool, until: Until) -> vellum::Result<(u32, Lsn)> {
        let disk: Arc<dyn Directory> = Arc::new(SimulatedDisk::new(4));
        let backup = Backup::open_in(&self.backups, "backup")?;
        let mut how = RestoreOptions::default().archive_in(Arc::new(self.archive.clone())).until(until);
        if with_log {
            how = how.log_in(Arc::new(self.disk.clone()));
        }
        let restored = Backup::restore_in(&[backup], disk.clone(), "restored", &options(), how)?;
        let database = Database::open_in(disk, "restored", &options())?;
        assert_clean(&database);
        let table = database.table("table")?;
        let mut count = 0;
        for entry in table.range(..)? {
            let (found, bytes) = entry?;
            assert_eq!((&*found, &*bytes), (&key(count)[..], &*value(count, self.with_large)));
            count += 1;
        }
        Ok((count, restored.point.unwrap().end))
    }
}

#[test]
fn all_that_was_acknowledged_is_restored_from_an_archive_that_ends_inside_a_record_and_the_log() {
    let mut inside = 0;
    for (segment_bytes, with_large) in [(16 * PAGE, false), (10 * PAGE, true)] {
        let lost = lose(segment_bytes, if with_large { 8 } else { 100 }, with_large);
        let count = lost.count;
        let (restored, end) = lost.restore(false, Until::End).unwrap();
        assert!(restored + 35 > count && restored < count && end <= lost.end, "{restored} of {count}, {end}");
        inside += u32::from(end < lost.end);
        for until in [Until::Before(lost.end), Until::Before(end)] {
            assert_eq!(lost.restore(false, until).unwrap(), (restored, end), "{until:?}");
        }
        let beyond = lost.restore(false, Until::Lsn(end)).unwrap_err().to_string();
        assert!(beyond.contains("the archive ends at"), "{beyond}");
        // The log has the beginning of that record, or only the archive has it.
        assert_eq!(lost.restore(true, Until::End).unwrap().0, count);
        lost.remove_archived(segment_bytes);
        assert_eq!(lost.restore(true, Until::End).unwrap().0, count);
        assert_eq!(lost.restore(true, Until::Before(lost.end)).unwrap(), (restored, end));
        // The record there commits the next entry, or has what that refers to, or the time.
        let there = lost.restore(true, Until::Lsn(end)).unwrap().0;
        assert!((restored..=restored + 1).contains(&there), "{there}");
    }
    assert!(inside > 0, "all archives end with a whole record");
}

/// The log of a life begins behind the end of the one before. What is archived by then ends there.
#[test]
fn the_place_that_is_told_before_anything_is_changed_can_be_restored() {
    for (is_closed, is_changed) in [(true, false), (true, true), (false, false), (false, true)] {
        let (disk, archive, backups) = (SimulatedDisk::new(1), SimulatedDisk::new(2), SimulatedDisk::new(3));
        let options = archived(&archive, 16 * PAGE);
        let database = Database::create_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let table = database.create_table("table").unwrap();
        database.backup_in(Arc::new(backups.clone()), "backup", BackupOptions::default()).unwrap();
        (0..100).for_each(|number| drop(table.put(key(number), value(number, false))));
        drop(table);
        let (disk, archive) = if is_closed {
            database.close().unwrap();
            (disk, archive)
        } else {
            // Dropping it closes it.
            (disk.crash(), archive.crash())
        };
        let options = archived(&archive, 16 * PAGE);
        let database = Database::open_in(Arc::new(disk.clone()), "data", &options).unwrap();
        let place = database.archive_log().unwrap();
        assert_eq!(database.archive_log().unwrap(), place);
        if is_changed {
            database.table("table").unwrap().put(key(100), value(100, false)).unwrap();
            assert!(database.archive_log().unwrap() > place);
        }
        database.close().unwrap();
        let lost =
            Lost { disk: SimulatedDisk::new(5), archive, backups, count: 100, with_large: false, end: place };
        let restored = lost.restore(false, Until::Before(place)).unwrap();
        assert_eq!(restored, (100, place), "{is_closed}, {is_changed}");
    }
}
