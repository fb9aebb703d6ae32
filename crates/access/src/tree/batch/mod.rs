//! Many operations at once, by one thread, which waits for none of them in particular.
//!
//! Each operation is a state machine that goes down its tree one node per step. At the end of a step it says what it
//! will touch next: the processor fetches those cache lines while the other operations take their steps, so that cache
//! misses overlap. An operation whose page is not in memory has it read, and takes its next step when the page has been
//! read. Meanwhile the others go on, and their reads overlap too.
//!
//! - Operations that miss the same page wait for the same read.
//! - An operation keeps its guard on the parent of the page for which it waits. If the parent has not changed when the
//!   page has been read, the operation continues from there; otherwise it starts again.
//! - An operation that meets a page latched by another thread is tried again later. The thread waits for a latch only
//!   when no operation can take a step and no read is under way. If the page is latched because another batch reads it,
//!   the thread completes that read once it is done, because the owner may not come back for long.
//! - An operation that misses again and again, because reads of others evict what it has read, is done as the call for one key
//!   does it, which waits.
//! - An operation that finds its leaf changed, often by another one of the batch, goes down again at once.
//! - A change is made in one step at the end, under the leaf's latch, as in the call for one key. A change that needs
//!   more than the leaf (a split, a large value) is left to that call, which may wait.
//!
//! No latch is held between two steps.

mod group;
mod lookups;
mod multi_modify;
mod operation;
pub(super) mod task;
#[cfg(test)]
mod tests;

pub use lookups::Lookups;

use crate::error::AccessError;
use crate::tree::{Tree, check_key, descend::group::GROUP_SIZE};
use operation::{Operation, State, StepResults};
use std::collections::VecDeque;
use task::{Answer, Outcome, Performed, Task};
use vellum_base::PageId;
use vellum_pool::{Begun, FinishedRead, Interrupt, Miss, Misses, Pager};

/// How much memory for values is kept for reuse, in bytes.
const VALUES_BYTES_KEPT: usize = 1 << 20;

/// More misses than this are no way down a tree: what the operation needs does not fit beside what others read. Each would
/// evict the pages of the other again and again.
const MISSES_MAX: u32 = 64;

/// How many operations are under way at once, if that is more than twice the reads that may be. More would gain nothing, and
/// evict each other's pages. Each step that waits looks at all others that wait.
const AT_ONCE: usize = 1024;

/// Operations on trees that one thread runs at the same time.
///
/// Operations that have begun make progress in [`advance`](Self::advance), and are taken out by [`take`](Self::take)
/// when they are done. Buffers are reused, so a batch is best kept.
///
/// Operations on the same key may happen in any order. Dropping a batch abandons the operations that are not done,
/// after waiting for their reads.
///
/// ```
/// use vellum_access::{Answer, Batch, Task, Tree};
/// use vellum_pool::{Pool, PoolOptions};
///
/// let directory = tempfile::tempdir()?;
/// let pool = Pool::create(directory.path().join("file"), &PoolOptions::default())?;
/// let tree = Tree::create(&pool)?;
/// let mut batch = Batch::new(&pool, 128);
/// for number in 0..100u64 {
///     batch.begin(tree, number.to_be_bytes(), Task::Upsert("value"), number);
/// }
/// let mut done = 0;
/// while !batch.is_empty() {
///     batch.advance(true);
///     while let Some((_number, answer)) = batch.take(|tag, _request, answer| (tag, answer.is_ok())) {
///         assert!(answer);
///         done += 1;
///     }
/// }
/// assert_eq!(done, 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<'p, P: Pager + 'p, K, V> {
    pager: &'p P,
    depth: usize,
    /// All operations, and free places for more.
    operations: Vec<Operation<'p, P, K, V>>,
    /// The free places.
    free: Vec<usize>,
    /// The operations that can take a step.
    ready: VecDeque<usize>,
    /// The operations that take their first step when fewer than `at_once` are under way, the oldest first.
    later: VecDeque<usize>,
    at_once: usize,
    waiting: Waiting,
    /// The operations that are done and have not been taken, the earliest first. Not used by a caller that takes them
    /// by place.
    done: VecDeque<usize>,
    /// How many operations are done and not yet taken.
    done_count: usize,
    /// The total length of their values, in bytes.
    values_bytes: usize,
    /// `None` until the first miss.
    reads: Option<P::Misses<'p>>,
    finished_reads: Vec<FinishedRead>,
    /// Whether reads were begun that the device may not know of.
    has_begun_reads: bool,
    results: StepResults,
}

