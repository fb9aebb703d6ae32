//! Many operations at once, by one thread, which waits for none of them alone.
//!
//! Each operation is a small machine that goes down its tree one node a step. At the end of a step it says what it
//! will touch next: the processor fetches those cache lines while the other operations take their steps, so that
//! cache misses overlap. An operation whose page is not in memory has it read, and takes its next step when the
//! page is there; meanwhile the others go on, and their reads overlap too.
//!
//! - Operations that miss the same page wait for the same read.
//! - An operation keeps its guard on the parent of what it waits for. If the parent has not changed when the page is
//!   there, it goes on from there; if it has, the operation begins anew.
//! - A page that somebody else holds is looked at again later. Only when no operation can take a step and no read is
//!   under way does the thread wait for somebody else.
//! - A change is made in one step at the end, under the leaf's latch, as by the call for one key. What needs more than
//!   the leaf (a split, a large value) is done by that very call, which may wait.
//!
//! No latch is held between two steps.

use crate::AccessError;
use crate::tree::{
    Tree, check_key,
    descend::group::GROUP_SIZE,
    descend::operation::{Answer, Fetch, Job, Located, Outcome, Scratch, Stage, Step, Task},
};
use std::collections::VecDeque;
use vellum_base::PageId;
use vellum_pool::{Begun, FinishedRead, Interrupt, Miss, Misses, Pager};

/// How much room for values is kept for later, in bytes.
const VALUES_BYTES_KEPT: usize = 1 << 20;

/// How often an operation may miss before it gives up: see [`Navigation::run`](vellum_pool::Navigation::run).
const MISSES_MAX: u32 = 10_000;

/// Operations on trees that one thread runs at once.
///
/// What is begun makes progress in [`advance`](Self::advance), and is taken out by [`take`](Self::take) when it is
/// done. Buffers are used again, so a batch is best kept.
///
/// Operations on the same key may happen in any order. Dropping a batch gives up what is not done, after waiting for
/// its reads.
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
///     while let Some((_number, answer)) = batch.take(|tag, _key, answer| (tag, answer.is_ok())) {
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
    jobs: Vec<Job<'p, P, K, V>>,
    free: Vec<usize>,
    /// Those that can take a step.
    ready: VecDeque<usize>,
    /// Those that wait for reads of this batch.
    parked: Vec<(usize, Miss)>,
    /// Those that want a read for which there was no room, oldest first.
    starved: VecDeque<(usize, Miss)>,
    /// Those that met a page that somebody else held or changed.
    disturbed: Vec<(usize, PageId)>,
    /// Those that are done and have not been taken, in the order in which they were; who takes them by place does
    /// not need it.
    over: VecDeque<usize>,
    /// How many are done and have not been taken.
    finished_count: usize,
    /// The length of the values of those, in bytes.
    values_bytes: usize,
    /// There is none before the first miss.
    reads: Option<P::Misses<'p>>,
    finished: Vec<FinishedRead>,
    room: Scratch,
}

impl<'p, P: Pager, K: AsRef<[u8]>, V: AsRef<[u8]>> Batch<'p, P, K, V> {
    /// An empty batch, of which up to `depth` reads are under way at once.
    pub fn new(pager: &'p P, depth: usize) -> Self {
        Self {
            pager,
            depth: depth.max(1),
            jobs: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            parked: Vec::new(),
            starved: VecDeque::new(),
            disturbed: Vec::new(),
            over: VecDeque::new(),
            finished_count: 0,
            values_bytes: 0,
            reads: None,
            finished: Vec::new(),
            room: Scratch::default(),
        }
    }

