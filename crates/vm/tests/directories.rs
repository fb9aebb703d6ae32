//! Directories on disk and simulated: the same, and how the simulated one crashes.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, CrashModel, CreateMode, Directory, DiskDirectory, Faults, File, FileOperation,
    FileOptions, SimulatedDisk, VmError,
};

fn options(create: CreateMode) -> FileOptions {
    FileOptions { create, ..FileOptions::default() }
}

fn fill(file: &dyn File, value: u8) -> std::io::Result<()> {
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    page.fill(value);
    // SAFETY: the page is borrowed for the length of the call.
    unsafe { file.write(0, page.as_ptr(), PAGE_SIZE) }
}

fn first_byte(file: &dyn File) -> u8 {
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    // SAFETY: the page is borrowed mutably for the length of the call.
    unsafe { file.read(0, page.as_mut_ptr(), PAGE_SIZE) }.unwrap();
    page[0]
}

fn kind(error: VmError) -> Option<ErrorKind> {
    match error {
        VmError::Open { source, .. } => Some(source.kind()),
        VmError::Locked { .. } => None,
        other => panic!("{other}"),
    }
}

#[test]
fn a_directory_that_is_held_stays_the_same_one() {
    let temporary = tempfile::tempdir().unwrap();
    let [place, moved] = ["place", "moved"].map(|name| temporary.path().join(name));
    std::fs::create_dir(&place).unwrap();
    let (by_path, held) = (DiskDirectory::new(&place), DiskDirectory::held(&place));
    drop(held.open("old", &options(CreateMode::CreateNew)).unwrap());
    std::fs::rename(&place, &moved).unwrap();
    assert_eq!(by_path.names().unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::create_dir(&place).unwrap();
    drop(by_path.open("other", &options(CreateMode::CreateNew)).unwrap());
    held.rename("old", "new").unwrap();
    drop(held.open("more", &options(CreateMode::CreateNew)).unwrap());
    held.sync().unwrap();
    assert_eq!(held.names().unwrap(), ["more", "new"]);
    assert_eq!(by_path.names().unwrap(), ["other"]);
    assert_eq!(DiskDirectory::new(&moved).names().unwrap(), ["more", "new"]);
    held.remove("more").unwrap();
    assert_eq!(DiskDirectory::new(&moved).names().unwrap(), ["new"]);
    // What people read has the path that they know.
    let _open = held.open("new", &options(CreateMode::OpenExisting)).unwrap();
    let error = held.open("new", &options(CreateMode::OpenExisting)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("{} is locked", place.join("new").display())), "{error}");
}

