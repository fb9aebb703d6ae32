//! What is printed of recoveries.

use super::reporter::{Reporter, align, number, table};
use bytesize::ByteSize;
use serde::Serialize;
use std::io::{self, Write};

/// How one database was opened that a killed process has left; or the medians of several.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// `recovery`, or `recovery_summary` for medians.
    pub kind: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// The number of the round, from 1; how many there were, of medians.
    pub round: usize,
    /// The limit of the pool.
    pub pool_bytes: u64,
    /// The size of the data as it lies in pages.
    pub data_bytes: u64,
    /// How much log was redone.
    pub log_bytes: u64,
    /// In so many records.
    pub log_records: u64,
    /// How many changes of transactions that were open were undone.
    pub undone_changes: u64,
    /// Whether the files had left the system's cache.
    pub is_cold: bool,
    /// From the call until the database was open.
    pub open_seconds: f64,
    /// From the call until all pages were redone, the first transaction among that.
    pub redone_seconds: f64,
    /// The time of all processors for that.
    pub processor_seconds: f64,
    /// The log by the time until all pages were redone.
    pub mib_per_second: f64,
    /// The log by the time of all processors: what one core redoes in a second.
    pub mib_per_processor_second: f64,
    /// Read from storage meanwhile.
    pub bytes_read: u64,
    /// Written to storage meanwhile.
    pub bytes_written: u64,
    /// How long the first transaction took then, which read one record.
    pub first_transaction_seconds: f64,
    /// How long it took to close the database.
    pub close_seconds: f64,
    /// How long it took to open it after that.
    pub clean_open_seconds: f64,
}

impl Reporter {
    /// One recovery as soon as it is done.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn recovered(&self, recovered: &Recovered) -> crate::Result<()> {
        if !self.json {
            let (log, open) = (ByteSize(recovered.log_bytes), recovered.open_seconds);
            eprintln!("round {}: {log} of log, open after {open:.2} s", recovered.round);
        }
        self.object(recovered)
    }

    /// The end of a run: the medians.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub fn recoveries(&self, medians: &[Recovered]) -> crate::Result<()> {
        if self.json {
            return medians.iter().try_for_each(|median| self.object(median));
        }
        let mut table = table(&[
            "workload",
            "pool",
            "data",
            "log",
            "records",
            "open",
            "first transaction",
            "all redone",
            "MiB/s",
            "MiB/s a core",
            "close",
            "clean open",
        ]);
        for median in medians {
            table.add_row([
                median.workload.to_owned(),
                ByteSize(median.pool_bytes).to_string(),
                ByteSize(median.data_bytes).to_string(),
                ByteSize(median.log_bytes).to_string(),
                number(median.log_records as f64),
                format!("{:.2} s", median.open_seconds),
                format!("{:.1} ms", 1e3 * median.first_transaction_seconds),
                format!("{:.2} s", median.redone_seconds),
                format!("{:.0}", median.mib_per_second),
                format!("{:.0}", median.mib_per_processor_second),
                format!("{:.2} s", median.close_seconds),
                format!("{:.1} ms", 1e3 * median.clean_open_seconds),
            ]);
        }
        Ok(writeln!(io::stdout().lock(), "{}", align(table))?)
    }
}
