//! Reading a page that other threads may change or evict at any moment.
//!
//! No thread owns the bytes that an optimistic guard shows: a writer may be changing them, the kernel may be taking
//! them away (they then read as zeroes), the device may be filling them. So they are never a `&[u8]`. Aligned numbers
//! are read by relaxed atomic loads. Runs of bytes, which have no alignment, are read eight bytes at a time by one
//! routine. On x86-64 that is a single `mov` in inline assembly, so that the compiler can assume nothing about the
//! bytes that it reads; elsewhere it is two aligned atomic loads.

use crate::page::simd;
use std::{
    cmp::Ordering as Comparison,
    marker::PhantomData,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering},
};
use vellum_base::{Bytes, PAGE_SIZE};
use vellum_vm::prefetch_line;

/// The bytes of a page under an optimistic guard: each read may see a different moment, or zeroes.
///
/// Anything computed from them is meaningless until the guard is validated. No read goes beyond the page.
#[derive(Clone, Copy)]
pub struct OptimisticBytes<'p> {
    base: *const u8,
    pool: PhantomData<&'p [AtomicU8]>,
}

// SAFETY: it reads memory that stays readable for its lifetime, on any thread, by loads that race with no access (see
// the module); it writes nothing.
unsafe impl Send for OptimisticBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for OptimisticBytes<'_> {}

