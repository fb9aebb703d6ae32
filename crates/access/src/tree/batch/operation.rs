//! One operation of a queue as a state machine: a descent, and then the task in the leaf.
//!
//! A step touches only what an earlier step has fetched into the processor's cache. It changes nothing but the leaf at
//! the end, and holds no latch when it returns.

use super::task::{Answer, Blocking, Outcome, Performed, Task};
use crate::tree::{Tree, check_key, descend::Fetch, descend::amac::DescentState, read::record};
use crate::{error::AccessError, node::ValueAt};
use vellum_base::Extent;
use vellum_pool::{Interrupt, Pager};

/// The progress of an operation.
pub(super) enum State<'p, P: Pager + 'p> {
    Descending(DescentState<'p, P>),
    /// The bytes found in the leaf are being fetched.
    Reading {
        leaf: P::Optimistic<'p>,
        found: Option<ValueAt>,
    },
    /// The operation is done.
    Finished(Result<Outcome, AccessError>),
}

impl<P: Pager> State<'_, P> {
    /// The initial state.
    pub const START: Self = Self::Descending(DescentState::Start);
}

/// One operation.
pub(super) struct Operation<'p, P: Pager + 'p, K, V> {
    pub tree: Tree<'p, P>,
    /// `None` if this place is free.
    pub request: Option<(K, Task<V>)>,
    pub tag: u64,
    pub state: State<'p, P>,
    pub misses: u32,
    /// The extent that could not be read: see [`was_freed`](Tree::was_freed).
    pub gone: Option<Extent>,
}

/// The results of steps, for all operations together.
#[derive(Default)]
pub(super) struct StepResults {
    /// The bytes that the operations will read in their next steps. All fetches are issued together after a round of
    /// steps: [`descend::group`](crate::tree::descend::group) says why.
    pub fetches: Vec<Fetch>,
    /// Values that have been read, one after the other.
    pub values: Vec<u8>,
}

impl<P: Pager> Tree<'_, P> {
    /// Runs an operation if it need not wait at all, and shows its answer to `visit`; `None` if a page is not in memory
    /// or is latched, or if the operation would have to wait for anything else.
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
        let (key, mut values) = (key.as_ref(), Vec::new());
        let performed = self.attempt(false, || {
            let leaf = self.leaf(key)?;
            let found = task.part().and_then(|part| record::find(&leaf, key, part));
            self.perform(leaf, (key, task.by_ref()), found, Blocking::Never, &mut values)
        })?;
        match performed {
            Some(Performed::Done(result)) => result.map(|outcome| Some(visit(outcome.with(&values)))),
            Some(Performed::WouldWait) | None => Ok(None),
        }
    }
}

impl<'p, P: Pager, K: AsRef<[u8]>, V: AsRef<[u8]>> Operation<'p, P, K, V> {
    /// Takes the next step, and adds to `results` what the step after that will read; `None` if more steps are to come.
    /// After a miss the caller repeats the step; after a conflict it starts again.
    #[inline]
    pub fn step(&mut self, pager: &'p P, results: &mut StepResults) -> Result<Option<Performed>, Interrupt> {
        let Some((key, task)) = &self.request else { return Ok(None) };
        let (key, task) = (key.as_ref(), task.by_ref());
        let (leaf, found) = match &mut self.state {
            State::Descending(descent) => {
                let root = self.tree.root();
                let Some(leaf) = descent.advance(pager, root, key, &mut results.fetches)? else {
                    return Ok(None);
                };
                let found = task.part().and_then(|part| record::find(&leaf, key, part));
                if let Some(fetch) = record::fetch(&leaf, found) {
                    results.fetches.push(fetch);
                    self.state = State::Reading { leaf, found };
                    return Ok(None);
                }
                (leaf, found)
            }
            State::Reading { leaf, found } => (*leaf, *found),
            State::Finished(_) => return Ok(None),
        };
        // An operation of a queue may wait: work beyond the leaf is done at once.
        let (blocking, values) = (Blocking::BeyondLeaf, &mut results.values);
        match self.tree.perform(leaf, (key, task), found, blocking, values) {
            Err(Interrupt::Conflict(_)) => self.step_again(values).map(Some),
            performed => performed.map(Some),
        }
    }

