//! Threads that process the jobs that one thread finds.

use crate::failure::{Code, Failure, Result};
use std::sync::{
    Mutex,
    mpsc::{Receiver, SyncSender, sync_channel},
};
use vellum_base::primitive::spawn_scoped;

/// How much memory is kept free while workers are started, in bytes: where memory is limited, the last one that the
/// system allows takes none of what the work needs, nor of what a thread needs to begin.
const RESERVED_BYTES: usize = 16 << 20;
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

/// Runs `find` on this thread, and `work` on each job that it hands over, on `threads` others, or fewer if the system
/// refuses some. Returns the result of `find` when all jobs are done.
///
/// # Errors
/// If the system refuses all threads, or there is too little memory for them.
pub fn run<T: Send, R>(
    threads: usize,
    find: impl FnOnce(&Jobs<T>) -> R,
    work: impl Fn(T) + Sync,
) -> Result<R> {
    let (sender, receiver) = sync_channel(threads * WAITING_PER_WORKER);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        let mut reserved = Vec::<u8>::new();
        reserved.try_reserve_exact(RESERVED_BYTES).map_err(|_| no_memory())?;
        std::hint::black_box(&mut reserved);
        for started in 0..threads {
            let worker = || {
                while let Some(job) = next(&receiver) {
                    work(job);
                }
            };
            match spawn_scoped(scope, "vellum-worker", worker) {
                Err(error) if started == 0 => return Err(cannot_start(&error)),
                Err(_) => break,
                Ok(_) => {}
            }
        }
        drop(reserved);
        let jobs = Jobs(sender);
        Ok(find(&jobs))
    })
}

fn no_memory() -> Failure {
    Failure::new(Code::Full, "there is not enough memory to start threads; raise the limit (`ulimit -v`)")
}

/// The failure that the system refuses a thread.
pub fn cannot_start(error: &std::io::Error) -> Failure {
    Failure::io("start a thread", error)
        .and("Processes or memory are limited (`ulimit -u`, `ulimit -v`): raise the limit")
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
        )
        .unwrap();
        assert_eq!((given, sum.into_inner()), (1000, 500_500));
    }
}
