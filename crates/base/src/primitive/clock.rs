//! Time under a scheduler: it goes on with what threads do, so that it is the same each time.

use std::{
    cell::{Cell, RefCell},
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

thread_local! {
    /// All threads under a scheduler run on one thread of the system.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Until when threads wait.
    static ENDS: RefCell<Vec<Instant>> = const { RefCell::new(Vec::new()) };
    /// How often one of them has looked whether it is over since a thread did anything else.
    static IDLE: Cell<usize> = const { Cell::new(0) };
}

/// How long something takes at which threads may meet.
const POINT: Duration = Duration::from_nanos(200);
/// If each of those that wait has looked so often, and nothing else was done, time goes on to when the first wait is over.
const LOOKS: usize = 4;

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }

    /// The moment so much later; none if there is no such.
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }

    /// The time since an earlier moment; zero if it is a later one.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        *self - earlier
    }

    /// The time since an earlier moment; none if it is a later one.
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

/// Lets time go on by what one operation takes.
pub(super) fn tick() {
    IDLE.set(0);
    NOW.set(NOW.get() + POINT);
}

/// The time since 1970: as if that were when the first thread began.
pub fn wall_time() -> Duration {
    NOW.get()
}

/// Waits until then, or until `is_over`. Returns whether it is.
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
