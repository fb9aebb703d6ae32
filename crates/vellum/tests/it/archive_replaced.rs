//! Another directory takes the place of the archive while the database is open: a file system that is not mounted any more, or
//! an older copy of it.

use crate::support::{copy_directory, options};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use vellum::{Backup, Database, ErrorKind, Options, RestoreOptions, Table};

struct Place {
    folder: tempfile::TempDir,
    database: Database,
    table: Table,
}

fn small() -> Options {
    options().log_segment_bytes(32 << 10)
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = small().log_archive(folder.path().join("archive"));
        fs::create_dir(folder.path().join("archive")).unwrap();
        let database = Database::create(folder.path().join("data"), &options).unwrap();
        let table = database.create_table("table").unwrap();
        database.backup(folder.path().join("backup")).unwrap();
        Self { folder, database, table }
    }

    fn put(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.table.put(number.to_be_bytes(), [1; 1000]).unwrap();
        }
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.folder.path().join(from), self.folder.path().join(to)).unwrap();
    }

    fn log_bytes(&self) -> u64 {
        let files = fs::read_dir(self.folder.path().join("data-log")).unwrap();
        files.map(|file| file.and_then(|file| file.metadata()).map_or(0, |file| file.len())).sum()
    }

    /// Nothing is added to what is at the place of the archive, and the log keeps all.
    fn assert_refused(&self, words: &str) {
        let before = names(&self.folder.path().join("archive"));
        let refused = self.database.archive_log().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused:?}");
        assert!(refused.to_string().contains(words), "{refused}");
        let state = self.database.log_state().unwrap().archive.unwrap();
        assert!(state.error.is_some_and(|error| error.contains(words)));
        assert_eq!(names(&self.folder.path().join("archive")), before);
    }

    fn assert_restored(&self, count: u64) {
        let again = self.folder.path().join("again");
        let backup = Backup::open(self.folder.path().join("backup")).unwrap();
        let how = RestoreOptions::default().archive(self.folder.path().join("archive"));
        Backup::restore_with(&[backup], &again, &small(), how).unwrap();
        let restored = Database::open(&again, &small()).unwrap();
        assert_eq!(restored.table("table").unwrap().count(..).unwrap(), count);
        restored.discard().unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn nothing_is_archived_in_an_empty_directory_at_its_place() {
    let place = Place::new();
    place.put(0..100);
    place.database.archive_log().unwrap();
    place.rename("archive", "aside");
    fs::create_dir(place.folder.path().join("archive")).unwrap();
    place.put(100..400);
    place.assert_refused("holds nothing");
    place.database.checkpoint().unwrap();
    let kept = place.log_bytes();
    assert!(kept > 300_000, "{kept}");
    // It is there again.
    fs::remove_dir(place.folder.path().join("archive")).unwrap();
    place.rename("aside", "archive");
    place.put(400..500);
    place.database.archive_log().unwrap();
    let state = place.database.log_state().unwrap().archive.unwrap();
    assert_eq!((state.error, state.gap), (None, None));
    place.assert_restored(500);
    // While a segment is being made in the background, the one before it is given up by the next checkpoint.
    let begun = Instant::now();
    loop {
        place.database.checkpoint().unwrap();
        if place.log_bytes() < kept {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the log gives up what is archived");
        thread::sleep(Duration::from_millis(5));
    }
    let Place { folder, database, table } = place;
    drop(table);
    database.close().unwrap();
    drop(folder);
}

#[test]
fn nothing_is_archived_after_an_older_copy_of_it() {
    let place = Place::new();
    place.put(0..100);
    place.database.archive_log().unwrap();
    copy_directory(&place.folder.path().join("archive"), &place.folder.path().join("older"));
    place.put(100..200);
    place.database.archive_log().unwrap();
    place.rename("archive", "aside");
    place.rename("older", "archive");
    place.put(200..300);
    place.assert_refused("lacks");
    // What was archived since is put there.
    for name in names(&place.folder.path().join("aside")) {
        fs::copy(
            place.folder.path().join("aside").join(&name),
            place.folder.path().join("archive").join(&name),
        )
        .unwrap();
    }
    place.database.archive_log().unwrap();
    place.assert_restored(300);
}

/// Files that no backup needs may be removed at any time, all but the last.
#[test]
fn older_files_may_be_removed() {
    let place = Place::new();
    for round in 0..5 {
        place.put(round * 100..(round + 1) * 100);
        place.database.archive_log().unwrap();
        let backup = place.folder.path().join("backup");
        fs::remove_file(&backup).unwrap();
        place.database.backup(&backup).unwrap();
        let archive = place.folder.path().join("archive");
        let parts = vellum::LogArchive::open(&archive, &Backup::open(&backup).unwrap()).unwrap();
        let needed = parts.needed_by(&Backup::open(&backup).unwrap()).unwrap().name();
        names(&archive)
            .iter()
            .filter(|name| **name < needed)
            .for_each(|name| fs::remove_file(archive.join(name)).unwrap());
    }
    place.put(500..600);
    place.database.archive_log().unwrap();
    place.assert_restored(600);
}
