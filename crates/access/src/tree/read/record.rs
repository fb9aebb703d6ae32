//! Reading a record out of a leaf. All readers use this code, however they reach the leaf: lookups of one key and of
//! many, futures, cursors, checks, and changes that look for the record to change.
//!
//! A reader without a latch first *finds* a record: where the wanted bytes of its value lie, so that they can be
//! fetched into the processor's cache. Then it *reads* the record: copies these bytes and validates the leaf. Before
//! validation, what it found is meaningless.
//!
//! If the tree has a [`View`](crate::View), and the leaf is not older than the view, the reader asks what the view sees
//! of the record before it validates the leaf, and reads that instead.

use crate::node::{CopySize, Find, LeafCopy, NodeView, ValueAt, ValueKind};
use crate::tree::Tree;
use crate::tree::descend::{Direction, Fetch};
use crate::{blob::BlobReference, error::damaged, isolation::Seen};
use std::ops::Range;
use vellum_base::{Bytes, Extent, HEADER_BYTES, LSN_AT, Lsn};
use vellum_pool::{Interrupt, OptimisticPage, Pager, PoolError, SharedPage};

/// A range of bytes of a value. It may extend beyond the end of the value.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Part {
    pub offset: usize,
    pub length: usize,
}

impl Part {
    pub const ALL: Self = Self { offset: 0, length: usize::MAX };
    pub const NONE: Self = Self { offset: 0, length: 0 };

    /// The range that this part covers in a value of `bytes` bytes.
    #[inline]
    fn within(self, bytes: usize) -> Range<usize> {
        let start = self.offset.min(bytes);
        start..start + self.length.min(bytes - start)
    }

    /// The bytes of a leaf that are read for this part: for a large value the whole reference.
    #[inline]
    fn of(self, value: ValueAt) -> ValueAt {
        match value.kind {
            ValueKind::Inline => {
                let part = self.within(value.length);
                ValueAt { at: value.at + part.start, length: part.len(), ..value }
            }
            ValueKind::Blob => value,
        }
    }
}

/// What is seen under a key.
pub(in crate::tree) enum Record {
    Absent,
    /// A small value, of which the wanted part has been copied.
    Inline,
    Large(Large),
}

/// A large value that is seen under a key.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Large {
    pub reference: BlobReference,
    /// Whether the leaf no longer refers to the value.
    is_earlier: bool,
}

/// Where in a leaf the wanted part of the value of `key` lies, if the leaf has it.
#[inline(always)]
pub(in crate::tree) fn find<O: OptimisticPage>(leaf: &O, key: &[u8], part: Part) -> Option<ValueAt> {
    NodeView::new(leaf.bytes()).get(key).map(|value| part.of(value))
}

/// The fetch of the bytes that were found, if they are of a small value.
#[inline(always)]
pub(in crate::tree) fn fetch<O: OptimisticPage>(leaf: &O, found: Option<ValueAt>) -> Option<Fetch> {
    match found {
        Some(ValueAt { at, length, kind: ValueKind::Inline }) => {
            Some(Fetch { page: leaf.id(), at, bytes: length })
        }
        _ => None,
    }
}

/// Where the record of a key lies in a leaf, and which part of its value is wanted.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Wanted<'k> {
    pub key: &'k [u8],
    pub part: Part,
    pub found: Option<ValueAt>,
}

impl<'k> Wanted<'k> {
    /// Finds the record.
    #[inline(always)]
    pub fn find<O: OptimisticPage>(leaf: &O, key: &'k [u8], part: Part) -> Self {
        Self { key, part, found: find(leaf, key, part) }
    }
}

/// Appends the wanted bytes to `target`, and validates the leaf. After an interrupt the appended bytes are meaningless.
#[inline(always)]
pub(in crate::tree) fn read<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    wanted: Wanted<'_>,
    target: &mut Vec<u8>,
) -> Result<Record, Interrupt> {
    if tree.is_settled(leaf) {
        read_found(leaf, wanted.found, target)
    } else {
        read_seen(tree, leaf, wanted, target)
    }
}

/// [`read`], if the leaf holds what is seen.
#[inline(always)]
fn read_found<O: OptimisticPage>(
    leaf: &O,
    found: Option<ValueAt>,
    target: &mut Vec<u8>,
) -> Result<Record, Interrupt> {
    let record = match found {
        None => Record::Absent,
        Some(ValueAt { at, length, kind: ValueKind::Inline }) => {
            leaf.bytes().append_to(at, length, target);
            Record::Inline
        }
        Some(found) => {
            let reference = read_reference(leaf, found)?;
            return Ok(Record::Large(Large { reference, is_earlier: false }));
        }
    };
    leaf.validate()?;
    Ok(record)
}

#[cold]
#[inline(never)]
fn read_reference<O: OptimisticPage>(leaf: &O, found: ValueAt) -> Result<BlobReference, Interrupt> {
    let mut bytes = Vec::with_capacity(found.length);
    leaf.bytes().append_to(found.at, found.length, &mut bytes);
    leaf.validate()?;
    BlobReference::decode(&bytes).ok_or_else(|| damaged(leaf.id(), "a reference to a large value is damaged"))
}

