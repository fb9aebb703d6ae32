//! A thread that runs orders: the *driver* of a database.
//!
//! The lock of the inbox is not held while an order runs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};
use vellum_base::primitive::{Condvar, Mutex, MutexGuard, thread};

/// The thread that runs operations that have to wait.
pub(crate) struct Driver<O> {
    inbox: Arc<Inbox<O>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<O: Send + 'static> Driver<O> {
    /// The driver that belongs there, which is started if there is none yet; none if the system cannot start a thread now.
    /// `run` is as for [`start`](Self::start).
    pub fn of(place: &OnceLock<Self>, run: fn(Vec<O>, &dyn Fn() -> Vec<O>)) -> Option<&Self> {
        if let Some(driver) = place.get() {
            return Some(driver);
        }
        let started = Self::start(run)?;
        // If another thread was faster, the one that was started here ends.
        Some(place.get_or_init(|| started))
    }

    /// Starts the thread; none if the system cannot start one. `run` runs orders, and those that its second argument
    /// returns in between, until all are done.
    fn start(run: fn(Vec<O>, &dyn Fn() -> Vec<O>)) -> Option<Self> {
        let state = Mutex::new(InboxState { orders: Vec::new(), stop: false });
        let inbox = Arc::new(Inbox { state, changed: Condvar::new() });
        let shared = inbox.clone();
        let work = move || {
            while let Some(orders) = shared.wait() {
                // After a panic the orders under way have failed, and the next orders are run.
                let _ = catch_unwind(AssertUnwindSafe(|| run(orders, &|| shared.take())));
            }
        };
        let thread = thread::Builder::new().name("vellum-driver".into()).spawn(work).ok()?;
        Some(Self { inbox, thread: Some(thread) })
    }

    /// Hands an order to the driver.
    pub fn put(&self, order: O) {
        lock(&self.inbox.state).orders.push(order);
        self.inbox.changed.notify_one();
    }
}

impl<O> Drop for Driver<O> {
    fn drop(&mut self) {
        lock(&self.inbox.state).stop = true;
        self.inbox.changed.notify_all();
        // The driver itself may be the one that drops the last handle of the database.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // The driver catches panics, which have been reported where they happened.
            let _ = thread.join();
        }
    }
}

/// Locks a mutex of the driver or of an order.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it is held.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where orders wait for the driver.
struct Inbox<O> {
    state: Mutex<InboxState<O>>,
    changed: Condvar,
}

struct InboxState<O> {
    orders: Vec<O>,
    stop: bool,
}

impl<O> Inbox<O> {
    /// Takes the orders that have arrived meanwhile.
    fn take(&self) -> Vec<O> {
        std::mem::take(&mut lock(&self.state).orders)
    }

    /// Waits for orders; none when the database is closed.
    fn wait(&self) -> Option<Vec<O>> {
        let state = lock(&self.state);
        let waited = self.changed.wait_while(state, |state| state.orders.is_empty() && !state.stop);
        let mut state = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.orders.is_empty() { None } else { Some(std::mem::take(&mut state.orders)) }
    }
}
