//! Records made durable one by one, each thread waiting for its own: what a log costs beside the device.
//!
//! - `raw`: pages of a file of its own for each thread, all of them written before; one write of as many
//!   whole pages as the record needs, and one sync a record;
//! - `log`: the write-ahead log, of which all threads share the syncs;
//! - `buffered`: the same, but a thread waits only until the operating system has its record;
//! - `transactions`: of a database with one table, each of which puts a record and is committed, synced.
//!
//! An operation is one record; a latency lasts until it is durable, or written.

use super::{Pace, Pass, run_threads, until_deadline};
use crate::{Result, config::LogMethod, measure::statistics::Latencies};
use std::{path::Path, sync::Arc};
use vellum::{Database, Options, Table};
use vellum_base::{Lsn, PAGE_SIZE};
use vellum_vm::{AlignedBuffer, CreateMode, DiskDirectory, DiskFile, File, FileOptions};
use vellum_wal::{Durability, Log, LogError, LogOptions};

/// The size of a file of raw writes, and of a segment of the log, in bytes.
const FILE_BYTES: u64 = 16 << 20;

/// What the threads write to. Made anew for each pass, which does not count.
pub enum LogFiles {
    /// A file for each thread.
    Raw(Vec<DiskFile>),
    /// One log.
    Log(Box<Log>, Durability),
    /// A database.
    Transactions(Database, Table),
}

impl LogFiles {
    /// Makes the files in an empty folder.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(folder: &Path, method: LogMethod, threads: usize) -> Result<Self> {
        let durability = match method {
            LogMethod::Raw => {
                return (0..threads).map(|thread| raw(folder, thread)).collect::<Result<_>>().map(Self::Raw);
            }
            LogMethod::Transactions => {
                let database = Database::create(folder.join("log.vellum"), &Options::default())?;
                let table = database.create_table("records")?;
                return Ok(Self::Transactions(database, table));
            }
            LogMethod::Log => Durability::Synced,
            LogMethod::Buffered => Durability::Buffered,
        };
        let directory = Arc::new(DiskDirectory::new(folder));
        let options = LogOptions { segment_bytes: FILE_BYTES, ..LogOptions::new(*b"lab: log records") };
        let log = Log::open(directory, &options, Lsn(0), |_| Ok::<_, LogError>(()))?;
        log.prepare()?;
        Ok(Self::Log(Box::new(log), durability))
    }
}

fn raw(folder: &Path, thread: usize) -> Result<DiskFile> {
    let options = FileOptions { create: CreateMode::CreateNew, ..FileOptions::default() };
    let file = DiskFile::open(&folder.join(format!("raw-{thread}")), &options)?;
    file.grow(FILE_BYTES)?;
    let zeroes = AlignedBuffer::new(1 << 20);
    for at in (0..FILE_BYTES).step_by(zeroes.len()) {
        file.write_from(at, &zeroes)?;
    }
    file.sync()?;
    Ok(file)
}

/// Writes records of so many bytes until the time is over.
///
/// # Errors
/// If a write or a sync fails.
pub fn pass(files: &LogFiles, record_bytes: usize, pace: &Pace) -> Result<Pass> {
    let prepare = |thread: usize| Ok((thread, Latencies::new()?));
    run_threads(pace.threads, prepare, |(thread, latencies), start| match files {
        LogFiles::Raw(files) => {
            let (file, pages) =
                (&files[thread], AlignedBuffer::new(record_bytes.next_multiple_of(PAGE_SIZE)));
            let mut offsets = (0..=FILE_BYTES - pages.len() as u64).step_by(pages.len()).cycle();
            until_deadline(pace, start, latencies, || {
                file.write_from(offsets.next().unwrap_or(0), &pages)?;
                Ok(file.sync()?)
            })
        }
        LogFiles::Log(log, durability) => {
            let record = vec![thread as u8; record_bytes];
            until_deadline(pace, start, latencies, || {
                let lsn = log.append(&record)?;
                log.wait(lsn, *durability)?;
                // As a checkpoint would: segments are used again.
                if lsn.0 % (4 * FILE_BYTES) < record_bytes as u64 {
                    log.discard(log.horizon(Durability::Buffered))?;
                }
                Ok(())
            })
        }
        LogFiles::Transactions(database, table) => {
            let record = vec![thread as u8; record_bytes];
            until_deadline(pace, start, latencies, || {
                let transaction = database.begin()?;
                transaction.put(table, thread.to_be_bytes(), &record)?;
                Ok(transaction.commit()?)
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Named;
    use std::time::Duration;

    #[test]
    fn every_method_writes_what_its_threads_ask_for() {
        for (method, ..) in LogMethod::ALL {
            let folder = tempfile::tempdir().unwrap();
            let files = LogFiles::create(folder.path(), *method, 3).unwrap();
            let pace = Pace {
                clients: 1,
                threads: 3,
                round: 0,
                duration: Duration::from_millis(50),
                sample_every: 1,
            };
            let pass = pass(&files, 200, &pace).unwrap();
            assert!(pass.operations >= 3 && pass.latencies.samples() >= 3);
            if let LogFiles::Log(log, durability) = &files {
                assert!(log.horizon(*durability) == log.end(), "every record was waited for");
            }
        }
    }
}
