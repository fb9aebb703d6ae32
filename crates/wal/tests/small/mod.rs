//! Small logs on a simulated disk.

use std::sync::Arc;
use vellum_base::Lsn;
use vellum_vm::SimulatedDisk;
use vellum_wal::{Log, LogError, LogOptions};

/// A small log, of which few records fill segments and the buffer.
pub fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 << 10, buffer_bytes: 8 << 10, ..LogOptions::new([7; 16]) }
}

/// Opens a log on a simulated disk; also returns the places of its records.
pub fn open(disk: &SimulatedDisk, options: &LogOptions) -> (Log, Vec<Lsn>) {
    let mut found = Vec::new();
    let log = Log::open(Arc::new(disk.clone()), options, Lsn(0), |record| {
        found.push(record.lsn);
        Ok::<_, LogError>(())
    });
    (log.unwrap(), found)
}
