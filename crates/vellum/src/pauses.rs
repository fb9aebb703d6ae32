//! Pauses of tasks, which keep no thread from its work: a thread of the database wakes each task when its pause is over. It is
//! started when it is needed first, and looks at the clock only while there are pauses.

use crate::driver::Driver;
use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    task::{Poll, Waker},
    time::Duration,
};
use vellum_base::primitive::{Instant, thread};

/// A pause is over at most that much later than it should be.
const TICK: Duration = Duration::from_millis(1);

/// A task that is to be woken at some time.
pub(crate) struct Alarm {
    at: Instant,
    waker: Waker,
}

/// The thread that wakes tasks.
#[derive(Default)]
pub(crate) struct Pauses(OnceLock<Option<Driver<Alarm>>>);

impl Pauses {
    /// Lets that much time pass.
    pub async fn pause(&self, time: Duration) {
        let at = Instant::now() + time;
        poll_fn(|context| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            match self.0.get_or_init(|| Driver::start(ring)) {
                Some(driver) => driver.put(Alarm { at, waker: context.waker().clone() }),
                // The system has no room for a thread: the task is polled until the time has come.
                None => context.waker().wake_by_ref(),
            }
            Poll::Pending
        })
        .await;
    }
}

/// Wakes tasks when their time has come, until none are left.
fn ring(mut alarms: Vec<Alarm>, more: &dyn Fn() -> Vec<Alarm>) {
    while !alarms.is_empty() {
        let now = Instant::now();
        let next = alarms.iter().map(|alarm| alarm.at).min().unwrap_or(now);
        if next > now {
            thread::sleep((next - now).min(TICK));
        }
        let now = Instant::now();
        for alarm in alarms.extract_if(.., |alarm| alarm.at <= now) {
            // A waker that panics has been reported by the panic itself, and is no concern of other tasks.
            let _ = catch_unwind(AssertUnwindSafe(|| alarm.waker.wake()));
        }
        alarms.extend(more());
    }
}
