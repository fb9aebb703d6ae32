//! The file in which the log's buffer lies, so that the contents of the buffer survive the process.
//!
//! # Invariants
//! - A frame has one place in one timeline, and is written there once. So if the file or the segments have a whole
//!   frame for a place of a timeline, it is the frame.
//! - Released parts of the buffer are in segments, in whole frames. So a killed process leaves each frame whole in one.
//! - The file is used for the next timeline only when everything found in it is in segments, and durable there.
//! - Nothing syncs the file. A crash of the machine leaves any part of it, old or new; checksums show which frames
//!   count.

use crate::{
    LogError, LogOptions,
    buffer_damage::BufferFlaw,
    buffer_format::{BufferPage, decode, encode, is_size},
    frame::{ALIGNMENT, FrameHeader, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX},
    plant::Bug,
};
use std::{io, sync::Arc};
use vellum_base::PAGE_SIZE;
use vellum_vm::{AlignedBuffer, CreateMode, Directory, File, FileOptions, IoEngine, WordTable};

/// The name of the file.
pub(crate) const BUFFER: &str = "buffer";
const PAGE: u64 = PAGE_SIZE as u64;

/// The buffer file of an open log.
pub(crate) struct BufferFile {
    pub words: Arc<WordTable>,
    /// Keeps the file locked while the words are used.
    pub _file: Arc<dyn File>,
}

impl BufferFile {
    /// The file for the buffer of a new timeline.
    ///
    /// # Errors
    /// If it cannot be made or mapped. Then the buffer lies in memory, and records are with the operating system once
    /// they have been written to segments.
    pub fn begin(directory: &dyn Directory, options: &LogOptions, timeline: u64) -> io::Result<Self> {
        let file =
            directory.open(BUFFER, &file_options(CreateMode::OpenOrCreate)).map_err(io::Error::other)?;
        let bytes = PAGE + options.buffer_bytes;
        // From scratch: a copy of a file may have holes, or share its blocks with others, and need room when words are
        // stored.
        file.truncate(0)?;
        file.grow(bytes)?;
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        page.copy_from_slice(&encode(options, timeline));
        file.write_cached_from(0, &page)?;
        let words = file.map_words(PAGE, (options.buffer_bytes / 8) as usize)?;
        Ok(Self { words, _file: file })
    }
}

/// What a process has left in its buffer file.
pub(crate) struct LeftBuffer {
    /// The timeline, if the first page tells.
    pub timeline: Option<u64>,
    /// The life of the database, if the first page tells; zero otherwise.
    pub life: u64,
    /// What is wrong with the file that a crash does not explain.
    pub flaw: Option<BufferFlaw>,
    bytes: AlignedBuffer,
}

impl LeftBuffer {
    /// The contents of the file, if there is one. The first page is not needed to read them: a frame says by its checksum
    /// which database, timeline and place it is of.
    ///
    /// # Errors
    /// If there is a file that cannot be read, or that is of a later version.
    pub fn find(directory: &dyn Directory, options: &LogOptions) -> Result<Option<Self>, LogError> {
        let failed = |source| LogError::Files { action: "read the buffer", source };
        let not_listed = |source| LogError::NotListed { directory: directory.path().map(Into::into), source };
        if !directory.names().map_err(not_listed)?.iter().any(|name| name == BUFFER) {
            return Ok(None);
        }
        let how = FileOptions { read_only: true, ..file_options(CreateMode::OpenExisting) };
        let file = directory.open(BUFFER, &how)?;
        let size = file.size().map_err(failed)?;
        let mut page = AlignedBuffer::new(PAGE_SIZE);
        // It was being made.
        if size <= PAGE {
            return Ok(None);
        }
        file.read_to(0, &mut page).map_err(failed)?;
        let there = size - PAGE;
        let told = page.first_chunk().map(|page| decode(page, options)).transpose()?;
        let (told, bytes, flaw) = match told {
            Some(BufferPage::Sound { timeline, bytes, life }) => {
                (Some((timeline, life)), bytes, (there < bytes).then_some(BufferFlaw::Size))
            }
            Some(BufferPage::Incomplete) => (None, there, None),
            Some(BufferPage::Foreign) => (None, there, Some(BufferFlaw::Foreign)),
            Some(BufferPage::Damaged) | None => (None, there, Some(BufferFlaw::Header)),
        };
        let (timeline, life) = (told.map(|(timeline, _)| timeline), told.map_or(0, |(_, life)| life));
        // Of another size it is no ring.
        let mut contents = AlignedBuffer::new(if is_size(bytes) { bytes as usize } else { 0 });
        let whole = there.min(contents.len() as u64) / PAGE * PAGE;
        if let Some(whole) = contents.get_mut(..whole as usize).filter(|whole| !whole.is_empty()) {
            file.read_to(PAGE, whole).map_err(failed)?;
        }
        Ok(Some(Self { timeline, life, flaw, bytes: contents }))
    }

