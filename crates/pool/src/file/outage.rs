//! Write failures that last for a while: a full disk, an exhausted quota, a failing device.
//!
//! An attempt that failed is likely to fail again, and takes time for which other threads wait. So it is repeated only
//! after [`PART`] times as long, and until then callers get the error of the last attempt.
//!
//! While pages cannot be written, nothing may be changed: changed pages cannot leave memory, and would take the room
//! that readers need (see `Evictor::admit_changes`).

use crate::{
    error::PoolError,
    primitive::{AtomicBool, Bug, Mutex, Ordering, lock, planted},
};
use std::{io, time::Duration};
use vellum_base::Extent;
use vellum_base::primitive::Instant;

/// Failing attempts may take one part of this many of the time.
const PART: u32 = 20;
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The error of a failed attempt, and the time when the next attempt is due.
#[derive(Debug)]
pub(crate) struct Failure {
    source: io::Error,
    next_at: Instant,
}

impl Failure {
    /// Records that an attempt that began at `begun` has just failed.
    pub(crate) fn new(source: &io::Error, begun: Instant) -> Self {
        let now = Instant::now();
        Self { source: copy_of(source), next_at: now + ((now - begun) * PART).min(PAUSE_MAX) }
    }

    /// The error, if it is too early for another attempt.
    pub(crate) fn pending(&self) -> Option<io::Error> {
        (Instant::now() < self.next_at).then(|| copy_of(&self.source))
    }
}

/// A copy of an error, for another waiting thread.
pub(crate) fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// The last attempt to write that failed.
struct Last {
    extent: Extent,
    failure: Failure,
    /// Whether the attempt before it failed too: only then is there a pause.
    again: bool,
}

/// Whether pages can be written.
#[derive(Default)]
pub(crate) struct Outage {
    lasts: AtomicBool,
    last: Mutex<Option<Last>>,
}

impl Outage {
    /// Whether most writes failed at their last attempt.
    #[inline]
    pub(crate) fn lasts(&self) -> bool {
        // Relaxed: a thread that must know of an outage has seen that it has suspended changes (see `Admission`). What
        // others do before they know is that they try too.
        self.lasts.load(Ordering::Relaxed)
    }

    /// Whether it is too early to try again.
    pub(crate) fn is_recent(&self) -> bool {
        let is_recent = |last: &Last| last.again && last.failure.pending().is_some();
        self.lasts() && lock(&self.last).as_ref().is_some_and(is_recent)
    }

    /// Records that an attempt that began at `begun` could write hardly anything.
    pub(crate) fn begins(&self, extent: Extent, source: &io::Error, begun: Instant) {
        if planted(Bug::OutageBeforeItsError) {
            self.lasts.store(true, Ordering::Relaxed);
        }
        let mut last = lock(&self.last);
        *last = Some(Last { extent, failure: Failure::new(source, begun), again: self.lasts() });
        // With the lock held: a thread that sees this and takes the lock finds the error.
        self.lasts.store(true, Ordering::Relaxed);
    }

    /// Records that something was written.
    pub(crate) fn ends(&self) {
        if self.lasts() {
            self.lasts.store(false, Ordering::Relaxed);
        }
    }

    /// The error of every operation that needs a write while the outage lasts.
    pub(crate) fn error(&self) -> Option<PoolError> {
        if !self.lasts() {
            return None;
        }
        let last = lock(&self.last);
        let Last { extent, failure, .. } = last.as_ref()?;
        Some(PoolError::Write { extent: *extent, source: copy_of(&failure.source) })
    }
}
