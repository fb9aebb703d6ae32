//! References: where an object is, and which of the successive objects at that place it is.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..9 | the granule of the page at which it begins: 8 bytes each |
//! | 9..48 | the page |
//! | 48..64 | its generation, which distinguishes it from earlier objects at the same place |

use std::{fmt, hash, marker::PhantomData, num::NonZeroU64};
use vellum_base::{PAGE_SIZE, PageId};

/// The unit in which places in a page are given.
pub(crate) const GRANULE_BYTES: usize = 8;
/// The number of granules in a page.
pub(crate) const GRANULES: usize = PAGE_SIZE / GRANULE_BYTES;

const GRANULE_BITS: u32 = GRANULES.trailing_zeros();
const PLACE_BITS: u32 = 48;
/// Pages of objects have ids below this: the first 2 PiB of a file.
pub(crate) const PAGE_LIMIT: u64 = 1 << (PLACE_BITS - GRANULE_BITS);

/// A reference to an object of any type. It is never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnyRef(NonZeroU64);

impl AnyRef {
    /// A reference that leads to nothing.
    pub(crate) const NOWHERE: Self = Self(NonZeroU64::MIN);

    /// None if no reference can name the page.
    pub(crate) fn new(page: PageId, granule: usize, generation: u16) -> Option<Self> {
        if page.0 >= PAGE_LIMIT || granule >= GRANULES {
            return None;
        }
        let place = page.0 << GRANULE_BITS | granule as u64;
        NonZeroU64::new(u64::from(generation) << PLACE_BITS | place).map(Self)
    }

    /// The reference as a number. See [`Ref::to_bits`].
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The reference that is this number; none if it is zero.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }

    /// The page in which the object lies.
    #[inline]
    pub fn page(self) -> PageId {
        PageId((self.0.get() & ((1 << PLACE_BITS) - 1)) >> GRANULE_BITS)
    }

    #[inline]
    pub(crate) fn granule(self) -> usize {
        self.0.get() as usize % GRANULES
    }

    /// The offset of the object in its page, in bytes.
    #[inline]
    pub(crate) fn at(self) -> usize {
        GRANULE_BYTES * self.granule()
    }

    #[inline]
    pub(crate) fn generation(self) -> u16 {
        (self.0.get() >> PLACE_BITS) as u16
    }

    /// The same reference, to an object of type `T`, which is checked when it is followed.
    #[inline]
    pub fn typed<T>(self) -> Ref<T> {
        Ref { any: self, of: PhantomData }
    }
}

impl fmt::Display for AnyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of page {} (generation {})", self.at(), self.page().0, self.generation())
    }
}

impl fmt::Debug for AnyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.page().0, self.granule(), self.generation())
    }
}

/// A reference to an object of type `T` in a heap: a number that stays the same as long as the object lives, whether or not it is in
/// memory, and after the program has been started again.
///
/// It may be copied, compared, stored in objects and in tables, and outlive the object: following it is then an error.
pub struct Ref<T> {
    any: AnyRef,
    of: PhantomData<fn() -> T>,
}

impl<T> Ref<T> {
    /// The reference as a number, which is never zero. For storing it outside of the heap, for example in a table that
    /// serves as an index.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.any.to_bits()
    }

    /// The reference from which [`to_bits`](Self::to_bits) made this number; none for zero.
    ///
    /// Any number may be given, and following it is safe, but only the object itself is looked at when it is read
    /// ([`Heap::get`](crate::Heap::get), [`fields`](crate::Heap::fields)): a reference of another heap of the same file
    /// reads the object of that heap or causes an error, and a number that never was a reference causes an error unless
    /// what lies in its place happens to begin as an object of that type and generation does. A
    /// [`Change`](crate::Change) looks at the page as well, and both cause an error there.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        AnyRef::from_bits(bits).map(AnyRef::typed)
    }

    /// The same reference without its type.
    #[inline]
    pub fn any(self) -> AnyRef {
        self.any
    }
}

impl<T> Clone for Ref<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<T> {}

impl<T> PartialEq for Ref<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.any == other.any
    }
}

impl<T> Eq for Ref<T> {}

impl<T> PartialOrd for Ref<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Ref<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.any.cmp(&other.any)
    }
}

impl<T> hash::Hash for Ref<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.any.hash(state);
    }
}

impl<T> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({:?})", self.any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_its_place() {
        for (page, granule, generation) in
            [(1, 13, 0), (PAGE_LIMIT - 1, GRANULES - 1, u16::MAX), (77, 400, 9)]
        {
            let reference = AnyRef::new(PageId(page), granule, generation).unwrap();
            assert_eq!(
                (reference.page().0, reference.granule(), reference.generation()),
                (page, granule, generation)
            );
            assert_eq!(AnyRef::from_bits(reference.to_bits()), Some(reference));
        }
        assert_eq!(AnyRef::new(PageId(PAGE_LIMIT), 13, 0), None);
        assert_eq!(AnyRef::from_bits(0), None);
    }
}
