//! The state of a simulated disk: files, their durable contents, names, and the failures to come.
//!
//! One lock protects all of it, so that a crash catches all files at the same moment.

use super::faults::{CrashModel, Faults, FileOperation, Schedule};
use super::history::{Entry, History};
use super::image::Image;
use super::random::Random;
use crate::WordTable;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use vellum_base::PAGE_SIZE;

/// The unit that a device writes as a whole, in bytes.
const SECTOR: usize = 512;

/// A disk: files and their names.
#[derive(Debug)]
pub(super) struct Disk {
    pub seed: u64,
    pub random: Random,
    /// How many crashes were asked for, so that each one differs.
    pub crashes: u64,
    pub files: Vec<FileState>,
    pub names: Names,
    /// The faults of files to be created.
    pub faults: Faults,
    pub schedule: Schedule,
    pub history: History,
    /// How many bytes all files with names may have in total.
    pub capacity_bytes: Option<u64>,
    /// When the disk becomes full, whatever the files have.
    pub fills: Option<Fills>,
    /// How many syncs of files have succeeded.
    pub syncs: u64,
}

/// A disk that becomes full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fills {
    /// So many operations that may take room find some.
    pub left: u64,
    /// Whether writes to what is there take room.
    pub overwriting: bool,
}

/// A file.
#[derive(Clone, Debug)]
pub(super) struct FileState {
    /// The first name of the file, for display.
    pub name: String,
    /// The contents that reads see.
    pub contents: Image,
    /// The contents that certainly survive a crash.
    pub durable: Image,
    /// The changes that lead from `durable` to `contents`, in order.
    pub pending: Vec<Change>,
    pub faults: Faults,
    pub schedule: Schedule,
    /// How many handles are open for reading, or -1 for one handle that is open for writing.
    pub holders: i64,
    /// How many ask reads to wait.
    pub read_holds: usize,
    /// Words that are stored without any call.
    pub mapped: Option<Mapped>,
}

/// Words of a file.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    pub offset: u64,
    pub words: Arc<WordTable>,
    pub bytes: u64,
}

/// A change that may or may not survive a crash.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        offset: u64,
        bytes: Box<[u8]>,
        /// Whether a sync has failed, so that no later sync will make it durable.
        doomed: bool,
    },
    Resize {
        size: u64,
    },
}

/// The file of each name.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub current: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    pending: Vec<NameChange>,
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Set(String, usize),
    Remove(String),
    Rename(String, String),
}

/// What a crash does to one change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

