//! Time under a scheduler: it advances with the operations of threads, so that it is the same each time.

use std::{
    cell::{Cell, RefCell},
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

thread_local! {
    /// All threads under a scheduler run on one thread of the system.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The ends of the waits of threads.
    static ENDS: RefCell<Vec<Instant>> = const { RefCell::new(Vec::new()) };
    /// How often a waiting thread has checked whether its wait is over since any thread did anything else.
    static IDLE: Cell<usize> = const { Cell::new(0) };
}

/// The duration of an operation at which threads may meet.
const POINT: Duration = Duration::from_nanos(200);
/// If each waiting thread has checked this often, and nothing else was done, time jumps to the end of the first wait.
const LOOKS: usize = 4;

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// The time since that moment.
    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }

    /// The moment this much later; `None` if there is none.
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }

    /// The time since an earlier moment; zero if `earlier` is later.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        *self - earlier
    }

    /// The time since an earlier moment; `None` if `earlier` is later.
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Advances time by the duration of one operation.
pub(super) fn tick() {
    IDLE.set(0);
    NOW.set(NOW.get() + POINT);
}

/// The time since 1970: as if the first thread had begun then.
pub fn wall_time() -> Duration {
    NOW.get()
}

/// Waits until `end`, or until `is_over`. Returns whether it is over.
pub(super) fn wait_until(end: Instant, is_over: impl Fn() -> bool) -> bool {
    ENDS.with_borrow_mut(|ends| ends.push(end));
    while !is_over() && Instant::now() < end {
        NOW.set(NOW.get() + POINT);
        IDLE.set(IDLE.get() + 1);
        let (first, count) = ENDS.with_borrow(|ends| (ends.iter().min().copied(), ends.len()));
        if let Some(Instant(first)) = first
            && IDLE.get() > LOOKS * count
        {
            NOW.set(NOW.get().max(first));
        }
        shuttle::thread::yield_now();
    }
    ENDS.with_borrow_mut(|ends| ends.iter().position(|other| *other == end).map(|at| ends.swap_remove(at)));
    is_over()
}
