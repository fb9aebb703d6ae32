//! The records: how many there are, their keys and their fields.

use crate::Result;
use crate::keys::{self, Generator, KEY_BYTES};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many insertions may be under way beyond the oldest that is.
const WINDOW: u64 = 1 << 16;

/// How long to wait for who is far behind: it has failed, if it takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a record looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Fields of a record.
    pub fields: usize,
    /// The size of each, in bytes.
    pub field_bytes: usize,
}

impl Layout {
    /// The size of a record, in bytes.
    pub fn bytes(self) -> usize {
        self.fields * self.field_bytes
    }

    /// Where a field lies.
    pub fn field(self, number: usize) -> std::ops::Range<usize> {
        number * self.field_bytes..(number + 1) * self.field_bytes
    }

    /// Fills all fields.
    pub fn fill(self, key: &[u8; KEY_BYTES], version: u64, record: &mut [u8]) {
        record.chunks_exact_mut(self.field_bytes).for_each(|field| fill_field(key, version, field));
    }

    /// Whether a record has its length, and each field begins with its key: what is checked of all that is read.
    pub fn matches(self, key: &[u8], record: &[u8]) -> bool {
        let marked = |field: &[u8]| field.iter().zip(key).all(|(found, expected)| found == expected);
        record.len() == self.bytes() && record.chunks_exact(self.field_bytes).all(marked)
    }
}

/// Fills a field: the key, as far as there is room, then bytes that depend on the version and do not compress.
#[inline]
pub fn fill_field(key: &[u8; KEY_BYTES], version: u64, field: &mut [u8]) {
    keys::fill_value(version, field);
    let marked = field.len().min(KEY_BYTES);
    field[..marked].copy_from_slice(&key[..marked]);
}

/// The key of a record: its number, hashed by a bijection, so that records that follow each other in time are
/// spread over the table.
#[inline]
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    Generator::hash(number).to_be_bytes()
}

/// Counts the records: numbers are handed out to those who insert, and those below some limit have been inserted.
pub struct Numbers {
    next: AtomicU64,
    limit: AtomicU64,
    /// Which numbers beyond the limit have been inserted, by their remainder.
    done: Vec<AtomicBool>,
    advance: Mutex<()>,
}

impl Numbers {
    /// So many records are there.
    pub fn new(count: u64) -> Self {
        Self {
            next: AtomicU64::new(count),
            limit: AtomicU64::new(count),
            done: (0..WINDOW).map(|_| AtomicBool::new(false)).collect(),
            advance: Mutex::new(()),
        }
    }

    /// All records below this number are there.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::SeqCst)
    }

    /// A number for a record that will be inserted; it must be, or no limit goes beyond it any more.
    ///
    /// # Errors
    /// If somebody has not inserted the record of a much smaller number for a long time.
    pub fn hand_out(&self) -> Result<u64> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        // Somebody may be far behind; nobody may use its mark.
        let begin = Instant::now();
        while number >= self.limit() + WINDOW {
            if begin.elapsed() > PATIENCE {
                return Err("another thread does not finish its insertion".into());
            }
            std::thread::yield_now();
        }
        Ok(number)
    }

    /// The record of this number was inserted.
    pub fn inserted(&self, number: u64) {
        self.mark(number).store(true, Ordering::SeqCst);
        // Who does not get the lock has set its mark before whoever has it lets it go, or sets the limit itself later.
        while self.mark(self.limit()).load(Ordering::SeqCst) {
            let Ok(_guard) = self.advance.try_lock() else { return };
            let mut limit = self.limit();
            while self.mark(limit).swap(false, Ordering::SeqCst) {
                limit += 1;
            }
            self.limit.store(limit, Ordering::SeqCst);
        }
    }

    fn mark(&self, number: u64) -> &AtomicBool {
        &self.done[(number % WINDOW) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_recognised_by_their_keys() {
        for layout in [Layout { fields: 10, field_bytes: 100 }, Layout { fields: 3, field_bytes: 5 }] {
            let mut record = vec![0; layout.bytes()];
            layout.fill(&key(7), 1, &mut record);
            assert!(layout.matches(&key(7), &record));
            fill_field(&key(7), 99, &mut record[layout.field(2)]);
            assert!(layout.matches(&key(7), &record));
            assert!(!layout.matches(&key(8), &record));
            assert!(!layout.matches(&key(7), &record[1..]));
            fill_field(&key(8), 99, &mut record[layout.field(1)]);
            assert!(!layout.matches(&key(7), &record));
        }
    }

    #[test]
    fn the_limit_waits_for_the_oldest_insertion() {
        let numbers = Numbers::new(10);
        let hand_out = || numbers.hand_out().unwrap();
        assert_eq!((hand_out(), hand_out(), hand_out()), (10, 11, 12));
        numbers.inserted(12);
        assert_eq!(numbers.limit(), 10);
        numbers.inserted(10);
        assert_eq!(numbers.limit(), 11);
        numbers.inserted(11);
        assert_eq!(numbers.limit(), 13);
    }

    #[test]
    fn several_threads_get_different_numbers_and_all_count() {
        let numbers = Numbers::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..WINDOW {
                        numbers.inserted(numbers.hand_out().unwrap());
                    }
                });
            }
        });
        assert_eq!(numbers.limit(), 4 * WINDOW);
    }
}
