//! Pauses of tasks that block no thread: a thread of the database wakes each task when its pause is over. The thread is
//! started when it is first needed, and checks the time only while there are pauses.

use crate::driver::Driver;
use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    task::{Poll, Waker},
    time::Duration,
};
use vellum_base::primitive::{Instant, thread};

/// How much longer than requested a pause lasts at most.
const TICK: Duration = Duration::from_millis(1);

/// A task that is to be woken at a certain time.
pub(crate) struct Alarm {
    at: Instant,
    waker: Waker,
}

/// The thread that wakes tasks.
#[derive(Default)]
pub(crate) struct Pauses(OnceLock<Driver<Alarm>>);

impl Pauses {
    /// Waits for the given time.
    pub async fn pause(&self, time: Duration) {
        let at = Instant::now() + time;
        // What the alarm wakes, which may be polled for other reasons before.
        let mut entered: Option<Waker> = None;
        poll_fn(|context| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            let waker = context.waker();
            if entered.as_ref().is_some_and(|entered| entered.will_wake(waker)) {
                return Poll::Pending;
            }
            entered = Some(waker.clone());
            match Driver::of(&self.0, ring) {
                Some(driver) => driver.put(Alarm { at, waker: waker.clone() }),
                // The system cannot start a thread: the task is polled until the time has come.
                None => {
                    entered = None;
                    waker.wake_by_ref();
                }
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
            // If a waker panics, the panic itself has reported that, and other tasks must not be affected.
            let _ = catch_unwind(AssertUnwindSafe(|| alarm.waker.wake()));
        }
        alarms.extend(more());
    }
}