    /// Whether another life of the database than this has written it, as far as both are known. A process that ended before it
    /// had a buffer of its own may have left that of an opening that was taken back, which holds nothing.
    pub fn is_of_another_life(&self, life: u64) -> bool {
        self.life != 0 && life != 0 && self.life != life
    }

    /// Whether there is a frame at `at`, in the timeline with this salt.
    pub fn has_frame(&self, at: u64, salt: u64, options: &LogOptions) -> bool {
        !self.bytes.is_empty() && self.add_frame(at, salt, options, &mut Vec::new()).is_some()
    }

    /// The consecutive frames from `at` on, in the timeline with this salt, up to where there is none, or one of an
    /// earlier lap, or one that was still being written.
    pub fn frames(&self, at: u64, salt: u64, options: &LogOptions) -> Vec<u8> {
        let mut frames = Vec::new();
        while frames.len() < self.bytes.len()
            && self.add_frame(at + frames.len() as u64, salt, options, &mut frames).is_some()
        {}
        if options.planted(Bug::GapInBuffer) && frames.is_empty() {
            self.pass_over_gap(at, salt, options, &mut frames);
        }
        frames
    }

    /// Adds the frame at `at`, if it is there.
    fn add_frame(
        &self,
        at: u64,
        salt: u64,
        options: &LogOptions,
        frames: &mut Vec<u8>,
    ) -> Option<FrameHeader> {
        let header = FrameHeader::from_bytes(self.copy(at, HEADER_BYTES)?.first_chunk()?)?;
        let payload = self.copy(at + HEADER_BYTES as u64, header.payload_bytes)?;
        let is_of_lap_before = || {
            let before = at.wrapping_sub(self.bytes.len() as u64);
            options.planted(Bug::StaleBuffer) && header.verify(options.seed(salt, before), &payload)
        };
        let seed = options.seed(salt, at);
        let header = if header.verify(seed, &payload) {
            header
        } else if is_of_lap_before() {
            FrameHeader::new(header.kind, seed, at, at, &payload)
        } else {
            return None;
        };
        push_frame(&header, &payload, frames);
        Some(header)
    }

    /// A planted bug: takes frames after a gap as if they followed on what is before the gap.
    #[cold]
    fn pass_over_gap(&self, at: u64, salt: u64, options: &LogOptions, frames: &mut Vec<u8>) {
        let gaps = (ALIGNMENT..PAYLOAD_BYTES_MAX as u64).step_by(ALIGNMENT as usize);
        let gaps = gaps.take_while(|gap| *gap < self.bytes.len() as u64);
        for gap in gaps {
            let mut after = Vec::new();
            if self.add_frame(at + gap, salt, options, &mut after).is_some() {
                let nothing = vec![0; gap as usize - HEADER_BYTES];
                let void = FrameHeader::new(Kind::Void, options.seed(salt, at), at, at, &nothing);
                push_frame(&void, &nothing, frames);
                frames.append(&mut after);
                return;
            }
        }
    }

    /// The `bytes` of the log at a place, which may wrap around the end of the buffer; `None` if the buffer has fewer.
    fn copy(&self, at: u64, bytes: usize) -> Option<Vec<u8>> {
        let from = (at & (self.bytes.len() as u64 - 1)) as usize;
        let ahead = bytes.min(self.bytes.len() - from);
        let mut copy = self.bytes.get(from..from + ahead)?.to_vec();
        copy.extend_from_slice(self.bytes.get(..bytes - ahead).filter(|again| again.len() <= from)?);
        Some(copy)
    }
}

/// Appends a frame as it lies in the log, with zeroes after the payload.
fn push_frame(header: &FrameHeader, payload: &[u8], frames: &mut Vec<u8>) {
    let end = frames.len() + header.bytes() as usize;
    frames.extend(header.encode().iter().flat_map(|word| word.to_le_bytes()));
    frames.extend_from_slice(payload);
    frames.resize(end, 0);
}

/// Mapped words and reads agree if the file is read through the page cache.
fn file_options(create: CreateMode) -> FileOptions {
    FileOptions { create, direct: Some(false), engine: Some(IoEngine::Pread), ..FileOptions::default() }
}
