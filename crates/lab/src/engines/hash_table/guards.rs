//! Guards on pages in frames. An extent of several pages has no frames: it is in a buffer of its own, which is written when
//! it is complete and read anew by each reader.

use super::frame::Frame;
use super::pool::{Shared, count, token};
use std::mem::ManuallyDrop;
use vellum_base::{Extent, Lsn, PAGE_SIZE, PageId, stamp_checksum};
use vellum_pool::{AllocatedPage, ExclusivePage, Interrupt, OptimisticBytes, OptimisticPage, SharedPage};
use vellum_vm::AlignedBuffer;

/// A look at a page that holds nothing.
#[derive(Clone, Copy)]
pub struct Look<'p> {
    pool: &'p Shared,
    page: PageId,
    frame: u32,
    bytes: OptimisticBytes<'p>,
    seen: u64,
}

impl<'p> Look<'p> {
    /// A look at the page of a frame that was in this state, not held exclusively.
    #[inline(always)]
    pub fn new(pool: &'p Shared, page: PageId, frame: u32, seen: u64) -> Self {
        // SAFETY: the arena lives as long as the pool, and is readable as a whole.
        let bytes = unsafe { OptimisticBytes::new(pool.frames.address(frame)) };
        Self { pool, page, frame, bytes, seen }
    }

    #[inline]
    fn state(&self) -> &'p Frame {
        self.pool.frames.state(self.frame)
    }

    /// Whether all that was read belongs to one state of the page.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.state().validate(self.seen)
    }
}

impl<'p> OptimisticPage for Look<'p> {
    type View = OptimisticBytes<'p>;
    type Exclusive = Exclusive<'p>;
    type Shared = SharedExtent<'p>;

    #[inline]
    fn id(&self) -> PageId {
        self.page
    }

    #[inline]
    fn token(&self) -> u64 {
        token(self.frame, self.seen)
    }

    #[inline]
    fn bytes(&self) -> OptimisticBytes<'p> {
        self.bytes
    }

    #[inline]
    fn validate(&self) -> Result<(), Interrupt> {
        if self.is_valid() { Ok(()) } else { Err(Interrupt::Conflict(self.page)) }
    }

    #[inline]
    fn upgrade(self) -> Result<Exclusive<'p>, Interrupt> {
        if !self.state().try_exclusive(self.seen) {
            return Err(Interrupt::Conflict(self.page));
        }
        Ok(Exclusive(Held::Frame { pool: self.pool, frame: self.frame, changed: false }))
    }

    #[inline]
    fn share(self) -> Result<SharedExtent<'p>, Interrupt> {
        if !self.state().try_shared(self.seen) {
            return Err(Interrupt::Conflict(self.page));
        }
        Ok(SharedExtent::Frame { pool: self.pool, frame: self.frame })
    }
}

/// An extent that others may read too.
pub enum SharedExtent<'p> {
    /// A page in a frame that is held.
    Frame {
        /// Its pool.
        pool: &'p Shared,
        /// The frame.
        frame: u32,
    },
    /// A copy.
    Copy(AlignedBuffer),
}

impl SharedPage for SharedExtent<'_> {
    fn page(&self) -> &[u8] {
        match self {
            // SAFETY: the frame is held shared as long as this lives.
            Self::Frame { pool, frame } => unsafe { pool.frames.bytes(*frame) },
            Self::Copy(copy) => copy,
        }
    }
}

impl Drop for SharedExtent<'_> {
    fn drop(&mut self) {
        if let Self::Frame { pool, frame } = self {
            pool.frames.state(*frame).release_shared();
        }
    }
}

