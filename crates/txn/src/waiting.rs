//! Waiting for a transaction to end.
//!
//! After a conflict with an open transaction it is of no use to try again before that one has ended. If all that wait
//! for it went on then, all but one of them would conflict again. So they queue: the first goes on when the transaction
//! has ended, and each other one when the one before it has ended its next attempt, and has dropped its [`Baton`].

use std::{
    collections::{HashMap, VecDeque},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use vellum_base::Apart;
use vellum_base::primitive::{AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering};

/// Those that wait for transactions to end.
#[derive(Default)]
pub(crate) struct Waiting {
    /// How many are in `queues`.
    count: Apart<AtomicUsize>,
    /// By the number of the transaction.
    queues: Mutex<HashMap<u64, Queue>>,
}

type Queue = VecDeque<Arc<Waiter>>;

/// One that waits.
#[derive(Default)]
struct Waiter {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    baton: Option<Baton>,
    has_left: bool,
    waker: Option<Waker>,
}

/// What one gets that has waited for a transaction when it may go on. The next one that has waited for the same transaction goes on when
/// this is dropped.
#[derive(Default)]
#[must_use = "the next one goes on when it is dropped"]
pub struct Baton(Queue);

/// A place in the queue of those that wait for a transaction to end.
pub struct Wait {
    waiting: Arc<Waiting>,
    /// The number of the transaction.
    transaction: u64,
    waiter: Arc<Waiter>,
}

impl Drop for Baton {
    fn drop(&mut self) {
        let mut queue = mem::take(&mut self.0);
        while let Some(waiter) = queue.pop_front() {
            let mut state = lock(&waiter.state);
            if state.has_left {
                continue;
            }
            state.baton = Some(Self(queue));
            let waker = state.waker.take();
            drop(state);
            waiter.called.notify_one();
            // If a waker panics, the panic itself has reported that.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake)));
            return;
        }
    }
}

impl std::fmt::Debug for Baton {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Baton").field("waiting", &self.0.len()).finish()
    }
}

impl Waiting {
    /// A transaction has ended: calls the first that waits for it.
    #[inline]
    pub fn end(&self, transaction: u64) {
        // Relaxed: one that waits is counted before it looks, under the lock of the state, whether the transaction is
        // open; and the transaction has been taken out of the state under that lock.
        if self.count.0.load(Ordering::Relaxed) > 0 {
            self.call(transaction);
        }
    }

    #[cold]
    fn call(&self, transaction: u64) {
        let queue = lock(&self.queues).remove(&transaction);
        if let Some(queue) = queue {
            self.count.0.fetch_sub(queue.len(), Ordering::Relaxed);
            drop(Baton(queue));
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.count.0.load(Ordering::Relaxed) == 0 && lock(&self.queues).is_empty()
    }

    /// Joins the queue of those that wait for a transaction.
    fn join(&self, transaction: u64) -> Arc<Waiter> {
        let waiter = Arc::<Waiter>::default();
        self.count.0.fetch_add(1, Ordering::Relaxed);
        lock(&self.queues).entry(transaction).or_default().push_back(waiter.clone());
        waiter
    }

    fn leave(&self, transaction: u64, waiter: &Arc<Waiter>) {
        let mut queues = lock(&self.queues);
        let Some(queue) = queues.get_mut(&transaction) else { return };
        let Some(place) = queue.iter().position(|one| Arc::ptr_eq(one, waiter)) else { return };
        queue.remove(place);
        if queue.is_empty() {
            queues.remove(&transaction);
        }
        self.count.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wait {
    /// Joins the queue of those that wait for a transaction. If that has ended meanwhile, it may have called nobody.
    pub(crate) fn begin(waiting: &Arc<Waiting>, transaction: u64) -> Self {
        Self { waiting: waiting.clone(), transaction, waiter: waiting.join(transaction) }
    }

    /// The number of the transaction for which it waits.
    pub fn transaction(&self) -> u64 {
        self.transaction
    }

    /// Waits until it may go on, for at most `longest`.
    pub fn wait(self, longest: Duration) -> Option<Baton> {
        // If that time never comes, it waits without a limit.
        let end = Instant::now().checked_add(longest);
        let mut state = lock(&self.waiter.state);
        loop {
            if let Some(baton) = state.baton.take() {
                return Some(baton);
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            let waited = self.waiter.called.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Whether it may go on. If not, the task is woken when it may.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<Baton> {
        // Wakers are the caller's code: they are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.waiter.state);
        let baton = state.baton.take();
        let needless = if baton.is_some() { Some(waker) } else { state.waker.replace(waker) };
        drop(state);
        drop(needless);
        baton.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waiting.leave(self.transaction, &self.waiter);
        let mut state = lock(&self.waiter.state);
        state.has_left = true;
        // It may have come at the last moment: then it is the next one's.
        let baton = state.baton.take();
        drop(state);
        drop(baton);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that waits for a transaction, as `Wait` does.
    fn is_called(waiter: &Waiter) -> Option<Baton> {
        lock(&waiter.state).baton.take()
    }

    #[test]
    fn one_goes_on_after_the_other() {
        let waiting = Waiting::default();
        let [first, second, third] = [(); 3].map(|()| waiting.join(7));
        let other = waiting.join(8);
        waiting.end(9);
        assert!([&first, &second, &third, &other].into_iter().all(|waiter| is_called(waiter).is_none()));
        waiting.end(7);
        let baton = is_called(&first).unwrap();
        assert!(is_called(&second).is_none() && is_called(&third).is_none());
        // One that no longer waits is passed over, whether it has left before that or then.
        lock(&second.state).has_left = true;
        drop(baton);
        assert!(is_called(&second).is_none());
        drop(is_called(&third).unwrap());
        waiting.leave(8, &other);
        assert!(waiting.is_empty());
        waiting.end(8);
        assert!(is_called(&other).is_none());
    }

    #[test]
    fn a_task_is_woken_and_one_that_gives_up_lets_the_next_go_on() {
        let waiting = Arc::new(Waiting::default());
        let [mut first, mut second, third] = [(); 3].map(|()| Wait::begin(&waiting, 1));
        let waker = Arc::new(Woken::default());
        let task = Waker::from(waker.clone());
        let context = &Context::from_waker(&task);
        assert!(first.poll(context).is_pending());
        waiting.end(1);
        assert_eq!(waker.0.load(Ordering::Relaxed), 1);
        // It is dropped when it may go on, and has not taken the baton.
        drop(first);
        let baton = match second.poll(context) {
            Poll::Ready(baton) => baton,
            Poll::Pending => panic!("it has the baton"),
        };
        assert!(third.wait(Duration::ZERO).is_none());
        drop(baton);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_waker_that_has_the_transaction_may_be_replaced() {
        struct Ends(Arc<Waiting>);
        impl std::task::Wake for Ends {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.end(1);
            }
        }
        let waiting = Arc::new(Waiting::default());
        let mut wait = Wait::begin(&waiting, 1);
        let task = Waker::from(Arc::new(Ends(waiting.clone())));
        assert!(wait.poll(&Context::from_waker(&task)).is_pending());
        drop(task);
        let later = &Context::from_waker(Waker::noop());
        assert!(wait.poll(later).is_pending() && wait.poll(later).is_ready());
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
