//! The lives of a database that may have written its log.

use vellum_base::Lsn;
use vellum_wal::ReadableLives;

/// Those that may have written the log up to a place: the known ones, and any where others may have been forgotten.
pub(crate) fn readable((numbers, since): (Vec<u64>, Option<Lsn>), to: Lsn) -> ReadableLives {
    since.map_or_else(ReadableLives::default, |since| ReadableLives::only(numbers, since..to))
}
