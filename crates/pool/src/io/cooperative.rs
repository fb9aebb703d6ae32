//! Waiting for a page that a queue reads asynchronously, and whose owner may not reap for a long time.
//!
//! A page under an asynchronous read is latched exclusively by a queue, whose owner is a loop of the
//! application's: it may be busy with anything, or wait for the very thread that wants the page. So a thread
//! that is about to sleep for a latch checks first whether one of the queues reads the page, and if so ends that
//! queue's reads itself, in the owner's place.
//!
//! # Why no thread sleeps for ever
//! - A page is latched for a queue, and entered into it, with the queue locked. A thread that has seen the latch and
//!   then locks the queue finds the page in it, or the read over.
//! - A sleeper looks at the queues *after* it has set the waiting bit of the page's word. If the page was latched for a
//!   queue before that, it finds it there. If the bit has been cleared and the page latched for a queue since, the
//!   sleeper finds the bit clear and does not sleep; or the bit has been set again, by a thread that looks at the
//!   queues after that, ends the read, and so wakes all.
//! - A sleeper does not wait for a queue that is locked, because the owner may wait in it for the device. It cannot
//!   know whether the page is in it, so it sleeps for a moment only, and tries again.

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

    /// Takes a queue out that reads nothing any more.
    pub fn remove(&self, queue: &Arc<Mutex<Q>>) {
        lock(&self.all).retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Looks for the queue that `reads` the page in question, and if it is there, lets `finish` wait until one of
    /// its reads is done and end those that are.
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
                // Also one whose owner panicked with the lock in hand: its reads are in an unknown state.
                Err(_) => found = CooperativeCompletion::Unsure,
            }
        }
        found
    }
}
