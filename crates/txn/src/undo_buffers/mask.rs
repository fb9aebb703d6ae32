//! A set of slots, as bits that several threads set and clear.

use super::SLOTS;
use vellum_base::primitive::{AtomicU64, Ordering};

const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = SLOTS / WORD_BITS;
const _: () = assert!(SLOTS.is_multiple_of(WORD_BITS));

/// A set of slots.
// Every search for versions reads some of them; they change when a transaction comes or goes.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Mask([AtomicU64; WORDS]);

impl Mask {
    #[inline]
    fn place(&self, number: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(number / WORD_BITS)?, 1 << (number % WORD_BITS)))
    }

    #[inline]
    pub fn has(&self, number: usize, order: Ordering) -> bool {
        self.place(number).is_some_and(|(word, bit)| word.load(order) & bit != 0)
    }

    /// Adds a slot. Returns whether it was there.
    #[inline]
    pub fn set(&self, number: usize, order: Ordering) -> bool {
        self.place(number).is_some_and(|(word, bit)| word.fetch_or(bit, order) & bit != 0)
    }

    #[inline]
    pub fn clear(&self, number: usize, order: Ordering) {
        if let Some((word, bit)) = self.place(number) {
            word.fetch_and(!bit, order);
        }
    }

    #[inline]
    pub fn is_empty(&self, order: Ordering) -> bool {
        self.0.iter().all(|word| word.load(order) == 0)
    }

    /// The slots in the set, in ascending order.
    #[inline]
    pub fn numbers(&self, order: Ordering) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(move |(index, word)| {
            let mut bits = word.load(order);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < WORD_BITS).then_some(index * WORD_BITS + bit)
            })
        })
    }

    /// The first slot that is not in the set, from `first` on and then from the beginning.
    pub fn first_clear(&self, first: usize) -> Option<usize> {
        let from = first / WORD_BITS;
        (0..=WORDS).find_map(|step| {
            let index = (from + step) % WORDS;
            // Acquire: what the slot's last transaction had in it is gone.
            let used = self.0.get(index)?.load(Ordering::Acquire);
            let before = if step == 0 { (1 << (first % WORD_BITS)) - 1 } else { 0 };
            let bit = (used | before).trailing_ones() as usize;
            (bit < WORD_BITS).then_some(index * WORD_BITS + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_clear_bit_is_found_from_everywhere() {
        let mask = Mask::default();
        let order = Ordering::Relaxed;
        for first in [0, 1, 63, 64, SLOTS - 1] {
            assert_eq!(mask.first_clear(first), Some(first));
            (first..SLOTS).for_each(|number| assert!(!mask.set(number, order)));
            assert_eq!(mask.first_clear(first), (first > 0).then_some(0), "{first}");
            assert!(mask.numbers(order).eq(first..SLOTS));
            (0..first).for_each(|number| _ = mask.set(number, order));
            assert_eq!(mask.first_clear(first), None);
            for free in [0, 5, 63, 64, 70, SLOTS - 1] {
                mask.clear(free, order);
                assert_eq!(mask.first_clear(first), Some(free), "{first}");
                assert!(!mask.set(free, order) && mask.has(free, order));
            }
            (0..SLOTS).for_each(|number| mask.clear(number, order));
            assert!(mask.is_empty(order));
        }
    }
}