/// Operations that cannot take a step, each with what it waits for.
#[derive(Default)]
struct Waiting {
    /// Reads of this batch.
    reads: Vec<(usize, Miss)>,
    /// Room for a read, the oldest first.
    room: VecDeque<(usize, Miss)>,
    /// Pages that another thread had latched or changed.
    pages: Vec<(usize, PageId)>,
    /// Which of `pages` was last looked for among the reads of other queues.
    looked_for: usize,
}

impl Waiting {
    /// Whether the missed extent is being read: an operation waits for that read.
    fn is_being_read(&self, miss: &Miss) -> bool {
        self.reads.iter().any(|(_, other)| other.extent == miss.extent)
    }
}

impl<'p, P: Pager, K: AsRef<[u8]>, V: AsRef<[u8]>> Batch<'p, P, K, V> {
    /// Creates an empty batch, which may have up to `depth` reads under way at once.
    pub fn new(pager: &'p P, depth: usize) -> Self {
        Self {
            pager,
            depth: depth.max(1),
            operations: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            later: VecDeque::new(),
            at_once: AT_ONCE.max(2 * depth),
            waiting: Waiting::default(),
            done: VecDeque::new(),
            done_count: 0,
            values_bytes: 0,
            reads: None,
            finished_reads: Vec::new(),
            has_begun_reads: false,
            results: StepResults::default(),
        }
    }

