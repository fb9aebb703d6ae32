//! What part of a log would be given up, and what keeps the rest.

use crate::{Log, LogKeeper};
use vellum_base::Lsn;

impl Log {
    /// Whether a segment would be given up now if the log were [discarded](Self::discard) before `lsn`.
    pub fn gives_up(&self, lsn: Lsn) -> bool {
        let first = self.kept().first_needed(self.end().0, false);
        self.device().gives_up(lsn.0.min(first))
    }

    /// What keeps the log before `lsn` from being given up although it has been discarded.
    pub fn keeper_before(&self, lsn: Lsn) -> Option<LogKeeper> {
        self.kept().keeper_before(lsn.0, self.end().0)
    }

    /// How many bytes the segments have that have been begun and not given up.
    pub fn held_bytes(&self) -> u64 {
        self.device().begun_bytes()
    }
}
