//! Where the log has what was written past it, the contents of large values and of bulk-loaded nodes, if it is to have
//! them.

use crate::{TxnError, records::LogRecord};
use std::{collections::BTreeMap, ops::Range};
use vellum_base::{Extent, Lsn, PAGE_SIZE};
use vellum_wal::{Durability, FollowedLog, LogError};

/// The records of contents that have been read, and to which no change has referred yet.
#[derive(Default)]
pub(super) struct Contents {
    /// By their first pages. Runs do not overlap.
    runs: BTreeMap<u64, Run>,
}

/// Consecutive pages, the record that has them, and the first page in that record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    pages: Range<u64>,
    lsn: Lsn,
    first: u64,
}

impl Contents {
    /// Adds a record at `lsn` that has `bytes` bytes of pages, from `first` on.
    pub fn add(&mut self, first: u64, bytes: usize, lsn: Lsn) {
        let pages = first..first.saturating_add((bytes / PAGE_SIZE) as u64);
        // The former contents of these pages are gone.
        self.cut(&pages);
        self.runs.insert(first, Run { pages, lsn, first });
    }

    /// Gives the contents of an extent to the change that refers to it.
    pub fn take(&mut self, pages: Range<u64>, taken: &mut LoggedPages) {
        taken.runs.append(&mut self.cut(&pages));
    }

    /// Forgets contents to which no change has referred for so long that none will.
    pub fn forget_before(&mut self, lsn: Lsn) {
        self.runs.retain(|_, run| run.lsn >= lsn);
    }

    /// The place of the oldest contents from a place on.
    pub fn oldest(&self, from: Lsn) -> Option<Lsn> {
        self.runs.values().map(|run| run.lsn).filter(|lsn| *lsn >= from).min()
    }

    /// Takes these pages out of the runs.
    fn cut(&mut self, pages: &Range<u64>) -> Vec<Run> {
        let mut cut = Vec::new();
        while let Some((first, run)) = self.runs.range(..pages.end).next_back()
            && run.pages.end > pages.start
        {
            let first = *first;
            let Some(run) = self.runs.remove(&first) else { break };
            let inner = run.pages.start.max(pages.start)..run.pages.end.min(pages.end);
            for rest in [run.pages.start..inner.start, inner.end..run.pages.end] {
                if !rest.is_empty() {
                    self.runs.insert(rest.start, Run { pages: rest, ..run.clone() });
                }
            }
            cut.push(Run { pages: inner, ..run });
        }
        cut
    }
}

/// Pages that are in the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LoggedPages {
    runs: Vec<Run>,
}

impl LoggedPages {
    pub fn append(&mut self, other: &Self) {
        self.runs.extend_from_slice(&other.runs);
    }

    pub fn sort(&mut self) {
        self.runs.sort_by_key(|run| run.pages.start);
    }

    /// The place of the oldest record that has some of them.
    pub fn oldest(&self) -> Option<Lsn> {
        self.runs.iter().map(|run| run.lsn).min()
    }
}

/// Reads pages that are in the log.
pub(super) struct PagesReader<'p> {
    source: &'p FollowedLog,
    pages: &'p LoggedPages,
    /// The record that was read last, and its contents.
    last: Option<(Lsn, Vec<u8>)>,
}

impl<'p> PagesReader<'p> {
    pub fn new(source: &'p FollowedLog, pages: &'p LoggedPages) -> Self {
        Self { source, pages, last: None }
    }

    /// Reads an extent; false if the log does not have it, or no longer has it.
    pub fn read(&mut self, extent: Extent, target: &mut [u8]) -> Result<bool, TxnError> {
        let (mut at, end) = (extent.head.0, extent.end().0);
        while at < end {
            let runs = &self.pages.runs;
            let before = runs.partition_point(|run| run.pages.start <= at);
            let run = before.checked_sub(1).and_then(|index| runs.get(index));
            let Some(run) = run.filter(|run| run.pages.contains(&at)) else { return Ok(false) };
            if self.last.as_ref().is_none_or(|(last, _)| *last != run.lsn) {
                let Some(bytes) = self.record(run.lsn)? else { return Ok(false) };
                self.last = Some((run.lsn, bytes));
            }
            let upto = end.min(run.pages.end);
            let bytes = self.last.as_ref().and_then(|(_, bytes)| bytes.get(within(run.first, at..upto)));
            match (target.get_mut(within(extent.head.0, at..upto)), bytes) {
                (Some(target), Some(bytes)) => target.copy_from_slice(bytes),
                _ => return Ok(false),
            }
            at = upto;
        }
        Ok(true)
    }

    /// The contents in the record at a place; `None` if that part of the log has been given up.
    fn record(&self, lsn: Lsn) -> Result<Option<Vec<u8>>, TxnError> {
        let mut found = None;
        let durable = self.source.log().horizon(Durability::Synced);
        let read = self.source.read(lsn).read(durable, |record| {
            if let LogRecord::Contents(_, bytes) = LogRecord::decode(record.payload) {
                found = Some(bytes.to_vec());
            }
            Ok::<_, LogError>(false)
        });
        match read {
            Ok(()) => Ok(found),
            Err(LogError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The byte range of pages within a run that begins with the page `first`.
fn within(first: u64, pages: Range<u64>) -> Range<usize> {
    let bytes = |page: u64| (page - first) as usize * PAGE_SIZE;
    bytes(pages.start)..bytes(pages.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(contents: &mut Contents, pages: Range<u64>) -> Vec<(Range<u64>, u64)> {
        let mut taken = LoggedPages::default();
        contents.take(pages, &mut taken);
        taken.sort();
        taken.runs.into_iter().map(|run| (run.pages, run.lsn.0)).collect()
    }

    #[test]
    fn the_last_record_of_a_page_counts_and_those_of_several_extents_stay() {
        let mut contents = Contents::default();
        contents.add(10, 4 * PAGE_SIZE, Lsn(1));
        contents.add(14, 2 * PAGE_SIZE, Lsn(2));
        contents.add(20, PAGE_SIZE, Lsn(3));
        assert_eq!(taken(&mut contents, 12..16), [(12..14, 1), (14..16, 2)]);
        assert_eq!(contents.oldest(Lsn(0)), Some(Lsn(1)));
        contents.add(11, PAGE_SIZE, Lsn(4));
        assert_eq!(taken(&mut contents, 10..12), [(10..11, 1), (11..12, 4)]);
        assert_eq!((contents.oldest(Lsn(0)), contents.oldest(Lsn(4))), (Some(Lsn(3)), None));
        contents.forget_before(Lsn(4));
        assert_eq!(taken(&mut contents, 0..100), []);
    }
}
