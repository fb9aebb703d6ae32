//! Extents that pass the pool by: written and read in parts, larger than memory if need be.
//!
//! While one is written it is merely claimed, so nobody refers to it or brings it into memory, and no latch is held.
//! While a part of one is read from storage, its head is latched exclusively without being resident.

use crate::{
    core::{Core, Memory, lock},
    error::{Interrupt, PoolError},
    page::guard::{OptimisticGuard, SharedGuard},
    pager::ExtentWriter,
};
use std::sync::TryLockError;
use vellum_base::{ChecksumStream, Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind};
use vellum_vm::AlignedBuffer;

/// How much is gathered before it is written, in bytes; the writer's memory comes on top of the pool's.
const BUFFER_BYTES: usize = 1 << 20;

/// An extent that is written from its beginning to its end without going through the pool's memory.
///
/// It is freed when dropped, unless [`finish`](ExtentWriter::finish) has kept it.
#[must_use = "the extent is freed again at once"]
pub struct ExtentStream<'p> {
    core: &'p Core,
    extent: Extent,
    /// The first page, which is written last, when its checksum is known.
    first: AlignedBuffer,
    /// What was appended and not yet written, of the pages behind the first.
    buffer: AlignedBuffer,
    /// How many bytes of the extent have been appended, header included.
    position: usize,
    checksum: ChecksumStream,
    kept: bool,
    /// A write failed, so something is missing in the middle.
    failed: bool,
}

impl<'p> ExtentStream<'p> {
    pub(crate) fn begin(core: &'p Core, pages: u32, kind: PageKind) -> Result<Self, PoolError> {
        assert!(pages > 0 && kind.0 > 0, "an extent has at least one page, and a kind");
        core.admit_changes()?;
        let extent = core.claim_space(pages, Memory::Drop)?;
        let mut first = AlignedBuffer::new(PAGE_SIZE);
        PageHeader { extent, lsn: Lsn(0), kind }.write(&mut first);
        let mut checksum = ChecksumStream::default();
        checksum.update(first.get(8..HEADER_BYTES).unwrap_or_default());
        let buffer = AlignedBuffer::new(BUFFER_BYTES.min(extent.bytes() - PAGE_SIZE));
        Ok(Self { core, extent, first, buffer, position: HEADER_BYTES, checksum, kept: false, failed: false })
    }

    /// Which extent it is.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Where in the buffer the next byte goes, which is only asked behind the first page.
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
        let written = unsafe { self.core.file.write(offset, buffer.as_ptr(), bytes) };
        written.map_err(|source| PoolError::Write { extent: self.extent, source })?;
        self.core.counters.pages_written.add((bytes / PAGE_SIZE) as u64);
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
        // Refuses if something failed before.
        self.append(&[])?;
        self.write_all()?;
        self.kept = true;
        let head = self.extent.head;
        self.core.claim(self.extent, Memory::Drop);
        self.core.wake(head, self.core.state(head).release_exclusive_evicted());
        Ok(head)
    }
}

impl Drop for ExtentStream<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.core.space.unclaim(self.extent.head.0..self.extent.end().0);
        }
    }
}

impl Core {
    pub(crate) fn read_part(
        &self,
        parent: &OptimisticGuard<'_>,
        extent: Extent,
        first_page: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), Interrupt> {
        let start = first_page as usize * PAGE_SIZE;
        let not_allocated = || PoolError::not_allocated(extent);
        let state = self.state(extent.head);
        let now = state.load();
        if !now.is_evicted() {
            if !state.try_shared(now) {
                return Err(Interrupt::Conflict(extent.head));
            }
            let guard = SharedGuard::adopt(self, extent);
            parent.validate()?;
            if !self.is_allocated(extent) {
                return Err(not_allocated().into());
            }
            let part = guard.page().get(start..).and_then(|rest| rest.get(..buffer.len()));
            buffer.copy_from_slice(part.ok_or_else(not_allocated)?);
            return Ok(());
        }
        if !state.try_exclusive(now) {
            return Err(Interrupt::Conflict(extent.head));
        }
        let result = (|| {
            parent.validate()?;
            if !self.is_allocated(extent) || start + buffer.len() > extent.bytes() {
                return Err(not_allocated().into());
            }
            // SAFETY: the buffer is this caller's own; the latch keeps others from writing the extent.
            let read = unsafe {
                self.file.read(extent.head.offset() + start as u64, buffer.as_mut_ptr(), buffer.len())
            };
            read.map_err(|source| PoolError::Read { extent, source })?;
            self.counters.pages_read.add((buffer.len() / PAGE_SIZE) as u64);
            Ok(())
        })();
        self.wake(extent.head, state.release_exclusive_evicted());
        result
    }

    /// Frees an extent to which nothing refers any more, now or when its last reader has gone.
    pub(crate) fn discard(&self, extent: Extent) -> Result<(), PoolError> {
        self.admit_changes()?;
        {
            // The bounds are checked before the state is looked at. What waits to be freed is nobody's any more: the
            // second of two frees would hit whoever is given its place between them.
            let pending = lock(&self.pending_frees);
            if pending.contains(&extent) || !self.is_allocated(extent) {
                return Err(PoolError::not_allocated(extent));
            }
        }
        self.free_pending();
        if !self.try_discard(extent) {
            lock(&self.pending_frees).push(extent);
        }
        Ok(())
    }

    /// Frees what had to wait, as far as its readers have gone.
    pub(crate) fn free_pending(&self) {
        // Whoever holds the lock does the same.
        let mut pending = match self.pending_frees.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !pending.is_empty() {
            pending.retain(|extent| !self.try_discard(*extent));
        }
    }

    /// Shows all that is allocated, without what only waits until it can be freed.
    pub(crate) fn for_each_extent(&self, mut visit: impl FnMut(Extent)) {
        self.free_pending();
        let waiting = lock(&self.pending_frees).clone();
        self.space.for_each(|extent| {
            if !waiting.contains(&extent) {
                visit(extent);
            }
        });
    }

    /// Frees an allocated extent unless somebody holds it.
    pub(crate) fn try_discard(&self, extent: Extent) -> bool {
        let state = self.state(extent.head);
        let now = state.load();
        let free = now.is_evicted() || now.is_unlocked() || now.is_marked();
        if !free || !state.try_exclusive(now) {
            return false;
        }
        if now.is_evicted() {
            if !self.is_allocated(extent) || !self.space.free(extent) {
                self.counters.frees_refused.add(1);
            }
            self.wake(extent.head, state.release_exclusive_evicted());
        } else {
            self.free(extent);
        }
        true
    }
}
