//! Which tree a table has now, where one tree may replace another.

use vellum_base::PageId;
use vellum_base::primitive::{AtomicU64, Ordering, spin_loop, thread};

/// The root of the tree that is the current one, in a word that tells each time it became that.
///
/// The root of a tree that was replaced may become the current one again. So the lower 40 bits of the word are the root, and the
/// next 23 count how often it was replaced. An operation compares the word that it found at its beginning with the one that is
/// there at its end: only an operation that lasts for 2²³ replacements could take one for another.
///
/// The highest bit is set while the tree is [being replaced](Self::begin_replacing): by then, what its readers see may belong to
/// the replacement.
pub struct CurrentRoot(AtomicU64);

/// The root of the tree that is the current one, and its number among all that have been that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumberedRoot(u64);

const ROOT_BITS: u64 = (1 << PageId::BITS) - 1;
const ONE_MORE: u64 = 1 << PageId::BITS;
const IS_BEING_REPLACED: u64 = 1 << 63;

impl NumberedRoot {
    /// The root of a tree that is the first one.
    #[inline]
    pub const fn first(root: PageId) -> Self {
        Self(root.0)
    }

    /// The page of the root.
    #[inline]
    pub const fn root(self) -> PageId {
        PageId(self.0 & ROOT_BITS)
    }
}

impl CurrentRoot {
    /// The first tree has this root.
    pub const fn new(root: PageId) -> Self {
        Self(AtomicU64::new(root.0))
    }

    /// The current tree, unless it is being replaced.
    #[inline]
    pub fn load(&self) -> Option<NumberedRoot> {
        // Acquire: pairs with `replace`, so that the tree's contents are visible.
        let word = self.0.load(Ordering::Acquire);
        (word & IS_BEING_REPLACED == 0).then_some(NumberedRoot(word))
    }

    /// The current tree. If it is being replaced, waits for the next one.
    #[cold]
    #[inline(never)]
    pub fn wait(&self) -> NumberedRoot {
        /// The other thread does little meanwhile; after that it is not running.
        const SPINS: usize = 100;
        let mut spins = 0;
        loop {
            if let Some(current) = self.load() {
                return current;
            }
            spins += 1;
            if spins < SPINS { spin_loop() } else { thread::yield_now() }
        }
    }

    /// The current root, also while it is being replaced. For those that keep others from replacing it.
    #[inline]
    pub fn last(&self) -> PageId {
        // Acquire: as in `load`.
        NumberedRoot(self.0.load(Ordering::Acquire)).root()
    }

    /// What [`is`](Self::is) is to be asked later, if the operation finds the tree by itself.
    #[inline]
    pub fn word(&self) -> NumberedRoot {
        // Relaxed: a later load finds this word, or one of a later tree.
        NumberedRoot(self.0.load(Ordering::Relaxed))
    }

    /// Whether this is still the current tree, and is not being replaced. After a read of a tree that was emptied because it was
    /// replaced, this is false; and so it is after a read that has seen what was committed with the replacement.
    #[inline]
    pub fn is(&self, seen: NumberedRoot) -> bool {
        // Acquire: the load comes after the read. A thread that has read the empty root has seen the store that replaces it.
        self.0.load(Ordering::Acquire) == seen.0
    }

    /// [`is`](Self::is), for a thread that has a page of the tree latched.
    #[inline]
    pub(in crate::tree) fn is_latched(&self, seen: NumberedRoot) -> bool {
        // Relaxed: a thread that truncates the tree stores another root before it latches any page of it. Pages latched
        // later are refused, and that thread sees the changes of pages latched before.
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// The tree is about to be replaced, and nothing can be in the way any more: others [wait](Self::wait) until it is.
    pub fn begin_replacing(&self) {
        // Relaxed: what must not be seen without this bit is stored with release ordering after it.
        self.0.store(self.0.load(Ordering::Relaxed) | IS_BEING_REPLACED, Ordering::Relaxed);
    }

    /// The tree is replaced by one with this root. One thread at a time may do this.
    pub fn replace(&self, root: PageId) {
        let number =
            (self.0.load(Ordering::Relaxed) & !ROOT_BITS).wrapping_add(ONE_MORE) & !IS_BEING_REPLACED;
        // Release: pairs with `load`.
        self.0.store(number | root.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_is_the_current_one_again_is_another() {
        let last = PageId((1 << PageId::BITS) - 1);
        let current = CurrentRoot::new(last);
        let first = current.load().unwrap();
        assert_eq!((first, current.word(), current.last()), (NumberedRoot::first(last), first, last));
        current.begin_replacing();
        assert!(current.load().is_none() && !current.is(first) && !current.is_latched(first));
        assert_eq!(current.last(), last);
        for round in 0..100 {
            assert!(!current.is(first), "round {round}");
            let root = if round % 2 == 0 { PageId(7) } else { last };
            current.replace(root);
            assert_eq!(current.wait().root(), root);
        }
        let before_last = CurrentRoot(AtomicU64::new(last.0 | ((1 << 23) - 1) << PageId::BITS));
        assert!(!before_last.is(first));
        before_last.begin_replacing();
        before_last.replace(last);
        // The count begins again.
        assert!(before_last.is(first));
    }
}
