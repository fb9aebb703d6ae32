//! One operation as a machine that goes down its tree one node a step.
//!
//! A step touches only what an earlier one has had fetched into the processor's cache. It changes nothing but the leaf
//! at the end, and holds no latch when it returns.

use crate::tree::{NOT_ITS_VALUE, Tree, blob_reference, change::write::Mode, check_key};
use crate::{
    AccessError, Written,
    error::damaged,
    node::{NodeView, ValueAt, ValueKind},
};
use std::ops::Range;
use vellum_base::{Bytes, HEADER_BYTES, PageId};
use vellum_pool::{Interrupt, OptimisticPage, Pager, SharedPage};

/// How much of a value that will be changed is fetched, in bytes. A change of a long one seldom touches all of it.
pub(in crate::tree) const CHANGE_BYTES: usize = 256;
/// What is fetched of a node at first.
pub(in crate::tree) const GUIDE_BYTES: usize = NodeView::<&[u8]>::GUIDE_BYTES;

/// How often an operation that must not wait begins anew.
const CONFLICTS_MAX: u32 = 8;

/// What to do with a key.
#[derive(Clone, Copy, Debug)]
pub enum Task<V> {
    /// Read its value.
    Get,
    /// Read some bytes of its value: up to `length` from `offset` on, as many of them as it has. A large value is
    /// brought into memory as a whole all the same.
    GetPart {
        /// The first byte.
        offset: usize,
        /// How many there are at most.
        length: usize,
    },
    /// Store a value, if the key is new.
    Insert(V),
    /// Replace its value, if it has one.
    Update(V),
    /// Store a value, whether or not it has one.
    Upsert(V),
    /// Remove it.
    Remove,
}

impl<V> Task<V> {
    /// Which bytes of the value are to be read, if this is about reading it.
    #[inline]
    pub(in crate::tree) fn part(&self) -> Option<Part> {
        match self {
            Self::Get => Some(Part::ALL),
            Self::GetPart { offset, length } => Some(Part { offset: *offset, length: *length }),
            _ => None,
        }
    }
}

/// Bytes of a value, as far as it has them.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Part {
    pub(in crate::tree) offset: usize,
    pub(in crate::tree) length: usize,
}

impl Part {
    pub(in crate::tree) const ALL: Self = Self { offset: 0, length: usize::MAX };

    /// Where they are in a value of so many bytes.
    #[inline]
    fn within(self, bytes: usize) -> Range<usize> {
        let start = self.offset.min(bytes);
        start..start + self.length.min(bytes - start)
    }

    /// Where they are of a value in a leaf.
    #[inline]
    pub(in crate::tree) fn of(self, value: ValueAt) -> ValueAt {
        let part = self.within(value.length);
        ValueAt { at: value.at + part.start, length: part.len(), kind: value.kind }
    }
}

/// What came of a [`Task`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'b> {
    /// The value that was read, if there is one.
    Value(Option<&'b [u8]>),
    /// What a write found.
    Written(Written),
    /// Whether what was to be removed was there.
    Removed(bool),
}