/// [`read`], if the tree's view must be asked.
#[cold]
#[inline(never)]
fn read_seen<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    wanted: Wanted<'_>,
    target: &mut Vec<u8>,
) -> Result<Record, Interrupt> {
    let seen = tree.seen(wanted.key)?;
    if tree.is_ended() {
        return Err(PoolError::Cancelled.into());
    }
    let record = match seen {
        Seen::Leaf => return read_found(leaf, wanted.found, target),
        Seen::Absent => Record::Absent,
        Seen::Value(value) => {
            target.extend_from_slice(value.get(wanted.part.within(value.len())).unwrap_or_default());
            Record::Inline
        }
        Seen::Large(reference) => Record::Large(Large { reference, is_earlier: true }),
    };
    leaf.validate()?;
    Ok(record)
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Whether a leaf, which the caller validates afterwards, holds just what is seen.
    #[inline(always)]
    pub(in crate::tree) fn is_settled(&self, leaf: &P::Optimistic<'p>) -> bool {
        self.view.as_ref().is_none_or(|view| view.is_settled(Lsn(leaf.bytes().u64_at(LSN_AT))))
    }

    /// What the view sees of a record. The caller validates the record's leaf afterwards.
    pub(in crate::tree) fn seen(&self, key: &[u8]) -> Result<Seen, PoolError> {
        self.view.as_ref().map_or(Ok(Seen::Leaf), |view| view.isolation.seen(self.root(), key))
    }
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Whether all answers of the view so far are void.
    pub(in crate::tree) fn is_ended(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.isolation.is_ended())
    }

    /// [`Navigation::run`](vellum_pool::Navigation::run) for an operation that brings large values into memory.
    // The first attempt is separate and inlined: most reads need only one.
    #[inline(always)]
    pub(in crate::tree) fn run_reading<T>(
        &self,
        mut operation: impl FnMut() -> Result<T, Interrupt>,
    ) -> Result<T, PoolError> {
        match operation() {
            Ok(done) => Ok(done),
            Err(interrupt) => self.run_reading_again(interrupt, operation),
        }
    }

    /// Continues after the first attempt.
    #[cold]
    #[inline(never)]
    pub(in crate::tree) fn run_reading_again<T>(
        &self,
        interrupt: Interrupt,
        mut operation: impl FnMut() -> Result<T, Interrupt>,
    ) -> Result<T, PoolError> {
        let mut gone = None;
        let mut resolved = self.pager.resolve(interrupt);
        loop {
            match resolved.and_then(|()| self.pager.run(&mut operation)) {
                Err(error) if self.was_freed(&error, &mut gone) => resolved = Ok(()),
                result => return result,
            }
        }
    }

    /// Whether the error may mean that an earlier large value was freed after it was seen and before it was read in.
    /// Then it is no longer seen, and the operation begins again. The second time it is an error.
    #[cold]
    pub(in crate::tree) fn was_freed(&self, error: &PoolError, gone: &mut Option<Extent>) -> bool {
        match error {
            PoolError::Corruption { extent, .. } if self.view.is_some() && *gone != Some(*extent) => {
                *gone = Some(*extent);
                true
            }
            _ => false,
        }
    }
}

/// The length of the value of `key`, if there is one.
pub(in crate::tree) fn read_length<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    key: &[u8],
) -> Result<Option<u64>, Interrupt> {
    let found = find(leaf, key, Part::ALL);
    if !tree.is_settled(leaf) {
        // Copying the value costs little compared with asking for it.
        let mut value = Vec::new();
        return Ok(match read(tree, leaf, Wanted { key, part: Part::ALL, found }, &mut value)? {
            Record::Absent => None,
            Record::Inline => Some(value.len() as u64),
            Record::Large(large) => Some(large.reference.length),
        });
    }
    Ok(match read_found(leaf, found.map(|value| Part::NONE.of(value)), &mut Vec::new())? {
        Record::Absent => None,
        Record::Inline => found.map(|value| value.length as u64),
        Record::Large(large) => Some(large.reference.length),
    })
}

/// [`read`], also for a large value, which is brought into memory as a whole; returns whether there is a value.
#[inline(always)]
pub(in crate::tree) fn read_value<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    wanted: Wanted<'_>,
    target: &mut Vec<u8>,
) -> Result<bool, Interrupt> {
    // The common case needs no `Record`, which would lie in memory.
    match wanted.found {
        Some(ValueAt { at, length, kind: ValueKind::Inline }) if tree.is_settled(leaf) => {
            leaf.bytes().append_to(at, length, target);
            leaf.validate()?;
            Ok(true)
        }
        found => read_other_value(*tree, *leaf, (wanted.key, wanted.part, found), target),
    }
}

