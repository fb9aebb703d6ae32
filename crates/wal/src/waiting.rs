//! Tasks that wait until a record is durable enough, and requests to the log's thread.
//!
//! Lock order: while the list is locked nothing else is; wakers are cloned, called and dropped without the lock, because
//! they are the caller's code.

use crate::Durability;
use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
    time::Duration,
};
use vellum_base::Lsn;
use vellum_base::primitive::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, fence, thread};

#[derive(Default)]
pub(crate) struct Waiting {
    list: Mutex<List>,
    /// Whether there are tasks.
    has_tasks: AtomicBool,
    asked: Condvar,
}

#[derive(Default)]
struct List {
    /// The tasks that wait for each [`Durability`].
    buffered: Tasks,
    synced: Tasks,
    /// How many keys have been given out.
    keys: u64,
    /// The highest request.
    request: Option<Request>,
    /// Whether segments are requested in addition: the other request may achieve nothing, and does not make them.
    asks_for_segments: bool,
    /// Whether tasks are to be woken that another thread must not wake.
    asks_to_wake: bool,
    is_stopped: bool,
}

/// The name of the log's thread.
pub(crate) const LOG_THREAD: &str = "vellum-log";

/// Whether this is the log's thread, which alone wakes tasks: a waker is the caller's code. It may drop the last handle of
/// the database, and closing waits for other threads of the engine; or it runs the task, which changes something, while
/// this thread is about to wait for a change of its own. So does a waker that this thread calls, of this log or of another
/// one: what it does may hold locks while it flushes. The tasks that wait for that are woken when it has returned.
fn is_logs_own() -> bool {
    thread::current().name() == Some(LOG_THREAD) && !IS_WAKING.try_with(Cell::get).unwrap_or_default()
}

vellum_base::primitive::thread_local! {
    /// Whether this thread calls wakers.
    static IS_WAKING: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this thread calls wakers. They do not panic out of it.
fn waking(work: impl FnOnce()) {
    // A thread that is about to end notes nothing.
    let was_waking = IS_WAKING.try_with(|is_waking| is_waking.replace(true)).unwrap_or_default();
    work();
    let _ = IS_WAKING.try_with(|is_waking| is_waking.set(was_waking));
}

/// What the log's thread is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Request {
    /// To wake the tasks whose records have arrived.
    Wake,
    /// The next segments, before they are needed.
    Segments,
    /// To write what is in the buffer to segments, before the buffer is full.
    Write,
    /// A flush to the device that no thread waits for.
    FlushSoon,
    /// A flush, and how durable it must make records.
    Flush(Durability),
}

/// By the record that a task waits for, and the key of the task.
type Tasks = BTreeMap<(Lsn, u64), Waker>;

impl List {
    fn tasks(&mut self, durability: Durability) -> &mut Tasks {
        match durability {
            Durability::Buffered => &mut self.buffered,
            Durability::Synced => &mut self.synced,
        }
    }

    fn has_tasks(&self) -> bool {
        !self.buffered.is_empty() || !self.synced.is_empty()
    }
}

impl Waiting {
    /// Has a task woken when the record at `lsn` is durable enough, and requests a flush. `key` is the task's, `None`
    /// before it is added for the first time. Returns whether it was not waiting.
    pub fn add(&self, lsn: Lsn, durability: Durability, key: &mut Option<u64>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut list = self.lock();
        let key = *key.get_or_insert_with(|| {
            list.keys += 1;
            list.keys
        });
        let replaced = list.tasks(durability).insert((lsn, key), waker);
        // Relaxed, with the fence: see `has_tasks`.
        self.has_tasks.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.ask_with(list, Request::Flush(durability));
        replaced.is_none()
    }

    /// Forgets a task.
    pub fn remove(&self, lsn: Lsn, durability: Durability, key: u64) {
        let mut list = self.lock();
        let removed = list.tasks(durability).remove(&(lsn, key));
        // Relaxed: as in `wake`.
        self.has_tasks.store(list.has_tasks(), Ordering::Relaxed);
        drop(list);
        drop(removed);
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

    /// Wakes the tasks for whose records `has_arrived` is true; if it is for one, it is for those before. Requests a sync
    /// for the others, if their records are written: a task that waits for a record that was not there yet has made its
    /// request in vain. Other threads leave all this to the log's thread, as long as it runs.
    pub fn wake(&self, has_arrived: impl Fn(Lsn, Durability) -> bool) {
        let mut list = self.lock();
        if !list.has_tasks() {
            return;
        }
        if !list.is_stopped && !is_logs_own() {
            list.asks_to_wake = true;
            drop(list);
            self.asked.notify_one();
            return;
        }
        let mut arrived = Vec::new();
        for durability in [Durability::Buffered, Durability::Synced] {
            let tasks = list.tasks(durability);
            while let Some(first) = tasks.first_entry().filter(|first| has_arrived(first.key().0, durability))
            {
                arrived.push(first.remove());
            }
        }
        // Relaxed: it is written under the lock, and a task too many does no harm.
        self.has_tasks.store(list.has_tasks(), Ordering::Relaxed);
        let has_written = |tasks: &Tasks| {
            tasks.keys().next().is_some_and(|(lsn, _)| has_arrived(*lsn, Durability::Buffered))
        };
        if has_written(&list.buffered) || has_written(&list.synced) {
            self.ask_with(list, Request::Flush(Durability::Synced));
        } else {
            drop(list);
        }
        waking(|| {
            for waker in arrived {
                // A waker is the caller's code. If it panics the others are still woken.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        });
    }

    /// The records whose durability tasks wait for.
    pub fn awaited(&self) -> Vec<Lsn> {
        self.lock().synced.keys().map(|(lsn, _)| *lsn).collect()
    }

    /// Waits for a request; returns `None` when the thread is to end.
    pub fn wait_for_request(&self) -> Option<Request> {
        let mut list = self.lock();
        loop {
            if list.is_stopped {
                return None;
            }
            if std::mem::take(&mut list.asks_to_wake) {
                return Some(Request::Wake);
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

    /// Waits for `duration`, unless the thread is to end, or to wake tasks.
    pub fn pause(&self, duration: Duration) {
        let list = self.lock();
        let is_calm = |list: &mut List| !list.is_stopped && !list.asks_to_wake;
        let _ = self.asked.wait_timeout_while(list, duration, is_calm);
    }

    /// Waits for `duration`, unless the thread is to end, or to wake tasks, or more than `request` is requested.
    pub fn rest(&self, duration: Duration, request: Request) {
        let list = self.lock();
        let is_calm =
            |list: &mut List| !list.is_stopped && !list.asks_to_wake && list.request <= Some(request);
        let _ = self.asked.wait_timeout_while(list, duration, is_calm);
    }

    /// Ends the thread that waits for requests. It may already have ended.
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
