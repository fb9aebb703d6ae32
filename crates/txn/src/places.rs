//! Where the places come from that transactions compare: see `transactions` on what needs no look.

use crate::change_log::Changes;
use std::sync::Arc;
use vellum_base::Lsn;
use vellum_pool::{ChangeLog as _, LsnClock};

/// What gives changes their LSNs.
pub(crate) enum Places {
    /// A log, whose records have these places.
    Log(Arc<Changes>),
    /// There is no log: the pool counts changes as long as transactions are open.
    Clock(Arc<LsnClock>),
}

impl Places {
    /// A place that is not after the LSN of any change that comes from now on.
    pub fn end(&self) -> Lsn {
        match self {
            Self::Log(changes) => changes.end(),
            Self::Clock(clock) => clock.now(),
        }
    }

    /// As [`end`](Self::end), and the LSNs of all changes that came before are less.
    pub fn divide(&self) -> Lsn {
        match self {
            Self::Log(changes) => changes.end(),
            Self::Clock(clock) => clock.advance(),
        }
    }

    /// The log keeps so many bytes more, and so many fewer, of its room for what undoes transactions.
    #[inline]
    pub fn keep_for_undo(&self, more: u64, fewer: u64) {
        if let Self::Log(changes) = self
            && more != fewer
        {
            changes.log.keep_for_undo(more, fewer);
        }
    }

    /// A transaction is open from now on: what is changed gets an LSN.
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