impl Disk {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            random: Random::new(seed),
            crashes: 0,
            files: Vec::new(),
            names: Names::default(),
            faults,
            schedule: Schedule::default(),
            history: History::default(),
            capacity_bytes: None,
            fills: None,
            syncs: 0,
        }
    }

    /// The total number of bytes of all files with names.
    pub fn used_bytes(&self) -> u64 {
        self.names.current.values().map(|index| self.files[*index].contents.size()).sum()
    }

    /// Adds a file whose contents are durable, and returns its number. It has no name yet.
    pub fn add(&mut self, name: &str, image: Image) -> usize {
        self.files.push(FileState {
            name: name.to_owned(),
            contents: image.clone(),
            durable: image,
            pending: Vec::new(),
            faults: self.faults.clone(),
            schedule: Schedule::default(),
            holders: 0,
            read_holds: 0,
            mapped: None,
        });
        self.files.len() - 1
    }

    /// Counts an operation on the directory, and fails if it should.
    pub fn begin_name(&mut self, operation: FileOperation, outcome: &'static str) -> io::Result<()> {
        let fails = self.schedule.begin(operation);
        let is_full = operation == FileOperation::Sync && self.faults.full_syncs;
        let (reason, error) = if is_full { ("ENOSPC", libc::ENOSPC) } else { ("EIO", libc::EIO) };
        let outcome = if fails { reason } else { outcome };
        self.history.add(Entry { file: None, operation, offset: 0, bytes: 0, outcome });
        if fails { Err(io::Error::from_raw_os_error(error)) } else { Ok(()) }
    }

    /// Counts an operation that may take room, and says whether there is none.
    pub fn is_refused_room(&mut self, is_overwriting: bool) -> bool {
        match &mut self.fills {
            Some(fills) if fills.overwriting || !is_overwriting => {
                let is_full = fills.left == 0;
                fills.left = fills.left.saturating_sub(1);
                is_full
            }
            _ => false,
        }
    }

    /// Counts an operation on a file; returns how long to wait, or fails if it should.
    pub fn begin(
        &mut self,
        index: usize,
        operation: FileOperation,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Duration> {
        let scheduled = self.schedule.begin(operation);
        let (file, random) = (&mut self.files[index], &mut self.random);
        let scheduled = file.schedule.begin(operation) || scheduled;
        let probability = match operation {
            FileOperation::Read => file.faults.read_error,
            FileOperation::Write => file.faults.write_error,
            FileOperation::Sync => file.faults.sync_error,
            FileOperation::Resize => file.faults.grow_error,
            FileOperation::Name | FileOperation::Map => 0.0,
        };
        let fails = random.chance(probability) || scheduled;
        let delay_max = file.faults.delay_max;
        let end = offset + bytes as u64;
        let refused = file.faults.reserved_bytes.is_some_and(|reserved| end > reserved);
        if operation == FileOperation::Write && refused {
            self.note(index, operation, offset, bytes, "ENOSPC");
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let is_growing = end > self.files[index].contents.size();
        let takes_room =
            operation == FileOperation::Write || (operation == FileOperation::Resize && is_growing);
        if takes_room && self.is_refused_room(!is_growing) {
            self.note(index, operation, offset, bytes, "ENOSPC");
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if fails {
            let is_full = operation == FileOperation::Sync && self.files[index].faults.full_syncs;
            self.note(index, operation, offset, bytes, if is_full { "ENOSPC" } else { "EIO" });
            return Err(if is_full { io::Error::from_raw_os_error(libc::ENOSPC) } else { eio() });
        }
        let outcome = "done";
        self.history.add(Entry { file: Some(index), operation, offset, bytes: bytes as u64, outcome });
        let nanoseconds = u64::try_from(delay_max.as_nanos()).unwrap_or(u64::MAX);
        Ok(if nanoseconds == 0 {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.random.below(nanoseconds))
        })
    }

    /// Records a fault.
    pub fn note(
        &mut self,
        index: usize,
        operation: FileOperation,
        offset: u64,
        bytes: usize,
        outcome: &'static str,
    ) {
        self.schedule.counts.faults += 1;
        self.files[index].schedule.counts.faults += 1;
        self.history.add(Entry { file: Some(index), operation, offset, bytes: bytes as u64, outcome });
    }

    /// How much of a read or write is done this time: all, a part, or an interruption.
    pub fn portion(&mut self, index: usize, operation: FileOperation, bytes: usize) -> io::Result<usize> {
        let faults = &self.files[index].faults;
        if self.random.chance(faults.interrupted) {
            self.note(index, operation, 0, bytes, "interrupted");
            return Err(io::ErrorKind::Interrupted.into());
        }
        if bytes > 1 && self.random.chance(faults.short) {
            let part = 1 + self.random.below(bytes as u64 - 1) as usize;
            self.note(index, operation, 0, part, "cut short");
            return Ok(part);
        }
        Ok(bytes)
    }

    /// Writes, with the faults that are not reported.
    pub fn write(&mut self, index: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let faults = self.files[index].faults.clone();
        let end = offset.saturating_add(bytes.len() as u64);
        self.check_capacity(index, end)?;
        self.schedule.counts.bytes_written += bytes.len() as u64;
        self.files[index].schedule.counts.bytes_written += bytes.len() as u64;
        let operation = FileOperation::Write;
        if self.random.chance(faults.lost_write) {
            self.note(index, operation, offset, bytes.len(), "silently lost");
            return Ok(());
        }
        let (mut target, mut changed) = (offset, Box::<[u8]>::from(bytes));
        let pages = self.files[index].contents.size() / PAGE_SIZE as u64;
        if pages > 1 && self.random.chance(faults.misdirected_write) {
            // Another page of the file, at the same place within it.
            let page = offset / PAGE_SIZE as u64;
            let other = (page + 1 + self.random.below(pages - 1)) % pages;
            target = other * PAGE_SIZE as u64 + offset % PAGE_SIZE as u64;
            self.note(index, operation, target, bytes.len(), "silently misdirected to here");
        }
        if !changed.is_empty() && self.random.chance(faults.bit_flip_on_write) {
            let bit = self.random.below(changed.len() as u64 * 8);
            changed[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.note(index, operation, target + bit / 8, 1, "silently stored with a bit inverted");
        }
        self.files[index].apply(Change::Write { offset: target, bytes: changed, doomed: false });
        Ok(())
    }

    /// Does what a failing write does: writes any of its sectors.
    pub fn write_torn(&mut self, index: usize, offset: u64, bytes: &[u8]) {
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            let at = offset + (number * SECTOR) as u64;
            let fits = self.check_capacity(index, at + sector.len() as u64).is_ok();
            if self.random.coin() && fits {
                self.files[index].apply(Change::Write { offset: at, bytes: sector.into(), doomed: false });
            }
        }
    }

    /// Does what a failing sync does: dooms changes, so that no later sync makes them durable.
    pub fn doom(&mut self, index: usize) {
        for change in &mut self.files[index].pending {
            if let Change::Write { doomed, .. } = change {
                *doomed |= self.random.coin();
            }
        }
    }

    /// Fails if the file cannot become this large, or the disk would be full.
    pub fn check_capacity(&mut self, index: usize, size: u64) -> io::Result<()> {
        let file = &self.files[index];
        let Some(growth @ 1..) = size.checked_sub(file.contents.size()) else { return Ok(()) };
        let is_full = self.capacity_bytes.is_some_and(|most| self.used_bytes() + growth > most);
        if is_full || file.faults.capacity_bytes.is_some_and(|most| size > most) {
            self.note(index, FileOperation::Resize, size, 0, "ENOSPC");
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }

    /// The disk that a crash at this moment leaves. It has no faults, but the same crash model.
    pub fn crash(&mut self, model: Option<CrashModel>) -> Self {
        let (model, mut random) = self.begin_crash(model);
        self.look_at_words();
        let faults = Faults { crash: self.faults.crash, ..Faults::default() };
        let mut survivor = Self::new(random.next(), faults);
        for file in &self.files {
            let model = model.unwrap_or(file.faults.crash);
            let image = file.survivor(draw(model, &mut random), &mut random);
            let index = survivor.add(&file.name, image);
            survivor.files[index].faults.crash = file.faults.crash;
        }
        let model = draw(model.unwrap_or(self.faults.crash), &mut random);
        survivor.names = Names::of(self.names.survivor(model, &mut random));
        survivor
    }

    /// The disk as the end of a process leaves it.
    pub fn kill(&mut self) -> Self {
        let (_, mut random) = self.begin_crash(None);
        self.look_at_words();
        let faults = Faults { crash: self.faults.crash, ..Faults::default() };
        let mut survivor = Self::new(random.next(), faults);
        survivor.names = self.names.clone();
        survivor.files = self.files.clone();
        for file in &mut survivor.files {
            file.faults = file.faults.healed();
            (file.schedule, file.holders, file.mapped) = (Schedule::default(), 0, None);
        }
        survivor
    }

    /// The remains of one file after a crash at this moment, and the seed for the surviving file.
    pub fn crash_file(&mut self, index: usize, model: Option<CrashModel>) -> (Image, u64) {
        let (model, mut random) = self.begin_crash(model);
        self.look_at_words();
        let file = &self.files[index];
        let model = draw(model.unwrap_or(file.faults.crash), &mut random);
        (file.survivor(model, &mut random), random.next())
    }

    /// Records what was stored in mapped words as writes. The words are examined now and then, so a crash may leave the
    /// contents of a sector at any of those moments.
    pub fn look_at_words(&mut self) {
        self.files.iter_mut().for_each(FileState::look_at_words);
    }

    /// A new source of random numbers for each crash. With [`CrashModel::Any`], all files crash alike.
    fn begin_crash(&mut self, model: Option<CrashModel>) -> (Option<CrashModel>, Random) {
        self.crashes += 1;
        let mut random = Random::new(self.seed ^ self.crashes.wrapping_mul(0xa076_1d64_78bd_642f));
        (model.map(|model| draw(model, &mut random)), random)
    }
}

impl FileState {
    /// Changes the contents that reads see, and remembers that a crash may undo it.
    pub fn apply(&mut self, change: Change) {
        change.apply(&mut self.contents);
        self.pending.push(change);
    }

    /// Records what was stored in mapped words since the last call as writes, one for each sector that has changed. If
    /// no other owner of the words is left, this was the last time.
    pub fn look_at_words(&mut self) {
        let Some(mapped) = &self.mapped else { return };
        let (mapped, is_last) = (mapped.clone(), Arc::strong_count(&mapped.words) == 1);
        let mut now = [0; PAGE_SIZE];
        let mut before = [0; PAGE_SIZE];
        for at in (0..mapped.bytes).step_by(PAGE_SIZE) {
            mapped.words.copy_bytes(at as usize, &mut now);
            self.contents.read(mapped.offset + at, &mut before);
            if now == before {
                continue;
            }
            let sectors = now.chunks(SECTOR).zip(before.chunks(SECTOR));
            for (place, (now, before)) in (mapped.offset + at..).step_by(SECTOR).zip(sectors) {
                if now != before {
                    self.apply(Change::Write { offset: place, bytes: now.into(), doomed: false });
                }
            }
        }
        if is_last {
            self.mapped = None;
        }
    }

    /// Makes all changes durable that can be.
    pub fn sync(&mut self) {
        for change in self.pending.drain(..) {
            if !matches!(change, Change::Write { doomed: true, .. }) {
                change.apply(&mut self.durable);
            }
        }
    }

    /// The contents after a crash.
    fn survivor(&self, model: CrashModel, random: &mut Random) -> Image {
        let mut image = self.durable.clone();
        let cut = random.below(self.pending.len() as u64 + 1) as usize;
        for (number, change) in self.pending.iter().enumerate() {
            match (fate(model, number < cut, random), change) {
                (Fate::Lost, _) => {}
                (Fate::Kept, change) => change.apply(&mut image),
                (Fate::Torn, Change::Write { offset, bytes, .. }) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                        if random.coin() {
                            image.write(offset + (number * SECTOR) as u64, sector);
                        }
                    }
                }
                // A change of size is not torn.
                (Fate::Torn, change @ Change::Resize { .. }) => {
                    if random.coin() {
                        change.apply(&mut image);
                    }
                }
            }
        }
        image
    }
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Self::Write { offset, bytes, .. } => image.write(*offset, bytes),
            Self::Resize { size } => image.resize(*size),
        }
    }
}