    /// The number of operations that were begun and not taken yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// Whether all operations that were begun have been taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it pays to begin more operations: fewer are taking steps than can overlap, and those that wait are fewer
    /// than twice the reads that may be under way, so that the next reads are at hand when some end.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ready.len() < GROUP_SIZE && self.len() - self.ready.len() < 2 * self.depth
    }

    /// Begins an operation. The tree must belong to the pager of this batch. Returns the operation's place, which is
    /// reserved for it until it is taken.
    #[inline]
    pub fn begin(&mut self, tree: Tree<'p, P>, key: K, task: Task<V>, tag: u64) -> usize {
        let (checked, is_full) = (check_key(key.as_ref()), self.is_full());
        let request = Some((key, task));
        let operation = Operation { tree, request, tag, state: State::START, misses: 0, gone: None };
        let free = self.free.pop().and_then(|place| Some((place, self.operations.get_mut(place)?)));
        let place = match free {
            Some((place, vacant)) => {
                *vacant = operation;
                place
            }
            None => {
                self.operations.push(operation);
                self.operations.len() - 1
            }
        };
        match checked {
            Ok(()) if is_full => self.later.push_back(place),
            Ok(()) => self.ready.push_back(place),
            Err(error) => self.finish(place, Err(error)),
        }
        place
    }

    /// Whether as many operations are under way as may be: others that are begun now wait for their first step.
    #[inline]
    pub fn is_full(&self) -> bool {
        !self.later.is_empty() || self.len() - self.done_count >= self.at_once
    }

    /// Lets operations begin for which there was no place before.
    #[cold]
    fn begin_later(&mut self) {
        let under_way = self.len() - self.done_count - self.later.len();
        let count = self.at_once.saturating_sub(under_way).min(self.later.len());
        self.ready.extend(self.later.drain(..count));
    }

    /// Lets each operation that can take a step take one. If none can, collects finished reads, and waits for one if
    /// `wait` is set. Otherwise returns at once, except for splits, large values, and operations for which the pool is too
    /// small beside others. The reads that it begins reach the device before it returns, so that they go on whatever the
    /// caller does next.
    pub fn advance(&mut self, wait: bool) {
        self.advance_unflushed(wait);
        if std::mem::take(&mut self.has_begun_reads)
            && let Some(reads) = &mut self.reads
        {
            reads.flush();
        }
    }

    /// [`advance`](Self::advance) for a caller that soon does so again: the reads that are begun reach the device then,
    /// by the call that waits for others, or takes what is done.
    fn advance_unflushed(&mut self, wait: bool) {
        if !self.later.is_empty() {
            self.begin_later();
        }
        if self.ready.is_empty() {
            self.refill(wait);
        } else if self.reads.as_ref().is_some_and(|reads| reads.under_way() > 0) {
            self.reap(false);
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(operation) = self.operations.get_mut(index) else { continue };
            match operation.step(self.pager, &mut self.results) {
                Ok(None) => self.ready.push_back(index),
                Ok(Some(Performed::Done(result))) => self.finish(index, result),
                // Does not happen: operations of a batch may wait for what they need beyond the leaf.
                Ok(Some(Performed::WouldWait)) => self.finish(index, Err(self.pager.no_room().into())),
                Err(interrupt) => self.interrupted(index, interrupt),
            }
        }
        for fetch in self.results.fetches.drain(..) {
            fetch.begin(self.pager);
        }
        if !self.waiting.pages.is_empty() {
            self.retry_pages();
        }
    }

    /// Takes out an operation that is done, and passes its tag, its key and task, and its answer to `visit`.
    pub fn take<T>(
        &mut self,
        visit: impl FnOnce(u64, (K, Task<V>), Result<Answer<'_>, AccessError>) -> T,
    ) -> Option<T> {
        let index = self.done.pop_front()?;
        self.take_from(index, visit)
    }

    /// Whether the operation at a place is done. For callers that take all operations by place.
    #[inline]
    fn is_finished(&self, index: usize) -> bool {
        self.operations.get(index).is_some_and(|operation| matches!(operation.state, State::Finished(_)))
    }

    /// Takes out the operation at a place, if it is done, and frees the place.
    fn take_from<T>(
        &mut self,
        index: usize,
        visit: impl FnOnce(u64, (K, Task<V>), Result<Answer<'_>, AccessError>) -> T,
    ) -> Option<T> {
        let operation = self.operations.get_mut(index)?;
        let state = std::mem::replace(&mut operation.state, State::START);
        let State::Finished(result) = state else {
            operation.state = state;
            return None;
        };
        let (tag, request) = (operation.tag, operation.request.take()?);
        self.free.push(index);
        self.done_count -= 1;
        let found = result.as_ref().map_or(0, Outcome::bytes);
        let answer = result.map(|outcome| outcome.with(&self.results.values));
        let visited = visit(tag, request, answer);
        self.values_bytes -= found;
        self.tidy_values();
        Some(visited)
    }

    /// Begins all operations, in order and as many at once as pays, and shows their answers to `visit` in the same
    /// order, each with its number, its key and its task. The batch must be empty.
    pub fn run(
        &mut self,
        tree: Tree<'p, P>,
        tasks: impl IntoIterator<Item = (K, Task<V>)>,
        mut visit: impl FnMut(usize, &(K, Task<V>), Result<Answer<'_>, AccessError>),
    ) {
        let mut tasks = tasks.into_iter().fuse();
        let mut shown = 0;
        let mut group = Vec::with_capacity(tasks.size_hint().0.min(GROUP_SIZE));
        let mut room = Vec::new();
        let rest = loop {
            group.clear();
            group.extend(tasks.by_ref().take(GROUP_SIZE));
            if group.is_empty() {
                return;
            }
            let mut requests = group.iter();
            let done = tree.run_group(
                &group,
                |(key, task)| (key.as_ref(), task.by_ref()),
                &mut room,
                |answer| {
                    if let Some(request) = requests.next() {
                        visit(shown, request, answer);
                        shown += 1;
                    }
                },
            );
            if done < group.len() {
                break group.drain(done..).chain(tasks);
            }
        };
        self.run_queue(tree, rest, |_, request, answer| {
            visit(shown, request, answer);
            shown += 1;
        });
    }

    /// [`run`](Self::run) for operations of which the first will probably have to wait.
    pub(in crate::tree) fn run_queue(
        &mut self,
        tree: Tree<'p, P>,
        tasks: impl IntoIterator<Item = (K, Task<V>)>,
        mut visit: impl FnMut(usize, &(K, Task<V>), Result<Answer<'_>, AccessError>),
    ) {
        debug_assert!(self.is_empty(), "answers would be given to the wrong caller");
        let mut tasks = tasks.into_iter().fuse();
        let (mut order, mut shown) = (VecDeque::with_capacity(2 * GROUP_SIZE), 0);
        self.make_room(tasks.size_hint().0);
        loop {
            while self.has_room() {
                let Some((key, task)) = tasks.next() else { break };
                order.push_back(self.begin(tree, key, task, 0));
            }
            if order.is_empty() {
                return;
            }
            self.advance_unflushed(true);
            self.done.clear();
            while let Some(index) = order.pop_front_if(|index| self.is_finished(*index)) {
                self.take_from(index, |_, request, answer| visit(shown, &request, answer));
                shown += 1;
            }
        }
    }

    /// Reserves memory for this many operations, as far as they take steps at once: growing it bit by bit would take
    /// longer than a small batch itself.
    fn make_room(&mut self, operations: usize) {
        let at_once = operations.min(GROUP_SIZE);
        self.operations.reserve(at_once);
        self.free.reserve(at_once);
        self.ready.reserve(at_once);
        self.done.reserve(at_once);
        self.results.fetches.reserve(at_once);
    }

    /// Drops the values that have been taken, once they outweigh those that have not.
    fn tidy_values(&mut self) {
        let values = &mut self.results.values;
        if self.done_count == 0 {
            values.clear();
            values.shrink_to(VALUES_BYTES_KEPT);
        } else if values.len() > 2 * self.values_bytes + VALUES_BYTES_KEPT {
            let old = std::mem::take(values);
            for operation in &mut self.operations {
                if let State::Finished(Ok(Outcome::Found { start, bytes })) = &mut operation.state {
                    let value = old.get(*start..*start + *bytes).unwrap_or_default();
                    *start = values.len();
                    values.extend_from_slice(value);
                }
            }
        }
    }

    /// Makes operations ready when none can take a step: collects finished reads and begins others, and waits if `wait`
    /// is set.
    #[cold]
    fn refill(&mut self, wait: bool) {
        if self.reads.as_ref().is_some_and(|reads| reads.under_way() > 0) {
            return self.reap(wait);
        }
        self.begin_waiting_reads();
        if !self.ready.is_empty() || !wait || self.reads.as_ref().is_some_and(|r| r.under_way() > 0) {
            return;
        }
        // No read is under way: another thread must release a latch, or this one must make room.
        let (index, interrupt) = match (self.waiting.room.pop_front(), self.waiting.pages.pop()) {
            (Some((index, miss)), other) => {
                self.waiting.pages.extend(other);
                (index, Interrupt::Miss(miss))
            }
            (None, Some((index, page))) => (index, Interrupt::Conflict(page)),
            (None, None) => return,
        };
        match self.pager.resolve(interrupt) {
            Ok(()) => self.ready.push_back(index),
            Err(error) => self.finish(index, Err(error.into())),
        }
    }

    #[cold]
    fn interrupted(&mut self, index: usize, interrupt: Interrupt) {
        match interrupt {
            Interrupt::Miss(miss) => self.miss(index, miss),
            Interrupt::Conflict(page) => {
                if let Some(operation) = self.operations.get_mut(index) {
                    operation.state = State::START;
                }
                self.waiting.pages.push((index, page));
            }
            Interrupt::Fatal(_) => match self.pager.resolve(interrupt) {
                Ok(()) => {
                    if let Some(operation) = self.operations.get_mut(index) {
                        operation.state = State::START;
                    }
                    self.ready.push_back(index);
                }
                Err(error) => self.finish(index, Err(error.into())),
            },
        }
    }

    /// Makes the operations ready that met a latched page which is no longer latched.
    fn retry_pages(&mut self) {
        let Waiting { reads, pages, looked_for, .. } = &mut self.waiting;
        // One a round, because there may be many, and most are read by this batch.
        *looked_for = if *looked_for + 1 < pages.len() { *looked_for + 1 } else { 0 };
        if let Some((_, page)) = pages.get(*looked_for)
            && self.pager.is_latched(*page)
            && !reads.iter().any(|(_, miss)| miss.extent.head == *page)
        {
            self.pager.complete_read(*page);
        }
        let released = pages.extract_if(.., |(_, page)| !self.pager.is_latched(*page));
        self.ready.extend(released.map(|(index, _)| index));
    }

    /// Handles the miss of an operation: an extent that it needs is not in memory.
    fn miss(&mut self, index: usize, miss: Miss) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        operation.misses += 1;
        if operation.misses > MISSES_MAX {
            let result = operation.finish_alone(&mut self.results.values);
            return self.finish(index, result);
        }
        if self.waiting.is_being_read(&miss) {
            return self.waiting.reads.push((index, miss));
        }
        self.begin_read(index, miss);
    }

    /// Begins the read that an operation needs; false if there is no room for it.
    fn begin_read(&mut self, index: usize, miss: Miss) -> bool {
        if self.reads.is_none() {
            match self.pager.misses(self.depth) {
                Ok(reads) => self.reads = Some(reads),
                Err(error) => {
                    self.finish(index, Err(error.into()));
                    return true;
                }
            }
        }
        let Some(reads) = &mut self.reads else { return true };
        match reads.begin(&miss) {
            Ok(Begun::Reading) => {
                self.waiting.reads.push((index, miss));
                self.has_begun_reads = true;
            }
            Ok(Begun::Ready) => self.ready.push_back(index),
            Ok(Begun::Latched) => self.waiting.pages.push((index, miss.extent.head)),
            Ok(Begun::NoRoom) => {
                self.waiting.room.push_back((index, miss));
                return false;
            }
            Err(error) => self.finish(index, Err(error.into())),
        }
        true
    }

    /// Begins reads for which there was no room before, as far as there is room now.
    fn begin_waiting_reads(&mut self) {
        for _ in 0..self.waiting.room.len() {
            let Some((index, miss)) = self.waiting.room.pop_front() else { return };
            if self.waiting.is_being_read(&miss) {
                self.waiting.reads.push((index, miss));
            } else if !self.begin_read(index, miss) {
                // The operation went to the end of the queue, but belongs at its beginning.
                self.waiting.room.rotate_right(1);
                return;
            }
        }
    }

    /// Collects finished reads, and makes the operations ready that waited for them.
    fn reap(&mut self, wait: bool) {
        let Some(reads) = &mut self.reads else { return };
        reads.reap(wait, &mut self.finished_reads);
        self.has_begun_reads = false;
        if self.finished_reads.is_empty() {
            return;
        }
        let mut finished = std::mem::take(&mut self.finished_reads);
        for FinishedRead { page, result } in finished.drain(..) {
            let mut at = 0;
            while let Some(&(index, miss)) = self.waiting.reads.get(at) {
                if miss.extent.head != page {
                    at += 1;
                    continue;
                }
                self.waiting.reads.swap_remove(at);
                let error = result.as_ref().err();
                let verdict = error.and_then(|error| self.reads.as_ref()?.verdict(&miss, error));
                match verdict {
                    Some(error) => self.finish(index, Err(error.into())),
                    None => self.ready.push_back(index),
                }
            }
        }
        self.finished_reads = finished;
        if !self.waiting.room.is_empty() {
            self.begin_waiting_reads();
        }
    }

    fn finish(&mut self, index: usize, result: Result<Outcome, AccessError>) {
        if let Some(operation) = self.operations.get_mut(index) {
            if let Err(AccessError::Pool(error)) = &result
                && operation.tree.was_freed(error, &mut operation.gone)
            {
                operation.state = State::START;
                self.ready.push_back(index);
                return;
            }
            self.values_bytes += result.as_ref().map_or(0, Outcome::bytes);
            operation.state = State::Finished(result);
            self.done_count += 1;
            self.done.push_back(index);
        }
    }
}
