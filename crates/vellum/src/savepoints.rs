//! Savepoints, and which savepoints of a transaction still exist.

use std::ops::Range;

/// A place in a transaction: see [`Transaction::savepoint`](crate::Transaction::savepoint).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint {
    /// The number of the transaction, and the address of its database.
    pub(crate) transaction: (u64, usize),
    /// Its number among the savepoints of the transaction.
    pub(crate) number: u64,
    pub(crate) at: vellum_txn::Savepoint,
    /// How many changes of whole tables there were.
    pub(crate) owned_count: usize,
}

/// The numbers of a transaction's savepoints.
#[derive(Default)]
pub(crate) struct Savepoints {
    next: u64,
    /// The savepoints that were discarded by a rollback to an earlier one, in their order.
    gone: Vec<Range<u64>>,
}

impl Savepoints {
    /// The number of a new savepoint.
    pub fn add(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Whether a savepoint still exists.
    pub fn has(&self, number: u64) -> bool {
        let before = self.gone.partition_point(|gone| gone.start <= number);
        let last = before.checked_sub(1).and_then(|last| self.gone.get(last));
        last.is_none_or(|gone| gone.end <= number)
    }

    /// Discards the savepoints after `to`, which exists.
    pub fn go_back(&mut self, to: u64) {
        let first = to + 1;
        self.gone.truncate(self.gone.partition_point(|gone| gone.start < first));
        if first < self.next {
            self.gone.push(first..self.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn those_after_one_that_was_gone_back_to_are_gone() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..200 {
            let (mut savepoints, mut there) = (Savepoints::default(), Vec::new());
            for _ in 0..50 {
                if there.is_empty() || random.random_bool(0.6) {
                    there.push(savepoints.add());
                } else {
                    let to = random.random_range(0..there.len());
                    savepoints.go_back(there[to]);
                    there.truncate(to + 1);
                }
                for number in 0..savepoints.next {
                    assert_eq!(savepoints.has(number), there.contains(&number));
                }
            }
        }
    }
}
