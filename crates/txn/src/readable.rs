//! The lives of a database that may have written its log, and the one that must have.

use vellum_base::Lsn;
use vellum_pool::PoolFile;
use vellum_wal::ReadableLives;

/// Those that may have written the log up to a place: the known ones, and any where others may have been forgotten.
pub(crate) fn readable((numbers, since): (Vec<u64>, Option<Lsn>), to: Lsn) -> ReadableLives {
    since.map_or_else(ReadableLives::default, |since| ReadableLives::only(numbers, since..to))
}

/// The life of which a log must have a segment: the last one, if the file needs its log; zero if that is unknown. Another version may
/// have begun one, and said nothing of it in the log.
pub(crate) fn last_life(file: &PoolFile) -> u64 {
    let (lives, since) = file.known_lives();
    since.and(lives.last().copied()).filter(|_| file.needs_recovery()).unwrap_or(0)
}