impl OptimisticBytes<'_> {
    /// The bytes of the page at `base`. Numbers are compared one at a time before [`detect_simd`](crate::detect_simd) has
    /// been called.
    ///
    /// # Safety
    /// `base` is the address of a page of a mapping that stays readable for the lifetime.
    #[inline]
    pub unsafe fn new(base: *const u8) -> Self {
        Self { base, pool: PhantomData }
    }

    /// The eight bytes at `at` as a little-endian number; they need no alignment. The caller has checked `at + 8 <= PAGE_SIZE`.
    #[inline]
    fn word(self, at: usize) -> u64 {
        debug_assert!(at + 8 <= PAGE_SIZE);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let word: u64;
            // SAFETY: the eight bytes lie in the page, which is readable (see `new`); the load has no other
            // effect. A racing write gives a mixture of old and new bytes, which validation discards.
            unsafe {
                std::arch::asm!(
                    "mov {word}, qword ptr [{address}]",
                    address = in(reg) self.base.add(at),
                    word = out(reg) word,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
            word
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            let (first, shift) = (at & !7, (at & 7) * 8);
            let low = self.u64_at(first) >> shift;
            if shift == 0 { low } else { low | self.u64_at(first + 8) << (64 - shift) }
        }
    }

    /// The range that begins at `at`, truncated at the end of the page.
    #[inline]
    fn cut(at: usize, length: usize) -> (usize, usize) {
        let start = at.min(PAGE_SIZE);
        (start, length.min(PAGE_SIZE - start))
    }

    /// The fewer than eight bytes from `at` to the end of the page, as the upper bytes of a number.
    #[cold]
    fn last_bytes(self, at: usize) -> u64 {
        (0..8).fold(0, |word, index| word << 8 | u64::from(self.u8_at(at.saturating_add(index))))
    }

    /// Copies the sixteen bytes at `at`, which need no alignment and lie within the page.
    ///
    /// # Safety
    /// `target` has room for them.
    #[inline]
    unsafe fn copy_16(self, at: usize, target: *mut u8) {
        debug_assert!(at + 16 <= PAGE_SIZE);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // SAFETY: the sixteen bytes lie in the page, which is readable (see `new`), and the target has
            // room. A racing write gives a mixture, as in `word`.
            unsafe {
                std::arch::asm!(
                    "movdqu {bytes}, xmmword ptr [{from}]",
                    "movdqu xmmword ptr [{to}], {bytes}",
                    from = in(reg) self.base.add(at),
                    to = in(reg) target,
                    bytes = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: as the caller promises.
        unsafe {
            target.cast::<u64>().write_unaligned(self.word(at).to_le());
            target.add(8).cast::<u64>().write_unaligned(self.word(at + 8).to_le());
        }
    }

    /// Copies the 64 bytes at `at` in the same way.
    ///
    /// # Safety
    /// As for [`copy_16`](Self::copy_16).
    #[inline]
    unsafe fn copy_64(self, at: usize, target: *mut u8) {
        debug_assert!(at + 64 <= PAGE_SIZE);
        if simd::is_available() {
            // SAFETY: as in `copy_16`.
            return unsafe { simd::copy_64(self.base.add(at), target) };
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // SAFETY: as in `copy_16`.
            unsafe {
                std::arch::asm!(
                    "movdqu {first}, xmmword ptr [{from}]",
                    "movdqu {second}, xmmword ptr [{from} + 16]",
                    "movdqu {third}, xmmword ptr [{from} + 32]",
                    "movdqu {fourth}, xmmword ptr [{from} + 48]",
                    "movdqu xmmword ptr [{to}], {first}",
                    "movdqu xmmword ptr [{to} + 16], {second}",
                    "movdqu xmmword ptr [{to} + 32], {third}",
                    "movdqu xmmword ptr [{to} + 48], {fourth}",
                    from = in(reg) self.base.add(at),
                    to = in(reg) target,
                    first = out(xmm_reg) _,
                    second = out(xmm_reg) _,
                    third = out(xmm_reg) _,
                    fourth = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        for part in (0..64).step_by(16) {
            // SAFETY: as the caller promises.
            unsafe { self.copy_16(at + part, target.add(part)) };
        }
    }

    /// One bit for each of the sixteen 32-bit numbers at `at`, all within the page: whether it is less than `bound`.
    #[inline]
    fn less_mask(self, at: usize, bound: u32) -> u32 {
        debug_assert!(at + 64 <= PAGE_SIZE);
        if simd::is_available() {
            // SAFETY: the 64 bytes lie in the page, which is readable (see `new`).
            return unsafe { simd::less_of_16(self.base.add(at), bound) };
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::*;
            let (first, second, third, fourth): (__m128i, __m128i, __m128i, __m128i);
            // SAFETY: the 64 bytes lie in the page, which is readable (see `new`); the loads have no other
            // effect. A racing write gives a mixture, as in `word`. Every x86-64 processor knows SSE2.
            unsafe {
                std::arch::asm!(
                    "movdqu {first}, xmmword ptr [{from}]",
                    "movdqu {second}, xmmword ptr [{from} + 16]",
                    "movdqu {third}, xmmword ptr [{from} + 32]",
                    "movdqu {fourth}, xmmword ptr [{from} + 48]",
                    from = in(reg) self.base.add(at),
                    first = out(xmm_reg) first,
                    second = out(xmm_reg) second,
                    third = out(xmm_reg) third,
                    fourth = out(xmm_reg) fourth,
                    options(pure, readonly, nostack, preserves_flags)
                );
                // The processor compares signed numbers: flip the sign of both sides.
                let sign = _mm_set1_epi32(i32::MIN);
                let bound = _mm_set1_epi32((bound ^ 0x8000_0000).cast_signed());
                let less = |numbers| _mm_cmpgt_epi32(bound, _mm_xor_si128(numbers, sign));
                let low = _mm_packs_epi32(less(first), less(second));
                let high = _mm_packs_epi32(less(third), less(fourth));
                _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        (0..16).fold(0, |less, index| less | u32::from(self.u32_at(at + 4 * index) < bound) << index)
    }

    /// Copies `length` bytes, all within the page.
    ///
    /// # Safety
    /// `target` has room for them.
    #[inline]
    unsafe fn copy(self, at: usize, length: usize, target: *mut u8) {
        if length < 16 {
            if length >= 8 {
                // The two parts overlap, if necessary.
                for part in [0, length - 8] {
                    // SAFETY: `part + 8` is at most `length`, for which there is room.
                    unsafe {
                        target.add(part).cast::<u64>().write_unaligned(self.word(at + part).to_le());
                    }
                }
                return;
            }
            for index in 0..length {
                // SAFETY: as the caller promises.
                unsafe { target.add(index).write(self.u8_at(at + index)) };
            }
            return;
        }
        // The last part overlaps the one before, if necessary.
        let mut done = 0;
        if length >= 64 {
            if length >= 256 && simd::is_available() {
                while done + 256 <= length {
                    // SAFETY: `done + 256` is at most `length`, for which there is room, and all lies in the page.
                    unsafe { simd::copy_256(self.base.add(at + done), target.add(done)) };
                    done += 256;
                }
            }
            while done + 64 < length {
                // SAFETY: `done + 64` is less than `length`, for which there is room.
                unsafe { self.copy_64(at + done, target.add(done)) };
                done += 64;
            }
            // SAFETY: `length` is at least 64.
            unsafe { self.copy_64(at + length - 64, target.add(length - 64)) };
            return;
        }
        while done + 16 < length {
            // SAFETY: `done + 16` is less than `length`.
            unsafe { self.copy_16(at + done, target.add(done)) };
            done += 16;
        }
        // SAFETY: `length` is at least 16.
        unsafe { self.copy_16(at + length - 16, target.add(length - 16)) };
    }
}

/// A method that reads the aligned little-endian number that contains the byte at `at`, or 0 beyond the page.
macro_rules! number_at {
    ($name:ident, $number:ty, $atomic:ty) => {
        #[inline]
        fn $name(self, at: usize) -> $number {
            let at = at & !(size_of::<$number>() - 1);
            if at > PAGE_SIZE - size_of::<$number>() {
                return 0;
            }
            // SAFETY: the number lies in the page (see `new`), and is aligned: pages are, and `at` was made so.
            let number = unsafe { <$atomic>::from_ptr(self.base.add(at).cast_mut().cast()) };
            // Relaxed: validation provides the order (see `state`).
            <$number>::from_le(number.load(Ordering::Relaxed))
        }
    };
}

impl Bytes for OptimisticBytes<'_> {
    #[inline]
    fn size(self) -> usize {
        PAGE_SIZE
    }

    number_at!(u8_at, u8, AtomicU8);
    number_at!(u16_at, u16, AtomicU16);
    number_at!(u32_at, u32, AtomicU32);
    number_at!(u64_at, u64, AtomicU64);

    #[inline]
    fn be_word_at(self, at: usize) -> u64 {
        if at <= PAGE_SIZE - 8 { self.word(at).swap_bytes() } else { self.last_bytes(at) }
    }

    #[inline(always)]
    fn prefetch(self, at: usize) {
        prefetch_line(self.base.wrapping_add(at));
    }

    #[inline]
    fn less_of_16(self, at: usize, bound: u32) -> usize {
        let at = at & !3;
        if at > PAGE_SIZE - 64 {
            return (0..16).take_while(|index| self.u32_at(at.saturating_add(4 * index)) < bound).count();
        }
        self.less_mask(at, bound).trailing_ones() as usize
    }

    #[inline(always)]
    fn search_16(self, guide_at: usize, table_at: usize, shift: u32, bound: u64) -> Option<usize> {
        /// The number of bytes that sixteen numbers span.
        const BYTES: usize = 256;
        if !simd::is_available() || guide_at > PAGE_SIZE - 64 {
            return None;
        }
        // SAFETY: the 64 bytes lie in the page, which is readable (see `new`).
        let range =
            unsafe { simd::less_of_16(self.base.add(guide_at), (bound >> 32) as u32) }.trailing_ones();
        if shift == 0 {
            return Some(table_at + 16 * range as usize);
        }
        // If fewer than sixteen numbers are left, those before the range are compared as well.
        let at = (table_at + ((16 * range as usize) << shift)).min(PAGE_SIZE - BYTES);
        // SAFETY: the 256 bytes lie in the page.
        let less = unsafe { simd::less_of_32(self.base.add(at), bound) };
        let not_less = u64::from(!less & 0x5555_5555) | 1 << 32;
        Some(at + 8 * not_less.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn equal_of_64(self, at: usize, byte: u8) -> u64 {
        if at > PAGE_SIZE - 64 {
            return (0..64).fold(0, |mask, index| {
                mask | u64::from(self.u8_at(at.saturating_add(index)) == byte) << index
            });
        }
        if simd::is_available() {
            // SAFETY: the 64 bytes lie in the page, which is readable (see `new`).
            return unsafe { simd::equal_of_64(self.base.add(at), byte) };
        }
        // Eight at a time: a byte of `differing` is zero where the two are equal. If it is not zero, its upper bit or
        // the carry out of its seven lower bits shows that.
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let pattern = u64::from_ne_bytes([byte; 8]);
        (0..8).fold(0, |mask, part| {
            let differing = self.word(at + 8 * part) ^ pattern;
            let equal = !(((differing & LOW) + LOW) | differing | LOW) >> 7;
            // One bit of each byte, gathered in the top byte of the product.
            mask | (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * part)
        })
    }

    #[inline(always)]
    fn search_32(self, at: usize, bound: u64) -> Option<usize> {
        if !simd::is_available() || at > PAGE_SIZE - 256 {
            return None;
        }
        // SAFETY: the 256 bytes lie in the page, which is readable (see `new`).
        let less = unsafe { simd::less_of_32(self.base.add(at), bound) };
        Some(at + 8 * less.trailing_ones() as usize)
    }

    #[inline]
    fn compare(self, at: usize, length: usize, other: &[u8]) -> Comparison {
        let (at, length) = Self::cut(at, length);
        let (words, rest) = other.get(..length).unwrap_or(other).as_chunks::<8>();
        let mut at = at;
        for theirs in words {
            match self.word(at).swap_bytes().cmp(&u64::from_be_bytes(*theirs)) {
                Comparison::Equal => at += 8,
                unequal => return unequal,
            }
        }
        for theirs in rest {
            match self.u8_at(at).cmp(theirs) {
                Comparison::Equal => at += 1,
                unequal => return unequal,
            }
        }
        length.cmp(&other.len())
    }

    #[inline(always)]
    fn append_to(self, at: usize, length: usize, target: &mut Vec<u8>) {
        let (at, length) = Self::cut(at, length);
        if target.capacity() - target.len() < length {
            make_room(target, length);
        }
        // SAFETY: there is room for `length` more bytes after the vector's end, and all are written.
        unsafe {
            self.copy(at, length, target.as_mut_ptr().add(target.len()));
            target.set_len(target.len() + length);
        }
    }

    #[inline]
    fn copy_to(self, at: usize, target: &mut [u8]) {
        let (at, length) = Self::cut(at, target.len());
        // SAFETY: `length` is at most the length of the target.
        unsafe { self.copy(at, length, target.as_mut_ptr()) };
    }
}

/// Makes room for `length` more bytes.
#[inline(never)]
fn make_room(target: &mut Vec<u8>, length: usize) {
    if target.is_empty() {
        // Takes a third of the instructions of growing.
        *target = Vec::with_capacity(length);
    } else {
        target.reserve(length);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; PAGE_SIZE]);

    /// With the processor's instructions, and without.
    #[test]
    fn it_reads_what_a_slice_reads() {
        simd::detect();
        reads_what_a_slice_reads();
        simd::without(reads_what_a_slice_reads);
    }

    /// Every method agrees with the same method on a slice, at every kind of place.
    fn reads_what_a_slice_reads() {
        let mut page = Page([0; PAGE_SIZE]);
        for (index, byte) in page.0.iter_mut().enumerate() {
            *byte = (index * 31 + index / 256) as u8;
        }
        // SAFETY: the page outlives the view.
        let view = unsafe { OptimisticBytes::new(page.0.as_ptr()) };
        let slice: &[u8] = &page.0;
        for at in [0, 1, 2, 7, 8, 9, 100, 4080, 4087, 4088, 4089, 4092, 4094, 4095, 4096, 5000, usize::MAX] {
            assert_eq!(view.u8_at(at), slice.u8_at(at));
            assert_eq!(view.u16_at(at & !1), slice.u16_at(at & !1));
            assert_eq!(view.u32_at(at & !3), slice.u32_at(at & !3));
            assert_eq!(view.u64_at(at & !7), slice.u64_at(at & !7));
            assert_eq!(view.be_word_at(at), slice.be_word_at(at));
            for bound in [0, 1, 0x1f1f_1f1f, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                assert_eq!(view.less_of_16(at & !3, bound), slice.less_of_16(at & !3, bound));
            }
            for byte in 0..=255 {
                assert_eq!(view.equal_of_64(at, byte), slice.equal_of_64(at, byte));
            }
            for length in [0, 1, 7, 8, 9, 16, 63, 64, 65, 120, 129, 255, 256, 257, 512, 5000, usize::MAX] {
                let (mut ours, mut theirs) = (vec![1], vec![1]);
                view.append_to(at, length, &mut ours);
                slice.append_to(at, length, &mut theirs);
                assert_eq!(ours, theirs);
                let (mut ours, mut theirs) = (vec![1; length.min(5000)], vec![1; length.min(5000)]);
                view.copy_to(at, &mut ours);
                slice.copy_to(at, &mut theirs);
                assert_eq!(ours, theirs);
                let mut theirs = vec![1];
                slice.append_to(at, length, &mut theirs);
                for change in [0usize, 1, 5, 12] {
                    let mut other = theirs[1..].to_vec();
                    assert_eq!(view.compare(at, length, &other), slice.compare(at, length, &other));
                    if let Some(byte) = other.get_mut(change) {
                        *byte = byte.wrapping_add(1);
                    }
                    other.push(3);
                    assert_eq!(view.compare(at, length, &other), slice.compare(at, length, &other));
                }
            }
        }
    }

    /// Tables of 64-bit numbers of all sizes, also at the end of the page, with and without ties, followed by other
    /// bytes.
    #[test]
    fn a_search_of_many_numbers_at_once_finds_what_a_search_of_one_after_the_other_finds() {
        simd::detect();
        let word = |page: &mut Page, at: usize, number: u64| {
            page.0[at..at + 8].copy_from_slice(&number.to_le_bytes());
        };
        for (count, same) in (0..=248).flat_map(|count| [1, 5].map(|same| (count, same))) {
            let shift = usize::BITS - (usize::saturating_sub(count, 1) / 16).leading_zeros();
            let mut page = Page([if count % 2 == 0 { 0 } else { 0xff }; PAGE_SIZE]);
            let number = |index: usize| (index / same * 3 + 1) as u64;
            for index in 0..count {
                word(&mut page, 128 + 16 * index, number(index) << 32);
            }
            for guide in 0..16 {
                let last = ((guide + 1) << shift) - 1;
                let hint = if last < count { number(last) as u32 } else { u32::MAX };
                page.0[64 + 4 * guide..][..4].copy_from_slice(&hint.to_le_bytes());
            }
            // SAFETY: the page outlives the view.
            let view = unsafe { OptimisticBytes::new(page.0.as_ptr()) };
            for bound in 0..=3 * count as u64 + 2 {
                let expected = (0..count).take_while(|index| number(*index) < bound).count();
                let Some(at) = view.search_16(64, 128, shift, bound << 32) else {
                    assert!(!simd::is_available());
                    continue;
                };
                assert_eq!(at.min(128 + 16 * count), 128 + 16 * expected, "{bound} among {count}");
                // Where upper halves tie, a later one may be the first that is not less.
                let after_ties = (0..count).take_while(|index| number(*index) <= bound).count();
                let at = view.search_16(64, 128, shift, bound << 32 | 1).unwrap().min(128 + 16 * count);
                let found = (at - 128) / 16;
                assert!((expected..=after_ties).contains(&found), "{bound} and more among {count}");
                // Sixteen are looked at, which goes beyond a range of eight or less.
                assert!(!(1..=3).contains(&shift) || found == after_ties, "{bound} and more among {count}");
            }
        }
        for from in (0..=PAGE_SIZE).step_by(8) {
            let mut page = Page([0; PAGE_SIZE]);
            for at in (from..PAGE_SIZE).step_by(8) {
                word(&mut page, at, ((at - from) / 8) as u64 * 2 + 1);
            }
            // SAFETY: the page outlives the view.
            let view = unsafe { OptimisticBytes::new(page.0.as_ptr()) };
            for bound in 0..=66 {
                let expected = (bound / 2).min(32) as usize;
                match view.search_32(from, bound) {
                    Some(at) => assert_eq!(at, from + 8 * expected, "{bound} from {from}"),
                    None => assert!(!simd::is_available() || from > PAGE_SIZE - 256),
                }
            }
        }
    }
}
