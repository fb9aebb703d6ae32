//! The changes that a thread has under way.
//!
//! A change that writes while the same thread has another change of the same heap under way would invalidate what that
//! one has read, the page in which the thread allocates at least. The outer change would be repeated, and with it the
//! inner one, for ever. So it is refused.

use std::cell::RefCell;
use vellum_base::{PageId, primitive::thread_local};

thread_local! {
    /// The heaps that this thread is changing, the outermost change first.
    static MINE: RefCell<Vec<Identity>> = const { RefCell::new(Vec::new()) };
}

/// What identifies a heap in a process: the address of its pager, and the root of its directory.
type Identity = (usize, PageId);

/// A change of a heap by this thread, until it is dropped.
pub(crate) struct UnderWay {
    /// Whether the thread was already changing the same heap.
    pub is_nested: bool,
    is_noted: bool,
}

impl UnderWay {
    pub fn begin<P>(pager: &P, owner: PageId) -> Self {
        let identity = (std::ptr::from_ref(pager).addr(), owner);
        let noted = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            let is_nested = mine.contains(&identity);
            mine.push(identity);
            is_nested
        });
        // The list is gone if the thread is ending and its values are being dropped.
        Self { is_nested: noted.unwrap_or(false), is_noted: noted.is_ok() }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.is_noted {
            // Changes of a thread end in the reverse order.
            let _ = MINE.try_with(|mine| mine.borrow_mut().pop());
        }
    }
}
