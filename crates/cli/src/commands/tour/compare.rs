//! Compares every value with the file that it came from, byte for byte.

use super::{ATTRIBUTES_TABLE, Tour};
use crate::{
    arguments::DEFAULT_TABLE,
    failure::{Failure, Result},
    files::{self, Attributes},
    progress::Progress,
    store::{self, PART_BYTES},
    text::escaped,
    workers,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{
    ffi::OsStr,
    io::{self, Read},
    os::unix::ffi::OsStrExt as _,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use vellum::{Database, Table, pool::ChecksumStream};

/// How many keys are kept for random reads.
pub const SAMPLES: usize = 10_000;
/// How many names are kept of each list.
const NAMES: usize = 20;

/// Things that are counted, and the first few of them.
#[derive(Clone, Default)]
pub struct Named {
    /// How many.
    pub count: u64,
    /// The first few.
    pub first: Vec<String>,
}

impl Named {
    /// Adds one.
    pub fn add(&mut self, name: String) {
        self.count += 1;
        if self.first.len() < NAMES {
            self.first.push(name);
        }
    }
}

/// A randomly chosen key.
pub struct Sample {
    /// The key.
    pub key: Vec<u8>,
    /// The length of its value.
    pub length: u64,
    /// The checksum of its value.
    pub checksum: u64,
    /// Whether the value looks like text at its beginning.
    pub is_text: bool,
}

/// The result of the comparison.
#[derive(Default)]
pub struct Comparison {
    /// Values that were compared.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are equal to what was imported.
    pub same: u64,
    /// Files that were changed or removed since they were imported.
    pub changed: Named,
    /// Files that cannot be read any more.
    pub unreadable: Named,
    /// Files that differ from what was imported, although they were not changed.
    pub different: Named,
    /// Files that were imported and are not in the database.
    pub missing: u64,
    /// Randomly chosen keys.
    pub samples: Vec<Sample>,
}

/// How a file compares.
enum Verdict {
    Same,
    Changed,
    Unreadable(io::Error),
    Different,
}

/// The state shared by the threads.
struct Comparer<'c> {
    tour: &'c Tour<'c>,
    table: &'c Table,
    attributes: &'c Table,
    progress: &'c Progress,
    found: Mutex<Comparison>,
    random: Mutex<StdRng>,
    stopped: AtomicBool,
    failure: Mutex<Option<Failure>>,
    seen: AtomicU64,
}

/// Locks a mutex, even if another thread has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Comparison {
    /// Compares everything.
    pub fn run(tour: &Tour<'_>, database: &Database) -> Result<Self> {
        let table = store::table(database, DEFAULT_TABLE)?;
        let attributes = store::table(database, ATTRIBUTES_TABLE)?;
        let progress = Progress::bytes(tour.general.quiet, "comparing", Some(tour.source.bytes));
        let comparer = Comparer {
            tour,
            table: &table,
            attributes: &attributes,
            progress: &progress,
            found: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(2023)),
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            seen: AtomicU64::new(0),
        };
        let walked = workers::run(
            tour.threads,
            |jobs| -> Result {
                let mut cursor = table.cursor(..)?;
                while let Some(entry) = cursor.next()? {
                    tour.check_interrupted()?;
                    let job = (entry.key().to_vec(), entry.value_length());
                    if comparer.stopped.load(Ordering::Relaxed) || !jobs.give(job) {
                        break;
                    }
                }
                Ok(())
            },
            |(key, length)| comparer.work(key, length),
        );
        walked??;
        let unlock = |poisoned: std::sync::PoisonError<_>| poisoned.into_inner();
        if let Some(failure) = comparer.failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
        {
            return Err(failure);
        }
        Ok(comparer.found.into_inner().unwrap_or_else(unlock))
    }
}

impl Comparer<'_> {
    fn work(&self, key: Vec<u8>, length: u64) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut facts = Facts::default();
        let verdict = match self.compare(&key, length, &mut facts) {
            Ok(verdict) => verdict,
            Err(failure) => {
                self.stopped.store(true, Ordering::Relaxed);
                lock(&self.failure)
                    .get_or_insert(failure.after(format_args!("cannot read {}", escaped(&key))));
                return;
            }
        };
        self.progress.advance(length);
        let is_same = matches!(verdict, Verdict::Same);
        {
            let mut found = lock(&self.found);
            found.entries += 1;
            found.bytes += length;
            match verdict {
                Verdict::Same => found.same += 1,
                Verdict::Changed => found.changed.add(escaped(&key)),
                Verdict::Unreadable(error) => found.unreadable.add(format!("{}: {error}", escaped(&key))),
                Verdict::Different => found.different.add(escaped(&key)),
            }
        }
        if is_same {
            self.sample(Sample { key, length, checksum: facts.checksum.finish(), is_text: facts.is_text });
        }
    }

    /// Keeps a random sample of all keys, each with the same probability (reservoir sampling, Vitter's algorithm R).
    fn sample(&self, sample: Sample) {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        let at = lock(&self.random).random_range(0..=seen);
        let samples = &mut lock(&self.found).samples;
        if samples.len() < SAMPLES {
            samples.push(sample);
        } else if let Some(place) = usize::try_from(at).ok().and_then(|at| samples.get_mut(at)) {
            *place = sample;
        }
    }

    fn compare(&self, key: &[u8], length: u64, facts: &mut Facts) -> Result<Verdict> {
        let path = self.tour.source.root.join(OsStr::from_bytes(key));
        let opened = files::open(&path);
        let (mut file, now) = match opened {
            Ok((file, metadata)) => (file, Attributes::of(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Verdict::Changed),
            Err(error) => return Ok(Verdict::Unreadable(error)),
        };
        let same = if now.length != length {
            Ok(false)
        } else if length <= self.tour.pool_bytes / 8 {
            let value = self.table.value(key)?.ok_or_else(|| vanished(key))?;
            facts.take(&value);
            equals(&mut file, &value)
        } else {
            self.compare_parts(key, &mut file, facts)?
        };
        match same {
            Ok(true) => Ok(Verdict::Same),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Ok(Verdict::Unreadable(error)),
            _ => {
                let then = self.attributes.get(key)?.as_deref().and_then(Attributes::decode);
                // Checked again: the file may have been changed while it was being compared.
                let now = file.metadata().map_or(now, |metadata| Attributes::of(&metadata));
                Ok(if then == Some(now) { Verdict::Different } else { Verdict::Changed })
            }
        }
    }

    fn compare_parts(&self, key: &[u8], file: &mut impl Read, facts: &mut Facts) -> Result<io::Result<bool>> {
        let mut reader = self.table.reader(key)?.ok_or_else(|| vanished(key))?;
        let mut same = Ok(true);
        store::read_parts(&mut reader, u64::MAX, |part| {
            if matches!(same, Ok(true)) {
                self.tour.check_interrupted()?;
                facts.take(part);
                same = equals(file, part);
            }
            Ok(())
        })?;
        Ok(same)
    }
}

