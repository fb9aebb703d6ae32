//! Reads a chunk of the log while the one before is processed: storage and processor work in parallel.

use crate::{segment_file::OpenSegment, window::Room};
use std::{io, sync::Arc};
use vellum_base::{
    PAGE_SIZE,
    primitive::thread::{Builder, JoinHandle},
};

/// Bytes of a segment's file.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub file: Arc<OpenSegment>,
    pub from: u64,
    pub bytes: usize,
    /// How many of the first bytes are not wanted.
    pub passed_over: usize,
}

impl Chunk {
    /// Reads the chunk.
    pub fn read(&self, mut room: Room) -> (Room, io::Result<()>) {
        let read = self.file.read_to(self.from, room.chunk(self.bytes));
        (room, read)
    }

    /// What the file has of the chunk, in whole pages, if that is anything.
    pub fn left(&self) -> io::Result<Option<Self>> {
        let left = self.file.size()?.saturating_sub(self.from).min(self.bytes as u64) as usize;
        let left = left - left % PAGE_SIZE;
        Ok((left > self.passed_over).then(|| Self { bytes: left, ..self.clone() }))
    }

    fn is(&self, other: &Self) -> bool {
        let of = |chunk: &Self| (chunk.from, chunk.bytes, chunk.passed_over);
        Arc::ptr_eq(&self.file, &other.file) && of(self) == of(other)
    }
}

/// A chunk that a thread reads. The thread has ended when this has been dropped.
pub(crate) struct ReadAhead {
    chunk: Chunk,
    thread: Option<JoinHandle<(Room, io::Result<()>)>>,
}

impl ReadAhead {
    /// Begins to read; `None` if the system refuses a thread.
    pub fn begin(chunk: Chunk, room: Room) -> Option<Self> {
        let read = chunk.clone();
        let thread = Builder::new().name("vellum-log-read".to_owned()).spawn(move || read.read(room));
        Some(Self { chunk, thread: Some(thread.ok()?) })
    }

    /// The bytes that were read, if they are of this chunk.
    pub fn finish(mut self, wanted: &Chunk) -> Option<(Room, io::Result<()>)> {
        let thread = self.thread.take_if(|_| self.chunk.is(wanted))?;
        thread.join().ok()
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Whether the read succeeded no longer matters.
            let _ = thread.join();
        }
    }
}
