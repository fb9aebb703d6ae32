//! The encoding of objects as bytes, and its inverse.
//!
//! An object's bytes begin with its *fixed part*, whose layout is determined by its type alone. The contents of each
//! [`Text`](crate::Text) or [`Array`](crate::Array) follow, in the order in which the fields are stored; the field
//! holds the offset of its contents, counted from the object's first byte, and the number of bytes or elements, in 4
//! bytes each.

use std::{cell::Cell, hint::cold_path};
use vellum_base::{Bytes, primitive::meet};

/// The alignment of each run of bytes in an object.
const RUN_ALIGN: usize = 8;

/// Reads the bytes of an object, which may change meanwhile, or be arbitrary.
///
/// Every read is bounded, and none fails: impossible contents are noted by [`refuse`](Self::refuse), and the loaded
/// values must then be discarded.
#[derive(Debug)]
pub struct Reader<B> {
    bytes: B,
    /// Where the object begins.
    start: usize,
    length: usize,
    /// The end of the last run.
    next: Cell<usize>,
    is_sound: Cell<bool>,
}

impl<B: Bytes> Reader<B> {
    /// Reads `length` bytes from `start` on, of which `fixed` are the fixed part.
    #[inline(always)]
    pub(crate) fn new(bytes: B, start: usize, length: usize, fixed: usize) -> Self {
        Self { bytes, start, length, next: Cell::new(fixed), is_sound: Cell::new(fixed <= length) }
    }

    /// Whether everything read can have been stored.
    #[inline(always)]
    pub(crate) fn is_sound(&self) -> bool {
        self.is_sound.get()
    }

    /// Allows the next run to lie before the runs that were read.
    #[inline(always)]
    pub(crate) fn begin_again(&self) {
        self.next.set(0);
    }

    /// Notes that what was read cannot have been stored.
    #[inline(always)]
    pub fn refuse(&self) {
        cold_path();
        self.is_sound.set(false);
    }

    /// A number.
    #[inline(always)]
    pub fn u8(&self, at: usize) -> u8 {
        meet();
        self.bytes.u8_at(self.start + at)
    }

    /// A number at an even place.
    #[inline(always)]
    pub fn u16(&self, at: usize) -> u16 {
        meet();
        self.bytes.u16_at(self.start + at)
    }

    /// A number at a multiple of 4.
    #[inline(always)]
    pub fn u32(&self, at: usize) -> u32 {
        meet();
        self.bytes.u32_at(self.start + at)
    }

    /// A number at a multiple of 8.
    #[inline(always)]
    pub fn u64(&self, at: usize) -> u64 {
        meet();
        self.bytes.u64_at(self.start + at)
    }

    /// Where the run of a field begins, and how many elements of `size` bytes it has. An impossible run is returned as
    /// empty.
    pub(crate) fn run(&self, at: usize, size: usize) -> (usize, usize) {
        let (begin, count) = (self.u32(at) as usize, self.u32(at + 4) as usize);
        let end = count.checked_mul(size).and_then(|bytes| begin.checked_add(bytes));
        match end {
            // Runs follow one another, so the time to read them is bounded by the object's length, whatever the bytes
            // say.
            Some(end)
                if end <= self.length && begin >= self.next.get() && begin.is_multiple_of(RUN_ALIGN) =>
            {
                self.next.set(end);
                (begin, count)
            }
            _ => {
                self.refuse();
                (0, 0)
            }
        }
    }

    /// A copy of `N` bytes.
    #[inline(always)]
    pub(crate) fn copy_array<const N: usize>(&self, at: usize) -> [u8; N] {
        meet();
        let mut copy = [0; N];
        self.bytes.copy_to(self.start + at, &mut copy);
        copy
    }

    /// A copy of some bytes.
    pub(crate) fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        meet();
        let mut copy = Vec::new();
        self.bytes.append_to(self.start + at, length, &mut copy);
        copy
    }
}

/// The bytes of an object under construction.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Writer {
    /// An object with a fixed part of `fixed` bytes, all zero.
    pub(crate) fn new(fixed: usize) -> Self {
        Self { bytes: vec![0; fixed], is_too_long: false }
    }

    /// Puts bytes into the fixed part, or into a run.
    #[inline]
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(target) = self.bytes.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    /// Appends a run of `count` elements of `size` bytes, all zero, and makes the field at `at` refer to it; returns
    /// where the run begins.
    pub(crate) fn append(&mut self, at: usize, count: usize, size: usize) -> usize {
        let begin = self.bytes.len().next_multiple_of(RUN_ALIGN);
        let end = count.checked_mul(size).and_then(|bytes| begin.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= OBJECT_BYTES_MAX && count <= OBJECT_BYTES_MAX) else {
            self.is_too_long = true;
            return 0;
        };
        self.bytes.resize(end, 0);
        self.put(at, &(begin as u32).to_le_bytes());
        self.put(at + 4, &(count as u32).to_le_bytes());
        begin
    }

    /// The bytes; none if there are too many.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        (!self.is_too_long).then_some(self.bytes)
    }
}

/// The longest object, in bytes: 1 GiB.
pub(crate) const OBJECT_BYTES_MAX: usize = vellum_access::MAX_VALUE_BYTES as usize;
