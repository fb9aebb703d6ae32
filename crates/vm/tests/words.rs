//! Words of files: what is stored in them is with the operating system, and survives the process.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use tempfile::TempDir;
use vellum_base::PAGE_SIZE;
use vellum_vm::{
    AlignedBuffer, CrashModel, CreateMode, Directory, DiskFile, File, FileOptions, SimulatedDisk,
};

/// Directories, and whether files are to be opened for direct access.
fn places() -> impl Iterator<Item = (TempDir, bool)> {
    let parents = [(std::env::temp_dir(), false), (std::env::temp_dir(), true), ("/dev/shm".into(), false)];
    parents.into_iter().filter_map(|(parent, direct)| Some((tempfile::tempdir_in(parent).ok()?, direct)))
}

#[test]
fn words_of_a_file_are_read_by_others_and_outlive_their_mapping() {
    for (directory, direct) in places() {
        let options = |create| FileOptions { create, direct: Some(direct), ..FileOptions::default() };
        let path = directory.path().join("file");
        let Ok(file) = DiskFile::open(&path, &options(CreateMode::CreateNew)) else { continue };
        file.grow(4 * PAGE_SIZE as u64).unwrap();
        let words = PAGE_SIZE / 8;
        assert!(file.map_words(4 * PAGE_SIZE as u64, words).is_err(), "there is no such part");
        assert!(file.map_words(8, words).is_err() && file.map_words(0, words + 1).is_err(), "no whole pages");
        let mapped = file.map_words(2 * PAGE_SIZE as u64, words);
        if direct {
            assert_eq!(mapped.unwrap_err().kind(), ErrorKind::Unsupported);
            continue;
        }
        // The places are on ext4, XFS or in memory; elsewhere there need be no such thing.
        let mapped = match mapped {
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            mapped => mapped.unwrap(),
        };
        let buffer = AlignedBuffer::new(PAGE_SIZE);
        mapped[3].store(u64::from_le_bytes(*b"a word.."), Ordering::SeqCst);
        let mut seen = AlignedBuffer::new(PAGE_SIZE);
        file.read_to(2 * PAGE_SIZE as u64, &mut seen).unwrap();
        assert_eq!(&seen[24..32], b"a word..");
        file.write_from(2 * PAGE_SIZE as u64, &buffer).unwrap();
        assert_eq!(mapped[3].load(Ordering::SeqCst), 0);
        mapped[511].store(1, Ordering::SeqCst);
        drop((mapped, file));
        let file = DiskFile::open(&path, &options(CreateMode::OpenExisting)).unwrap();
        file.read_to(2 * PAGE_SIZE as u64, &mut seen).unwrap();
        assert_eq!(seen[PAGE_SIZE - 8], 1);
    }
}

#[test]
fn mapped_words_survive_a_kill_and_in_part_a_crash() {
    let make = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    let disk = SimulatedDisk::new(1);
    let file = disk.open("words", &make).unwrap();
    file.grow(3 * PAGE_SIZE as u64).unwrap();
    file.sync().unwrap();
    let words = file.map_words(PAGE_SIZE as u64, 2 * PAGE_SIZE / 8).unwrap();
    words.iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
    let killed = disk.kill();
    // This disk goes on; the one of the killed process has what was stored until then.
    words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    assert!(killed.file("words").snapshot().to_vec()[PAGE_SIZE..].iter().all(|byte| *byte == 255));
    assert!(
        killed
            .crash_with(CrashModel::LoseAll)
            .file("words")
            .snapshot()
            .to_vec()
            .iter()
            .all(|byte| *byte == 0)
    );
    let torn = killed.crash_with(CrashModel::Reorder).file("words").snapshot().to_vec();
    let kept = torn[PAGE_SIZE..].chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 255)).count();
    assert!((1..16).contains(&kept), "{kept} of 16 sectors");
    drop((words, file));
    assert!(disk.file("words").snapshot().to_vec().iter().all(|byte| *byte == 0));
}
