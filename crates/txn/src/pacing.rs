//! Spreads the writes of a checkpoint over the time in which the log grows.
//!
//! A checkpoint that writes as fast as it can holds up each commit that waits for the device. So one that no thread waits
//! for writes as large a part of its pages as the log has grown by, of nine tenths of what may accumulate between two
//! checkpoints. For each batch it waits [`LONGEST`] at most, so that it also ends while nothing is changed.

use crate::bell::Bell;
use std::time::Duration;
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicUsize, Instant, Ordering};
use vellum_pool::Progress;

/// How long a checkpoint waits before it writes its next batch, at most. A batch is half a mebibyte in a large pool, so that
/// it writes 50 MB/s while nothing else happens.
const LONGEST: Duration = Duration::from_millis(10);
/// How often it looks whether it is time for the next batch.
const PAUSE: Duration = Duration::from_millis(1);

/// How many threads wait for a checkpoint that another thread takes.
#[derive(Default)]
pub(crate) struct Waiting(AtomicUsize);

/// As long as it exists, checkpoints do not wait.
#[must_use = "checkpoints wait again at once"]
pub(crate) struct Hurry<'w>(&'w Waiting);

impl Waiting {
    pub fn hurry(&self) -> Hurry<'_> {
        // Relaxed, here and below: a batch that waits although it need not does so for milliseconds.
        self.0.fetch_add(1, Ordering::Relaxed);
        Hurry(self)
    }

    fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When a checkpoint that began at a place of the log may write.
pub(crate) struct Pacing<'c> {
    pub begun: Lsn,
    /// How much log may accumulate between two checkpoints.
    pub log_bytes: u64,
    pub bell: &'c Bell,
    pub waiting: &'c Waiting,
}

impl Pacing<'_> {
    /// Waits until the log has grown enough for the next batch.
    pub fn wait(&self, progress: Progress, log_end: impl Fn() -> Lsn) {
        let part = u128::from(self.log_bytes / 10 * 9) * u128::from(progress.written)
            / u128::from(progress.of.max(1));
        let due = self.begun.0.saturating_add(part as u64);
        let begun = Instant::now();
        while log_end().0 < due && begun.elapsed() < LONGEST && self.waiting.is_none() {
            if !self.bell.pause(PAUSE) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, thread};

    const MIB: u64 = 1 << 20;

    /// Waits for the second of four quarters, for which the log must have grown by 90 MiB. Returns how long it took.
    fn waited(bell: &Bell, waiting: &Waiting, log_end: impl Fn() -> Lsn) -> Duration {
        let pacing = Pacing { begun: Lsn(7 * MIB), log_bytes: 400 * MIB, bell, waiting };
        let begun = Instant::now();
        pacing.wait(Progress { written: 100, of: 400 }, log_end);
        begun.elapsed()
    }

    #[test]
    fn a_batch_waits_until_the_log_has_grown() {
        let (bell, waiting, asked) = (Bell::default(), Waiting::default(), Cell::new(0));
        let grows = |reaches: u64| {
            asked.set(0);
            let asked = &asked;
            move || {
                asked.set(asked.get() + 1);
                Lsn(if asked.get() < 3 { 8 * MIB } else { reaches })
            }
        };
        waited(&bell, &waiting, grows(97 * MIB));
        assert_eq!(asked.get(), 3);
        assert!(waited(&bell, &waiting, grows(97 * MIB - 1)) >= LONGEST);
        assert!(asked.get() > 3);
    }

    #[test]
    fn it_does_not_if_a_thread_waits_for_the_checkpoint_or_the_next_one_is_due() {
        let (bell, waiting) = (Bell::default(), Waiting::default());
        let still = || Lsn(7 * MIB);
        let hurried = {
            let _hurry = waiting.hurry();
            waited(&bell, &waiting, still)
        };
        assert!(waited(&bell, &waiting, still) >= LONGEST);
        bell.ring();
        let rung = waited(&bell, &waiting, still);
        assert!(bell.wait(Some(Instant::now())));
        bell.stop();
        let stopped = waited(&bell, &waiting, still);
        // They do not wait at all. A busy machine may run the thread late.
        assert!([hurried, rung, stopped].iter().min() < Some(&LONGEST));
        bell.begin();
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                bell.stop();
            });
            while bell.pause(Duration::from_secs(60)) {}
        });
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
