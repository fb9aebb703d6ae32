//! Freeing the trees of tables that are gone.
//!
//! A tree is freed in parts, each in a group of its own: see [`Tree::free_end`](vellum_access::Tree::free_end). The
//! thread that finds that nobody needs a tree any more frees some parts at once. A thread in the background frees the
//! rest, so no commit and no opening waits for that. The tree keeps its doomed record until its last part is freed: what
//! is left when the database is closed, or after a crash, is freed after the next opening.
//!
//! If a part cannot be freed, because a page cannot be read or the disk is full, the thread tries again after a pause.
//!
//! # Full files
//! A thread that finds no space in the file frees a part itself, or waits for the thread that is freeing one, and then
//! tries again (`Pool::make_space_by`): so what is still to be freed counts as free. It holds no latch and is in no group of
//! records, so nothing that freeing waits for waits for it. It is refused if nothing is left to be freed, or nothing can
//! be freed now.

use crate::{Result, driver::lock};
use std::{
    cell::Cell,
    collections::VecDeque,
    sync::{Arc, atomic},
    time::Duration,
};
use vellum_base::PageId;
use vellum_base::primitive::{Condvar, Mutex, thread};
use vellum_pool::Pool;

/// How many parts are freed at once; each has some hundred leaves and their large values.
const AT_ONCE: usize = 8;
/// How long the thread waits after a failure at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// So many of these have been made.
static MADE: atomic::AtomicU64 = atomic::AtomicU64::new(0);

vellum_base::primitive::thread_local! {
    /// Whether this thread is freeing a part.
    static FREES: Cell<bool> = const { Cell::new(false) };
    /// How many parts had been freed when this thread last found no space, and by which one's number.
    static SEEN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The trees that are to be freed.
pub(crate) struct Freeing {
    shared: Arc<Shared>,
    /// There is a thread once something was too large to be freed at once.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Frees a part of a tree; returns whether nothing is left.
type FreePart = Box<dyn Fn(PageId) -> Result<bool> + Send + Sync>;

struct Shared {
    /// Its number, which no other one has.
    number: u64,
    free_part: FreePart,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The roots of the trees, of which the first one is being freed.
    roots: VecDeque<PageId>,
    /// Whether a thread has the turn to free a part of the first one.
    is_taken: bool,
    /// How many threads free a tree that is not in the list yet.
    at_once: usize,
    /// How many parts have been freed.
    freed: u64,
    is_stopped: bool,
    /// Whether there is a thread that goes on until no tree is left.
    is_running: bool,
}

/// As long as it exists, no other thread frees a part of a tree in the list.
struct Turn<'f>(&'f Shared);

impl Freeing {
    /// `free_part` is not called any more once the thread was [stopped](Self::stop) and nobody else frees anything.
    pub(crate) fn new(free_part: impl Fn(PageId) -> Result<bool> + Send + Sync + 'static) -> Self {
        // Relaxed: only uniqueness matters.
        let number = MADE.fetch_add(1, atomic::Ordering::Relaxed) + 1;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Shared { number, free_part: Box::new(free_part), state, changed };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Has threads that find no space in the file free something.
    pub(crate) fn make_space_in(&self, pool: &Pool) {
        let shared = Arc::downgrade(&self.shared);
        pool.make_space_by(Box::new(move || shared.upgrade().is_some_and(|shared| shared.make_space())));
    }

    /// Frees a doomed tree, which nobody uses any more, at once or in the background.
    pub(crate) fn free(&self, root: PageId) {
        let at_once = AtOnce::begin(&self.shared);
        for _ in 0..AT_ONCE {
            match self.shared.free_part(root) {
                Ok(true) => return,
                Ok(false) => {}
                // The thread tries again.
                Err(_) => break,
            }
        }
        let mut state = lock(&self.shared.state);
        state.roots.push_back(root);
        at_once.end(&mut state);
        if !state.is_stopped && !state.is_running {
            state.is_running = true;
            drop(state);
            self.start();
        }
    }

    fn start(&self) {
        let shared = self.shared.clone();
        let work = move || {
            let _running = Running(&shared);
            shared.work();
        };
        let mut own = lock(&self.thread);
        // One that has ended.
        own.take().map(thread::JoinHandle::join);
        match thread::Builder::new().name("vellum-free".to_owned()).spawn(work) {
            Ok(thread) => *own = Some(thread),
            // It is started when the next tree is to be freed; what is left is freed after the next opening.
            Err(_) => lock(&self.shared.state).is_running = false,
        }
    }

    /// Frees all that is left, in this thread, until `go_on` returns false.
    ///
    /// # Errors
    /// If something cannot be freed now.
    pub(crate) fn finish(&self, mut go_on: impl FnMut() -> bool) -> Result<()> {
        loop {
            let is_left = self.shared.free_next(&self.shared.take_turn())?;
            if !is_left || !go_on() {
                return Ok(());
            }
        }
    }

    /// Ends the thread once the part is freed at which it is now. Trees that are to be freed later are only noted until
    /// [`resume`](Self::resume).
    pub(crate) fn stop(&self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.changed.notify_all();
        // A panic was reported where it happened.
        lock(&self.thread).take().map(thread::JoinHandle::join);
    }

    /// Keeps what would wait for the thread from being dropped: this process does not have it.
    pub(crate) fn leave(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::new(|_| Ok(false))));
    }

    /// Goes on after [`stop`](Self::stop).
    pub(crate) fn resume(&self) {
        let mut state = lock(&self.shared.state);
        state.is_stopped = false;
        if !state.roots.is_empty() && !state.is_running {
            state.is_running = true;
            drop(state);
            self.start();
        }
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_taken = false;
        self.0.changed.notify_all();
    }
}

