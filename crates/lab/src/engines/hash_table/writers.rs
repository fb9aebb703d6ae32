//! New pages in bulk, and extents that are written from their beginning to their end.

use super::guards::Allocated;
use super::pool::{HashPool, count};
use vellum_base::{ChecksumStream, Extent, HEADER_BYTES, Lsn, PAGE_SIZE, PageHeader, PageId, PageKind};
use vellum_pool::{AllocatedPage, ExtentWriter, PageWriter, PoolError};
use vellum_vm::AlignedBuffer;

/// An extent that is gathered and written past the frames; freed again unless finished.
pub struct Stream<'p> {
    pool: &'p HashPool,
    extent: Extent,
    first: AlignedBuffer,
    buffer: AlignedBuffer,
    /// How many bytes were appended, header included.
    position: usize,
    checksum: ChecksumStream,
    kept: bool,
    failed: bool,
}

/// How much is gathered before it is written, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

impl<'p> Stream<'p> {
    /// A new extent.
    ///
    /// # Errors
    /// If the file cannot grow.
    pub fn new(pool: &'p HashPool, pages: u32, kind: PageKind) -> Result<Self, PoolError> {
        let extent = pool.space.allocate(pages, &*pool.file)?;
        let mut first = AlignedBuffer::new(PAGE_SIZE);
        PageHeader { extent, lsn: Lsn(0), kind }.write(&mut first);
        let mut checksum = ChecksumStream::default();
        checksum.update(&first[8..HEADER_BYTES]);
        let buffer = AlignedBuffer::new(BUFFER_BYTES.min(extent.bytes() - PAGE_SIZE).max(PAGE_SIZE));
        Ok(Self { pool, extent, first, buffer, position: HEADER_BYTES, checksum, kept: false, failed: false })
    }

    /// Writes the last `bytes` bytes before the position, which stand at the beginning of the buffer.
    fn write_buffer(&self, bytes: usize) -> Result<(), PoolError> {
        self.write((self.position - bytes) as u64, &self.buffer, bytes)
    }

    fn write(&self, at: u64, buffer: &AlignedBuffer, bytes: usize) -> Result<(), PoolError> {
        count(&self.pool.counters.pages_written, (bytes / PAGE_SIZE) as u64);
        // SAFETY: the buffer is borrowed and at least so long; the place in the file belongs to the extent.
        unsafe { self.pool.file.write(self.extent.head.offset() + at, buffer.as_ptr(), bytes) }
            .map_err(|source| PoolError::Write { extent: self.extent, source })
    }
}

impl ExtentWriter for Stream<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError> {
        if self.failed || bytes.len() > self.extent.bytes() - self.position {
            let source = std::io::Error::other("an earlier part could not be written, or the extent is full");
            return Err(PoolError::Write { extent: self.extent, source });
        }
        self.checksum.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = self.buffer.len();
            let is_first = self.position < PAGE_SIZE;
            let at = if is_first { self.position } else { (self.position - PAGE_SIZE) % size };
            let target = if is_first { &mut self.first[at..] } else { &mut self.buffer[at..] };
            let (now, later) = rest.split_at(rest.len().min(target.len()));
            let is_full = !is_first && now.len() == target.len();
            target[..now.len()].copy_from_slice(now);
            self.position += now.len();
            rest = later;
            if is_full {
                self.write_buffer(size).inspect_err(|_| self.failed = true)?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PageId, PoolError> {
        while self.position < self.extent.bytes() {
            let missing = (self.extent.bytes() - self.position).min(PAGE_SIZE);
            self.append(&[0; PAGE_SIZE][..missing])?;
        }
        let rest = (self.position - PAGE_SIZE) % self.buffer.len();
        if rest > 0 {
            self.write_buffer(rest)?;
        }
        self.first[..8].copy_from_slice(&self.checksum.finish().to_le_bytes());
        self.write(0, &self.first, PAGE_SIZE)?;
        self.kept = !self.failed;
        Ok(self.extent.head)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.pool.space.free(self.extent);
        }
    }
}

/// Pages that are new, in the pool like any other; all are freed again unless kept.
pub struct Pages<'p> {
    pool: &'p HashPool,
    kind: PageKind,
    made: Vec<Extent>,
}

impl<'p> Pages<'p> {
    /// None yet.
    pub fn new(pool: &'p HashPool, kind: PageKind) -> Self {
        Self { pool, kind, made: Vec::new() }
    }
}

impl PageWriter for Pages<'_> {
    fn append<E: From<PoolError>>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<PageId, E> {
        let mut page = Allocated::frame(self.pool, (**self.pool).allocate(self.kind)?);
        fill(page.page_mut())?;
        let id = page.id();
        drop(page.keep(Lsn(0)));
        self.made.push(Extent::page(id));
        Ok(id)
    }

    // Which frame will be the next is not known before it is taken.
    fn prefetch_next(&self, _: usize, _: usize) {}

    fn adopt(&mut self, extent: Extent) {
        self.made.push(extent);
    }

    fn settle(&mut self) -> Result<(), PoolError> {
        Ok(())
    }

    fn keep(mut self, _: Lsn) {
        self.made.clear();
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        for extent in self.made.drain(..) {
            // It cannot be refused: it was allocated here.
            let _ = self.pool.discard(extent);
        }
    }
}
