//! Makes room in the log for a change that finds none: even on a full disk, a checkpoint frees segments for reuse.

use crate::{change_log::Changes, checkpoint::Checkpoints, transactions::Transactions};
use std::{mem, time::Duration};
use vellum_base::primitive::{Instant, thread};
use vellum_wal::{HeldLog, LogArchiver, LogError, LogKeeper};

/// How long a change tries to make room, at most. It waits for a checkpoint that has been begun in any case.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a thread checks whether another one has made room.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes room in the log for a thread that holds no latch: takes a checkpoint if that gives up a segment, and archives
/// what is kept only for the archive.
///
/// # Errors
/// [`LogError::NoRoom`] if there is none even then; it says what keeps the log.
pub(crate) fn make_room(
    changes: &Changes,
    transactions: &Transactions,
    checkpoints: &Checkpoints,
    archiver: Option<&LogArchiver>,
) -> Result<(), LogError> {
    let (log, begun) = (&changes.log, Instant::now());
    let (mut is_written, mut is_archived, mut seen_end) = (false, false, log.end());
    loop {
        let source = match changes.admit_now() {
            Err(LogError::NoRoom { source, .. }) => source,
            admitted => return admitted,
        };
        let (end, needed) = changes.needed_by(|| transactions.needed_at(|| log.end()));
        let keeper = if log.gives_up(needed) {
            match take_checkpoint(changes, checkpoints, begun) {
                Ok(()) if begun.elapsed() < LONGEST => continue,
                Ok(()) => None,
                Err(error) => Some(LogKeeper::Checkpoint { error }),
            }
        } else if !is_written {
            // A checkpoint gives up nothing after the segment that is written now, and the last records may be in memory.
            is_written = true;
            log.write_filled()?;
            continue;
        } else if log.gives_up(end) {
            Some(match transactions.keeps_log() {
                None if changes.has_pinned_contents() => LogKeeper::Contents,
                begun_at => LogKeeper::Transaction { begun_at },
            })
        } else {
            match (log.keeper_before(end), archiver) {
                (Some(LogKeeper::Archive), Some(archiver)) if !is_archived => {
                    is_archived = true;
                    // The state of the log says why it cannot be archived.
                    let _ = archiver.archive_all(false);
                    continue;
                }
                (keeper, _) => keeper,
            }
        };
        // Nothing keeps the log, so another thread has given segments up, and is using them or has used them already.
        if keeper.is_none() && begun.elapsed() < LONGEST {
            thread::sleep(PAUSE);
            let end = log.end();
            if mem::replace(&mut seen_end, end) != end {
                continue;
            }
        }
        return Err(LogError::NoRoom { source, held: Some(HeldLog { bytes: log.held_bytes(), keeper }) });
    }
}

/// Takes a checkpoint, unless there is room before this thread gets its turn.
fn take_checkpoint(changes: &Changes, checkpoints: &Checkpoints, begun: Instant) -> Result<(), String> {
    let _hurry = checkpoints.hurry();
    loop {
        let taken = checkpoints.try_take(|| changes.admit_now().is_err());
        match taken {
            Some(taken) => return taken.map_err(|error| error.to_string()),
            None if changes.admit_now().is_ok() => return Ok(()),
            None if begun.elapsed() > LONGEST => return Err("another thread does not let it".to_owned()),
            None => thread::sleep(PAUSE),
        }
    }
}