/// Facts about a value that are collected on the way.
#[derive(Default)]
struct Facts {
    checksum: ChecksumStream,
    is_text: bool,
    begun: bool,
}

impl Facts {
    fn take(&mut self, part: &[u8]) {
        self.checksum.update(part);
        if !self.begun {
            let beginning = part.get(..part.len().min(512)).unwrap_or_default();
            let is_text = |byte: &u8| matches!(byte, b'\n' | b'\r' | b'\t' | b' '..=b'~');
            self.is_text = !part.is_empty() && beginning.iter().all(is_text);
            self.begun = true;
        }
    }
}

fn vanished(key: &[u8]) -> Failure {
    let message = format!("the key {} was there a moment ago and is gone; run `vellum verify`", escaped(key));
    Failure::new(crate::failure::Code::Damaged, message)
}

/// Whether the next bytes of a file are these.
fn equals(file: &mut impl Read, expected: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; PART_BYTES.min(expected.len())];
    for expected in expected.chunks(PART_BYTES) {
        let part = buffer.get_mut(..expected.len()).unwrap_or_default();
        file.read_exact(part)?;
        if part != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{place::Place, source::Source},
        *,
    };
    use crate::arguments::General;
    use vellum::Options;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let bytes: Vec<u8> = (0..3 * PART_BYTES + 5).map(|index| index as u8).collect();
        assert!(equals(&mut &bytes[..], &bytes).unwrap());
        for at in [0, PART_BYTES - 1, PART_BYTES, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(!equals(&mut &wrong[..], &bytes).unwrap(), "byte {at}");
        }
        assert!(equals(&mut &bytes[1..], &bytes).is_ok_and(|same| !same));
        let short = equals(&mut &bytes[..7], &bytes).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn files_that_changed_are_told_from_values_that_are_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        let place = Place::prepare(&directory.path().join("d"), false).unwrap();
        let database = Database::create(&place.path, &Options::default()).unwrap();
        let table = database.create_table(DEFAULT_TABLE).unwrap();
        let attributes = database.create_table(ATTRIBUTES_TABLE).unwrap();
        let large = vec![7; 100_000];
        for (name, contents, stored) in [
            ("same", &b"abc"[..], &b"abc"[..]),
            ("same and large", &large, &large),
            ("wrong", b"abc", b"abd"),
            ("wrong and large", &large, &[&large[1..], b"x"].concat()),
            ("wrong length", b"abc", b"ab"),
            ("changed", b"abc", b"abd"),
            ("removed", b"abc", b"abc"),
        ] {
            std::fs::write(root.join(name), contents).unwrap();
            table.put(name, stored).unwrap();
            let metadata = std::fs::metadata(root.join(name)).unwrap();
            attributes.put(name, Attributes::of(&metadata).encode()).unwrap();
        }
        attributes.put("changed", Attributes { length: 3, changed_ns: 1 }.encode()).unwrap();
        std::fs::remove_file(root.join("removed")).unwrap();
        std::fs::create_dir(root.join("directory")).unwrap();
        table.put("directory", "").unwrap();
        let tour = Tour {
            source: Source { root, files: 0, bytes: 0, oversized: 0, storage_bytes: 0 },
            place,
            options: Options::default(),
            // Small, so that large values are compared in parts.
            pool_bytes: 1 << 19,
            threads: 2,
            general: &General { json: false, quiet: true },
        };
        let mut found = Comparison::run(&tour, &database).unwrap();
        found.different.first.sort();
        found.changed.first.sort();
        assert_eq!(found.different.first, ["wrong", "wrong and large", "wrong length"]);
        assert_eq!(found.changed.first, ["changed", "removed"]);
        assert_eq!((found.unreadable.count, found.same, found.entries), (1, 2, 8));
        let mut samples: Vec<_> =
            found.samples.iter().map(|sample| (&sample.key[..], sample.length)).collect();
        samples.sort_unstable();
        assert_eq!(samples, [(&b"same"[..], 3), (b"same and large", 100_000)]);
    }

    #[test]
    fn lists_keep_counting_when_they_are_full() {
        let mut named = Named::default();
        (0..50).for_each(|number| named.add(number.to_string()));
        assert_eq!((named.count, named.first.len()), (50, NAMES));
    }
}