/// A thread frees a tree that is not in the list.
struct AtOnce<'s>(Option<&'s Shared>);

impl<'s> AtOnce<'s> {
    fn begin(shared: &'s Shared) -> Self {
        lock(&shared.state).at_once += 1;
        Self(Some(shared))
    }

    fn end(mut self, state: &mut State) {
        if let Some(shared) = self.0.take() {
            state.at_once -= 1;
            shared.changed.notify_all();
        }
    }
}

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            lock(&shared.state).at_once -= 1;
            shared.changed.notify_all();
        }
    }
}

/// A panic of the thread is noticed: another one begins with the next tree.
struct Running<'s>(&'s Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.state).is_running = false;
        }
    }
}

impl Shared {
    fn work(&self) {
        let [first, most] = PAUSES;
        let mut pause = first;
        while self.is_wanted() {
            let turn = self.take_turn();
            if self.free_next(&turn).is_ok() {
                pause = first;
                continue;
            }
            drop(turn);
            let state = lock(&self.state);
            // Once another thread has freed something, what was in the way may be gone.
            let known = (state.roots.len(), state.freed);
            let waits = |state: &mut State| !state.is_stopped && (state.roots.len(), state.freed) == known;
            let waited = self.changed.wait_timeout_while(state, pause, waits);
            drop(waited.unwrap_or_else(|poisoned| poisoned.into_inner()));
            pause = (pause * 2).min(most);
        }
    }

    /// Whether anything is left to do.
    fn is_wanted(&self) -> bool {
        let mut state = lock(&self.state);
        let is_wanted = !state.is_stopped && !state.roots.is_empty();
        // At the same time as the list is found empty, so that a tree that comes now gets another thread.
        state.is_running = is_wanted;
        is_wanted
    }

