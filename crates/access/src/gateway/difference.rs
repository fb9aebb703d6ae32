//! Where two states of the same bytes differ.

use std::ops::Range;

/// The range outside of which two values of the same length are equal; empty if they are.
pub(super) fn difference(before: &[u8], after: &[u8]) -> Range<usize> {
    let from = equal_first(before, after);
    if from == before.len() {
        return from..from;
    }
    from..before.len() - equal_last(before, after)
}

/// The number of equal bytes at the beginning. Compares blocks first, since values are long and few bytes change.
fn equal_first(before: &[u8], after: &[u8]) -> usize {
    let ((old, _), (new, _)) = (before.as_chunks::<BLOCK>(), after.as_chunks::<BLOCK>());
    let mut same = BLOCK * old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (before, after) = (before.get(same..).unwrap_or_default(), after.get(same..).unwrap_or_default());
    let ((old, _), (new, _)) = (before.as_chunks::<WORD>(), after.as_chunks::<WORD>());
    let mut rest = 0;
    for (old, new) in old.iter().zip(new) {
        let differing = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        if differing != 0 {
            return same + rest + differing.trailing_zeros() as usize / 8;
        }
        rest += WORD;
    }
    same += rest;
    let bytes = before.iter().zip(after).skip(rest);
    same + bytes.take_while(|(a, b)| a == b).count()
}

/// The number of equal bytes at the end.
fn equal_last(before: &[u8], after: &[u8]) -> usize {
    let ((_, old), (_, new)) = (before.as_rchunks::<BLOCK>(), after.as_rchunks::<BLOCK>());
    let mut same = BLOCK * old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let rest = before.len() - same;
    let (before, after) = (before.get(..rest).unwrap_or_default(), after.get(..rest).unwrap_or_default());
    let ((_, old), (_, new)) = (before.as_rchunks::<WORD>(), after.as_rchunks::<WORD>());
    let mut rest = 0;
    for (old, new) in old.iter().rev().zip(new.iter().rev()) {
        let differing = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        if differing != 0 {
            return same + rest + differing.leading_zeros() as usize / 8;
        }
        rest += WORD;
    }
    same += rest;
    let bytes = before.iter().rev().zip(after.iter().rev()).skip(rest);
    same + bytes.take_while(|(a, b)| a == b).count()
}

/// The number of bytes compared at once: first blocks, then words.
const BLOCK: usize = 32;
const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn the_difference_of_values_is_the_range_outside_of_which_they_are_equal() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let before: Vec<u8> = (0..random.random_range(0..140)).map(|_| random.random()).collect();
            let mut after = before.clone();
            for _ in 0..random.random_range(0..3) {
                if let Some(last) = after.len().checked_sub(1) {
                    after[random.random_range(0..=last)] ^= random.random_range(0..2);
                }
            }
            let range = difference(&before, &after);
            let first = before.iter().zip(&after).position(|(a, b)| a != b);
            let last = before.iter().zip(&after).rposition(|(a, b)| a != b);
            match (first, last) {
                (Some(first), Some(last)) => assert_eq!(range, first..last + 1),
                _ => assert!(range.is_empty()),
            }
        }
    }
}