    /// How many operations were begun and not taken yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    /// Whether nothing was begun that has not been taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it pays to begin more: as long as fewer operations than can be overlapped take steps, and fewer
    /// wait than reads may be under way.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ready.len() < GROUP_SIZE && self.len() - self.ready.len() < 2 * self.depth
    }

    /// Begins an operation. The tree must belong to the pager of this batch. Returns the operation's place, which
    /// is its own until it is taken.
    #[inline]
    pub fn begin(&mut self, tree: Tree<'p, P>, key: K, task: Task<V>, tag: u64) -> usize {
        let stage = match check_key(key.as_ref()) {
            Ok(()) => Stage::Start,
            Err(error) => Stage::Finished(Err(error)),
        };
        let over = matches!(stage, Stage::Finished(_));
        let request = Some((key, task));
        let index = match self.free.pop() {
            Some(index) => {
                let job = &mut self.jobs[index];
                (job.tree, job.request, job.tag, job.stage, job.misses) = (tree, request, tag, stage, 0);
                job.locates = false;
                index
            }
            None => {
                self.jobs.push(Job { tree, request, tag, stage, misses: 0, patient: true, locates: false });
                self.jobs.len() - 1
            }
        };
        if over {
            self.finished_count += 1;
            self.over.push_back(index);
        } else {
            self.ready.push_back(index);
        }
        index
    }

    /// Lets each operation that can take a step take one; if none can, looks what has been read, and waits for it
    /// if asked to. Without waiting it returns at once, but for splits and large values.
    pub fn advance(&mut self, wait: bool) {
        if self.ready.is_empty() {
            self.refill(wait);
        } else if self.reads.as_ref().is_some_and(|reads| reads.under_way() > 0) {
            self.reap(false);
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(job) = self.jobs.get_mut(index) else { continue };
            match job.step(self.pager, &mut self.room) {
                Ok(Step::More) => self.ready.push_back(index),
                Ok(Step::Last(outcome)) => {
                    job.stage = Stage::Finished(Ok(outcome));
                    self.values_bytes += outcome.bytes();
                    self.finished_count += 1;
                    self.over.push_back(index);
                }
                Ok(Step::Failed(error)) => self.fail(index, error),
                // Jobs of a batch are patient.
                Ok(Step::WouldWait) => self.fail(index, self.pager.no_room().into()),
                Err(interrupt) => self.interrupted(index, interrupt),
            }
        }
        for Fetch { page, at, bytes } in self.room.fetches.drain(..) {
            self.pager.prefetch(page, at, bytes);
        }
        if !self.disturbed.is_empty() {
            self.retry_disturbed();
        }
    }

    /// Takes out an operation that is done, and shows its tag, key and answer to `visit`.
    pub fn take<T>(
        &mut self,
        visit: impl FnOnce(u64, &K, Result<Answer<'_>, AccessError>) -> T,
    ) -> Option<T> {
        let index = self.over.pop_front()?;
        self.take_from(index, visit)
    }

    /// Whether the operation at a place is done. Whoever asks takes all operations by place.
    #[inline]
    fn is_finished(&self, index: usize) -> bool {
        self.jobs.get(index).is_some_and(|job| matches!(job.stage, Stage::Finished(_)))
    }

    fn take_from<T>(
        &mut self,
        index: usize,
        visit: impl FnOnce(u64, &K, Result<Answer<'_>, AccessError>) -> T,
    ) -> Option<T> {
        let (tag, key, result) = self.end(index)?;
        let found = result.as_ref().map_or(0, Outcome::bytes);
        let answer = result.map(|outcome| outcome.with(&self.room.values));
        let visited = visit(tag, &key, answer);
        self.values_bytes -= found;
        self.tidy_values();
        Some(visited)
    }

    /// Gives back the place of an operation that is done.
    #[inline]
    fn end(&mut self, index: usize) -> Option<(u64, K, Result<Outcome, AccessError>)> {
        let job = self.jobs.get_mut(index)?;
        let stage = std::mem::replace(&mut job.stage, Stage::Start);
        let Stage::Finished(result) = stage else {
            job.stage = stage;
            return None;
        };
        let (key, _) = job.request.take()?;
        self.free.push(index);
        self.finished_count -= 1;
        Some((job.tag, key, result))
    }

    /// Begins all operations, in order and as many at once as pays, and shows their answers to `visit` in the same
    /// order, each with its number. The batch must be empty.
    pub fn run(
        &mut self,
        tree: Tree<'p, P>,
        tasks: impl IntoIterator<Item = (K, Task<V>)>,
        mut visit: impl FnMut(usize, Result<Answer<'_>, AccessError>),
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
            let done = tree.run_group(&group, &mut room, |answer| {
                visit(shown, answer);
                shown += 1;
            });
            if done < group.len() {
                break group.drain(done..).chain(tasks);
            }
        };
        self.run_machines(tree, rest, |_, answer| {
            visit(shown, answer);
            shown += 1;
        });
    }

    /// The same for operations of which the first will most likely have to wait.
    pub(in crate::tree) fn run_machines(
        &mut self,
        tree: Tree<'p, P>,
        tasks: impl IntoIterator<Item = (K, Task<V>)>,
        mut visit: impl FnMut(usize, Result<Answer<'_>, AccessError>),
    ) {
        let mut tasks = tasks.into_iter().fuse();
        let mut shown = 0;
        self.make_room(tasks.size_hint().0);
        self.run_in_order(
            |batch| {
                let (key, task) = tasks.next()?;
                Some(batch.begin(tree, key, task, 0))
            },
            |batch, index| {
                batch.take_from(index, |_, _, answer| visit(shown, answer));
                shown += 1;
            },
        );
    }

    /// Finds out where the values of keys are, in order and as many at once as pays, and tells `visit` of each in the
    /// same order when it and what it is made of have been fetched into the processor's cache. Nothing, if there is none.
    /// The batch must be empty.
    pub(in crate::tree) fn locate(
        &mut self,
        tree: Tree<'p, P>,
        keys: impl IntoIterator<Item = K>,
        mut visit: impl FnMut(K, Result<Option<Located>, AccessError>),
    ) {
        let mut keys = keys.into_iter().fuse();
        self.make_room(keys.size_hint().0);
        self.run_in_order(
            |batch| {
                let index = batch.begin(tree, keys.next()?, Task::Get, 0);
                if let Some(job) = batch.jobs.get_mut(index) {
                    job.locates = true;
                }
                Some(index)
            },
            |batch, index| {
                let Some((_, key, result)) = batch.end(index) else { return };
                let located = |outcome| if let Outcome::Located(at) = outcome { Some(at) } else { None };
                visit(key, result.map(located));
            },
        );
    }

    /// Makes room for so many operations, as far as they take steps at once: bit by bit it would take longer than a small
    /// batch itself.
    fn make_room(&mut self, operations: usize) {
        let at_once = operations.min(GROUP_SIZE);
        self.jobs.reserve(at_once);
        self.free.reserve(at_once);
        self.ready.reserve(at_once);
        self.over.reserve(at_once);
        self.room.fetches.reserve(at_once);
    }

    /// Begins operations, as many at once as pays, until `begin` begins no more, and has `end` take them in the same
    /// order.
    fn run_in_order(
        &mut self,
        mut begin: impl FnMut(&mut Self) -> Option<usize>,
        mut end: impl FnMut(&mut Self, usize),
    ) {
        debug_assert!(self.is_empty(), "answers would be given to the wrong caller");
        let mut order = VecDeque::with_capacity(2 * GROUP_SIZE);
        loop {
            while self.has_room() {
                let Some(index) = begin(self) else { break };
                order.push_back(index);
            }
            if order.is_empty() {
                return;
            }
            self.advance(true);
            self.over.clear();
            while let Some(index) = order.pop_front_if(|index| self.is_finished(*index)) {
                end(self, index);
            }
        }
    }

    /// Drops the values that have been taken, when they are more than those that have not.
    fn tidy_values(&mut self) {
        let values = &mut self.room.values;
        if self.finished_count == 0 {
            values.clear();
            values.shrink_to(VALUES_BYTES_KEPT);
        } else if values.len() > 2 * self.values_bytes + VALUES_BYTES_KEPT {
            let old = std::mem::take(values);
            for job in &mut self.jobs {
                if let Stage::Finished(Ok(Outcome::Found { start, bytes })) = &mut job.stage {
                    let value = old.get(*start..*start + *bytes).unwrap_or_default();
                    *start = values.len();
                    values.extend_from_slice(value);
                }
            }
        }
    }

    /// Nothing can take a step: looks what has changed, and waits for it if asked to.
    #[cold]
    fn refill(&mut self, wait: bool) {
        if self.reads.as_ref().is_some_and(|reads| reads.under_way() > 0) {
            return self.reap(wait);
        }
        self.begin_starved();
        if !self.ready.is_empty() || !wait || self.reads.as_ref().is_some_and(|r| r.under_way() > 0) {
            return;
        }
        // Nothing is under way: somebody else must do something, or this thread must make room.
        let (index, interrupt) = match (self.starved.pop_front(), self.disturbed.pop()) {
            (Some((index, miss)), disturbed) => {
                self.disturbed.extend(disturbed);
                (index, Interrupt::Miss(miss))
            }
            (None, Some((index, page))) => (index, Interrupt::Conflict(page)),
            (None, None) => return,
        };
        match self.pager.resolve(interrupt) {
            Ok(()) => self.ready.push_back(index),
            Err(error) => self.fail(index, error.into()),
        }
    }

    #[cold]
    fn interrupted(&mut self, index: usize, interrupt: Interrupt) {
        match interrupt {
            Interrupt::Miss(miss) => self.miss(index, miss),
            Interrupt::Conflict(page) => {
                if let Some(job) = self.jobs.get_mut(index) {
                    job.stage = Stage::Start;
                }
                self.disturbed.push((index, page));
            }
            Interrupt::Fatal(error) => self.fail(index, (*error).into()),
        }
    }

    /// Those that were disturbed by a page which nobody holds any more begin anew.
    fn retry_disturbed(&mut self) {
        let mut kept = 0;
        for at in 0..self.disturbed.len() {
            let Some(&(index, page)) = self.disturbed.get(at) else { break };
            if self.pager.is_latched(page) {
                self.disturbed.swap(kept, at);
                kept += 1;
            } else {
                self.ready.push_back(index);
            }
        }
        self.disturbed.truncate(kept);
    }

    /// An operation needs an extent that is not in memory.
    fn miss(&mut self, index: usize, miss: Miss) {
        let Some(job) = self.jobs.get_mut(index) else { return };
        job.misses += 1;
        if job.misses > MISSES_MAX {
            return self.fail(index, self.pager.no_room().into());
        }
        if self.parked.iter().any(|(_, other)| other.extent == miss.extent) {
            return self.parked.push((index, miss));
        }
        self.begin_read(index, miss);
    }

    /// Begins the read that an operation needs; false if there is no room for it.
    fn begin_read(&mut self, index: usize, miss: Miss) -> bool {
        if self.reads.is_none() {
            match self.pager.misses(self.depth) {
                Ok(reads) => self.reads = Some(reads),
                Err(error) => {
                    self.fail(index, error.into());
                    return true;
                }
            }
        }
        let Some(reads) = &mut self.reads else { return true };
        match reads.begin(&miss) {
            Ok(Begun::Reading) => self.parked.push((index, miss)),
            Ok(Begun::Ready) => self.ready.push_back(index),
            Ok(Begun::Latched) => self.disturbed.push((index, miss.extent.head)),
            Ok(Begun::NoRoom) => {
                self.starved.push_back((index, miss));
                return false;
            }
            Err(error) => self.fail(index, error.into()),
        }
        true
    }

    /// Begins reads for which there was no room, as far as there is now.
    fn begin_starved(&mut self) {
        for _ in 0..self.starved.len() {
            let Some((index, miss)) = self.starved.pop_front() else { return };
            if self.parked.iter().any(|(_, other)| other.extent == miss.extent) {
                self.parked.push((index, miss));
            } else if !self.begin_read(index, miss) {
                // It went to the end of the queue, and belongs at its beginning.
                self.starved.rotate_right(1);
                return;
            }
        }
    }

    /// Takes what has been read, and lets go on who waited for it.
    fn reap(&mut self, wait: bool) {
        let Some(reads) = &mut self.reads else { return };
        reads.reap(wait, &mut self.finished);
        if self.finished.is_empty() {
            return;
        }
        let mut finished = std::mem::take(&mut self.finished);
        for FinishedRead { page, result } in finished.drain(..) {
            let mut at = 0;
            while let Some(&(index, miss)) = self.parked.get(at) {
                if miss.extent.head != page {
                    at += 1;
                    continue;
                }
                self.parked.swap_remove(at);
                let error = result.as_ref().err();
                let verdict = error.and_then(|error| self.reads.as_ref()?.verdict(&miss, error));
                match verdict {
                    Some(error) => self.fail(index, error.into()),
                    None => self.ready.push_back(index),
                }
            }
        }
        self.finished = finished;
        if !self.starved.is_empty() {
            self.begin_starved();
        }
    }

    fn fail(&mut self, index: usize, error: AccessError) {
        if let Some(job) = self.jobs.get_mut(index) {
            job.stage = Stage::Finished(Err(error));
            self.finished_count += 1;
            self.over.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use vellum_pool::{Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// Somebody never takes one of the answers: the values of all others do not pile up behind it.
    #[test]
    fn values_that_were_taken_are_dropped_though_others_were_not() {
        let options = PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 28);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let tree = Tree::create(&pool).unwrap();
        let value = |number: u32| vec![number as u8; 1000];
        (0..300u32).for_each(|number| assert!(tree.insert(&number.to_be_bytes(), &value(number)).unwrap()));
        let mut batch: Batch<'_, Pool, [u8; 4], Vec<u8>> = Batch::new(&pool, 16);
        let first = batch.begin(tree, 7u32.to_be_bytes(), Task::Get, 7);
        for round in 0..40 {
            let places: Vec<_> = (0..300u32)
                .map(|number| (number, batch.begin(tree, number.to_be_bytes(), Task::Get, 0)))
                .collect();
            for (number, place) in places {
                while !batch.is_finished(place) {
                    batch.advance(true);
                }
                let taken = batch
                    .take_from(place, |_, _, answer| answer.unwrap() == Answer::Value(Some(&value(number))));
                assert_eq!(taken, Some(true), "{number} in round {round}");
            }
            assert!(batch.room.values.len() <= VALUES_BYTES_KEPT + 400_000);
        }
        let taken = batch.take_from(first, |_, _, answer| answer.unwrap() == Answer::Value(Some(&value(7))));
        assert_eq!(taken, Some(true));
        assert!(batch.is_empty() && batch.room.values.is_empty());
    }
}
