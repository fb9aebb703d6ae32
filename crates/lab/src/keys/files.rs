//! Keys from the machine's own files: their paths, and the words that are in them.
//!
//! A table that has more tuples than there are entries has several of each, told apart by a number after a space: lines of a file, or
//! uses of a word. Entries are in memory, so they count in the resident size.

use super::text::{TEXT_BYTES_MAX, Text};
use crate::Result;
use std::{collections::HashSet, fs, io::Read, path::Path};

/// Entries are so long at most: there is room for the number.
const ENTRY_BYTES_MAX: usize = TEXT_BYTES_MAX - 21;
/// So many entries are enough for the largest tables, and so many for any.
const PATHS_MAX: u64 = 4_000_000;
const WORDS_MAX: u64 = 1_000_000;
const ENTRIES_MIN: u64 = 50_000;
/// No more is read of one file, and of all, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const ALL_BYTES_MAX: u64 = 512 << 20;
/// Words are so long.
const WORD_BYTES: std::ops::RangeInclusive<usize> = 2..=32;
/// What changes while it is looked at.
const PASSING: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];

/// Entries in order, one after the other.
#[derive(Debug)]
pub struct Entries {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<u32>,
    tuples: u64,
    /// How many keys each entry has, and how many digits tell them apart.
    each: u64,
    digits: usize,
}

impl Entries {
    /// The paths of all files.
    ///
    /// # Errors
    /// If there are hardly any.
    pub fn of_paths(tuples: u64) -> Result<Self> {
        let mut found = HashSet::new();
        walk(Path::new("/"), &mut |path| {
            if let Some(path) = path.to_str() {
                add(&mut found, path);
            }
            !is_enough(found.len(), tuples, PATHS_MAX)
        });
        Self::new(found, tuples)
    }

    /// The words of the texts below `/usr`, in small letters.
    ///
    /// # Errors
    /// As for [`of_paths`](Self::of_paths).
    pub fn of_words(tuples: u64) -> Result<Self> {
        let (mut found, mut left) = (HashSet::new(), ALL_BYTES_MAX);
        let mut bytes = Vec::new();
        walk(Path::new("/usr"), &mut |path| {
            bytes.clear();
            let read =
                fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
            left = left.saturating_sub(bytes.len() as u64);
            // What has zeroes is no text.
            if read.is_ok() && !bytes.contains(&0) {
                bytes.make_ascii_lowercase();
                for word in bytes.split(|byte| !byte.is_ascii_lowercase()) {
                    if WORD_BYTES.contains(&word.len())
                        && let Ok(word) = std::str::from_utf8(word)
                    {
                        add(&mut found, word);
                    }
                }
            }
            left > 0 && !is_enough(found.len(), tuples, WORDS_MAX)
        });
        Self::new(found, tuples)
    }

    fn new(found: HashSet<Box<str>>, tuples: u64) -> Result<Self> {
        /// Fewer are not what somebody has.
        const LEAST: usize = 1000;
        if found.len() < LEAST && !cfg!(test) || found.is_empty() {
            return Err(format!("only {} entries were found in this machine's files", found.len()).into());
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable();
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(found.len()));
        for entry in &found {
            bytes.extend_from_slice(entry.as_bytes());
            ends.push(u32::try_from(bytes.len())?);
        }
        let each = tuples.div_ceil(found.len() as u64).max(1);
        let digits = (each - 1).checked_ilog10().map_or(1, |digits| digits as usize + 1);
        Ok(Self { bytes, ends, tuples, each, digits })
    }

    /// The key of tuple `index`.
    pub fn key(&self, index: u64) -> Text {
        let mut key = Text::default();
        let count = self.ends.len() as u64;
        if self.each == 1 {
            // As many tuples as entries or fewer, which are taken from everywhere.
            key.push(
                self.entry((u128::from(index) * u128::from(count) / u128::from(self.tuples.max(1))) as u64),
            );
        } else {
            key.push(self.entry(index / self.each));
            key.push(b" ");
            key.push_digits(index % self.each, self.digits);
        }
        key
    }

    fn entry(&self, number: u64) -> &[u8] {
        let number = number as usize % self.ends.len();
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from as usize..self.ends[number] as usize]
    }
}

/// Whether there are enough entries for so many tuples: a small table has words and paths from a part of the files only.
fn is_enough(found: usize, tuples: u64, max: u64) -> bool {
    found as u64 >= tuples.saturating_mul(16).clamp(ENTRIES_MIN, max)
}

/// Adds an entry, if it is short enough, and has nothing that would come before the space in front of a number.
fn add(found: &mut HashSet<Box<str>>, entry: &str) {
    if entry.len() <= ENTRY_BYTES_MAX && entry.bytes().all(|byte| byte > b' ') && !found.contains(entry) {
        found.insert(entry.into());
    }
}

/// Shows all files below a folder, in their order, until `show` has seen enough; follows no links. What cannot be read is left out.
fn walk(folder: &Path, show: &mut impl FnMut(&Path) -> bool) -> bool {
    if PASSING.iter().any(|passing| Path::new(passing) == folder) {
        return true;
    }
    let Ok(entries) = fs::read_dir(folder) else { return true };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        let goes_on = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => walk(&path, show),
            Ok(metadata) if metadata.is_file() => show(&path),
            _ => true,
        };
        if !goes_on {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_numbers_however_many_there_are() {
        let found: HashSet<Box<str>> = ["/a", "/a-b", "/a.txt", "/a/b", "/ab", "/b"].map(Into::into).into();
        for tuples in [1, 2, 5, 6, 7, 13, 61, 1000] {
            let entries = Entries::new(found.clone(), tuples).unwrap();
            let keys: Vec<Text> = (0..tuples).map(|index| entries.key(index)).collect();
            assert!(keys.windows(2).all(|pair| pair[0].as_ref() < pair[1].as_ref()), "{tuples}: {keys:?}");
        }
        assert!(Entries::new(HashSet::new(), 1).is_err());
    }

    #[test]
    fn files_are_shown_in_their_order_until_enough_were_seen() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b/2", "a", "b/1", "c"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "words").unwrap();
        }
        std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
        for enough in 1..=4 {
            let mut seen = Vec::new();
            let is_over = !walk(folder.path(), &mut |path| {
                seen.push(path.strip_prefix(folder.path()).unwrap().to_owned());
                seen.len() < enough
            });
            let expected = ["a", "b/1", "b/2", "c"].map(std::path::PathBuf::from);
            assert_eq!((seen, is_over), (expected[..enough].to_vec(), true));
        }
    }
}
