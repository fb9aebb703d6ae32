//! Kinds of keys of bytes, one of which is chosen when the program runs.

use super::{files::Entries, made, text::Text, url::url};
use crate::Result;
use crate::config::KeyKind;
use std::sync::OnceLock;

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
