//! Where what a thread has made goes back to.
//!
//! Of two threads that have transactions open most of the time, each finds that nobody needs any more what the *other* has left behind. To
//! take that apart it would fetch every line of it from the other's cache. So it gives the whole back to the thread that has
//! committed it, as one reference, and that thread takes it apart when it begins to change something the next time.

// No thread waits for another one here, so a model of threads need not know it.
use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

/// So many things wait for a thread at most. If it does not come for them, the others keep further ones.
const WAITING_MAX: usize = 16;

/// What other threads have given back to one.
pub(crate) struct Home<T> {
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    items: Vec<T>,
    /// The thread has ended.
    is_closed: bool,
}

/// The home of a thread, as the thread has it.
pub(crate) struct Own<T> {
    home: Arc<Home<T>>,
    /// Room for what is taken back.
    room: Vec<T>,
}

impl<T> Home<T> {
    /// Gives something back to the thread.
    ///
    /// # Errors
    /// What was to be given back, if the thread has ended or too much waits for it, or another thread does the same.
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

    /// What other threads have given back. The list is [returned](Self::put_room) when it is empty.
    pub fn take(&mut self) -> Vec<T> {
        if let Ok(mut waiting) = self.home.waiting.try_lock() {
            mem::swap(&mut waiting.items, &mut self.room);
        }
        mem::take(&mut self.room)
    }

    /// Returns the list that [`take`](Self::take) gave, which is empty.
    pub fn put_room(&mut self, list: Vec<T>) {
        debug_assert!(list.is_empty());
        self.room = list;
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let mut waiting = self.home.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_closed = true;
        // They may refer to the home themselves.
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
