//! The beginning of a log: opening the one that is there, or beginning a new one.

use super::Log;
use crate::{
    LogError, LogOptions, LogReader, Record,
    archive_bell::ArchiveBell,
    buffer_damage::BufferDamage,
    buffer_file::BufferFile,
    device::Device,
    files::{LogFiles, SegmentMaker, names_of, remove_all},
    lives::LogLives,
    plant::Bug,
    prepared::Prepared,
    previous_end::PreviousEnd,
    primitive::{AtomicU64, shared_words},
    ring::Ring,
    syncs::Syncs,
    tail::Tail,
    waiting::Waiting,
};
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicBool, Condvar, Mutex};
use vellum_vm::Directory;

impl Log {
    /// Opens the log in a directory, or creates it; shows all its records from `from` on to `replay`. Records appended
    /// from now on have greater LSNs than anything before, even if that is lost.
    ///
    /// `from` is where a record begins or the log once ended; zero reads a log of which nothing was discarded from its
    /// beginning. If `replay` fails, or the process ends, the log is unchanged.
    ///
    /// # Errors
    /// [`LogError::Hole`] and [`LogError::Missing`] if records are missing that should be there, the errors of
    /// `replay`, and what the system reports.
    pub fn open<E: From<LogError>>(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        from: Lsn,
        replay: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let tail = Tail::find(directory.clone(), LogFiles::open(&directory, options)?)?;
        let mut reader = LogReader::with_tail(tail, from)?;
        reader.ends_at_holes = options.planted(Bug::PastHole);
        reader.for_each(replay)?;
        let (previous, buffer_damage) = (reader.previous_end(), reader.buffer_damage());
        let files = reader.into_files().map_or_else(|| LogFiles::open(&directory, options), Ok)?;
        let checkpoint = files.segments.values().map(|segment| Lsn(segment.header.marks.checkpoint)).max();
        let checkpoint = checkpoint.unwrap_or_default();
        let mut log = Self::begin_timeline(directory, files, previous)?;
        (log.buffer_damage, log.known_checkpoint) = (buffer_damage, checkpoint);
        Ok(log)
    }

    /// Begins a log at or after [`LogOptions::least`]. What the directory has of an earlier log, which is no longer
    /// needed, is given up unread.
    ///
    /// # Errors
    /// [`LogError::Foreign`] or [`LogError::Version`] if the files are not an earlier log's; what the system reports.
    pub fn begin(directory: Arc<dyn Directory>, options: &LogOptions) -> Result<Self, LogError> {
        let mut files = LogFiles::open(&directory, options)?;
        let given_up = std::mem::take(&mut files.segments);
        files.idle.extend(given_up.into_iter().map(|(number, segment)| (number, segment.file)));
        let is_first = files.idle.is_empty();
        let log = Self::begin_timeline(directory.clone(), files, None).inspect_err(|_| {
            if is_first {
                // What was begun belongs to no log.
                let _ = remove_all(&*directory, options);
            }
        })?;
        // Files that cannot be removed do no harm.
        let _ = log.discard(log.end());
        Ok(log)
    }

    /// Whether a directory holds files of a log.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn is_there(directory: &dyn Directory) -> Result<bool, LogError> {
        Ok(!names_of(directory)?.is_empty())
    }

    fn begin_timeline(
        directory: Arc<dyn Directory>,
        files: LogFiles,
        previous: Option<PreviousEnd>,
    ) -> Result<Self, LogError> {
        let options = files.options.clone();
        let mut maker = SegmentMaker::new(directory.clone(), &files);
        let timeline = files.timeline_max + 1;
        let device = Device::begin(files, &mut maker, previous)?;
        let (lsn, salt) = (device.written(), device.salt());
        // Not earlier: only now the segments have what the file held.
        let buffer_file = BufferFile::begin(&*directory, &options, timeline).ok();
        let words = buffer_file.as_ref().map(|file| shared_words(&file.words));
        Ok(Self {
            ring: Ring::over(words, options.buffer_bytes, lsn)?,
            _buffer_file: buffer_file,
            has_failed: AtomicBool::new(false),
            written: AtomicU64::new(lsn),
            salt,
            options,
            buffer_damage: None,
            known_checkpoint: Lsn(0),
            buffered: AtomicU64::new(lsn),
            durable: AtomicU64::new(lsn),
            syncs: Syncs::default(),
            prepared: Prepared::new(lsn),
            for_undo: AtomicU64::new(0),
            begin: lsn,
            turn: Mutex::default(),
            ended: Condvar::new(),
            device: Mutex::new(device),
            maker: Mutex::new(maker),
            directory,
            waiting: Waiting::default(),
            kept: Mutex::default(),
            archive_bell: ArchiveBell::default(),
            lives: LogLives::default(),
            told: AtomicU64::new(0),
        })
    }

    /// What was wrong with the buffer that the process before has left, when the log was [opened](Self::open).
    pub fn buffer_damage(&self) -> Option<BufferDamage> {
        self.buffer_damage
    }

    /// The redo point of the last checkpoint that was [noted](Self::note_checkpoint) before the log was [opened](Self::open), as far
    /// as the log still has it; zero if it has none.
    pub fn known_checkpoint(&self) -> Lsn {
        self.known_checkpoint
    }
}
