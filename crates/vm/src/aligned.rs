//! Memory that direct I/O can read into and write from.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use vellum_base::PAGE_SIZE;

/// Owned bytes, zero at first, that begin at a multiple of [`PAGE_SIZE`].
///
/// # Examples
/// ```
/// let mut buffer = vellum_vm::AlignedBuffer::new(8192);
/// buffer[4096] = 7;
/// assert_eq!(buffer.len(), 8192);
/// assert_eq!(buffer.as_ptr().addr() % 4096, 0);
/// ```
pub struct AlignedBuffer {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its memory as a `Box<[u8]>` would.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates `bytes` zero bytes.
    ///
    /// # Panics
    /// If `bytes` exceeds the limit of an allocation (half the address space).
    pub fn new(bytes: usize) -> Self {
        let Some(layout) = Self::layout(bytes) else { return Self { address: Self::nowhere(), bytes: 0 } };
        // SAFETY: the layout's size is not zero.
        let address = unsafe { alloc_zeroed(layout) };
        match NonNull::new(address) {
            Some(address) => Self { address, bytes },
            None => handle_alloc_error(layout),
        }
    }

    /// The layout of an allocation of this many bytes; `None` for zero bytes.
    fn layout(bytes: usize) -> Option<Layout> {
        assert!(bytes <= isize::MAX as usize - PAGE_SIZE, "an allocation of {bytes} bytes is too large");
        let layout = Layout::from_size_align(bytes, PAGE_SIZE).ok();
        layout.filter(|layout| layout.size() > 0)
    }

    /// The aligned address of an empty buffer.
    fn nowhere() -> NonNull<u8> {
        NonNull::without_provenance(const { std::num::NonZero::new(PAGE_SIZE).unwrap() })
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is allocated, initialised, and borrowed with the buffer.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.bytes);
        copy.copy_from_slice(self);
        copy
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.bytes)
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.bytes) {
            // SAFETY: allocated in `new` with the same layout.
            unsafe { dealloc(self.address.as_ptr(), layout) }
        }
    }
}
