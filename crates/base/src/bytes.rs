//! Reading the bytes of a page, latched or not.

use std::cmp::Ordering;

/// Bytes that can be read at any offset, whatever they hold, and even if they change meanwhile.
///
/// Code that searches a page is written once against this trait. Under a latch the bytes are a slice; under an
/// optimistic guard they may change during the read, and results computed from them are discarded if validation fails.
/// So no method may panic, and none may leave the page: an access that would cross the end reads zeroes instead, which
/// a latched caller treats as corruption.
pub trait Bytes: Copy {
    /// The number of bytes.
    fn size(self) -> usize;

    /// The byte at `at`, or zero beyond the end.
    fn u8_at(self, at: usize) -> u8;

    /// The little-endian number at `at`, or zero where it would cross the end. `at` is even.
    fn u16_at(self, at: usize) -> u16;

    /// The little-endian number at `at`, or zero where it would cross the end. `at` is a multiple of 4.
    fn u32_at(self, at: usize) -> u32;

    /// The little-endian number at `at`, or zero where it would cross the end. `at` is a multiple of 8.
    fn u64_at(self, at: usize) -> u64;

    /// The eight bytes from `at` on, which need not be aligned, as a big-endian number, so that numbers compare as the
    /// bytes do. Bytes beyond the end are zero.
    fn be_word_at(self, at: usize) -> u64;

    /// The byte at `at` will be read soon: its cache line is fetched meanwhile.
    #[inline]
    fn prefetch(self, at: usize) {
        let _ = at;
    }

    /// How many of the sixteen 32-bit numbers from `at` on are less than `bound`, up to the first that is not; numbers
    /// beyond the end are zero. `at` is a multiple of 4.
    #[inline]
    fn less_of_16(self, at: usize, bound: u32) -> usize {
        (0..16).take_while(|index| self.u32_at(at.saturating_add(4 * index)) < bound).count()
    }

    /// Searches a table of ascending 64-bit numbers, one every 16 bytes from `table_at` on, with the help of a guide:
    /// sixteen 32-bit numbers from `guide_at` on, each the upper half of the last number of a range of `1 << shift`, at
    /// most 16. Returns the place of the first number that is not less than `bound`, if the table extends far enough. If
    /// the upper half of `bound` is in the guide, it may be a later one: then all numbers before the result are less.
    ///
    /// `None` where the processor compares one number at a time, which the caller does better.
    #[inline]
    fn search_16(self, guide_at: usize, table_at: usize, shift: u32, bound: u64) -> Option<usize> {
        let _ = (guide_at, table_at, shift, bound);
        None
    }

    /// The place of the first of the 32 ascending 64-bit numbers from `at` on that is not less than `bound`; the byte
    /// after them if all are less. `None` where the processor compares one number at a time, or fewer are left.
    #[inline]
    fn search_32(self, at: usize, bound: u64) -> Option<usize> {
        let _ = (at, bound);
        None
    }

    /// One bit for each of the 64 bytes from `at` on, the first byte lowest: whether the byte equals `byte`. Bytes
    /// beyond the end are zero.
    #[inline]
    fn equal_of_64(self, at: usize, byte: u8) -> u64 {
        (0..64).fold(0, |mask, index| mask | u64::from(self.u8_at(at.saturating_add(index)) == byte) << index)
    }

    /// Compares `length` bytes from `at` with `other`, as [`Ord`] compares slices. A range that would cross the end is
    /// truncated there.
    fn compare(self, at: usize, length: usize, other: &[u8]) -> Ordering;

    /// Appends `length` bytes from `at` to `target`. A range that would cross the end is truncated there.
    fn append_to(self, at: usize, length: usize, target: &mut Vec<u8>);

    /// Copies the bytes from `at` on to `target`, as many as it holds. A range that would cross the end is truncated
    /// there: the rest of `target` stays as it is.
    fn copy_to(self, at: usize, target: &mut [u8]);
}

impl Bytes for &[u8] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn u8_at(self, at: usize) -> u8 {
        self.get(at).copied().unwrap_or(0)
    }

    #[inline]
    fn u16_at(self, at: usize) -> u16 {
        self.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b))
    }

    #[inline]
    fn u32_at(self, at: usize) -> u32 {
        self.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
    }

    #[inline]
    fn u64_at(self, at: usize) -> u64 {
        self.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
    }

    #[inline]
    fn be_word_at(self, at: usize) -> u64 {
        let rest = self.get(at..).unwrap_or_default();
        rest.first_chunk().map_or_else(|| padded(rest), |chunk| u64::from_be_bytes(*chunk))
    }

    #[inline]
    fn less_of_16(self, at: usize, bound: u32) -> usize {
        let Some(numbers) = self.get(at..).and_then(|rest| rest.first_chunk::<64>()) else {
            return (0..16).take_while(|index| self.u32_at(at.saturating_add(4 * index)) < bound).count();
        };
        // One bit per number, without a branch, so that the compiler can compare several at once.
        let numbers = numbers.as_chunks().0.iter().enumerate();
        let less = numbers.fold(0u32, |less, (index, number)| {
            less | u32::from(u32::from_le_bytes(*number) < bound) << index
        });
        less.trailing_ones() as usize
    }

    #[inline]
    fn compare(self, at: usize, length: usize, other: &[u8]) -> Ordering {
        cut(self, at, length).cmp(other)
    }

    #[inline]
    fn append_to(self, at: usize, length: usize, target: &mut Vec<u8>) {
        target.extend_from_slice(cut(self, at, length));
    }

    #[inline]
    fn copy_to(self, at: usize, target: &mut [u8]) {
        let source = cut(self, at, target.len());
        if let Some(target) = target.get_mut(..source.len()) {
            target.copy_from_slice(source);
        }
    }
}

/// Up to seven bytes as the upper bytes of a big-endian number.
#[cold]
fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(word)
}

/// The part of `bytes` that the range covers, truncated at the end.
#[inline]
fn cut(bytes: &[u8], at: usize, length: usize) -> &[u8] {
    let start = at.min(bytes.len());
    let end = start.saturating_add(length).min(bytes.len());
    bytes.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_end_are_zero_and_never_panic() {
        let bytes: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(bytes.u64_at(0), 0x0807_0605_0403_0201);
        assert_eq!(bytes.u64_at(8), 0);
        assert_eq!(bytes.u32_at(8), 0);
        assert_eq!(bytes.u16_at(usize::MAX - 1), 0);
        assert_eq!(bytes.be_word_at(1), 0x0203_0405_0607_0809);
        assert_eq!(bytes.be_word_at(7), 0x0809_0000_0000_0000);
        assert_eq!(bytes.be_word_at(usize::MAX), 0);
        assert_eq!(bytes.u8_at(9), 0);
        assert_eq!(bytes.less_of_16(usize::MAX & !3, 1), 16);
        assert_eq!(bytes.less_of_16(0, 0x0403_0202), 1);
        assert_eq!(bytes.compare(7, 100, &[8, 9]), Ordering::Equal);
        assert_eq!(bytes.compare(usize::MAX, usize::MAX, &[]), Ordering::Equal);
        let mut out = Vec::new();
        bytes.append_to(8, usize::MAX, &mut out);
        assert_eq!(out, [9]);
        let mut target = [0; 3];
        bytes.copy_to(3, &mut target);
        assert_eq!(target, [4, 5, 6]);
        bytes.copy_to(7, &mut target);
        bytes.copy_to(usize::MAX, &mut target);
        assert_eq!(target, [8, 9, 6]);
    }
}
