//! The task for a key, and the one place where it is performed, for all drivers.

use crate::tree::read::record::{self, Part, Wanted};
use crate::tree::{Tree, Written, change::write::Mode};
use crate::{error::AccessError, node::ValueAt};
use vellum_pool::{Interrupt, Pager};

/// What to do with a key.
#[derive(Clone, Copy, Debug)]
pub enum Task<V> {
    /// Read its value.
    Get,
    /// Read some bytes of its value: up to `length` from `offset` on, as far as the value has them. A large value is
    /// still brought into memory as a whole.
    GetPart {
        /// The first byte.
        offset: usize,
        /// The greatest number of bytes.
        length: usize,
    },
    /// Store a value, if the key is new.
    Insert(V),
    /// Replace its value, if it has one.
    Update(V),
    /// Store a value, whether or not it has one.
    Upsert(V),
    /// Remove the key.
    Remove,
}

impl<V> Task<V> {
    /// The same task with a reference to the value to be stored.
    #[inline(always)]
    pub fn by_ref(&self) -> Task<&V> {
        match self {
            Self::Get => Task::Get,
            Self::GetPart { offset, length } => Task::GetPart { offset: *offset, length: *length },
            Self::Insert(value) => Task::Insert(value),
            Self::Update(value) => Task::Update(value),
            Self::Upsert(value) => Task::Upsert(value),
            Self::Remove => Task::Remove,
        }
    }

    /// The bytes of the value that are to be read, if the task reads.
    #[inline(always)]
    pub(in crate::tree) fn part(&self) -> Option<Part> {
        match self {
            Self::Get => Some(Part::ALL),
            Self::GetPart { offset, length } => Some(Part { offset: *offset, length: *length }),
            _ => None,
        }
    }
}

/// The result of a [`Task`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'b> {
    /// The value that was read, if there is one.
    Value(Option<&'b [u8]>),
    /// The effect of a write.
    Written(Written),
    /// Whether the key to be removed existed.
    Removed(bool),
}

/// The result of a [`Task`], with a value as a range of its driver's buffer.
#[derive(Clone, Copy)]
pub(in crate::tree) enum Outcome {
    Absent,
    Found { start: usize, bytes: usize },
    Written(Written),
    Removed(bool),
}

impl Outcome {
    /// The length of the value that has been read, in bytes.
    pub(in crate::tree) fn bytes(&self) -> usize {
        if let Self::Found { bytes, .. } = self { *bytes } else { 0 }
    }

    /// The answer, with its value taken from `values`.
    #[inline(always)]
    pub(in crate::tree) fn with(self, values: &[u8]) -> Answer<'_> {
        match self {
            Self::Absent => Answer::Value(None),
            Self::Found { start, bytes } => {
                let value = values.get(start..).and_then(|rest| rest.get(..bytes));
                Answer::Value(value)
            }
            Self::Written(written) => Answer::Written(written),
            Self::Removed(removed) => Answer::Removed(removed),
        }
    }
}

/// What a change may wait for. A read never waits: it is interrupted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Blocking {
    /// It waits for nothing.
    Never,
    /// It may wait for what it needs beyond its leaf: a split, a large value. If it cannot latch the leaf, it is
    /// interrupted.
    BeyondLeaf,
    /// It may wait for its leaf too.
    Always,
}

/// The result of a task that was not interrupted.
pub(in crate::tree) enum Performed {
    Done(Result<Outcome, AccessError>),
    /// The rest of the task might have to wait, and must not.
    WouldWait,
}

impl<'p, P: Pager> Tree<'p, P> {
    /// Performs a task in the leaf of its key. `found` is the location of the value to be read, which is appended to
    /// `values`.
    #[inline(always)]
    pub(in crate::tree) fn perform<V: AsRef<[u8]>>(
        &self,
        leaf: P::Optimistic<'p>,
        (key, task): (&[u8], Task<V>),
        found: Option<ValueAt>,
        blocking: Blocking,
        values: &mut Vec<u8>,
    ) -> Result<Performed, Interrupt> {
        if let Some(part) = task.part() {
            let start = values.len();
            return match record::read_value(self, &leaf, Wanted { key, part, found }, values) {
                Ok(true) => Ok(Performed::Done(Ok(Outcome::Found { start, bytes: values.len() - start }))),
                Ok(false) => Ok(Performed::Done(Ok(Outcome::Absent))),
                Err(interrupt) => {
                    values.truncate(start);
                    Err(interrupt)
                }
            };
        }
        self.perform_change(leaf, (key, task), blocking)
    }

    fn perform_change<V: AsRef<[u8]>>(
        &self,
        leaf: P::Optimistic<'p>,
        (key, task): (&[u8], Task<V>),
        blocking: Blocking,
    ) -> Result<Performed, Interrupt> {
        let (value, mode) = match &task {
            Task::Insert(value) => (value.as_ref(), Mode::Insert),
            Task::Update(value) => (value.as_ref(), Mode::Update),
            Task::Upsert(value) => (value.as_ref(), Mode::Upsert),
            _ if blocking == Blocking::Never => return Ok(Performed::WouldWait),
            _ => return Ok(Performed::Done(self.remove(key).map(Outcome::Removed))),
        };
        let written = match self.write_in_leaf(leaf, key, value, mode) {
            Ok(Some(written)) => Ok(written),
            Err(interrupt) if blocking != Blocking::Always => return Err(interrupt),
            Ok(None) if blocking == Blocking::Never => return Ok(Performed::WouldWait),
            // Whatever is wrong with the leaf, the call for one key will notice it.
            Ok(None) | Err(_) => self.write_as(key, value, mode),
        };
        Ok(Performed::Done(written.map(Outcome::Written)))
    }
}
