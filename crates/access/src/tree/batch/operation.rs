//! One operation as a state machine: a descent that is part of a queue of them, and what is done in the leaf.
//!
//! A step touches only what an earlier one has had fetched into the processor's cache. It changes nothing but the leaf
//! at the end, and holds no latch when it returns.

use super::task::{Answer, Blocking, Outcome, Performed, Task};
use crate::{
    AccessError,
    node::ValueAt,
    tree::{
        Tree, check_key,
        descend::{amac::DescentState, step::Fetch},
        read::record,
    },
};
use vellum_pool::{Interrupt, Pager};

/// How often an operation that must not wait begins anew.
const CONFLICTS_MAX: u32 = 8;

/// How far an operation has come.
pub(super) enum State<'p, P: Pager + 'p> {
    Descending(DescentState<'p, P>),
    /// What was found in the leaf is being fetched.
    Reading {
        leaf: P::Optimistic<'p>,
        found: Option<ValueAt>,
    },
    /// It is over.
    Finished(Result<Outcome, AccessError>),
}

impl<P: Pager> State<'_, P> {
    /// It begins.
    pub(super) const START: Self = Self::Descending(DescentState::Start);
}

/// One operation.
pub(super) struct Operation<'p, P: Pager + 'p, K, V> {
    pub(super) tree: Tree<'p, P>,
    /// None if this is nobody's.
    pub(super) request: Option<(K, Task<V>)>,
    pub(super) tag: u64,
    pub(super) state: State<'p, P>,
    pub(super) misses: u32,
}

/// What steps leave behind, for all operations together.
#[derive(Default)]
pub(super) struct StepResults {
    /// What the operations that took a step will read in their next. All are begun together when all have taken their
    /// steps: see [`descend::group`](crate::tree::descend::group) on why.
    pub(super) fetches: Vec<Fetch>,
    /// Values that have been read, one after the other.
    pub(super) values: Vec<u8>,
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
        let (key, mut values) = (key.as_ref(), Vec::new());
        let mut attempt = || {
            let leaf = self.leaf(key)?;
            let found = task.part().and_then(|part| record::find(&leaf, key, part));
            self.perform(leaf, (key, task.by_ref()), found, Blocking::Never, &mut values)
        };
        let mut performed = attempt();
        for _ in 0..CONFLICTS_MAX {
            let Err(Interrupt::Conflict(_)) = performed else { break };
            performed = attempt();
        }
        match performed {
            Ok(Performed::Done(outcome)) => Ok(Some(visit(outcome.with(&values)))),
            Ok(Performed::Failed(error)) => Err(error),
            Ok(Performed::WouldWait) | Err(Interrupt::Miss(_) | Interrupt::Conflict(_)) => Ok(None),
            Err(Interrupt::Fatal(error)) => Err((*error).into()),
        }
    }
}

impl<'p, P: Pager, K: AsRef<[u8]>, V: AsRef<[u8]>> Operation<'p, P, K, V> {
    /// Takes the next step, and says what the one after that will read; nothing if there are more to take. After a miss
    /// the same step is to be taken again; after a conflict the first.
    #[inline]
    pub(super) fn step(
        &mut self,
        pager: &'p P,
        results: &mut StepResults,
    ) -> Result<Option<Performed>, Interrupt> {
        let Some((key, task)) = &self.request else { return Ok(None) };
        let (key, task) = (key.as_ref(), task.by_ref());
        let (leaf, found) = match &mut self.state {
            State::Descending(descent) => {
                let root = self.tree.root;
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
        // In a queue nobody is in a hurry: what needs more than the leaf is done at once, and may wait.
        let (blocking, values) = (Blocking::BeyondLeaf, &mut results.values);
        self.tree.perform(leaf, (key, task), found, blocking, values).map(Some)
    }
}
