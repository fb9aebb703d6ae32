//! The records: how many there are, their keys and their fields.

use crate::Result;
use crate::keys::{self, Generator, KEY_BYTES, Key};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many insertions may be under way beyond the oldest that is.
const WINDOW: u64 = 1 << 16;

/// How long to wait for a thread that is far behind: it has failed, if it takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a record looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Fields of a record.
    pub fields: usize,
    /// The size of each, in bytes.
    pub field_bytes: usize,
    /// The size of each key, in bytes.
    pub key_bytes: usize,
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

    /// The key of a record: its number, hashed by a bijection, so that records that follow each other in time are
    /// spread over the table.
    #[inline]
    pub fn key(self, number: u64) -> Key {
        Key::new(Generator::hash(number), self.key_bytes)
    }

    /// Fills all fields.
    pub fn fill(self, key: &[u8], version: u64, record: &mut [u8]) {
        record.chunks_exact_mut(self.field_bytes).for_each(|field| self.fill_field(key, version, field));
    }

    /// Fills a field: the beginning of the key, then bytes that depend on the version and do not compress.
    #[inline]
    pub fn fill_field(self, key: &[u8], version: u64, field: &mut [u8]) {
        // Hashed, so that short fields differ with the version, too.
        keys::fill_value(Generator::hash(version), field);
        let marked = self.marked_bytes();
        field[..marked].copy_from_slice(&key[..marked]);
    }

    /// How much of the key a field begins with: at most half of the field, for there must be room for the version.
    #[inline]
    fn marked_bytes(self) -> usize {
        (self.field_bytes / 2).min(KEY_BYTES)
    }

    /// Whether a record has its length, and each field begins with its key: what is checked of all that is read.
    #[inline]
    pub fn matches(self, key: &[u8], record: &[u8]) -> bool {
        let Some(mark) = key.get(..self.marked_bytes()) else { return false };
        let mut fields = record.chunks_exact(self.field_bytes);
        record.len() == self.bytes()
            && match mark.as_array::<KEY_BYTES>() {
                // The usual case, without a call of a function for each field.
                Some(mark) => fields.all(|field| field.first_chunk() == Some(mark)),
                None => fields.all(|field| field.starts_with(mark)),
            }
    }

    /// The sum of the digests of all fields.
    pub fn digest(self, key: &[u8], record: &[u8]) -> u64 {
        let fields = record.chunks_exact(self.field_bytes).enumerate();
        fields.fold(0, |sum, (number, field)| sum.wrapping_add(digest_field(key, number, field)))
    }
}

/// A number that stands for what a field of a record holds, without visible structure.
///
/// The sum over all fields of all records stands for the whole table. A thread that changes a field atomically knows how the sum
/// changes, whatever others do meanwhile; so it tells whether any change was lost, came twice or was undone.
#[inline]
pub fn digest_field(key: &[u8], number: usize, field: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let add = |digest: u64, word: u64| (digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut digest = number as u64;
    for bytes in [key, field] {
        let (words, rest) = bytes.as_chunks::<8>();
        digest = words.iter().fold(digest, |digest, bytes| add(digest, u64::from_le_bytes(*bytes)));
        digest = add(digest, word(rest) ^ (bytes.len() as u64) << 56);
    }
    Generator::hash(digest)
}

/// Counts the records: numbers are handed out to inserting threads, and those below some limit have been inserted.
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
    /// If a thread has not inserted the record of a much smaller number for a long time.
    pub fn hand_out(&self) -> Result<u64> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        // A thread may be far behind; no other may use its mark.
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
        // A thread that does not get the lock has set its mark before the holder releases it, or sets the limit itself later.
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

    const LAYOUTS: [Layout; 3] = [
        Layout { fields: 10, field_bytes: 100, key_bytes: 8 },
        Layout { fields: 3, field_bytes: 5, key_bytes: 8 },
        Layout { fields: 25, field_bytes: 8, key_bytes: 16 },
    ];

    #[test]
    fn records_are_recognised_by_their_keys() {
        for layout in LAYOUTS {
            let (key, other) = (layout.key(7), layout.key(8));
            assert_eq!(key.bytes().len(), layout.key_bytes);
            let mut record = vec![0; layout.bytes()];
            layout.fill(key.bytes(), 1, &mut record);
            assert!(layout.matches(key.bytes(), &record));
            let before = record.clone();
            layout.fill_field(key.bytes(), 99, &mut record[layout.field(2)]);
            assert!(layout.matches(key.bytes(), &record) && record != before);
            assert!(!layout.matches(other.bytes(), &record));
            assert!(!layout.matches(key.bytes(), &record[1..]));
            layout.fill_field(other.bytes(), 99, &mut record[layout.field(1)]);
            assert!(!layout.matches(key.bytes(), &record));
        }
    }

    #[test]
    fn digests_tell_records_apart_and_follow_changes_of_fields() {
        for layout in LAYOUTS {
            let key = layout.key(7);
            let mut record = vec![0; layout.bytes()];
            layout.fill(key.bytes(), 1, &mut record);
            let digest = |record: &[u8]| layout.digest(key.bytes(), record);
            let before = digest(&record);
            assert_ne!(before, layout.digest(layout.key(8).bytes(), &record));
            for at in 0..record.len() {
                record[at] ^= 1;
                assert_ne!(digest(&record), before, "{layout:?} {at}");
                record[at] ^= 1;
            }
            let field = layout.field(1);
            let old = digest_field(key.bytes(), 1, &record[field.clone()]);
            layout.fill_field(key.bytes(), 2, &mut record[field.clone()]);
            let new = digest_field(key.bytes(), 1, &record[field]);
            assert_ne!(old, new);
            assert_eq!(digest(&record), before.wrapping_add(new).wrapping_sub(old));
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