// Everything is passed by value, so that none of it need lie in memory in the common case.
#[cold]
#[inline(never)]
fn read_other_value<'p, P: Pager>(
    tree: Tree<'p, P>,
    leaf: P::Optimistic<'p>,
    (key, part, found): (&[u8], Part, Option<ValueAt>),
    target: &mut Vec<u8>,
) -> Result<bool, Interrupt> {
    let large = match read(&tree, &leaf, Wanted { key, part, found }, target)? {
        Record::Absent => return Ok(false),
        Record::Inline => return Ok(true),
        // Only the way there was asked for.
        Record::Large(_) if part.length == 0 => return Ok(true),
        Record::Large(large) => large,
    };
    let guard = share_large(&tree, &leaf, (key, large))?;
    let value = guard.page().get(HEADER_BYTES..HEADER_BYTES + large.reference.length as usize);
    let value = value.and_then(|value| value.get(part.within(value.len())));
    target.extend_from_slice(value.unwrap_or_default());
    Ok(true)
}

/// Latches, in shared mode, a large value that is seen under a key of `leaf`.
pub(in crate::tree) fn share_large<'p, P: Pager>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    (key, large): (&[u8], Large),
) -> Result<P::Shared<'p>, Interrupt> {
    let shared = tree.pager.shared(leaf, large.reference.extent());
    let guard = confirm(tree, leaf, (key, large), shared)?;
    if large.reference.leads_to(guard.page()) {
        Ok(guard)
    } else {
        Err(damaged(leaf.id(), "a reference to a large value leads to something else"))
    }
}

/// Passes on the result of latching or reading a large value, unless that is an earlier value which is no longer seen:
/// it may have been freed before it was latched.
pub(in crate::tree) fn confirm<'p, P: Pager, T>(
    tree: &Tree<'p, P>,
    leaf: &P::Optimistic<'p>,
    (key, large): (&[u8], Large),
    result: Result<T, Interrupt>,
) -> Result<T, Interrupt> {
    if large.is_earlier && tree.seen(key)? != Seen::Large(large.reference) {
        return Err(Interrupt::Conflict(leaf.id()));
    }
    result
}

/// A value in a leaf that cannot change: a latched leaf, or a copy.
#[derive(Clone, Copy)]
pub(in crate::tree) enum StoredValue<'l> {
    Inline(&'l [u8]),
    Blob(BlobReference),
}

/// The value of the record in a slot of a leaf that cannot change; `None` if it is damaged.
#[inline]
pub(in crate::tree) fn value_in(leaf: NodeView<&[u8]>, index: usize) -> Option<StoredValue<'_>> {
    let (kind, bytes) = leaf.value(index)?;
    match kind {
        ValueKind::Inline => Some(StoredValue::Inline(bytes)),
        ValueKind::Blob => BlobReference::decode(bytes).map(StoredValue::Blob),
    }
}

/// Adds records of a leaf to a copy: those from slot `index` on, those before it, or all. Then validates the leaf, so
/// that the whole copy belongs to one moment.
pub(in crate::tree) fn copy_records<O: OptimisticPage>(
    leaf: &O,
    (index, direction): (usize, Direction),
    size: Option<CopySize>,
    copy: &mut LeafCopy,
) -> Result<(), Interrupt> {
    let view = NodeView::new(leaf.bytes());
    match (size, direction) {
        (Some(size), Direction::Forward) => copy.add_from(view, index, size),
        (Some(size), Direction::Backward) => copy.add_before(view, index, size),
        (None, _) => copy.copy_all(view),
    }
    leaf.validate()
}

/// A record of a leaf, or the place for it, for an operation that will change it. Valid while the leaf is unchanged.
#[derive(Clone, Copy)]
pub(in crate::tree) struct RecordLocation<O> {
    pub leaf: O,
    /// The slot of the record or, if it is absent, the slot before which it belongs.
    pub index: usize,
    pub found: bool,
}

impl<O: OptimisticPage> RecordLocation<O> {
    /// The location of `key` in a leaf that must cover it; elsewhere the result may be wrong. Meaningless before the
    /// leaf is validated or latched, which fails if the leaf has changed.
    #[inline(always)]
    pub fn of(leaf: O, key: &[u8]) -> Self {
        let Find { index, found } = NodeView::new(leaf.bytes()).find_covered(key);
        Self { leaf, index, found }
    }

    /// [`of`](Self::of) for a leaf that need not cover `key`; if it does not, the key is not found.
    pub fn of_any(leaf: O, key: &[u8]) -> Self {
        let Find { index, found } = NodeView::new(leaf.bytes()).find(key);
        Self { leaf, index, found }
    }

    /// The value of the record, or its first bytes. Meaningful only if the record was found.
    #[inline(always)]
    pub fn value(&self, bytes_max: usize) -> Fetch {
        let ValueAt { at, length, .. } = NodeView::new(self.leaf.bytes()).value_location(self.index);
        Fetch { page: self.leaf.id(), at, bytes: length.min(bytes_max) }
    }
}
