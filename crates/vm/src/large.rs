//! Large memory for temporary use, which is returned to the system as a whole.

use crate::{VmError, memory::Mapping};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;
use vellum_base::PAGE_SIZE;

/// Owned bytes, zero at first, in a mapping of their own. They take memory only as they are used.
///
/// No huge pages are requested: if a virtual machine returns free memory to its host, the host must find each huge page
/// again, and clearing it costs more than the page faults that it saves.
///
/// # Examples
/// ```
/// let mut buffer = vellum_vm::LargeBuffer::new(5 << 20, "an example")?;
/// assert_eq!(buffer[4 << 20], 0);
/// buffer[4 << 20] = 7;
/// assert_eq!((buffer[4 << 20], buffer.len()), (7, 5 << 20));
/// # Ok::<_, vellum_vm::VmError>(())
/// ```
pub struct LargeBuffer(Mapping);

impl LargeBuffer {
    /// At least `bytes` bytes, rounded up to whole pages, and at least one. `purpose` completes "for ..." in errors.
    ///
    /// # Errors
    /// As for [`Mapping::reserve`].
    pub fn new(bytes: usize, purpose: &'static str) -> Result<Self, VmError> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_SIZE);
        Ok(Self(Mapping::reserve(bytes.unwrap_or(usize::MAX), purpose)?))
    }
}

impl Deref for LargeBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this many bytes, zero at first, lives as long as `self`, and is reached in no other
        // way.
        unsafe { slice::from_raw_parts(self.0.base().as_ptr(), self.0.len()) }
    }
}

impl DerefMut for LargeBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.0.base().as_ptr(), self.0.len()) }
    }
}

impl fmt::Debug for LargeBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LargeBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_and_keeps_what_is_written() {
        let mut buffer = LargeBuffer::new(3 * PAGE_SIZE + 1, "a test").unwrap();
        assert_eq!(buffer.len(), 4 * PAGE_SIZE);
        assert!(buffer.iter().all(|byte| *byte == 0));
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        // Another thread sees the same contents.
        let same =
            std::thread::spawn(move || buffer.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
        assert!(same.join().unwrap());
    }

    #[test]
    fn what_no_address_space_holds_is_refused() {
        assert!(LargeBuffer::new(usize::MAX, "a test").is_err());
        assert!(LargeBuffer::new(1 << 60, "a test").is_err());
    }
}
