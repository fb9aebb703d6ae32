//! Extents that are written and read past the pool: in parts, and larger than memory if necessary.
//!
//! While an extent is being written it is only claimed, so nothing refers to it or brings it into memory, and no latch
//! is held. While a part of an extent is read from storage, its head is latched exclusively without being resident.

use crate::{
    allocator::{Allocator, Memory},
    error::{Interrupt, PoolError},
    guard::OptimisticGuard,
    pager::ExtentWriter,
};
use vellum_base::{ChecksumStream, Extent, HEADER_BYTES, PAGE_SIZE, PageHeader, PageId, PageKind};
use vellum_vm::AlignedBuffer;

/// How much is gathered before it is written, in bytes; this memory is not counted in the pool's.
const BUFFER_BYTES: usize = 1 << 20;

/// An extent that is written from its beginning to its end without going through the pool's memory.
///
/// The extent is freed when the stream is dropped, unless [`finish`](ExtentWriter::finish) has kept it.
#[must_use = "the extent is freed again at once"]
pub struct ExtentStream<'p> {
    allocator: &'p Allocator,
    extent: Extent,
    /// The first page, which is written last, when its checksum is known.
    first: AlignedBuffer,
    /// Bytes of the pages after the first one that were appended and not yet written.
    buffer: AlignedBuffer,
    /// How many bytes of the extent have been appended, including the header.
    position: usize,
    checksum: ChecksumStream,
    kept: bool,
    /// Whether a write failed, so that something is missing in the middle.
    failed: bool,
}

impl<'p> ExtentStream<'p> {
    pub(crate) fn begin(allocator: &'p Allocator, pages: u32, kind: PageKind) -> Result<Self, PoolError> {
        assert!(pages > 0 && kind.0 > 0, "an extent has at least one page, and a kind");
        allocator.evictor().admit_changes()?;
        let extent = allocator.claim_or_make(|| allocator.claim(pages, Memory::Drop))?;
        let mut first = AlignedBuffer::new(PAGE_SIZE);
        PageHeader { extent, lsn: allocator.storage().lsn_past_log(), kind }.write(&mut first);
        let mut checksum = ChecksumStream::default();
        checksum.update(first.get(8..HEADER_BYTES).unwrap_or_default());
        let buffer = AlignedBuffer::new(BUFFER_BYTES.min(extent.bytes() - PAGE_SIZE));
        Ok(Self {
            allocator,
            extent,
            first,
            buffer,
            position: HEADER_BYTES,
            checksum,
            kept: false,
            failed: false,
        })
    }

    /// The extent that is being written.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Where in the buffer the next byte goes; the position is beyond the first page.
    fn buffered(&self) -> usize {
        (self.position - PAGE_SIZE) % self.buffer.len()
    }

    /// Takes as many bytes as the current buffer has room for, and returns the rest.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], PoolError> {
        let (target, at) = if self.position < PAGE_SIZE {
            (&mut self.first, self.position)
        } else {
            let at = self.buffered();
            (&mut self.buffer, at)
        };
        let room = target.get_mut(at..).unwrap_or_default();
        let (now, later) = bytes.split_at(bytes.len().min(room.len()));
        let full = now.len() == room.len() && self.position >= PAGE_SIZE;
        if let Some(target) = room.get_mut(..now.len()) {
            target.copy_from_slice(now);
        }
        self.position += now.len();
        if full {
            self.write_buffer(self.buffer.len())?;
        }
        Ok(later)
    }

    /// Writes the first `bytes` bytes of the buffer, which end at the current position.
    fn write_buffer(&self, bytes: usize) -> Result<(), PoolError> {
        let offset = self.extent.head.offset() + (self.position - bytes) as u64;
        self.write(offset, &self.buffer, bytes)
    }

    fn write(&self, offset: u64, buffer: &AlignedBuffer, bytes: usize) -> Result<(), PoolError> {
        // SAFETY: the buffer is borrowed for the duration and at least `bytes` long; the place in the file
        // belongs to the extent.
        let written = unsafe { self.allocator.storage().file.write(offset, buffer.as_ptr(), bytes) };
        written.map_err(|source| PoolError::Write { extent: self.extent, source })?;
        self.allocator.table().counters.pages_written.add((bytes / PAGE_SIZE) as u64);
        Ok(())
    }

    fn write_all(&mut self) -> Result<(), PoolError> {
        const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        while self.position < self.extent.bytes() {
            let missing = (self.extent.bytes() - self.position).min(PAGE_SIZE);
            self.append(ZEROES.get(..missing).unwrap_or_default())?;
        }
        let rest = if self.buffer.is_empty() { 0 } else { self.buffered() };
        if rest > 0 {
            self.write_buffer(rest)?;
        }
        let sum = self.checksum.finish().to_le_bytes();
        if let Some(target) = self.first.get_mut(..8) {
            target.copy_from_slice(&sum);
        }
        self.write(self.extent.head.offset(), &self.first, PAGE_SIZE)
    }
}

impl ExtentWriter for ExtentStream<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError> {
        if self.failed {
            let source = std::io::Error::other("an earlier part of it could not be written");
            return Err(PoolError::Write { extent: self.extent, source });
        }
        if bytes.len() > self.extent.bytes() - self.position {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the extent is full");
            return Err(PoolError::Write { extent: self.extent, source });
        }
        self.checksum.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.take(rest).inspect_err(|_| self.failed = true)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PageId, PoolError> {
        // Refuses if an earlier write failed.
        self.append(&[])?;
        self.write_all()?;
        self.kept = true;
        self.allocator.admit_on_storage(self.extent);
        Ok(self.extent.head)
    }
}

impl Drop for ExtentStream<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.allocator.storage().space.unclaim(self.extent.head.0..self.extent.end().0);
        }
    }
}

/// Reads pages of an extent that lies within the capacity, is not in memory, and to which `parent` refers: see
/// [`Streams::read_part`](crate::Streams::read_part).
pub(crate) fn read_part(
    allocator: &Allocator,
    parent: &OptimisticGuard<'_>,
    extent: Extent,
    first_page: u32,
    buffer: &mut AlignedBuffer,
) -> Result<(), Interrupt> {
    let (table, storage) = (allocator.table(), allocator.storage());
    let start = first_page as usize * PAGE_SIZE;
    let state = table.state(extent.head);
    let now = state.load();
    if !now.is_evicted() || !state.try_exclusive(now) {
        // Otherwise it may be a stranger's by now, who keeps it latched for long.
        parent.validate()?;
        return Err(Interrupt::Conflict(extent.head));
    }
    let result = (|| {
        parent.validate()?;
        if !storage.is_allocated(extent) || start + buffer.len() > extent.bytes() {
            return Err(PoolError::not_allocated(extent).into());
        }
        let offset = extent.head.offset() + start as u64;
        // SAFETY: the buffer is this caller's own; the latch keeps other threads from writing the extent.
        let read = unsafe { storage.file.read(offset, buffer.as_mut_ptr(), buffer.len()) };
        read.map_err(|source| PoolError::Read { extent, source })?;
        table.counters.pages_read.add((buffer.len() / PAGE_SIZE) as u64);
        Ok(())
    })();
    table.unlatch_evicted(extent.head);
    result
}
