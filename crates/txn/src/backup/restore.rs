//! Restores a database from backups: the pages of all of them, later ones over earlier ones, and the log of the last.
//! The database is then as after a crash, and a recovery brings it to the state at the end of the last backup.

use super::{
    point::{PointInTime, RestoredPoint, replay},
    reader::{BackupFile, Part},
};
use crate::{TxnError, backup_error::BackupError};
use std::sync::Arc;
use vellum_base::{Extent, PAGE_SIZE, PageId};
use vellum_pool::PoolError;
use vellum_vm::{CreateMode, Directory, File, FileOptions, IoEngine};

/// Writes a full backup, and increments in order, to an empty file, and the log to a directory that must hold none.
/// Opening the file recovers it. With a point in time the log leads there, in segments of `segment_bytes`. `progress`
/// is told how many pages of how many are written; if it returns false, the restore stops.
///
/// # Errors
/// If a backup is not based on the one before it, one of them is damaged, or something cannot be written.
pub fn restore(
    backups: &[&BackupFile],
    file: &dyn File,
    log: &dyn Directory,
    point: Option<(&PointInTime, u64)>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<RestoredPoint>, TxnError> {
    check_order(backups)?;
    let Some((last, _)) = backups.split_last() else { return Ok(None) };
    let pages = backups.iter().map(|backup| backup.file_pages()).max().unwrap_or(0);
    let bytes = pages * PAGE_SIZE as u64;
    file.grow(bytes).map_err(|source| PoolError::StorageFull { bytes, source })?;
    let total = backups.iter().map(|backup| backup.sizes().0).sum();
    let mut done = 0;
    // The segment that is being written, and its number.
    let mut segment: Option<(u64, Arc<dyn File>)> = None;
    for backup in backups {
        let has_log = std::ptr::eq(*backup, *last) && last.segment_bytes() > 0 && point.is_none();
        backup.read_parts(|part| match part {
            Part::Pages(places, bytes) => {
                write_pages(file, places, bytes, pages)?;
                done += (bytes.len() / PAGE_SIZE) as u64;
                if progress(done, total) { Ok(()) } else { Err(BackupError::Stopped.into()) }
            }
            Part::Log((number, offset), bytes) if has_log => {
                let failed = |source| BackupError::WriteRestored { source };
                let current = segment.take_if(|(current, _)| *current == number);
                let file = match current {
                    Some((_, file)) => file,
                    None => {
                        // A log is in the order of its segments, and may have more than can be open.
                        sync(segment.take())?;
                        make_segment(log, number, last.segment_bytes())?
                    }
                };
                let (_, file) = segment.insert((number, file));
                Ok(file.write_from(offset, bytes).map_err(failed)?)
            }
            Part::Log(..) => Ok(()),
        })?;
    }
    let has_log = segment.is_some();
    sync(segment)?;
    log.sync().map_err(|source| BackupError::WriteRestored { source })?;
    let replayed =
        point.map(|(point, segment_bytes)| replay((last, point), file, log, segment_bytes)).transpose()?;
    let end = replayed.map_or(last.file_pages(), |(_, end)| end);
    last.basis().install(file, end, replayed.is_some() || has_log)?;
    Ok(replayed.map(|(point, _)| point))
}

/// Whether the first is a full backup, and every other one is based on the one before it.
fn check_order(backups: &[&BackupFile]) -> Result<(), BackupError> {
    if let Some(first) = backups.first()
        && first.former().is_some()
    {
        return Err(BackupError::Order(
            "the first backup is an increment, which holds only what changed since another backup: name the full backup first, and \
             then all increments in the order in which they were made"
                .to_owned(),
        ));
    }
    let pairs = backups.windows(2).enumerate();
    for (index, pair) in pairs.map(|(index, pair)| (index + 2, pair)) {
        let [before, after] = pair else { continue };
        let why = if after.former().is_none() {
            "it is a full backup, which needs no other: name it alone, or as the first"
        } else if after.database() != before.database() {
            "it is of another database"
        } else if after.former() != Some(before.id()) {
            "it was made after another backup: name all increments, in the order in which they were made"
        } else {
            continue;
        };
        return Err(BackupError::Order(format!(
            "backup {index} does not follow on the one before it: {why}"
        )));
    }
    Ok(())
}

fn write_pages(file: &dyn File, places: &[(u64, u64)], bytes: &[u8], pages: u64) -> Result<(), TxnError> {
    let mut rest = bytes;
    for (first, count) in places {
        let (part, behind) = rest.split_at_checked(*count as usize * PAGE_SIZE).unwrap_or_default();
        rest = behind;
        if first.saturating_add(*count) > pages {
            let what = format!("it holds page {first}, which lies behind the end of the database");
            return Err(BackupError::Damaged { what }.into());
        }
        let extent = Extent { head: PageId(*first), pages: *count as u32 };
        let written = file.write_from(extent.head.offset(), part);
        written.map_err(|source| PoolError::Write { extent, source })?;
    }
    Ok(())
}

/// Makes a segment durable, and closes it.
fn sync(segment: Option<(u64, Arc<dyn File>)>) -> Result<(), TxnError> {
    let synced = segment.map_or(Ok(()), |(_, file)| file.sync());
    Ok(synced.map_err(|source| BackupError::WriteRestored { source })?)
}

fn make_segment(log: &dyn Directory, number: u64, bytes: u64) -> Result<Arc<dyn File>, TxnError> {
    // Without a ring, which would take another descriptor for each segment.
    let engine = Some(IoEngine::Pread);
    let options = FileOptions { create: CreateMode::CreateNew, engine, ..FileOptions::default() };
    let segment = log.open(&vellum_wal::segment_name(number), &options).map_err(BackupError::Open)?;
    segment.grow(bytes).map_err(|source| BackupError::WriteRestored { source })?;
    Ok(segment)
}