/// How far an operation has come.
pub(in crate::tree) enum Stage<'p, P: Pager + 'p> {
    /// It begins at the root.
    Start,
    /// The child that `node` refers to at `place` is being fetched.
    Child { node: P::Optimistic<'p>, level: u8, place: usize },
    /// The slots of `node` are being fetched among which the search will look.
    Search { node: P::Optimistic<'p>, level: u8 },
    /// The value in the leaf is being fetched.
    Value { leaf: P::Optimistic<'p>, at: ValueAt },
    /// It is over.
    Finished(Result<Outcome, AccessError>),
}

#[derive(Clone, Copy)]
pub(in crate::tree) enum Outcome {
    Absent,
    /// It is among the values that have been read, at this place.
    Found {
        start: usize,
        bytes: usize,
    },
    Written(Written),
    Removed(bool),
    /// Where it is: asked for by `Batch::locate` only.
    Located(Located),
}

/// A record of a leaf, as long as the leaf is what it was.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Located {
    pub(in crate::tree) leaf: PageId,
    pub(in crate::tree) token: u64,
    pub(in crate::tree) index: usize,
}

impl Outcome {
    /// The length of the value that has been read, in bytes.
    pub(in crate::tree) fn bytes(&self) -> usize {
        if let Self::Found { bytes, .. } = self { *bytes } else { 0 }
    }

    /// What it comes to, with the values that have been read.
    pub(in crate::tree) fn with(self, values: &[u8]) -> Answer<'_> {
        match self {
            Self::Absent | Self::Located(_) => Answer::Value(None),
            Self::Found { start, bytes } => {
                let value = values.get(start..).and_then(|rest| rest.get(..bytes));
                Answer::Value(value)
            }
            Self::Written(written) => Answer::Written(written),
            Self::Removed(removed) => Answer::Removed(removed),
        }
    }
}

/// Whether an operation has to take more steps.
pub(in crate::tree) enum Step {
    More,
    Last(Outcome),
    Failed(AccessError),
    /// What is left to be done may wait, which it must not.
    WouldWait,
}

/// Bytes of a page that the next step of an operation will read.
///
/// A page that the processor has not looked at for long has to be translated first, and an instruction that waits for
/// that keeps those far behind it from beginning. So the fetches of all operations are issued together, one right
/// after the other, when all have taken their steps; their translations then overlap.
#[derive(Clone, Copy)]
pub(in crate::tree) struct Fetch {
    pub(in crate::tree) page: PageId,
    pub(in crate::tree) at: usize,
    pub(in crate::tree) bytes: usize,
}

/// What steps leave behind, for all operations together.
#[derive(Default)]
pub(in crate::tree) struct Scratch {
    /// What the operations that took a step will read in their next.
    pub(in crate::tree) fetches: Vec<Fetch>,
    /// Values that have been read, one behind the other.
    pub(in crate::tree) values: Vec<u8>,
}

/// One operation.
pub(in crate::tree) struct Job<'p, P: Pager + 'p, K, V> {
    pub(in crate::tree) tree: Tree<'p, P>,
    /// None if this is nobody's.
    pub(in crate::tree) request: Option<(K, Task<V>)>,
    pub(in crate::tree) tag: u64,
    pub(in crate::tree) stage: Stage<'p, P>,
    pub(in crate::tree) misses: u32,
    /// Whether it may do what waits.
    pub(in crate::tree) patient: bool,
    /// Whether it finds out where the value is, instead of reading it.
    pub(in crate::tree) locates: bool,
}

impl<P: Pager> Tree<'_, P> {
    /// Runs an operation if that takes no waiting at all, and shows its answer to `visit`; nothing if what it needs is
    /// not in memory, is held by others, or can only be had by waiting.
    ///
    /// # Errors
    /// As for the call for one key.
    pub fn try_now<K: AsRef<[u8]>, V: AsRef<[u8]>, T>(
        &self,
        key: K,
        task: Task<V>,
        visit: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<Option<T>, AccessError> {
        check_key(key.as_ref())?;
        let (stage, request) = (Stage::Start, Some((key, task)));
        let mut job = Job { tree: *self, request, tag: 0, stage, misses: 0, patient: false, locates: false };
        let mut room = Scratch::default();
        let mut conflicts = 0;
        loop {
            // What is to be fetched is read at once.
            room.fetches.clear();
            match job.step(self.pager, &mut room) {
                Ok(Step::More) => {}
                Ok(Step::Last(outcome)) => return Ok(Some(visit(outcome.with(&room.values)))),
                Ok(Step::Failed(error)) => return Err(error),
                Ok(Step::WouldWait) | Err(Interrupt::Miss(_)) => return Ok(None),
                Err(Interrupt::Conflict(_)) if conflicts < CONFLICTS_MAX => {
                    job.stage = Stage::Start;
                    conflicts += 1;
                }
                Err(Interrupt::Conflict(_)) => return Ok(None),
                Err(Interrupt::Fatal(error)) => return Err((*error).into()),
            }
        }
    }
}

impl<'p, P: Pager, K: AsRef<[u8]>, V: AsRef<[u8]>> Job<'p, P, K, V> {
    /// Takes the next step, and says what the one after that will read. After a miss the same step is to be taken
    /// again; after a conflict the first.
    #[inline]
    pub(in crate::tree) fn step(&mut self, pager: &'p P, room: &mut Scratch) -> Result<Step, Interrupt> {
        match &self.stage {
            Stage::Start => self.start(pager, room),
            Stage::Child { node, level, place } => {
                let child = pager.child_fetched(node, *place)?;
                let level = self.tree.level_of(&child, Some(*level))?;
                let (at, bytes) = NodeView::new(child.bytes()).search_range(self.key());
                room.fetches.push(Fetch { page: child.id(), at, bytes });
                self.stage = Stage::Search { node: child, level };
                Ok(Step::More)
            }
            Stage::Value { leaf, at } => {
                let start = room.values.len();
                leaf.bytes().append_to(at.at, at.length, &mut room.values);
                leaf.validate().inspect_err(|_| room.values.truncate(start))?;
                Ok(Step::Last(Outcome::Found { start, bytes: room.values.len() - start }))
            }
            Stage::Search { level, .. } => {
                let level = *level;
                let Stage::Search { node, .. } = std::mem::replace(&mut self.stage, Stage::Start) else {
                    return Ok(Step::More);
                };
                self.search(pager, node, level, room)
            }
            Stage::Finished(_) => Ok(Step::More),
        }
    }

    fn key(&self) -> &[u8] {
        self.request.as_ref().map_or(&[], |(key, _)| key.as_ref())
    }

