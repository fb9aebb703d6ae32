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
        self.tree.perform(leaf, (key, task), found, blocking, values).map(Some)
    }

    /// Does all that is left at once, and waits for what it needs, like the call for one key. A value that is read is appended
    /// to `values`.
    #[cold]
    #[inline(never)]
    pub fn finish_alone(&self, values: &mut Vec<u8>) -> Result<Outcome, AccessError> {
        let pager = self.tree.pager;
        let performed = pager.run(|| {
            let Some((key, task)) = &self.request else { return Ok(Performed::WouldWait) };
            let key = key.as_ref();
            let leaf = self.tree.leaf(key)?;
            let found = task.part().and_then(|part| record::find(&leaf, key, part));
            self.tree.perform(leaf, (key, task.by_ref()), found, Blocking::Always, values)
        })?;
        match performed {
            Performed::Done(result) => result,
            // Does not happen: there is a request, and it may wait.
            Performed::WouldWait => Err(pager.no_room().into()),
        }
    }
}