    /// Does the task at once from the root: the leaf has changed since it was reached, often by another operation of the same
    /// queue. If those that meet in a leaf all began anew together, each would do so for every one before it.
    #[cold]
    #[inline(never)]
    fn step_again(&mut self, values: &mut Vec<u8>) -> Result<Performed, Interrupt> {
        self.state = State::START;
        self.perform_from_root(Blocking::BeyondLeaf, values)
    }

    /// Does all that is left at once, and waits for what it needs, like the call for one key. A value that is read is appended
    /// to `values`.
    #[cold]
    #[inline(never)]
    pub fn finish_alone(&self, values: &mut Vec<u8>) -> Result<Outcome, AccessError> {
        let pager = self.tree.pager;
        match pager.run(|| self.perform_from_root(Blocking::Always, values))? {
            Performed::Done(result) => result,
            // Does not happen: there is a request, and it may wait.
            Performed::WouldWait => Err(pager.no_room().into()),
        }
    }

    fn perform_from_root(&self, blocking: Blocking, values: &mut Vec<u8>) -> Result<Performed, Interrupt> {
        let Some((key, task)) = &self.request else { return Ok(Performed::WouldWait) };
        let key = key.as_ref();
        let leaf = self.tree.leaf(key)?;
        let found = task.part().and_then(|part| record::find(&leaf, key, part));
        self.tree.perform(leaf, (key, task.by_ref()), found, blocking, values)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Batch;
    use super::*;
    use crate::tree::Written;
    use std::sync::Arc;
    use vellum_pool::{Pool, PoolOptions};
    use vellum_vm::SimulatedFile;

    /// Until one that had met a changed leaf went down at once, all others of the queue that were in the same leaf went down
    /// again for each change.
    #[test]
    fn operations_that_meet_in_a_leaf_go_down_twice_at_most() {
        const COUNT: u64 = 2000;
        let options = PoolOptions::default().pool_bytes(1 << 24).capacity_bytes(1 << 28).count_hits(true);
        let file = SimulatedFile::new(1);
        let pool = Pool::create_on(Arc::new(file.clone()), &options).unwrap();
        let tree = Tree::create(&pool).unwrap();
        (0..100_000u64).for_each(|number| assert!(tree.insert(&number.to_be_bytes(), b"old value").unwrap()));
        assert_eq!(tree.shape().unwrap().height, 3);
        let root = tree.root();
        pool.close().unwrap();

        let pool = Pool::open_on(Arc::new(file), &options).unwrap();
        let tree = Tree::open(&pool, root);
        let same = |_: u64| 70_000u64.to_be_bytes();
        let sorted = |number: u64| (30_000 + number).to_be_bytes();
        for key in [&same as &dyn Fn(u64) -> [u8; 8], &sorted] {
            let hits = || pool.statistics().hits.unwrap();
            let (before, mut shown) = (hits(), 0);
            let tasks = (0..COUNT).map(|number| {
                let task = if number % 2 == 0 { Task::Upsert(b"new value") } else { Task::Get };
                (key(number), task)
            });
            Batch::new(&pool, 64).run_queue(tree, tasks, |number, _, answer| {
                match answer.unwrap() {
                    Answer::Written(written) => assert_eq!((written, number % 2), (Written::Replaced, 0)),
                    Answer::Value(value) => assert!(value.is_some_and(|value| value.ends_with(b" value"))),
                    Answer::Removed(_) => unreachable!("nothing is removed"),
                }
                shown += 1;
            });
            assert_eq!(shown, COUNT);
            let hits = (hits() - before) / COUNT;
            assert!(hits <= 12, "{hits} pages looked at for each of them");
        }
    }
}