    fn take_turn(&self) -> Turn<'_> {
        let state = lock(&self.state);
        let waited = self.changed.wait_while(state, |state| state.is_taken);
        waited.unwrap_or_else(|poisoned| poisoned.into_inner()).is_taken = true;
        Turn(self)
    }

    /// Frees a part of the first tree; returns whether there was one. After an error another tree is the first.
    fn free_next(&self, _: &Turn<'_>) -> Result<bool> {
        let Some(root) = lock(&self.state).roots.front().copied() else { return Ok(false) };
        let is_gone = self.free_part(root);
        let mut state = lock(&self.state);
        match &is_gone {
            Ok(true) => drop(state.roots.pop_front()),
            Ok(false) => {}
            // Others may be free of what is in the way.
            Err(_) => state.roots.rotate_left(1),
        }
        is_gone.map(|_| true)
    }

    /// Frees a part of a tree; returns whether nothing is left.
    fn free_part(&self, root: PageId) -> Result<bool> {
        struct Frees;
        impl Drop for Frees {
            fn drop(&mut self) {
                FREES.set(false);
            }
        }
        FREES.set(true);
        let frees = Frees;
        let freed = (self.free_part)(root);
        drop(frees);
        if freed.is_ok() {
            lock(&self.state).freed += 1;
            self.changed.notify_all();
        }
        freed
    }

    /// Frees a part for a thread that has found no space, or waits until another thread has freed one; returns false if
    /// nothing was freed since this thread found no space before, and nothing can be freed now.
    fn make_space(&self) -> bool {
        // What this thread does itself, it cannot wait for.
        if FREES.get() {
            return false;
        }
        let seen = match SEEN.get() {
            (number, freed) if number == self.number => freed,
            _ => 0,
        };
        let mut state = lock(&self.state);
        let mut left = state.roots.len();
        while state.freed == seen && !state.is_stopped {
            if state.is_taken || (state.roots.is_empty() && state.at_once > 0) {
                state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            }
            if left == 0 || state.roots.is_empty() {
                break;
            }
            left -= 1;
            state.is_taken = true;
            drop(state);
            // An error is met again by the thread in the background.
            let _ = self.free_next(&Turn(self));
            state = lock(&self.state);
        }
        SEEN.set((self.number, state.freed));
        state.freed != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    #[cfg(not(shuttle))]
    use std::time::Instant;
    use vellum_pool::PoolError;

    /// How many parts each tree has left, of those that were given to be freed.
    type Left = Arc<Mutex<HashMap<PageId, usize>>>;

    /// Frees parts of trees; each tree is freed by one thread at a time, and `fails` says which attempts fail.
    fn freeing(left: &Left, fails: impl Fn(usize) -> bool + Send + Sync + 'static) -> Freeing {
        let (left, attempts, busy) = (left.clone(), Mutex::new(0), Mutex::new(Vec::new()));
        Freeing::new(move |root| {
            let mut own = lock(&busy);
            assert!(!own.contains(&root), "two threads free a part of {root} at once");
            own.push(root);
            drop(own);
            let attempt = {
                let mut attempts = lock(&attempts);
                *attempts += 1;
                *attempts
            };
            let mut left = lock(&left);
            let parts = left.get_mut(&root).unwrap();
            let failed = fails(attempt);
            if !failed {
                *parts = parts.checked_sub(1).expect("it was freed before");
            }
            let is_gone = *parts == 0;
            drop(left);
            lock(&busy).retain(|other| *other != root);
            if failed { Err(PoolError::Cancelled.into()) } else { Ok(is_gone) }
        })
    }

    fn add(left: &Left, freeing: &Freeing, root: u64, parts: usize) {
        lock(left).insert(PageId(root), parts);
        freeing.free(PageId(root));
    }

    fn sum(left: &Left) -> usize {
        lock(left).values().sum()
    }

    #[cfg(not(shuttle))]
    fn wait(left: &Left, until: impl Fn(usize) -> bool) {
        let began = Instant::now();
        while !until(sum(left)) {
            assert!(began.elapsed() < Duration::from_secs(20), "{} parts are left", sum(left));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[cfg(not(shuttle))]
    #[test]
    fn what_fails_is_tried_again_and_does_not_hold_up_the_rest() {
        let left = Left::default();
        let freeing = freeing(&left, |attempt| attempt % 3 == 1);
        (1..=4).for_each(|root| add(&left, &freeing, root, 2 * root as usize));
        wait(&left, |left| left == 0);
        assert!(lock(&freeing.shared.state).roots.is_empty());
    }

    #[cfg(not(shuttle))]
    #[test]
    fn nothing_is_freed_while_it_is_stopped() {
        let left = Left::default();
        let freeing = freeing(&left, |_| false);
        add(&left, &freeing, 1, 1_000_000);
        freeing.stop();
        let before = sum(&left);
        thread::sleep(Duration::from_millis(20));
        assert!(sum(&left) == before && before > 0);
        add(&left, &freeing, 2, AT_ONCE + 1);
        assert_eq!(sum(&left), before + 1);
        freeing.resume();
        wait(&left, |now| now < before);
        freeing.finish(|| true).unwrap();
        assert_eq!(sum(&left), 0);
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_thread_without_space_frees_a_part_each_time() {
        let left = Left::default();
        let freeing = freeing(&left, |_| false);
        assert!(!freeing.shared.make_space(), "there is nothing to free");
        freeing.stop();
        add(&left, &freeing, 1, AT_ONCE + 3);
        // What was freed at once counts, because the thread has found no space before.
        assert!(freeing.shared.make_space());
        assert!(!freeing.shared.make_space() && sum(&left) == 3, "it is stopped");
        lock(&freeing.shared.state).is_stopped = false;
        for parts in [2, 1, 0] {
            assert!(freeing.shared.make_space());
            assert_eq!(sum(&left), parts);
        }
        assert!(!freeing.shared.make_space());
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_thread_without_space_passes_over_what_cannot_be_freed() {
        let left = Left::default();
        let (attempts, from) = (Arc::new(Mutex::new(0)), AT_ONCE + 1);
        let counted = attempts.clone();
        // After the first ones every second attempt fails.
        let freeing = freeing(&left, move |attempt| {
            *lock(&counted) = attempt;
            attempt >= from && attempt.is_multiple_of(2)
        });
        freeing.stop();
        add(&left, &freeing, 1, AT_ONCE + 2);
        add(&left, &freeing, 2, AT_ONCE + 2);
        lock(&freeing.shared.state).is_stopped = false;
        assert!(freeing.shared.make_space());
        for _ in 0..3 {
            let before = sum(&left);
            assert!(freeing.shared.make_space());
            assert_eq!(sum(&left), before - 1);
        }
        // All of them fail.
        let failing = self::freeing(&left, |_| true);
        failing.stop();
        add(&left, &failing, 3, 5);
        add(&left, &failing, 4, 5);
        lock(&failing.shared.state).is_stopped = false;
        assert!(!failing.shared.make_space(), "after an attempt for each tree");
    }

    /// A thread without space gets some as long as there is something to be freed, whatever the others do.
    #[cfg(shuttle)]
    #[test]
    fn threads_without_space_get_all_of_it_however_threads_meet() {
        /// So many threads free it.
        const OTHERS: usize = 2;
        let run = || {
            let left = Left::default();
            let freeing = Arc::new(freeing(&left, |_| false));
            let parts = AT_ONCE + 3;
            add(&left, &freeing, 1, parts);
            let takers: Vec<_> = (0..OTHERS)
                .map(|_| {
                    let (left, freeing) = (left.clone(), freeing.clone());
                    thread::spawn(move || {
                        while freeing.shared.make_space() {}
                        assert_eq!(sum(&left), 0, "it was refused although there was something to free");
                    })
                })
                .collect();
            takers.into_iter().for_each(|taker| taker.join().unwrap());
            let own = lock(&freeing.thread).take();
            own.into_iter().for_each(|thread| thread.join().unwrap());
        };
        shuttle::check_random(run, 2000);
    }

    /// A tree that is added when the thread is about to end is not forgotten.
    #[cfg(shuttle)]
    #[test]
    fn all_is_freed_however_threads_meet() {
        let run = || {
            let left = Left::default();
            let freeing = Arc::new(freeing(&left, |_| false));
            let others: Vec<_> = (1..=2)
                .map(|root| {
                    let (left, freeing) = (left.clone(), freeing.clone());
                    thread::spawn(move || add(&left, &freeing, root, AT_ONCE + 2))
                })
                .collect();
            others.into_iter().for_each(|other| other.join().unwrap());
            // The thread ends when nothing is left.
            let own = lock(&freeing.thread).take();
            own.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(sum(&left), 0);
            assert!(!lock(&freeing.shared.state).is_running);
        };
        shuttle::check_random(run, 2000);
    }
}
