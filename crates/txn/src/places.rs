//! Where the places come from that transactions compare: see `transactions`, when a reader need not look for versions.

use crate::change_log::Changes;
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_pool::{ChangeLog as _, LsnClock};

/// What gives changes their LSNs.
pub(crate) enum Places {
    /// A log: the LSN is the place of the record.
    Log(Arc<Changes>),
    /// No log: the pool counts changes as long as transactions are open.
    Clock(Arc<LsnClock>),
}

impl Places {
    /// A place that is not after the LSN of any change from now on.
    pub fn end(&self) -> Lsn {
        match self {
            Self::Log(changes) => changes.end(),
            Self::Clock(clock) => clock.now(),
        }
    }

    /// As [`end`](Self::end), and also greater than the LSNs of all changes so far.
    pub fn divide(&self) -> Lsn {
        match self {
            Self::Log(changes) => changes.end(),
            Self::Clock(clock) => clock.advance(),
        }
    }

    /// Makes the log keep `more` additional bytes for undoing transactions, and `fewer` bytes less.
    #[inline]
    pub fn keep_for_undo(&self, more: u64, fewer: u64) {
        if let Self::Log(changes) = self
            && more != fewer
        {
            changes.log.keep_for_undo(more, fewer);
        }
    }

    /// A transaction is open from now on: changes get LSNs.
    pub fn hold(&self) {
        if let Self::Clock(clock) = self {
            clock.hold();
        }
    }

    /// A transaction has ended.
    pub fn release(&self) {
        if let Self::Clock(clock) = self {
            clock.release();
        }
    }
}
