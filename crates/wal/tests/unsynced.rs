//! A file that may hold what is not durable is not closed before it has been synced: the system reports that it could not
//! write something only to those that had the file open.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex},
};
use vellum_base::Lsn;
use vellum_vm::{
    Directory, File, FileDescription, FileOptions, Queue, Request, SimulatedDisk, VmError, WordTable,
};
use vellum_wal::{Durability, Log, LogError, LogOptions};

/// A disk that notes which files are closed too early.
#[derive(Debug, Clone)]
struct Watched {
    disk: SimulatedDisk,
    watch: Arc<Mutex<Watch>>,
}

#[derive(Debug, Default)]
struct Watch {
    /// Files that may hold what is not durable: a killed process has left it.
    left: BTreeSet<String>,
    /// Files that were closed with something that is not durable.
    lost: Vec<String>,
    /// Whether the log as a whole is closed, and its last records need not be durable.
    is_over: bool,
}

impl Directory for Watched {
    fn open(&self, name: &str, options: &FileOptions) -> Result<Arc<dyn File>, VmError> {
        let file = self.disk.open(name, options)?;
        let is_unsynced = Mutex::new(self.watch.lock().unwrap().left.contains(name));
        Ok(Arc::new(WatchedFile { file, name: name.to_owned(), watch: self.watch.clone(), is_unsynced }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn File>,
    /// Its name when it was opened.
    name: String,
    watch: Arc<Mutex<Watch>>,
    is_unsynced: Mutex<bool>,
}

impl Drop for WatchedFile {
    fn drop(&mut self) {
        let mut watch = self.watch.lock().unwrap();
        // The buffer is never synced.
        if *self.is_unsynced.lock().unwrap() && !watch.is_over && self.name != "buffer" {
            watch.lost.push(self.name.clone());
        }
    }
}

impl File for WatchedFile {
    unsafe fn read(&self, offset: u64, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: as for the caller.
        unsafe { self.file.read(offset, address, bytes) }
    }

    unsafe fn write(&self, offset: u64, address: *const u8, bytes: usize) -> io::Result<()> {
        *self.is_unsynced.lock().unwrap() = true;
        // SAFETY: as for the caller.
        unsafe { self.file.write(offset, address, bytes) }
    }

    fn write_cached_from(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        *self.is_unsynced.lock().unwrap() = true;
        self.file.write_cached_from(offset, source)
    }

    unsafe fn run(&self, requests: &mut [Request]) {
        // SAFETY: as for the caller.
        unsafe { self.file.run(requests) }
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        self.file.queue(depth)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()?;
        *self.is_unsynced.lock().unwrap() = false;
        self.watch.lock().unwrap().left.remove(&self.name);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn grow(&self, to: u64) -> io::Result<()> {
        *self.is_unsynced.lock().unwrap() = true;
        self.file.grow(to)
    }

    fn truncate(&self, to: u64) -> io::Result<()> {
        self.file.truncate(to)
    }

    fn map_words(&self, offset: u64, words: usize) -> io::Result<Arc<WordTable>> {
        self.file.map_words(offset, words)
    }

    fn description(&self) -> FileDescription {
        self.file.description()
    }
}

/// Whether a file is a segment that has been begun: its header has the number in its name.
fn is_begun(disk: &SimulatedDisk, name: &str) -> bool {
    let number = name.strip_prefix("segment-").and_then(|number| u64::from_str_radix(number, 16).ok());
    let contents = disk.file(name).snapshot().to_vec();
    let word = contents.get(40..48).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    number.is_some() && contents.starts_with(b"VELLUMLG") && word == number
}

/// Opens the log that a killed process has left: its last segment may hold what is not durable.
fn open(disk: SimulatedDisk, from: Lsn) -> (Log, Watched) {
    let names = disk.names().unwrap();
    let last = names.iter().rfind(|name| is_begun(&disk, name)).cloned();
    let watch = Watch { left: last.into_iter().collect(), ..Watch::default() };
    let watched = Watched { disk, watch: Arc::new(Mutex::new(watch)) };
    let options = LogOptions {
        segment_bytes: 16 << 10,
        buffer_bytes: 16 << 10,
        spare_segments_min: 1,
        ..LogOptions::new([1; 16])
    };
    let log = Log::open(Arc::new(watched.clone()), &options, from, |_| Ok::<_, LogError>(())).unwrap();
    assert!(watched.watch.lock().unwrap().left.is_empty(), "the end of the log is synced");
    (log, watched)
}

/// One life of a log.
fn live(log: &Log, random: &mut StdRng, from: &mut Lsn) {
    let mut readers = Vec::new();
    for _ in 0..random.random_range(1..120) {
        let lsn = log.append(&vec![1; random.random_range(0..2000)]).unwrap();
        match random.random_range(0..12) {
            0..4 => log.wait(lsn, Durability::Synced).unwrap(),
            4..6 => log.wait(lsn, Durability::Buffered).unwrap(),
            6 => log.write_filled().unwrap(),
            7 => log.prepare().unwrap(),
            8 => {
                log.wait(lsn, Durability::Synced).unwrap();
                *from = lsn;
                log.discard(lsn).unwrap();
            }
            9 => readers.extend(log.reread(*from)),
            10 => {
                for reader in &mut readers {
                    let _ = reader.next().unwrap();
                }
            }
            _ => {}
        }
    }
}

#[test]
fn nothing_is_closed_before_it_is_durable() {
    for seed in 0..25 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut disk, mut from) = (SimulatedDisk::new(seed), Lsn(0));
        for _ in 0..6 {
            let (log, watched) = open(disk, from);
            live(&log, &mut random, &mut from);
            disk = watched.disk.kill();
            watched.watch.lock().unwrap().is_over = true;
            drop(log);
            let lost = watched.watch.lock().unwrap().lost.clone();
            assert_eq!(lost, [""; 0], "seed {seed}");
        }
    }
}
