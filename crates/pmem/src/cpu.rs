//! The instructions that bring stores to persistent memory, chosen by what the processor has.
//!
//! `clwb` writes a cache line back and keeps it; `clflushopt` writes it back and drops it; `clflush` does the same one
//! line after the other. Non-temporal stores go past the caches. `sfence` waits for all of them. On processors
//! other than x86-64 there is none of this, and stores can only be made durable through the system.

/// Cache lines have this size, in bytes.
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

    /// The best that this processor has, or none.
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

    /// The best that this processor has, or none.
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

/// Waits until all lines that this thread began to write back, and all it stored past the caches, are on their way
/// for good.
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

/// Stores words past the caches.
///
/// # Safety
/// `words` is an array of `count` words that may be written atomically, aligned to eight bytes; what is there is only
/// ever accessed atomically.
#[inline]
pub unsafe fn stream(words: *mut u64, bytes: &[u8]) {
    let mut to = words;
    let mut chunks = bytes.chunks_exact(8);
    let mut put = |word: u64| {
        // SAFETY: the caller vouches for the target; the store is one aligned word.
        unsafe { stream_word(to, word) };
        to = to.wrapping_add(1);
    };
    for chunk in chunks.by_ref() {
        put(chunk.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk)));
    }
    if !chunks.remainder().is_empty() {
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(chunks.remainder()) {
            *to = *from;
        }
        put(u64::from_le_bytes(last));
    }
}

/// # Safety
/// As [`stream`], for one word.
#[inline]
unsafe fn stream_word(to: *mut u64, word: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this store, and the caller vouches for the target.
    unsafe {
        std::arch::asm!("movnti [{}], {}", in(reg) to, in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for the target.
    unsafe {
        (*to.cast::<std::sync::atomic::AtomicU64>()).store(word, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushing_and_streaming_leave_the_contents_right() {
        let mut area = vec![0u64; 1024];
        let bytes: Vec<u8> = (0..4099u32).map(|index| (index * 31) as u8).collect();
        // SAFETY: the area is larger than the bytes, aligned, and used by no other code.
        unsafe { stream(area.as_mut_ptr(), &bytes) };
        fence();
        if let Some(flush) = Flush::detect() {
            flush.lines(area.as_ptr().cast(), 4099);
            fence();
        }
        let back: Vec<u8> = area.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(&back[..4099], &bytes[..]);
        assert!(back[4099..].iter().all(|byte| *byte == 0));
    }
}
