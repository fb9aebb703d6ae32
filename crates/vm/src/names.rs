//! The names that options and statistics give to the methods of releasing pages and of reaching a device.

use std::fmt;

/// How the memory of pages is given back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReleaseMethod {
    /// `process_madvise` on the own process: one call per batch.
    ProcessMadvise,
    /// `madvise`: one call per range.
    Madvise,
    /// `/dev/exmap`: one call per batch.
    Exmap,
}

impl fmt::Display for ReleaseMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProcessMadvise => "process_madvise",
            Self::Madvise => "madvise",
            Self::Exmap => "exmap",
        })
    }
}

/// How requests reach the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum IoEngine {
    /// io_uring: batches overlap.
    IoUring,
    /// `pread` and `pwrite`, one after the other.
    Pread,
    /// No device at all: [`SimulatedFile`](crate::SimulatedFile).
    Simulated,
}

impl fmt::Display for IoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::Pread => "pread",
            Self::Simulated => "simulated",
        })
    }
}
