//! Whether changes are admitted: one flag that each change reads.
//!
//! A change is admitted until there is a reason against it. A thread that finds a reason notes it first, and *suspends*
//! changes then. So the next change asks again, and finds the reason.

use crate::primitive::{AtomicBool, Bug, Ordering, planted, unless_planted};

/// Whether changes are admitted.
pub(crate) struct Admission {
    is_given: AtomicBool,
}

impl Admission {
    pub(crate) fn new(is_given: bool) -> Self {
        Self { is_given: AtomicBool::new(is_given) }
    }

    /// Whether changes are admitted.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        // Acquire: a thread that sees this sees what was done before changes were admitted.
        self.is_given.load(unless_planted(Bug::RelaxedLookAtAdmission, Ordering::Acquire))
    }

    /// Admits changes, unless `look` finds a reason against them.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn give<E>(&self, look: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let early = planted(Bug::LookBeforeAdmission).then(&look);
        // Acquire and release: if another thread has suspended changes before, its reason is visible below; if it does
        // so later, that counts.
        self.is_given.swap(true, unless_planted(Bug::RelaxedAdmission, Ordering::AcqRel));
        early.unwrap_or_else(look).inspect_err(|_| self.suspend())
    }

    /// Makes the next change ask again. The reason has been noted.
    pub(crate) fn suspend(&self) {
        if planted(Bug::SuspensionByStore) {
            return self.is_given.store(false, Ordering::Release);
        }
        // Release: pairs with `give`. An exchange, because a store would hide the reason of a thread that has suspended
        // changes just before: who sees the store need not see what that thread had done.
        self.is_given.swap(false, unless_planted(Bug::RelaxedSuspension, Ordering::Release));
    }
}
