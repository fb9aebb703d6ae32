//! The faults of a simulated file, and when they occur.

use std::fmt;
use std::time::Duration;

/// The faults of a simulated file. Probabilities are from 0 (never, the default) to 1 (always).
///
/// # Examples
/// ```
/// use vellum_vm::{Faults, SimulatedFile};
/// let file = SimulatedFile::new(42);
/// file.set_faults(Faults { short: 0.1, read_error: 0.01, ..Faults::default() });
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Faults {
    /// A read or write moves only part of the bytes. It is continued, so no caller sees it.
    pub short: f64,
    /// A read or write is interrupted. It is repeated, so no caller sees it.
    pub interrupted: f64,
    /// A read fails with EIO and leaves arbitrary bytes in memory.
    pub read_error: f64,
    /// A write fails with EIO, having written any of its sectors.
    pub write_error: f64,
    /// A write beyond this many bytes fails with ENOSPC and changes nothing: growing reserved no storage, or a quota is
    /// used up.
    pub reserved_bytes: Option<u64>,
    /// A sync fails with EIO. Any of the changes that it was to make durable may never become so. Later syncs of the same
    /// opening fail too: see [`File::sync`](crate::File::sync).
    pub sync_error: f64,
    /// A sync after one that failed may succeed, although changes are lost: what systems do, and [`DiskFile`](crate::DiskFile)
    /// does not pass on.
    pub forgotten_failures: bool,
    /// What fails with EIO otherwise fails with ENOSPC if it is a sync: the file system finds room for writes late.
    pub full_syncs: bool,
    /// Growing or cutting fails with EIO and changes nothing.
    pub grow_error: f64,
    /// A write reports success and changes nothing.
    pub lost_write: f64,
    /// A write reports success and goes to another page of the file.
    pub misdirected_write: f64,
    /// A read returns one bit inverted.
    pub bit_flip_on_read: f64,
    /// A write stores one bit inverted.
    pub bit_flip_on_write: f64,
    /// The file cannot become larger than this: ENOSPC.
    pub capacity_bytes: Option<u64>,
    /// Reads and writes take up to this long, outside any lock, so that threads interleave in more ways.
    pub delay_max: Duration,
    /// What a crash leaves of unsynced changes.
    pub crash: CrashModel,
}

impl Faults {
    /// What is left once nothing fails any more.
    pub(super) fn healed(&self) -> Self {
        Self { crash: self.crash, forgotten_failures: self.forgotten_failures, ..Self::default() }
    }
}

/// What a crash leaves of the changes since the last sync.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CrashModel {
    /// One of the others, drawn at each crash.
    #[default]
    Any,
    /// Everything survives.
    KeepAll,
    /// Nothing survives.
    LoseAll,
    /// The first changes survive, up to any point.
    Prefix,
    /// Each change survives or not.
    Reorder,
    /// Each sector of 512 bytes of each write survives or not.
    Tear,
    /// Each change survives, or not, or, if it is a write, is torn.
    Mix,
}

impl CrashModel {
    /// All models from which [`Any`](Self::Any) chooses.
    pub const ALL: [Self; 6] =
        [Self::KeepAll, Self::LoseAll, Self::Prefix, Self::Reorder, Self::Tear, Self::Mix];
}

/// An operation on a file, as failures, counters and the history distinguish it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileOperation {
    /// A read, alone or one of a batch.
    Read,
    /// A write, alone or one of a batch.
    Write,
    /// A sync of a file, or of the directory.
    Sync,
    /// A change of the size: growing or cutting.
    Resize,
    /// Creating, removing or renaming a file.
    Name,
    /// Mapping words of a file.
    Map,
}

impl FileOperation {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Sync, Self::Resize, Self::Name, Self::Map];

    /// Its index in [`ALL`](Self::ALL).
    fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Sync => 2,
            Self::Resize => 3,
            Self::Name => 4,
            Self::Map => 5,
        }
    }
}

impl fmt::Display for FileOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Resize => "resize",
            Self::Name => "name",
            Self::Map => "map",
        })
    }
}

/// Counts of the operations on a file or disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OperationCounts {
    counts: [u64; FileOperation::ALL.len()],
    /// How many bytes were to be written to files, including lost writes but not failed ones.
    pub bytes_written: u64,
    /// How many faults happened, of every kind, including those that no caller sees.
    pub faults: u64,
    /// How many operations failed because of [`fail_nth`](crate::SimulatedFile::fail_nth) or a similar call.
    pub scheduled_failures: u64,
}

impl OperationCounts {
    /// How many operations of a kind there were, including failed ones.
    pub fn of(&self, operation: FileOperation) -> u64 {
        self.counts.get(operation.index()).copied().unwrap_or(0)
    }

    /// How many operations there were, including failed ones.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counts operations, and decides which of them fail.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    pub counts: OperationCounts,
    rules: Vec<Rule>,
}

/// "The operation with this number, and perhaps all after it, fail."
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Which operations are counted; all of them if `None`.
    operation: Option<FileOperation>,
    /// Counted from the beginning.
    number: u64,
    forever: bool,
}

impl Schedule {
    /// Makes the `nth` operation from now fail (the next one is the first), and all after it if `forever`.
    pub fn fail(&mut self, operation: Option<FileOperation>, nth: u64, forever: bool) {
        let number = self.count(operation).saturating_add(nth);
        self.rules.push(Rule { operation, number, forever });
    }

    /// Removes all rules, so that no operation fails any more.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Counts an operation; returns whether it fails.
    pub fn begin(&mut self, operation: FileOperation) -> bool {
        if let Some(count) = self.counts.counts.get_mut(operation.index()) {
            *count += 1;
        }
        let fails = self.rules.iter().any(|rule| {
            let number = self.count(rule.operation);
            let counted = rule.operation.is_none_or(|counted| counted == operation);
            counted && (number == rule.number || (rule.forever && number > rule.number))
        });
        self.counts.scheduled_failures += u64::from(fails);
        fails
    }

    fn count(&self, operation: Option<FileOperation>) -> u64 {
        operation.map_or_else(|| self.counts.total(), |operation| self.counts.of(operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FileOperation::{Read, Write};

    /// Which of these operations fail.
    fn failing(schedule: &mut Schedule, operations: &[FileOperation]) -> Vec<usize> {
        let begun: Vec<_> = operations.iter().map(|operation| schedule.begin(*operation)).collect();
        (0..begun.len()).filter(|index| begun[*index]).collect()
    }

    #[test]
    fn operations_fail_by_number_together_or_by_kind() {
        let mixed = [Read, Write, Write, Read, Write];
        let mut schedule = Schedule::default();
        schedule.fail(None, 2, false);
        schedule.fail(Some(Read), 2, false);
        assert_eq!(failing(&mut schedule, &mixed), [1, 3]);
        assert_eq!(failing(&mut schedule, &mixed), [0usize; 0]);
        schedule.fail(Some(Write), 2, true);
        assert_eq!(failing(&mut schedule, &mixed), [2, 4]);
        assert_eq!(failing(&mut schedule, &mixed), [1, 2, 4]);
        schedule.clear();
        assert_eq!(failing(&mut schedule, &mixed), [0usize; 0]);
        schedule.fail(None, 1, true);
        assert_eq!(failing(&mut schedule, &mixed), [0, 1, 2, 3, 4]);
        assert_eq!((schedule.counts.of(Read), schedule.counts.of(Write)), (12, 18));
        assert_eq!(schedule.counts.total(), 30);
        assert_eq!(schedule.counts.scheduled_failures, 12);
    }
}
