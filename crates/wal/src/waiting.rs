//! Tasks that wait until a record is durable enough, and requests to the log's thread.
//!
//! Lock order: while the list is locked nothing else is; wakers are called without the lock.

use crate::Durability;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
    time::Duration,
};
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, fence};

#[derive(Default)]
pub(crate) struct Waiting {
    list: Mutex<List>,
    /// Whether there are tasks.
    has_tasks: AtomicBool,
    asked: Condvar,
}

#[derive(Default)]
struct List {
    tasks: Vec<Task>,
    /// The highest request.
    request: Option<Request>,
    /// Whether segments are requested in addition: the other request may achieve nothing, and does not make them.
    asks_for_segments: bool,
    is_stopped: bool,
}

/// What the log's thread is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Request {
    /// The next segments, before they are needed.
    Segments,
    /// To write what is in the buffer to segments, before the buffer is full.
    Write,
    /// A flush to the device that no thread waits for.
    FlushSoon,
    /// A flush, and how durable it must make records.
    Flush(Durability),
}

struct Task {
    lsn: Lsn,
    durability: Durability,
    waker: Waker,
}

impl Waiting {
    /// Has a task woken when the record at `lsn` is durable enough, and requests a flush. Returns whether it is new.
    pub fn add(&self, lsn: Lsn, durability: Durability, waker: &Waker) -> bool {
        let mut list = self.lock();
        let known = list
            .tasks
            .iter_mut()
            .find(|task| task.lsn == lsn && task.durability == durability && task.waker.will_wake(waker));
        let is_new = known.is_none();
        if is_new {
            list.tasks.push(Task { lsn, durability, waker: waker.clone() });
        }
        // Relaxed, with the fence: see `has_tasks`.
        self.has_tasks.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.ask_with(list, Request::Flush(durability));
        is_new
    }

    /// Whether tasks wait. If a thread that has appended finds none, the flush that a task requests later finds the
    /// record.
    pub fn has_tasks(&self) -> bool {
        // SeqCst, here and where a task is added: one of the two fences comes first. Either the task was registered
        // before this load, or the record was reserved before the flush, which comes later, reads the log's end.
        fence(Ordering::SeqCst);
        self.has_tasks.load(Ordering::Relaxed)
    }

    /// Makes a request.
    pub fn ask(&self, request: Request) {
        self.ask_with(self.lock(), request);
    }

    fn ask_with(&self, mut list: MutexGuard<'_, List>, request: Request) {
        // A request that was made already wakes no thread.
        if request == Request::Segments {
            if !std::mem::replace(&mut list.asks_for_segments, true) {
                drop(list);
                self.asked.notify_one();
            }
        } else if list.request < Some(request) {
            list.request = Some(request);
            drop(list);
            self.asked.notify_one();
        }
    }

    /// Wakes the tasks for whose records `has_arrived` is true. Requests a sync for the others, if their records are
    /// written: a task that waits for a record that was not there yet has made its request in vain.
    pub fn wake(&self, has_arrived: impl Fn(Lsn, Durability) -> bool) {
        let mut list = self.lock();
        if list.tasks.is_empty() {
            return;
        }
        let arrived: Vec<_> =
            list.tasks.extract_if(.., |task| has_arrived(task.lsn, task.durability)).collect();
        // Relaxed: it is written under the lock, and a task too many does no harm.
        self.has_tasks.store(!list.tasks.is_empty(), Ordering::Relaxed);
        if list.tasks.iter().any(|task| has_arrived(task.lsn, Durability::Buffered)) {
            self.ask_with(list, Request::Flush(Durability::Synced));
        } else {
            drop(list);
        }
        for task in arrived {
            // A waker is the caller's code. If it panics the others are still woken.
            let _ = catch_unwind(AssertUnwindSafe(|| task.waker.wake()));
        }
    }

    /// The records whose durability tasks wait for.
    pub fn awaited(&self) -> Vec<Lsn> {
        let list = self.lock();
        list.tasks.iter().filter(|task| task.durability == Durability::Synced).map(|task| task.lsn).collect()
    }

    /// Waits for a request; returns `None` when the thread is to end.
    pub fn wait_for_request(&self) -> Option<Request> {
        let mut list = self.lock();
        loop {
            if list.is_stopped {
                return None;
            }
            if let Some(request) = list.request.take() {
                return Some(request);
            }
            if std::mem::take(&mut list.asks_for_segments) {
                return Some(Request::Segments);
            }
            list = self.asked.wait(list).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits for `duration`, unless the thread is to end.
    pub fn pause(&self, duration: Duration) {
        let list = self.lock();
        let _ = self.asked.wait_timeout_while(list, duration, |list| !list.is_stopped);
    }

    /// Waits for `duration`, unless the thread is to end, or more than `request` is requested.
    pub fn rest(&self, duration: Duration, request: Request) {
        let list = self.lock();
        let is_calm = |list: &mut List| !list.is_stopped && list.request <= Some(request);
        let _ = self.asked.wait_timeout_while(list, duration, is_calm);
    }

    /// Ends the thread that waits for requests.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.asked.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segments_are_made_whatever_else_is_asked_for() {
        for other in [Request::Write, Request::FlushSoon, Request::Flush(Durability::Synced)] {
            for order in [[other, Request::Segments], [Request::Segments, other]] {
                let waiting = Waiting::default();
                order.into_iter().for_each(|request| waiting.ask(request));
                let mut heard = [(); 2].map(|()| waiting.wait_for_request());
                heard.sort();
                assert_eq!(heard, [Some(Request::Segments), Some(other)]);
            }
        }
    }
}
