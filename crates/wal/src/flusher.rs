//! The thread that flushes for tasks, and for transactions whose durability is deferred, because they do not wait
//! themselves.

use crate::{
    Durability, Log, LogError,
    waiting::{LOG_THREAD, Request},
};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use vellum_base::primitive::thread::{self, Builder, JoinHandle};
use vellum_base::{Lsn, tell_panic};

/// How long the thread waits after a flush that found no room.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the thread rests after a flush that was requested [soon](Log::request_flush_soon): requests that come
/// meanwhile are served together. A thread that wakes several thousand times a second takes time from the threads that
/// fill the log.
const REST: Duration = Duration::from_millis(1);

impl Log {
    /// Asks the [flusher](LogFlusher), if there is one, to bring all records so far. Returns at once: records that no
    /// thread waits for are lost in part if the process, or the power, ends before.
    pub fn request_flush(&self, durability: Durability) {
        self.waiting().ask(Request::Flush(durability));
    }

    /// Asks the [flusher](LogFlusher), if there is one, to make all records so far durable, at once or a millisecond
    /// after it last did so. No thread waits for them.
    pub fn request_flush_soon(&self) {
        self.waiting().ask(Request::FlushSoon);
    }
}

/// A thread that flushes a log when [requested](Log::request_flush), and makes its segments before they are needed. It
/// ends when this is dropped.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use vellum_base::Lsn;
/// # use vellum_wal::{Durability, Log, LogError, LogFlusher, LogOptions};
/// # let disk = vellum_vm::SimulatedDisk::new(1);
/// # let options = LogOptions::new([1; 16]);
/// # let options = LogOptions { segment_bytes: 1 << 20, ..options };
/// let log = Arc::new(Log::open(Arc::new(disk), &options, Lsn(0), |_| Ok::<_, LogError>(()))?);
/// let flusher = LogFlusher::start(log.clone())?;
/// let arrival = flusher.arrival(log.append(b"a record")?, Durability::Synced);
/// # let runtime = |arrival: vellum_wal::Arrival| {
/// #     let waker = std::task::Waker::noop();
/// #     let mut arrival = std::pin::pin!(arrival);
/// #     loop {
/// #         let polled = std::future::Future::poll(arrival.as_mut(), &mut std::task::Context::from_waker(waker));
/// #         if let std::task::Poll::Ready(result) = polled { break result }
/// #         std::thread::yield_now();
/// #     }
/// # };
/// runtime(arrival)?; // or arrival.await?
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the thread ends when it is dropped"]
pub struct LogFlusher {
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

impl LogFlusher {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start(log: Arc<Log>) -> io::Result<Self> {
        let flushed = log.clone();
        // What waits for the thread would wait for ever.
        let work = move || {
            tell_panic(
                || run(&flushed),
                |panic| {
                    flushed.fail(io::Error::other(panic));
                },
            );
        };
        let thread = Builder::new().name(LOG_THREAD.to_owned()).spawn(work)?;
        Ok(Self { log, thread: Some(thread) })
    }

    /// A future that is ready when the record at `lsn` is as durable as requested. It need not be awaited.
    pub fn arrival(&self, lsn: Lsn, durability: Durability) -> Arrival {
        Arrival { log: self.log.clone(), lsn, durability, key: None }
    }
}

impl Drop for LogFlusher {
    fn drop(&mut self) {
        self.log.waiting().stop();
        // A waker that the thread calls may be what drops this.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A panic has ended the log.
            let _ = thread.join();
        }
    }
}

fn run(log: &Log) {
    serve(log);
    // From now on each thread wakes tasks itself.
    log.waiting().stop();
    log.wake_tasks();
}

fn serve(log: &Log) {
    while let Some(request) = log.waiting().wait_for_request() {
        let outcome = match request {
            Request::Flush(durability) => log.flush_all(durability),
            Request::FlushSoon => {
                log.flush_all(Durability::Synced).inspect(|()| log.waiting().rest(REST, request))
            }
            Request::Write => log.write_filled(),
            Request::Wake => {
                log.wake_tasks();
                Ok(())
            }
            // A thread that needs them makes them, and gets the error.
            Request::Segments => log.prepare().or(Ok(())),
        };
        match outcome {
            Ok(()) => {}
            Err(LogError::NoRoom { .. }) => {
                log.waiting().pause(PAUSE);
                log.waiting().ask(request);
            }
            // Waiting threads and tasks have been woken, and find the failure.
            Err(_) => return,
        }
    }
}

/// A future of a record's durability: see [`LogFlusher::arrival`].
#[must_use = "nothing waits for it unless it is awaited"]
pub struct Arrival {
    log: Arc<Log>,
    lsn: Lsn,
    durability: Durability,
    /// The key of the task that awaits this, once it waits.
    key: Option<u64>,
}

impl Arrival {
    /// The place of the record.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Waits on this thread until the record is durable.
    ///
    /// # Errors
    /// As for [`Log::wait`].
    pub fn wait(self) -> Result<(), LogError> {
        self.log.wait(self.lsn, self.durability)
    }
}

impl Future for Arrival {
    type Output = Result<(), LogError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { log, lsn, durability, key } = &mut *self;
        let (lsn, durability) = (*lsn, *durability);
        if let Some(result) = log.outcome(lsn, durability) {
            return Poll::Ready(result);
        }
        let is_new = log.waiting().add(lsn, durability, key, context.waker());
        if is_new && durability == Durability::Synced {
            log.syncs.note_task();
        }
        // The record may have arrived before the waker was registered.
        log.outcome(lsn, durability).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.log.waiting().remove(self.lsn, self.durability, key);
        }
    }
}
