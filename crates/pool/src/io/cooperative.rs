//! Waiting for a page that a queue reads asynchronously, and whose owner may not reap for a long time.
//!
//! A page under an asynchronous read is latched exclusively by a queue, whose owner is a loop of the application: it
//! may be busy with anything, or wait for the very thread that wants the page. So a thread that is about to sleep for a
//! latch first checks whether one of the queues reads the page, and if so completes that queue's reads itself, in place
//! of the owner.
//!
//! # Why no thread sleeps for ever
//! - A page is latched for a queue, and entered into it, with the queue locked. A thread that has seen the latch and
//!   then locks the queue finds the page in it, or finds that the read is over.
//! - A sleeper looks at the queues *after* it has set the waiting bit of the page's word. If the page was latched for a
//!   queue before that, the sleeper finds it there. If the bit has been cleared and the page latched for a queue since,
//!   the sleeper finds the bit clear and does not sleep; or the bit has been set again, by a thread that looks at the
//!   queues after that, completes the read, and so wakes all.
//! - A sleeper does not wait for a queue that is locked, because its owner may be waiting there for the device. The
//!   sleeper cannot know whether the page is in that queue, so it sleeps only for a moment, and tries again.

use crate::{
    page::parking::CooperativeCompletion,
    primitive::{Mutex, lock},
};
use std::sync::Arc;

/// All queues of a pool.
pub struct Queues<Q> {
    all: Mutex<Vec<Arc<Mutex<Q>>>>,
}

impl<Q> Queues<Q> {
    pub fn new() -> Self {
        Self { all: Mutex::new(Vec::new()) }
    }

    /// Adds a queue, before it reads anything.
    pub fn add(&self, queue: Arc<Mutex<Q>>) {
        lock(&self.all).push(queue);
    }

    /// Removes a queue that has no reads under way.
    pub fn remove(&self, queue: &Arc<Mutex<Q>>) {
        lock(&self.all).retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Shows all queues to `visit`, each locked.
    pub fn for_each(&self, visit: impl Fn(&mut Q)) {
        let all = lock(&self.all).clone();
        all.iter().for_each(|queue| visit(&mut lock(queue)));
    }

    /// Shows the queues that are not locked to `visit`, and returns the sum of what it returns.
    pub fn sum(&self, visit: impl Fn(&mut Q) -> usize) -> usize {
        let all = lock(&self.all).clone();
        all.iter().filter_map(|queue| queue.try_lock().ok()).map(|mut queue| visit(&mut queue)).sum()
    }

    /// Looks for the queue that `reads` the page in question, and if there is one, lets `finish` complete those of its
    /// reads that are done, after waiting until one is.
    pub fn complete(&self, reads: impl Fn(&Q) -> bool, finish: impl Fn(&mut Q)) -> CooperativeCompletion {
        // A copy, so that queues may come and go while this one waits.
        let all = lock(&self.all).clone();
        let mut found = CooperativeCompletion::NotReading;
        for queue in all {
            match queue.try_lock() {
                Ok(mut queue) if reads(&queue) => {
                    finish(&mut queue);
                    return CooperativeCompletion::Completed;
                }
                Ok(_) => {}
                // This includes a queue whose owner panicked while it held the lock: its reads are in an unknown state.
                Err(_) => found = CooperativeCompletion::Unsure,
            }
        }
        found
    }
}
