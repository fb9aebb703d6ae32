//! The background thread: it keeps free pages ready, fetches memory for future pages, and collapses runs into huge
//! pages when there is nothing else to do.

use crate::{
    allocator::Allocator,
    maintenance::{huge_pages::HugePageScheduler, prefault::Prefaulter},
    replacement::budget::Woken,
};
use std::{sync::Arc, time::Duration};
use vellum_base::primitive::thread;

/// The longest time that the thread waits after it found nothing to evict.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The thread; it ends when this is dropped.
pub(crate) struct BackgroundThread {
    allocator: Arc<Allocator>,
    thread: Option<thread::JoinHandle<()>>,
}

impl BackgroundThread {
    /// # Errors
    /// If the system has no room for another thread.
    pub(crate) fn start(allocator: Arc<Allocator>) -> Result<Self, std::io::Error> {
        let shared = allocator.clone();
        let thread =
            thread::Builder::new().name("vellum-background".into()).spawn(move || Self::run(&shared))?;
        Ok(Self { allocator, thread: Some(thread) })
    }

    fn run(allocator: &Allocator) {
        let (mut scheduler, mut prefaulter) = (HugePageScheduler::new(allocator), Prefaulter::new());
        loop {
            let woken = allocator.pages().budget.sleep_until_low(scheduler.patience(allocator));
            allocator.pages().release_strays();
            match woken {
                Woken::Stopped => return,
                Woken::Idle => scheduler.run(allocator),
                Woken::Asked => prefaulter.run(allocator),
                Woken::Low => {
                    scheduler.disturbed(allocator);
                    prefaulter.release(allocator);
                    Self::make_room(allocator);
                }
            }
        }
    }

    fn make_room(allocator: &Allocator) {
        let (evictor, budget) = (allocator.evictor(), &allocator.pages().budget);
        let mut pause = Duration::from_millis(1);
        while budget.wants_more() && !budget.is_stopped() {
            let outcome = {
                let _working = evictor.pause();
                // While nothing can be written, unchanged pages stay for readers, which would have to read them again
                // as fast as they are evicted.
                if evictor.outage().lasts() {
                    evictor.try_to_write().map(|()| 0)
                } else {
                    evictor.evict_batch()
                }
            };
            // An error is counted, and met again by the thread that needs the page's room.
            if matches!(outcome, Ok(1..)) {
                pause = Duration::from_millis(1);
            } else if budget.pause(pause) {
                pause = (pause * 2).min(PAUSE_MAX);
            } else {
                return;
            }
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.allocator.pages().budget.stop();
        if let Some(thread) = self.thread.take() {
            // It panics only if an invariant is broken, and then the test that broke it must fail.
            let ended = thread.join();
            debug_assert!(ended.is_ok() || thread::panicking(), "the background thread panicked");
        }
    }
}
