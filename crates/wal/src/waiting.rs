//! The tasks that wait until a record has come far enough, and whether somebody asks for a flush.
//!
//! Lock order: nothing else is locked while the list is; wakers are called without it.

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
    /// What is asked for.
    request: Option<Request>,
    /// Segments are asked for besides: what is asked for may come to nothing, and does not make them.
    asks_for_segments: bool,
    is_stopped: bool,
}

/// What a log's thread is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Request {
    /// The next segments, before they are needed.
    Segments,
    /// What is in the buffer is written to segments, before there is no room.
    Write,
    /// A flush to the device, for which nobody waits.
    FlushSoon,
    /// A flush, and how far it is to go.
    Flush(Durability),
}

struct Task {
    lsn: Lsn,
    durability: Durability,
    waker: Waker,
}

impl Waiting {
    /// Has a task woken when the record at `lsn` has come so far, and asks for a flush. Returns whether it did not wait for it before.
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

    /// Whether tasks wait. If a thread that has appended a record hears of none, the flush that a task asks for later finds the record.
    pub fn has_tasks(&self) -> bool {
        // SeqCst, here and where a task is added: of two fences one comes first. Either the task was noted before this looks, or the
        // record was reserved before the flush, which comes after that, looks where the log ends.
        fence(Ordering::SeqCst);
        self.has_tasks.load(Ordering::Relaxed)
    }

    /// Asks for something.
    pub fn ask(&self, request: Request) {
        self.ask_with(self.lock(), request);
    }

    fn ask_with(&self, mut list: MutexGuard<'_, List>, request: Request) {
        // Those that ask for what is asked for already wake nobody.
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

    /// Wakes the tasks for whose records `has_arrived` is true. Asks for a sync for the others, if their records are written: one
    /// that waits for a record that was not there yet has asked in vain.
    pub fn wake(&self, has_arrived: impl Fn(Lsn, Durability) -> bool) {
        let mut list = self.lock();
        if list.tasks.is_empty() {
            return;
        }
        let arrived: Vec<_> =
            list.tasks.extract_if(.., |task| has_arrived(task.lsn, task.durability)).collect();
        // Relaxed: it is written under the lock, and one too many does no harm.
        self.has_tasks.store(!list.tasks.is_empty(), Ordering::Relaxed);
        if list.tasks.iter().any(|task| has_arrived(task.lsn, Durability::Buffered)) {
            self.ask_with(list, Request::Flush(Durability::Synced));
        } else {
            drop(list);
        }
        for task in arrived {
            // A waker is the caller's code. If it panics the others are woken all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| task.waker.wake()));
        }
    }

    /// The records that tasks wait for until they are durable.
    pub fn awaited(&self) -> Vec<Lsn> {
        let list = self.lock();
        list.tasks.iter().filter(|task| task.durability == Durability::Synced).map(|task| task.lsn).collect()
    }

    /// Waits until something is asked for; none when it is to end.
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

    /// Waits so long, unless it is to end.
    pub fn pause(&self, duration: Duration) {
        let list = self.lock();
        let _ = self.asked.wait_timeout_while(list, duration, |list| !list.is_stopped);
    }

    /// Waits so long, unless it is to end, or more than `request` is asked for.
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
