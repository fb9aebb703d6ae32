//! The instructions that bring stores to persistent memory, chosen by the capabilities of the processor.
//!
//! `clwb` writes a cache line back and keeps it; `clflushopt` writes it back and drops it; `clflush` does the same, one
//! line after the other. Non-temporal stores bypass the caches. `sfence` waits for all of them. Processors other than
//! x86-64 have none of this, and stores can only be made durable through the system.

use std::sync::atomic::AtomicU64;

/// The size of a cache line, in bytes.
pub const LINE: u64 = 64;

/// How a cache line is written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// `clwb`.
    Clwb,
    /// `clflushopt`.
    ClflushOpt,
    /// `clflush`.
    Clflush,
}

impl Flush {
    /// The name of the instruction.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
        }
    }

    /// The best instruction of this processor, or none.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CLFLUSH_EDX_1: u32 = 1 << 19;
        const CLFLUSHOPT_EBX_7: u32 = 1 << 23;
        const CLWB_EBX_7: u32 = 1 << 24;
        let leaves = __cpuid(0).eax;
        let features = if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        if features & CLWB_EBX_7 != 0 {
            Some(Self::Clwb)
        } else if features & CLFLUSHOPT_EBX_7 != 0 {
            Some(Self::ClflushOpt)
        } else {
            (__cpuid(1).edx & CLFLUSH_EDX_1 != 0).then_some(Self::Clflush)
        }
    }

    /// The best instruction of this processor, or none.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Self> {
        None
    }

    /// Begins to write back all lines of `bytes` bytes at `address`, which are mapped.
    #[inline]
    pub fn lines(self, address: *const u8, bytes: usize) {
        let first = address as u64 / LINE * LINE;
        let end = address as u64 + bytes as u64;
        let mut line = first;
        while line < end {
            self.line(line);
            line += LINE;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn line(self, address: u64) {
        // SAFETY: writing a line back changes nothing that the program sees; the instruction was detected, and the
        // line is mapped, as something in it was just stored to.
        unsafe {
            match self {
                Self::Clwb => {
                    std::arch::asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
                }
                Self::ClflushOpt => {
                    std::arch::asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
                }
                Self::Clflush => {
                    std::arch::asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags));
                }
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn line(self, _: u64) {}
}

/// Waits until all lines that this thread began to write back, and everything it stored past the caches, are durably
/// under way.
#[inline]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a store fence changes nothing; every x86-64 processor has it. The compiler takes it for a barrier,
    // as it may read and write memory.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Prefetches a cache line, whether or not the address is valid.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is a hint that changes nothing and never faults; every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches a cache line that will be written to, whether or not the address is valid.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is a hint that changes nothing and never faults; a processor without this instruction takes it
    // for one that does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Stores a word past the caches.
#[inline]
pub fn stream(to: &AtomicU64, word: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this store, of one aligned word that may be written through a shared reference,
    // as it is atomic.
    unsafe {
        std::arch::asm!("movnti [{}], {}", in(reg) to.as_ptr(), in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.store(word, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn flushing_and_streaming_leave_the_contents_right() {
        let area: Vec<AtomicU64> = (0..1024).map(|_| AtomicU64::new(0)).collect();
        let bytes: Vec<u8> = (0..4099u32).map(|index| (index * 31) as u8).collect();
        crate::memory::each_word(&bytes, |number, word| stream(&area[number], word));
        fence();
        if let Some(flush) = Flush::detect() {
            flush.lines(area.as_ptr().cast(), 4099);
            fence();
        }
        prefetch(area.as_ptr().cast());
        let back: Vec<u8> = area.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        assert_eq!(&back[..4099], &bytes[..]);
        assert!(back[4099..].iter().all(|byte| *byte == 0));
    }
}
