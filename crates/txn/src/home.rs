//! Gives what a thread has made back to it.
//!
//! If two threads have transactions open most of the time, each finds that what the *other* has left behind is no
//! longer needed. To take it apart it would fetch every line of it from the other's cache. So it gives it back whole,
//! as one reference, and the thread that committed it takes it apart when it next begins to change something.

// No thread waits for another one here, so the thread models need not include it.
use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

/// At most this many items wait for a thread. While it does not take them, the others keep further ones.
const WAITING_MAX: usize = 16;

/// What other threads have given back to one thread.
pub(crate) struct Home<T> {
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    items: Vec<T>,
    /// Whether the thread has ended.
    is_closed: bool,
}

/// A thread's own handle on its home.
pub(crate) struct Own<T> {
    home: Arc<Home<T>>,
    /// Room for the items that are taken back.
    room: Vec<T>,
}

impl<T> Home<T> {
    /// Gives something back to the thread.
    ///
    /// # Errors
    /// The item, if the thread has ended, if too many items wait for it, or if another thread has the lock.
    pub fn give_back(&self, item: T) -> Result<(), T> {
        match self.waiting.try_lock() {
            Ok(mut waiting) if !waiting.is_closed && waiting.items.len() < WAITING_MAX => {
                waiting.items.push(item);
                Ok(())
            }
            _ => Err(item),
        }
    }
}

impl<T> Own<T> {
    pub fn new() -> Self {
        let waiting = Waiting { items: Vec::new(), is_closed: false };
        Self { home: Arc::new(Home { waiting: Mutex::new(waiting) }), room: Vec::new() }
    }

    pub fn home(&self) -> &Arc<Home<T>> {
        &self.home
    }

    /// What other threads have given back. Once empty, the list is [returned](Self::put_room).
    pub fn take(&mut self) -> Vec<T> {
        if let Ok(mut waiting) = self.home.waiting.try_lock() {
            mem::swap(&mut waiting.items, &mut self.room);
        }
        mem::take(&mut self.room)
    }

    /// Returns the list that [`take`](Self::take) gave, now empty.
    pub fn put_room(&mut self, list: Vec<T>) {
        debug_assert!(list.is_empty());
        self.room = list;
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let mut waiting = self.home.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_closed = true;
        // The items may themselves refer to the home.
        let items = mem::take(&mut waiting.items);
        drop(waiting);
        drop(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_given_back_as_there_is_room_for_until_the_thread_ends() {
        let mut own = Own::new();
        let home = own.home().clone();
        for _ in 0..3 {
            let refused = (0..WAITING_MAX + 3).filter(|item| home.give_back(*item).is_err()).count();
            assert_eq!(refused, 3);
            let mut taken = own.take();
            assert_eq!(taken, (0..WAITING_MAX).collect::<Vec<_>>());
            taken.clear();
            own.put_room(taken);
            assert!(own.take().is_empty());
        }
        home.give_back(1).unwrap();
        drop(own);
        assert_eq!(home.give_back(2), Err(2));
        assert!(home.waiting.lock().unwrap().items.is_empty());
    }
}