    /// Looks at the root and, if it is no leaf, at the node below: both are in the cache anyway, because every
    /// operation comes by.
    fn start(&mut self, pager: &'p P, room: &mut Scratch) -> Result<Step, Interrupt> {
        let root = pager.root(self.tree.root)?;
        let level = self.tree.level_of(&root, None)?;
        if level < 2 {
            return self.search(pager, root, level, room);
        }
        let place = NodeView::new(root.bytes()).child_for(self.key());
        let child = pager.child(&root, place)?;
        let level = self.tree.level_of(&child, Some(level))?;
        self.search(pager, child, level, room)
    }

    /// Searches a node, and has what it leads to fetched.
    #[inline]
    fn search(
        &mut self,
        pager: &'p P,
        node: P::Optimistic<'p>,
        level: u8,
        room: &mut Scratch,
    ) -> Result<Step, Interrupt> {
        let Some((key, task)) = &self.request else { return Ok(Step::Last(Outcome::Absent)) };
        let view = NodeView::new(node.bytes());
        if level > 0 {
            let place = view.child_for(key.as_ref());
            room.fetches.push(Fetch { page: view.child_at(place), at: 0, bytes: GUIDE_BYTES });
            self.stage = Stage::Child { node, level, place };
            return Ok(Step::More);
        }
        let Some(part) = task.part() else { return self.change(node) };
        match view.get(key.as_ref()) {
            None => {
                node.validate()?;
                Ok(Step::Last(Outcome::Absent))
            }
            Some(_) if self.locates => self.locate(node, room),
            Some(at) if at.kind == ValueKind::Inline => {
                let at = part.of(at);
                room.fetches.push(Fetch { page: node.id(), at: at.at, bytes: at.length });
                self.stage = Stage::Value { leaf: node, at };
                Ok(Step::More)
            }
            Some(at) => self.read_blob(pager, node, at, part, room),
        }
    }

    /// Says where the value is, and has it fetched.
    fn locate(&self, leaf: P::Optimistic<'p>, room: &mut Scratch) -> Result<Step, Interrupt> {
        let view = NodeView::new(leaf.bytes());
        let find = view.find(self.key());
        let at = view.value_location(find.index);
        leaf.validate()?;
        room.fetches.push(Fetch { page: leaf.id(), at: at.at, bytes: at.length.min(CHANGE_BYTES) });
        let located = Located { leaf: leaf.id(), token: leaf.token(), index: find.index };
        Ok(Step::Last(Outcome::Located(located)))
    }

    /// Copies a large value, or some of it.
    #[cold]
    fn read_blob(
        &mut self,
        pager: &'p P,
        leaf: P::Optimistic<'p>,
        at: ValueAt,
        part: Part,
        room: &mut Scratch,
    ) -> Result<Step, Interrupt> {
        let reference = blob_reference::<P>(&leaf, at)?;
        match pager.shared(&leaf, reference.extent()) {
            Ok(guard) => {
                if !reference.leads_to(guard.page()) {
                    return Err(damaged(leaf.id(), NOT_ITS_VALUE));
                }
                let value = guard.page().get(HEADER_BYTES..HEADER_BYTES + reference.length as usize);
                let value = value.and_then(|value| value.get(part.within(value.len())));
                let (start, value) = (room.values.len(), value.unwrap_or_default());
                room.values.extend_from_slice(value);
                Ok(Step::Last(Outcome::Found { start, bytes: value.len() }))
            }
            Err(interrupt) => {
                self.stage = Stage::Search { node: leaf, level: 0 };
                Err(interrupt)
            }
        }
    }

    /// Changes the leaf.
    fn change(&self, leaf: P::Optimistic<'p>) -> Result<Step, Interrupt> {
        let Some((key, task)) = &self.request else { return Ok(Step::Last(Outcome::Absent)) };
        let (key, tree) = (key.as_ref(), &self.tree);
        let (value, mode) = match task {
            Task::Insert(value) => (value.as_ref(), Mode::Insert),
            Task::Update(value) => (value.as_ref(), Mode::Update),
            Task::Upsert(value) => (value.as_ref(), Mode::Upsert),
            Task::Get | Task::GetPart { .. } | Task::Remove if !self.patient => return Ok(Step::WouldWait),
            Task::Get | Task::GetPart { .. } | Task::Remove => {
                return Ok(tree
                    .remove(key)
                    .map_or_else(Step::Failed, |was| Step::Last(Outcome::Removed(was))));
            }
        };
        let written = match tree.write_in_leaf(leaf, key, value, mode)? {
            Some(written) => Ok(written),
            None if !self.patient => return Ok(Step::WouldWait),
            None => tree.write(key, value, mode),
        };
        Ok(written.map_or_else(Step::Failed, |written| Step::Last(Outcome::Written(written))))
    }
}
