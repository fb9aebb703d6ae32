//! When the file of versions is tried again after it has failed.
//!
//! Each attempt writes much before it fails, and on a device that fails it may take seconds. So there is a pause after
//! each failure, which becomes longer as long as nothing succeeds. A device that is full refuses at once: while changes
//! may fail because of that, the pause follows from how long the attempt took.

use std::{sync::Arc, time::Duration};
use vellum_base::{io_causes, primitive::Instant};
use vellum_pool::PoolError;
use vellum_vm::is_full;

/// How long the file is not tried again, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// How long it is not tried again at most while memory has no room: changes may fail because of that.
const PAUSE_IF_FULL: Duration = Duration::from_secs(1);
/// Attempts on a full device may then take one part of this many of the time.
const PART: u32 = 20;

/// A failure of the file.
pub(super) struct Failure {
    cause: Arc<PoolError>,
    /// When the attempt ended.
    when: Instant,
    pause: Duration,
    /// The longest pause while memory has no room.
    pause_if_full: Duration,
}

impl Failure {
    /// An attempt has failed just now, and has taken so long; the one before it failed, too, if there is a `former` failure.
    pub fn new(error: PoolError, taken: Duration, former: Option<&Self>) -> Self {
        let [first, most] = PAUSES;
        let pause = former.map_or(first, |former| (former.pause * 2).min(most));
        let is_device_full = io_causes(&error).any(is_full);
        let pause_if_full = if is_device_full { (taken * PART).min(PAUSE_IF_FULL) } else { PAUSE_IF_FULL };
        Self { cause: Arc::new(error), when: Instant::now(), pause, pause_if_full }
    }

    /// Whether it is too early to try again.
    pub fn is_paused(&self, is_full: bool) -> bool {
        let pause = if is_full { self.pause.min(self.pause_if_full) } else { self.pause };
        self.when.elapsed() < pause
    }

    /// Why the file has failed.
    pub fn cause(&self) -> Arc<PoolError> {
        self.cause.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::{self, Other, QuotaExceeded, StorageFull};
    use vellum_base::{Extent, PageId};

    /// The tenth failure in a row of attempts that take so long.
    fn tenth(kind: ErrorKind, taken: Duration) -> Failure {
        let error = || PoolError::Write { extent: Extent::page(PageId(7)), source: kind.into() };
        let first = Failure::new(error(), taken, None);
        (1..10).fold(first, |former, _| Failure::new(error(), taken, Some(&former)))
    }

    #[test]
    fn a_full_device_is_asked_again_soon_and_a_broken_one_is_not() {
        let (soon, late) = (Duration::from_millis(1), Duration::from_secs(3));
        for (kind, taken, expected) in [
            (StorageFull, soon, soon * PART),
            (QuotaExceeded, soon, soon * PART),
            (StorageFull, late, PAUSE_IF_FULL),
            (Other, soon, PAUSE_IF_FULL),
        ] {
            let failure = tenth(kind, taken);
            assert_eq!(failure.pause, PAUSES[1], "no change fails meanwhile");
            assert_eq!(failure.pause_if_full, expected, "{kind} after {taken:?}");
            assert!(failure.is_paused(false));
        }
        let failure = tenth(StorageFull, soon);
        std::thread::sleep(soon * PART);
        assert!(!failure.is_paused(true));
    }
}
