//! Freeing the trees of tables that are gone.
//!
//! A tree is freed in parts, each in a group of its own: see [`Tree::free_end`](vellum_access::Tree::free_end). The
//! thread that finds that nobody needs a tree any more frees some parts at once. A thread in the background frees the
//! rest, so no commit and no opening waits for that. The tree keeps its doomed record until its last part is freed: what
//! is left when the database is closed, or after a crash, is freed after the next opening.
//!
//! If a part cannot be freed, because a page cannot be read or the disk is full, the thread tries again after a pause.

use crate::{Result, driver::lock};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use vellum_base::PageId;
use vellum_base::primitive::{Condvar, Mutex, MutexGuard, thread};

/// How many parts are freed at once; each has some hundred leaves and their large values.
const AT_ONCE: usize = 8;
/// How long the thread waits after a failure at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// The trees that are to be freed.
pub(crate) struct Freeing {
    shared: Arc<Shared>,
    /// There is a thread once something was too large to be freed at once.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Frees a part of a tree; returns whether nothing is left.
type FreePart = Box<dyn Fn(PageId) -> Result<bool> + Send + Sync>;

struct Shared {
    free_part: FreePart,
    state: Mutex<State>,
    changed: Condvar,
    /// Locked while a part is freed.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The roots of the trees, of which the first one is being freed.
    roots: VecDeque<PageId>,
    /// How many threads want the thread to wait.
    paused: usize,
    is_stopped: bool,
    /// Whether there is a thread that goes on until no tree is left.
    is_running: bool,
}

/// As long as it exists, nothing is freed in the background.
pub(crate) struct Paused<'f> {
    shared: &'f Shared,
    _turn: MutexGuard<'f, ()>,
}

impl Freeing {
    /// `free_part` is not called any more once the thread was [stopped](Self::stop) and nobody else frees anything.
    pub(crate) fn new(free_part: impl Fn(PageId) -> Result<bool> + Send + Sync + 'static) -> Self {
        let (state, changed, turn) = (Mutex::default(), Condvar::new(), Mutex::new(()));
        let shared = Shared { free_part: Box::new(free_part), state, changed, turn };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Frees a doomed tree, which nobody uses any more, at once or in the background.
    pub(crate) fn free(&self, root: PageId) {
        for _ in 0..AT_ONCE {
            match (self.shared.free_part)(root) {
                Ok(true) => return,
                Ok(false) => {}
                // The thread tries again.
                Err(_) => break,
            }
        }
        let mut state = lock(&self.shared.state);
        state.roots.push_back(root);
        self.shared.changed.notify_all();
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
            let turn = lock(&self.shared.turn);
            let is_left = self.shared.free_next()?;
            drop(turn);
            if !is_left || !go_on() {
                return Ok(());
            }
        }
    }

    /// Lets the thread wait.
    pub(crate) fn pause(&self) -> Paused<'_> {
        let shared = &*self.shared;
        lock(&shared.state).paused += 1;
        Paused { shared, _turn: lock(&shared.turn) }
    }

    /// Ends the thread once the part is freed at which it is now. Trees that are to be freed later are only noted until
    /// [`resume`](Self::resume).
    pub(crate) fn stop(&self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.changed.notify_all();
        // A panic was reported where it happened.
        lock(&self.thread).take().map(thread::JoinHandle::join);
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

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).paused -= 1;
        self.shared.changed.notify_all();
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
            let turn = lock(&self.turn);
            if self.free_next().is_ok() {
                pause = first;
                continue;
            }
            let mut state = lock(&self.state);
            // Others may be free of what is in the way.
            state.roots.rotate_left(1);
            drop(turn);
            let known = state.roots.len();
            let waits = |state: &mut State| !state.is_stopped && state.roots.len() == known;
            let waited = self.changed.wait_timeout_while(state, pause, waits);
            drop(waited.unwrap_or_else(|poisoned| poisoned.into_inner()));
            pause = (pause * 2).min(most);
        }
    }

    /// Waits while the thread is paused; returns whether anything is left to do.
    fn is_wanted(&self) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_while(state, |state| state.paused > 0 && !state.is_stopped);
        let mut state = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_wanted = !state.is_stopped && !state.roots.is_empty();
        // At the same time as the list is found empty, so that a tree that comes now gets another thread.
        state.is_running = is_wanted;
        is_wanted
    }

    /// Frees a part of the first tree; returns whether there was one. The caller has locked `turn`.
    fn free_next(&self) -> Result<bool> {
        let Some(root) = lock(&self.state).roots.front().copied() else { return Ok(false) };
        if (self.free_part)(root)? {
            lock(&self.state).roots.pop_front();
        }
        Ok(true)
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
    fn nothing_is_freed_while_it_is_paused_or_stopped() {
        let left = Left::default();
        let freeing = freeing(&left, |_| false);
        add(&left, &freeing, 1, 1_000_000);
        let paused = freeing.pause();
        let before = sum(&left);
        thread::sleep(Duration::from_millis(20));
        assert!(sum(&left) == before && before > 0);
        drop(paused);
        wait(&left, |now| now < before);
        freeing.stop();
        let before = sum(&left);
        add(&left, &freeing, 2, AT_ONCE + 1);
        assert_eq!(sum(&left), before + 1);
        freeing.resume();
        wait(&left, |now| now < before);
        freeing.finish(|| true).unwrap();
        assert_eq!(sum(&left), 0);
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
            drop(freeing.pause());
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
