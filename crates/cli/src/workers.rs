//! Threads that process the jobs that one thread finds.

use std::sync::{
    Mutex,
    mpsc::{Receiver, SyncSender, sync_channel},
};

/// How many jobs may wait for each worker.
const WAITING_PER_WORKER: usize = 32;

/// The default number of workers: one per processor, at most four. More do not help with a single disk, and each may
/// hold an eighth of the pool.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

/// The queue of jobs.
pub struct Jobs<T>(SyncSender<T>);

impl<T> Jobs<T> {
    /// Hands a job to a worker, waiting until one is free. Returns false if all workers have ended.
    pub fn give(&self, job: T) -> bool {
        self.0.send(job).is_ok()
    }
}

/// Runs `find` on this thread, and `work` on each job that it hands over, on `threads` others. Returns the result of
/// `find` when all jobs are done.
pub fn run<T: Send, R>(threads: usize, find: impl FnOnce(&Jobs<T>) -> R, work: impl Fn(T) + Sync) -> R {
    let (sender, receiver) = sync_channel(threads * WAITING_PER_WORKER);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = next(&receiver) {
                    work(job);
                }
            });
        }
        let jobs = Jobs(sender);
        find(&jobs)
    })
}

fn next<T>(receiver: &Mutex<Receiver<T>>) -> Option<T> {
    receiver.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_job_is_done_before_it_returns() {
        let sum = AtomicU64::new(0);
        let given = run(
            3,
            |jobs| (1..=1000).filter(|job| jobs.give(*job)).count(),
            |job| {
                sum.fetch_add(job, Ordering::Relaxed);
            },
        );
        assert_eq!((given, sum.into_inner()), (1000, 500_500));
    }
}
