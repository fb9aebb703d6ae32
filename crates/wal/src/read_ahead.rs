//! Reading a chunk of the log while the one before is looked at: storage and processor work side by side.

use crate::window::Room;
use std::{io, sync::Arc};
use vellum_base::primitive::thread::{Builder, JoinHandle};
use vellum_vm::File;

/// Bytes of a segment's file.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub file: Arc<dyn File>,
    pub from: u64,
    pub bytes: usize,
    /// So many of them are not wanted, the first ones.
    pub passed_over: usize,
}

impl Chunk {
    /// Reads it.
    pub fn read(&self, mut room: Room) -> (Room, io::Result<()>) {
        let read = self.file.read_to(self.from, room.chunk(self.bytes));
        (room, read)
    }

    fn is(&self, other: &Self) -> bool {
        let of = |chunk: &Self| (chunk.from, chunk.bytes, chunk.passed_over);
        Arc::ptr_eq(&self.file, &other.file) && of(self) == of(other)
    }
}

/// A chunk that a thread reads, which has ended when this is dropped.
pub(crate) struct ReadAhead {
    chunk: Chunk,
    thread: Option<JoinHandle<(Room, io::Result<()>)>>,
}

impl ReadAhead {
    /// Begins to read; none if the system refuses a thread.
    pub fn begin(chunk: Chunk, room: Room) -> Option<Self> {
        let read = chunk.clone();
        let thread = Builder::new().name("vellum-log-read".to_owned()).spawn(move || read.read(room));
        Some(Self { chunk, thread: Some(thread.ok()?) })
    }

    /// What was read, if it is this chunk.
    pub fn finish(mut self, wanted: &Chunk) -> Option<(Room, io::Result<()>)> {
        let thread = self.thread.take_if(|_| self.chunk.is(wanted))?;
        thread.join().ok()
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Nobody asks any more whether it could be read.
            let _ = thread.join();
        }
    }
}
