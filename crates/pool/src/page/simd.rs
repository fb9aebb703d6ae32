//! Comparing many numbers with one at a time, where the processor has instructions for it (AVX-512).
//!
//! Most instructions of a lookup are searches in nodes, and their number matters beyond the time that they take: a
//! processor looks some five hundred instructions ahead, so a shorter lookup overlaps the cache misses of the next one.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the processor has the instructions.
static IS_WIDE: AtomicBool = AtomicBool::new(false);

/// Detects the features of the processor. The instructions are not used before this has been called.
pub fn detect() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // Relaxed: both ways of comparing give the same result.
    IS_WIDE.store(
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw"),
        Ordering::Relaxed,
    );
}

#[cfg(test)]
thread_local! {
    /// Whether this thread works without the instructions.
    static DOES_WITHOUT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `work` as on a processor without the instructions, in this thread only: tests run in parallel.
#[cfg(test)]
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    DOES_WITHOUT.set(true);
    let result = work();
    DOES_WITHOUT.set(false);
    result
}

/// Whether the functions below may be called.
#[inline(always)]
pub(crate) fn is_available() -> bool {
    #[cfg(test)]
    if DOES_WITHOUT.get() {
        return false;
    }
    // Relaxed: see `detect`.
    cfg!(all(target_arch = "x86_64", not(miri))) && IS_WIDE.load(Ordering::Relaxed)
}

/// One bit for each of sixteen 32-bit numbers: whether it is less than `bound`.
///
/// # Safety
/// The 64 bytes at `from` can be read, and [`is_available`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn less_of_16(from: *const u8, bound: u32) -> u32 {
    let less: u32;
    // SAFETY: as the caller promises; the loads have no other effect. A racing write gives a mixture of old and
    // new numbers, which validation discards. No register is touched that makes other instructions slow.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd zmm16, {bound:e}",
            "vpcmpnleud k1, zmm16, zmmword ptr [{from}]",
            "kmovw {less:e}, k1",
            from = in(reg) from,
            bound = in(reg) bound,
            less = out(reg) less,
            out("xmm16") _,
            out("k1") _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    less
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn less_of_16(_: *const u8, _: u32) -> u32 {
    unreachable!("no processor of this kind is wide")
}

/// One bit for each of 32 64-bit numbers: whether it is less than `bound`.
///
/// # Safety
/// The 256 bytes at `from` can be read, and [`is_available`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn less_of_32(from: *const u8, bound: u64) -> u32 {
    let less: u32;
    // SAFETY: as in `less_of_16`.
    unsafe {
        std::arch::asm!(
            "vpbroadcastq zmm16, {bound}",
            "vpcmpnleuq k1, zmm16, zmmword ptr [{from}]",
            "vpcmpnleuq k2, zmm16, zmmword ptr [{from} + 64]",
            "vpcmpnleuq k3, zmm16, zmmword ptr [{from} + 128]",
            "vpcmpnleuq k4, zmm16, zmmword ptr [{from} + 192]",
            "kunpckbw k1, k2, k1",
            "kunpckbw k3, k4, k3",
            "kunpckwd k1, k3, k1",
            "kmovd {less:e}, k1",
            from = in(reg) from,
            bound = in(reg) bound,
            less = out(reg) less,
            out("xmm16") _,
            out("k1") _,
            out("k2") _,
            out("k3") _,
            out("k4") _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    less
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn less_of_32(_: *const u8, _: u64) -> u32 {
    unreachable!("no processor of this kind is wide")
}

/// One bit for each of 64 bytes: whether it equals `byte`.
///
/// # Safety
/// The 64 bytes at `from` can be read, and [`is_available`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn equal_of_64(from: *const u8, byte: u8) -> u64 {
    let equal: u64;
    // SAFETY: as in `less_of_16`.
    unsafe {
        std::arch::asm!(
            "vpbroadcastb zmm16, {byte:e}",
            "vpcmpeqb k1, zmm16, zmmword ptr [{from}]",
            "kmovq {equal}, k1",
            from = in(reg) from,
            byte = in(reg) u32::from(byte),
            equal = out(reg) equal,
            out("xmm16") _,
            out("k1") _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    equal
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn equal_of_64(_: *const u8, _: u8) -> u64 {
    unreachable!("no processor of this kind is wide")
}

/// Copies 64 bytes.
///
/// # Safety
/// The bytes can be read at `from` and written to `to`, and [`is_available`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn copy_64(from: *const u8, to: *mut u8) {
    // SAFETY: as in `less_of_16`, and as the caller promises.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm16, zmmword ptr [{from}]",
            "vmovdqu64 zmmword ptr [{to}], zmm16",
            from = in(reg) from,
            to = in(reg) to,
            out("xmm16") _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies 256 bytes.
///
/// # Safety
/// As for [`copy_64`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn copy_256(from: *const u8, to: *mut u8) {
    // SAFETY: as in `copy_64`.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm16, zmmword ptr [{from}]",
            "vmovdqu64 zmm17, zmmword ptr [{from} + 64]",
            "vmovdqu64 zmm18, zmmword ptr [{from} + 128]",
            "vmovdqu64 zmm19, zmmword ptr [{from} + 192]",
            "vmovdqu64 zmmword ptr [{to}], zmm16",
            "vmovdqu64 zmmword ptr [{to} + 64], zmm17",
            "vmovdqu64 zmmword ptr [{to} + 128], zmm18",
            "vmovdqu64 zmmword ptr [{to} + 192], zmm19",
            from = in(reg) from,
            to = in(reg) to,
            out("xmm16") _,
            out("xmm17") _,
            out("xmm18") _,
            out("xmm19") _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_256(_: *const u8, _: *mut u8) {
    unreachable!("no processor of this kind is wide")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_64(_: *const u8, _: *mut u8) {
    unreachable!("no processor of this kind is wide")
}
