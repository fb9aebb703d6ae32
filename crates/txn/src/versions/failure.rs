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
    /// An attempt that began at `begun` has failed just now; the one before it failed, too, if there is a `former` failure.
    pub fn new(error: PoolError, begun: Instant, former: Option<&Self>) -> Self {
        let [first, most] = PAUSES;
        let pause = former.map_or(first, |former| (former.pause * 2).min(most));
        let when = Instant::now();
        let is_device_full = io_causes(&error).any(is_full);
        let pause_if_full =
            if is_device_full { ((when - begun) * PART).min(PAUSE_IF_FULL) } else { PAUSE_IF_FULL };
        Self { cause: Arc::new(error), when, pause, pause_if_full }
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