/// What is held exclusively.
enum Held<'p> {
    Frame { pool: &'p Shared, frame: u32, changed: bool },
    Buffer { pool: &'p Shared, extent: Extent, bytes: AlignedBuffer },
}

impl Held<'_> {
    fn id(&self) -> PageId {
        match self {
            Self::Frame { pool, frame, .. } => pool.frames.state(*frame).page(),
            Self::Buffer { extent, .. } => extent.head,
        }
    }

    fn page(&self) -> &[u8] {
        match self {
            // SAFETY: the frame is held exclusively, and `self` is borrowed shared.
            Self::Frame { pool, frame, .. } => unsafe { pool.frames.bytes(*frame) },
            Self::Buffer { bytes, .. } => bytes,
        }
    }

    fn page_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Frame { pool, frame, changed } => {
                *changed = true;
                // SAFETY: the frame is held exclusively, and `self` is borrowed uniquely.
                unsafe { pool.frames.bytes_mut(*frame) }
            }
            Self::Buffer { bytes, .. } => bytes,
        }
    }

    /// Frees the extent.
    fn free(self) {
        match self {
            Self::Frame { pool, frame, .. } => pool.free(frame),
            Self::Buffer { pool, extent, .. } => {
                pool.space.free(extent);
            }
        }
    }

    /// Ends the hold; what has no frame is written.
    fn end(&mut self) {
        match self {
            Self::Frame { pool, frame, changed } => {
                pool.frames.state(*frame).release(*changed);
            }
            Self::Buffer { pool, extent, bytes } => {
                stamp_checksum(bytes);
                // SAFETY: the buffer is this one's own, and the extent is in nobody else's hands yet.
                let written = unsafe { pool.file.write(extent.head.offset(), bytes.as_ptr(), bytes.len()) };
                count(&pool.counters.pages_written, (bytes.len() / PAGE_SIZE) as u64);
                if written.is_err() {
                    pool.fail();
                }
            }
        }
    }
}

/// An extent that nobody else may read or change.
pub struct Exclusive<'p>(Held<'p>);

impl<'p> Exclusive<'p> {
    /// Gives the hold up and goes on looking at the page.
    ///
    /// # Panics
    /// If it is an extent of several pages, which nobody looks at optimistically.
    #[inline]
    pub fn relax(self) -> Look<'p> {
        let this = ManuallyDrop::new(self);
        let Held::Frame { pool, frame, changed } = this.0 else {
            panic!("an extent of several pages is in no frame");
        };
        let state = pool.frames.state(frame);
        let page = state.page();
        Look::new(pool, page, frame, state.release(changed))
    }

    /// What stands for the page as it will be if nothing is changed.
    pub fn token(&self) -> u64 {
        match self.0 {
            Held::Frame { pool, frame, .. } => token(frame, pool.frames.state(frame).load()),
            Held::Buffer { .. } => 0,
        }
    }
}

impl ExclusivePage for Exclusive<'_> {
    fn id(&self) -> PageId {
        self.0.id()
    }

    #[inline]
    fn page(&self) -> &[u8] {
        self.0.page()
    }

    #[inline]
    fn page_mut(&mut self) -> &mut [u8] {
        self.0.page_mut()
    }

    fn free(self, _: Lsn) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped.
        unsafe { std::ptr::read(&raw mut this.0) }.free();
    }
}

impl Drop for Exclusive<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A new extent, freed again unless kept.
pub struct Allocated<'p>(ManuallyDrop<Exclusive<'p>>);

impl<'p> Allocated<'p> {
    /// A page in a frame that is held exclusively.
    pub fn frame(pool: &'p Shared, frame: u32) -> Self {
        Self(ManuallyDrop::new(Exclusive(Held::Frame { pool, frame, changed: true })))
    }

    /// An extent of several pages.
    pub fn buffer(pool: &'p Shared, extent: Extent, bytes: AlignedBuffer) -> Self {
        Self(ManuallyDrop::new(Exclusive(Held::Buffer { pool, extent, bytes })))
    }
}

impl<'p> AllocatedPage for Allocated<'p> {
    type Exclusive = Exclusive<'p>;

    fn id(&self) -> PageId {
        self.0.id()
    }

    fn page_mut(&mut self) -> &mut [u8] {
        self.0.page_mut()
    }

    fn keep(self, _: Lsn) -> Exclusive<'p> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl Drop for Allocated<'_> {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { ManuallyDrop::take(&mut self.0) }.free(Lsn(0));
    }
}
