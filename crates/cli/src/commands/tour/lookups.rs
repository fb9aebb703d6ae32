//! Reading values in random order, and scanning a prefix.

use super::{Tour, compare::Sample};
use crate::{
    failure::{Code, Failure, Result},
    progress::Progress,
    store::PART_BYTES,
    text::escaped,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use vellum::{Prefix, Table, pool::checksum};

/// How many values are read.
const READS: u64 = 10_000;
/// Values longer than this are read in part, in bytes.
const WHOLE_BYTES: u64 = 1 << 20;

/// The result of random reads.
pub struct Lookups {
    /// How many values were read.
    pub count: u64,
    /// How many bytes.
    pub bytes: u64,
    /// How long it took, without checking the values.
    pub time: Duration,
    /// Half of the reads took less, in nanoseconds.
    pub p50_ns: u64,
    /// 99 % of them took less, in nanoseconds.
    pub p99_ns: u64,
}

/// Reads ten thousand of the samples in random order, and checks what it reads.
pub fn read_at_random(tour: &Tour<'_>, table: &Table, samples: &[Sample]) -> Result<Lookups> {
    let mut random = StdRng::seed_from_u64(2023);
    let progress = Progress::steps(tour.general.quiet, "reading at random", Some(READS));
    let mut times = Vec::new();
    let (mut bytes, mut buffer) = (0, Vec::new());
    for _ in 0..READS {
        tour.check_interrupted()?;
        if samples.is_empty() {
            break;
        }
        let Some(sample) = samples.get(random.random_range(0..samples.len())) else { break };
        let start = Instant::now();
        let whole = sample.length <= WHOLE_BYTES.min(tour.pool_bytes / 8);
        let read = if whole {
            table.get_into(&sample.key, &mut buffer)?
        } else {
            let offset = random.random_range(0..sample.length);
            read_part(table, &sample.key, offset, &mut buffer)?
        };
        times.push(start.elapsed());
        if !read || (whole && checksum(&buffer) != sample.checksum) {
            let message = format!("the value of {} is not what it was a moment ago", escaped(&sample.key));
            return Err(Failure::new(Code::Damaged, message));
        }
        bytes += buffer.len() as u64;
        progress.advance(1);
    }
    times.sort_unstable();
    let rank = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
    let nanoseconds =
        |percent| rank(percent).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    Ok(Lookups {
        count: times.len() as u64,
        bytes,
        time: times.iter().sum(),
        p50_ns: nanoseconds(50),
        p99_ns: nanoseconds(99),
    })
}

fn read_part(table: &Table, key: &[u8], offset: u64, buffer: &mut Vec<u8>) -> Result<bool> {
    let Some(mut reader) = table.reader(key)? else { return Ok(false) };
    buffer.resize(PART_BYTES, 0);
    let done = reader.read_at(offset, buffer)?;
    buffer.truncate(done);
    Ok(true)
}

/// The result of scanning a prefix.
pub struct Scan {
    /// The prefix.
    pub prefix: Vec<u8>,
    /// How many keys begin with it.
    pub entries: u64,
    /// The bytes of these keys, and of those values that are stored beside them.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// The top directory that most of the samples share; if none is in a directory, the first byte that most share.
pub fn common_prefix(samples: &[Sample]) -> Vec<u8> {
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    for sample in samples {
        let directory = sample.key.iter().position(|byte| *byte == b'/').map_or(0, |at| at + 1);
        if let Some(directory) = sample.key.get(..directory).filter(|directory| !directory.is_empty()) {
            *counts.entry(directory).or_default() += 1;
        }
    }
    if counts.is_empty() {
        for first in samples.iter().filter_map(|sample| sample.key.get(..1)) {
            *counts.entry(first).or_default() += 1;
        }
    }
    // Of several equally common ones, the first.
    let most = counts.into_iter().max_by(|one, other| one.1.cmp(&other.1).then(other.0.cmp(one.0)));
    most.map(|(prefix, _)| prefix.to_vec()).unwrap_or_default()
}

/// Walks all entries whose keys begin with `prefix`.
pub fn scan_prefix(table: &Table, prefix: Vec<u8>) -> Result<Scan> {
    let start = Instant::now();
    let (mut entries, mut bytes) = (0, 0);
    let mut cursor = table.cursor(Prefix(&prefix))?;
    while let Some(entry) = cursor.next()? {
        if !entry.key().starts_with(&prefix) {
            let message = format!("{} does not begin with {}", escaped(entry.key()), escaped(&prefix));
            return Err(Failure::new(Code::Damaged, message));
        }
        entries += 1;
        bytes += (entry.key().len() + entry.inline_value().map_or(0, <[u8]>::len)) as u64;
    }
    Ok(Scan { prefix, entries, bytes, time: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(keys: &[&str]) -> Vec<Sample> {
        let sample =
            |key: &&str| Sample { key: key.as_bytes().into(), length: 0, checksum: 0, is_text: false };
        keys.iter().map(sample).collect()
    }

    #[test]
    fn the_prefix_is_the_most_common_directory() {
        assert_eq!(common_prefix(&samples(&["a/1", "b/1", "b/2/3", "c"])), b"b/");
        assert_eq!(common_prefix(&samples(&["b/1", "a/1"])), b"a/");
        assert_eq!(common_prefix(&samples(&["xa", "ya", "yb"])), b"y");
        assert_eq!(common_prefix(&[]), b"");
    }
}
