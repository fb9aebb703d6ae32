//! When the file of versions is tried again after it has failed.
//!
//! Each attempt writes much before it fails, and on a device that fails it may take seconds. So there is a pause after
//! each failure, which becomes longer as long as nothing succeeds.

use std::{sync::Arc, time::Duration};
use vellum_base::primitive::Instant;
use vellum_pool::PoolError;

/// How long the file is not tried again, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// How long it is not tried again at most while memory has no room: changes may fail because of that.
const PAUSE_IF_FULL: Duration = Duration::from_secs(1);

/// A failure of the file.
pub(super) struct Failure {
    cause: Arc<PoolError>,
    /// When the attempt ended.
    when: Instant,
    pause: Duration,
}

impl Failure {
    /// An attempt has failed just now; the one before it failed, too, if there is a `former` failure.
    pub fn new(error: PoolError, former: Option<&Self>) -> Self {
        let [first, most] = PAUSES;
        let pause = former.map_or(first, |former| (former.pause * 2).min(most));
        Self { cause: Arc::new(error), when: Instant::now(), pause }
    }

    /// Whether it is too early to try again.
    pub fn is_paused(&self, is_full: bool) -> bool {
        let pause = if is_full { self.pause.min(PAUSE_IF_FULL) } else { self.pause };
        self.when.elapsed() < pause
    }

    /// Why the file has failed.
    pub fn cause(&self) -> Arc<PoolError> {
        self.cause.clone()
    }
}
