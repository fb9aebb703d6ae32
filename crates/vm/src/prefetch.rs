//! Fetching memory into the processor's cache before it is used. It has no effect that a program can see.

/// A line of the processor's cache, in bytes.
pub const LINE_BYTES: usize = 64;

/// Fetches memory that will be read soon into the processor's cache.
#[inline]
pub fn prefetch(start: *const u8, bytes: usize) {
    // Lines are counted, and the address may wrap around: the reference from which it comes has not been checked yet.
    let lines = (start.addr() % LINE_BYTES + bytes).div_ceil(LINE_BYTES);
    for line in 0..lines {
        prefetch_line(start.wrapping_add(line * LINE_BYTES));
    }
}

/// Fetches memory that will be written soon into the processor's cache.
#[inline]
pub fn prefetch_to_write(start: *const u8, bytes: usize) {
    let lines = (start.addr() % LINE_BYTES + bytes).div_ceil(LINE_BYTES);
    for line in 0..lines {
        let address = start.wrapping_add(line * LINE_BYTES);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as in `prefetch_line`. A processor without this instruction does nothing.
        unsafe {
            std::arch::asm!("prefetchw byte ptr [{0}]", in(reg) address, options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        prefetch_line(address);
    }
}

/// Fetches the cache line in which `address` lies, if anything is there.
#[inline(always)]
pub fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect on what the program does, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unchecked reference may lead to the end of the address space.
    #[test]
    fn anything_can_be_fetched() {
        for start in [0, 1, 63, 64, usize::MAX - 4095, usize::MAX - 64, usize::MAX] {
            for bytes in [0, 1, 64, 128, 3968, 4096] {
                prefetch(std::ptr::without_provenance(start), bytes);
                prefetch_to_write(std::ptr::without_provenance(start), bytes);
            }
        }
    }
}
