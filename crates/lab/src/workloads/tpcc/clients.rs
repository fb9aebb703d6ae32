//! The clients of one thread that wait until their commits are durable, while the thread works for others.
//!
//! A thread commits one transaction after the other, and records of the log are durable in their order: so clients are
//! acknowledged in the order of their commits.

use crate::Result;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use vellum::Arrival;

/// The clients that wait.
pub struct Clients {
    /// How many there are, those included that do not wait.
    count: usize,
    waiting: VecDeque<Waiting>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// One that waits: for what, of which kind its transaction is, and when that began.
struct Waiting {
    arrival: Arrival,
    card: usize,
    begin: Instant,
}

/// Rings when a commit is durable, so that the thread need not look in vain.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Release: pairs with the swap in `acknowledge`.
        self.0.store(true, Ordering::Release);
    }
}

impl Clients {
    /// So many clients, none of which waits.
    pub fn new(count: usize) -> Self {
        let bell = Arc::<Bell>::default();
        Self { count, waiting: VecDeque::with_capacity(count), waker: bell.clone().into(), bell }
    }

    /// Whether the thread serves several.
    pub fn are_many(&self) -> bool {
        self.count > 1
    }

    /// A client waits from now on; gives how many do.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn wait(&mut self, arrival: Arrival, card: usize, begin: Instant) -> Result<usize> {
        let mut waiting = Waiting { arrival, card, begin };
        // That asks for it to be made durable. If it is, it is acknowledged in its turn.
        if let Poll::Ready(outcome) = waiting.poll(&self.waker) {
            outcome?;
            self.bell.0.store(true, Ordering::Release);
        }
        self.waiting.push_back(waiting);
        Ok(self.waiting.len())
    }

    /// Shows the kinds and the latencies of those whose commits are durable. Waits first if all clients wait, or for all of
    /// them at the end.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn acknowledge(&mut self, is_end: bool, mut show: impl FnMut(usize, Duration)) -> Result<()> {
        let waiting_max = if is_end { 0 } else { self.count - 1 };
        // Acquire: what rang the bell is seen.
        let mut has_rung = self.bell.0.swap(false, Ordering::Acquire);
        while self.waiting.len() > waiting_max
            && let Some(Waiting { arrival, card, begin }) = self.waiting.pop_front()
        {
            arrival.wait()?;
            show(card, begin.elapsed());
            has_rung = true;
        }
        while has_rung
            && let Some(first) = self.waiting.front_mut()
            && let Poll::Ready(outcome) = first.poll(&self.waker)
        {
            outcome?;
            show(first.card, first.begin.elapsed());
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl Waiting {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        let polled = Future::poll(Pin::new(&mut self.arrival), &mut Context::from_waker(waker));
        polled.map(|outcome| Ok(outcome?))
    }
}