impl Names {
    /// Names that are all durable.
    fn of(names: BTreeMap<String, usize>) -> Self {
        Self { current: names.clone(), durable: names, pending: Vec::new() }
    }

    /// Changes the names, and remembers that a crash may undo it.
    pub fn apply(&mut self, change: NameChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Makes all names durable.
    pub fn sync(&mut self) {
        self.durable = self.current.clone();
        self.pending.clear();
    }

    /// The names after a crash. File systems keep changes of names in order, so a first part of them survives.
    fn survivor(&self, model: CrashModel, random: &mut Random) -> BTreeMap<String, usize> {
        let mut names = self.durable.clone();
        let most = self.pending.len();
        let kept = match model {
            CrashModel::KeepAll => most,
            CrashModel::LoseAll => 0,
            _ => random.below(most as u64 + 1) as usize,
        };
        self.pending.iter().take(kept).for_each(|change| change.apply(&mut names));
        names
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

/// The model, or a random one for [`CrashModel::Any`].
fn draw(model: CrashModel, random: &mut Random) -> CrashModel {
    match model {
        CrashModel::Any => CrashModel::ALL[random.below(CrashModel::ALL.len() as u64) as usize],
        other => other,
    }
}

fn fate(model: CrashModel, before_cut: bool, random: &mut Random) -> Fate {
    match model {
        CrashModel::KeepAll => Fate::Kept,
        CrashModel::LoseAll => Fate::Lost,
        CrashModel::Prefix if before_cut => Fate::Kept,
        CrashModel::Prefix => Fate::Lost,
        CrashModel::Reorder => [Fate::Kept, Fate::Lost][random.below(2) as usize],
        CrashModel::Tear => Fate::Torn,
        CrashModel::Mix | CrashModel::Any => [Fate::Kept, Fate::Lost, Fate::Torn][random.below(3) as usize],
    }
}

/// The error of a failing device.
pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
