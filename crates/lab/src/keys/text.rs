//! Keys of bytes, of a kind that is chosen when the program runs.

use super::{files::Entries, made, url::url};
use crate::Result;
use crate::config::KeyKind;
use std::sync::OnceLock;

/// The size of the largest key, in bytes.
pub const TEXT_BYTES_MAX: usize = 200;

/// A key, in place.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl Default for Text {
    #[inline]
    fn default() -> Self {
        Self { bytes: [0; TEXT_BYTES_MAX], length: 0 }
    }
}

impl AsRef<[u8]> for Text {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Text {
    /// Appends bytes, for which there is room.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Appends a number in so many digits, zeroes before it.
    pub fn push_digits(&mut self, mut number: u64, digits: usize) {
        let place = &mut self.bytes[self.length..self.length + digits];
        for digit in place.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.length += digits;
    }
}

/// A number in so many letters, the most significant first.
#[inline]
pub fn letters<const N: usize>(mut number: u64) -> [u8; N] {
    let mut letters = [0; N];
    for letter in letters.iter_mut().rev() {
        *letter = b'a' + (number % 26) as u8;
        number /= 26;
    }
    letters
}

/// What makes the keys of a table.
#[derive(Debug)]
pub enum TextKind {
    /// See [`url`](super::url).
    Url,
    /// See [`made`].
    Email(made::Emails),
    /// See [`made`].
    Uuid(made::Spread),
    /// See [`made`].
    Ycsb(made::Spread),
    /// See [`made`].
    Composite,
    /// Paths or words of the machine's own files: see [`files`](super::files).
    Entries(Entries),
}

impl TextKind {
    /// The keys of a table of so many tuples; takes some seconds where files are looked for.
    ///
    /// # Errors
    /// If the machine has too few files.
    pub fn new(kind: KeyKind, tuples: u64) -> Result<Self> {
        Ok(match kind {
            KeyKind::U64 | KeyKind::Url => Self::Url,
            KeyKind::Email => Self::Email(made::Emails::new(tuples)),
            KeyKind::Uuid => Self::Uuid(made::Spread::new(tuples)),
            KeyKind::Ycsb => Self::Ycsb(made::Spread::new(tuples)),
            KeyKind::Composite => Self::Composite,
            KeyKind::Path => Self::Entries(Entries::of_paths(tuples)?),
            KeyKind::Word => Self::Entries(Entries::of_words(tuples)?),
        })
    }

    /// The key of tuple `index`.
    #[inline]
    pub fn key(&self, index: u64) -> Text {
        match self {
            Self::Url => url(index),
            Self::Email(emails) => emails.key(index),
            Self::Uuid(spread) => made::uuid(spread.at(index)),
            Self::Ycsb(spread) => made::ycsb(spread.at(index)),
            Self::Composite => made::composite(index),
            Self::Entries(entries) => entries.key(index),
        }
    }
}

static CHOSEN: OnceLock<TextKind> = OnceLock::new();

/// Chooses what [`TextKeys`](super::TextKeys) are, before the first is made: a process works on one table.
///
/// # Errors
/// As for [`TextKind::new`].
pub fn choose(kind: KeyKind, tuples: u64) -> Result<()> {
    let made = TextKind::new(kind, tuples)?;
    CHOSEN.get_or_init(|| made);
    Ok(())
}

/// The kind that was chosen; addresses if none was.
#[inline]
pub fn chosen() -> &'static TextKind {
    CHOSEN.get().unwrap_or(&TextKind::Url)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds whose keys do not depend on the machine.
    const MADE: [KeyKind; 5] =
        [KeyKind::Url, KeyKind::Email, KeyKind::Uuid, KeyKind::Ycsb, KeyKind::Composite];

    #[test]
    fn keys_are_in_the_order_of_their_numbers_and_all_differ() {
        for kind in MADE {
            for tuples in [1, 2, 1000, 50_000, 5_000_000, 1 << 33] {
                let made = TextKind::new(kind, tuples).unwrap();
                let last = tuples.saturating_sub(30_000);
                let numbers = (0..tuples.min(30_000)).chain(last.max(30_000)..tuples);
                let keys: Vec<Text> = numbers.map(|number| made.key(number)).collect();
                for pair in keys.windows(2) {
                    let shown = pair.iter().map(|key| String::from_utf8_lossy(key.as_ref()).into_owned());
                    assert!(
                        pair[0].as_ref() < pair[1].as_ref(),
                        "{kind:?} of {tuples}: {:?}",
                        shown.collect::<Vec<_>>()
                    );
                }
            }
        }
    }

    #[test]
    fn keys_are_as_long_as_is_said_on_average() {
        for kind in MADE {
            let tuples = 1_000_000;
            let made = TextKind::new(kind, tuples).unwrap();
            let lengths = (0..tuples).step_by(37).map(|number| made.key(number).as_ref().len() as u64);
            let (count, sum) = lengths.fold((0, 0), |(count, sum), length| (count + 1, sum + length));
            let (mean, said) = (sum / count, kind.bytes_mean());
            assert!(mean.abs_diff(said) <= said / 5, "{kind:?}: {mean} bytes, not {said}");
        }
    }
}