#[test]
fn all_kinds_of_directory_do_the_same() {
    let temporary = tempfile::tempdir().unwrap();
    let (by_path, held) = (DiskDirectory::new(temporary.path()), DiskDirectory::held(temporary.path()));
    for directory in [&by_path as &dyn Directory, &held, &SimulatedDisk::new(1)] {
        let open = |name: &str, create| directory.open(name, &options(create));
        assert_eq!(directory.names().unwrap(), [""; 0]);
        assert_eq!(kind(open("b", CreateMode::OpenExisting).unwrap_err()), Some(ErrorKind::NotFound));
        let b = open("b", CreateMode::CreateNew).unwrap();
        let a = open("a", CreateMode::OpenOrCreate).unwrap();
        assert_eq!(directory.names().unwrap(), ["a", "b"]);
        assert_eq!(kind(open("b", CreateMode::CreateNew).unwrap_err()), Some(ErrorKind::AlreadyExists));
        assert_eq!(kind(open("b", CreateMode::OpenExisting).unwrap_err()), None, "it is locked");
        fill(&*a, 1).unwrap();
        fill(&*b, 2).unwrap();

        // An open file stays usable, whatever becomes of its name.
        directory.rename("a", "b").unwrap();
        assert_eq!(directory.names().unwrap(), ["b"]);
        assert_eq!((first_byte(&*a), first_byte(&*b)), (1, 2));
        let other = Arc::clone(&a);
        drop((a, b));
        assert_eq!(kind(open("b", CreateMode::OpenExisting).unwrap_err()), None, "a clone is still open");
        drop(other);
        assert_eq!(first_byte(&*open("b", CreateMode::OpenExisting).unwrap()), 1);

        let read_only = FileOptions { read_only: true, ..options(CreateMode::OpenExisting) };
        let one = directory.open("b", &read_only).unwrap();
        let two = directory.open("b", &read_only).unwrap();
        assert_eq!(fill(&*one, 3).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(one.grow(1 << 20).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(kind(open("b", CreateMode::OpenExisting).unwrap_err()), None);
        drop(one);
        assert_eq!(kind(open("b", CreateMode::OpenExisting).unwrap_err()), None);
        assert_eq!(first_byte(&*two), 1);
        drop(two);
        open("b", CreateMode::OpenExisting).unwrap();

        assert_eq!(directory.rename("a", "c").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(directory.remove("a").unwrap_err().kind(), ErrorKind::NotFound);
        directory.remove("b").unwrap();
        directory.sync().unwrap();
        assert_eq!(directory.names().unwrap(), [""; 0]);
    }
}

#[test]
fn all_files_of_a_disk_crash_at_the_same_moment() {
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let open = |name: &str| disk.open(name, &options(CreateMode::CreateNew)).unwrap();
        let (log, pages) = (open("log"), open("pages"));
        fill(&*log, 1).unwrap();
        log.sync().unwrap();
        fill(&*pages, 1).unwrap();
        fill(&*log, 2).unwrap();
        let after = disk.crash();
        let log = after.open("log", &options(CreateMode::OpenExisting)).unwrap();
        let found = first_byte(&*log);
        assert!(matches!(found, 1 | 2), "{found}");
        let pages = after.open("pages", &options(CreateMode::OpenExisting)).unwrap();
        assert!(matches!(pages.size().unwrap(), 0 | 512..=4096));
    }
}

#[test]
fn names_come_back_in_order_after_a_crash() {
    let mut found = HashSet::new();
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        for name in ["a", "b", "c"] {
            disk.open(name, &options(CreateMode::CreateNew)).unwrap();
        }
        disk.remove("a").unwrap();
        disk.rename("b", "d").unwrap();
        disk.rename("c", "d").unwrap();
        found.insert(disk.crash().names().unwrap().concat());
        assert_eq!(disk.crash_with(CrashModel::LoseAll).names().unwrap(), ["a", "b", "c"]);
        assert_eq!(disk.crash_with(CrashModel::KeepAll).names().unwrap(), ["d"]);
        disk.sync().unwrap();
        assert_eq!(disk.crash().names().unwrap(), ["d"]);
    }
    assert_eq!(found, ["abc", "bc", "cd", "d"].map(str::to_owned).into());
}

/// Replaces a file the safe way: a new one, synced, renamed over the old one, the directory synced.
fn replace(disk: &SimulatedDisk, value: u8) -> Result<(), Box<dyn std::error::Error>> {
    let file = disk.open("new", &options(CreateMode::OpenOrCreate))?;
    fill(&*file, value)?;
    file.sync()?;
    drop(file);
    disk.rename("new", "current")?;
    disk.sync()?;
    Ok(())
}

#[test]
fn a_power_failure_at_every_operation_leaves_the_old_or_the_new() {
    let mut outcomes = HashSet::new();
    for n in 1.. {
        let mut finished = false;
        for seed in 0..20 {
            let disk = SimulatedDisk::new(seed);
            replace(&disk, 1).unwrap();
            disk.fail_from(n);
            finished = replace(&disk, 2).is_ok();
            let after = disk.crash();
            let file = after.open("current", &options(CreateMode::OpenExisting)).unwrap();
            let found = first_byte(&*file);
            assert!(found == 2 || (found == 1 && !finished), "operation {n}:\n{}", disk.history());
            outcomes.insert((n, found));
        }
        if finished {
            assert_eq!(n, 6, "creating, writing, syncing, renaming, syncing the directory");
            break;
        }
    }
    assert!(outcomes.contains(&(1, 1)) && outcomes.contains(&(5, 1)) && outcomes.contains(&(5, 2)));
}

#[test]
fn failures_are_counted_across_files() {
    let disk = SimulatedDisk::new(3);
    let (one, two) = (disk.file("one"), disk.file("two"));
    disk.fail_nth(3);
    fill(&one, 1).unwrap();
    fill(&two, 1).unwrap();
    fill(&one, 1).unwrap_err();
    fill(&two, 1).unwrap();
    disk.fail_nth_of(FileOperation::Name, 1);
    fill(&one, 1).unwrap();
    disk.remove("one").unwrap_err();
    disk.remove("one").unwrap();
    disk.fail_from_of(FileOperation::Sync, 2);
    disk.sync().unwrap();
    two.sync().unwrap_err();
    disk.sync().unwrap_err();
    disk.heal();
    disk.file("two").sync().unwrap();
    assert_eq!(disk.counts().of(FileOperation::Write), 5);
    assert_eq!(disk.counts().scheduled_failures, 4);
    let history = disk.history();
    for line in ["one: write 4096 bytes at 0: EIO", "the directory: name: removed", "two: sync: EIO"] {
        assert!(history.contains(line), "{line} in {history}");
    }
    assert!(!one.history().contains("two:"), "{}", one.history());

    disk.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    let three = disk.file("three");
    fill(&three, 1).unwrap();
    let mut page = AlignedBuffer::new(PAGE_SIZE);
    for file in [&two, &three] {
        // SAFETY: the page is borrowed mutably for the length of the call.
        unsafe { file.read(0, page.as_mut_ptr(), PAGE_SIZE) }.unwrap_err();
    }
    let after = disk.crash_with(CrashModel::KeepAll);
    assert_eq!(first_byte(&after.file("two")), 1, "what survives has no faults");
}

#[test]
fn links_to_files_are_files_and_those_that_lead_nowhere_are_told_when_they_are_opened() {
    let temporary = tempfile::tempdir().unwrap();
    let [place, elsewhere] = ["place", "elsewhere"].map(|name| temporary.path().join(name));
    std::fs::create_dir(&place).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    let directory = DiskDirectory::new(&place);
    drop(DiskDirectory::new(&elsewhere).open("file", &options(CreateMode::CreateNew)).unwrap());
    for (name, to) in [("file", "file"), ("directory", ""), ("nowhere", "missing")] {
        std::os::unix::fs::symlink(elsewhere.join(to), place.join(name)).unwrap();
    }
    assert_eq!(directory.names().unwrap(), ["file", "nowhere"]);
    directory.open("file", &options(CreateMode::OpenExisting)).unwrap();
    let error = directory.open("nowhere", &options(CreateMode::OpenExisting)).unwrap_err();
    assert_eq!(kind(error), Some(ErrorKind::NotFound));
}
