//! Redo on demand: the database opens as soon as the log has been read. A page is redone when it is first brought into
//! memory. The next checkpoint, which the background thread begins at once, redoes the pages that nothing has needed.
//!
//! After *instant recovery*: Graefe, Guy, Sauer: *Instant Recovery with Write-Ahead Logging*, 2nd edition, 2016,
//! chapter 4. There the log has an index of each page's records. Here the analysis has dealt the records out to
//! [`shares`](crate::shares), and a thread that needs a page redoes all pages of its share, some thousandths of all. So
//! there are no lists of pages, and nothing is read twice.
//!
//! # Invariants
//! - A page of a share that is not done is not in memory, unless it was redone, or allocated, since the database was
//!   opened. So a page in memory is right, and only misses ask.
//! - No checkpoint is taken before everything is redone: the log from the redo point on stays, and a recovery after a
//!   crash begins there again.
//!
//! # Lock order
//! A thread that locks a share may hold latches, all on pages that lack nothing. While it holds the lock it latches
//! pages of the share; no other thread can hold one of those latches for long.

use crate::{
    TxnError,
    analysis::Lives,
    gathered::{Gathered, PageChanges},
    redo::{Damage, THREADS_MAX, redo_changes},
    shares::{KeptMemory, KeptPart, KeptParts},
};
use std::{
    collections::HashSet,
    io, iter,
    sync::{Arc, Weak},
};
use vellum_base::PageId;
use vellum_base::primitive::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, spawn_scoped, thread};
use vellum_pool::{Pool, PoolError, RedoOnDemand, Redoer};
use vellum_wal::LogError;

/// What is left to be redone.
pub(crate) struct OnDemand {
    lives: Arc<Lives>,
    damage: Arc<Damage>,
    shares: Vec<Share>,
    /// How many shares are not done.
    left: AtomicUsize,
    /// The memory of their changes; `None` when all are done.
    memory: Mutex<Option<Arc<KeptMemory>>>,
    /// Memory that no thread uses for redo at the moment.
    idle: Mutex<Vec<Gathered>>,
    is_interrupted: AtomicBool,
    redoer: Redoer,
}

/// The pages whose numbers have the same remainder.
#[derive(Default)]
struct Share {
    is_done: AtomicBool,
    debt: Mutex<Debt>,
}

/// What the pages of a share still lack.
#[derive(Default)]
struct Debt {
    parts: Vec<KeptPart>,
    /// The pages that could not be redone; `None` before the first attempt. All others have been redone.
    failed: Option<HashSet<PageId>>,
    /// Pages that were allocated again. What they lack belongs to an earlier life.
    forgotten: HashSet<PageId>,
}

impl OnDemand {
    /// Begins to redo pages of this pool on demand.
    pub fn begin(pool: &Pool, parts: KeptParts, lives: Arc<Lives>, damage: Arc<Damage>) -> Arc<Self> {
        let shares: Vec<_> = parts.shares.into_iter().map(Share::of).collect();
        let left = shares.iter().filter(|share| !share.is_done()).count();
        let memory = KeptMemory::of(pool, parts.memory);
        let begun = Arc::new(Self {
            redoer: pool.redoer(),
            lives,
            damage,
            shares,
            left: AtomicUsize::new(left),
            memory: Mutex::new(Some(Arc::new(memory))),
            idle: Mutex::default(),
            is_interrupted: AtomicBool::new(false),
        });
        if left > 0 {
            let asked: Weak<Self> = Arc::downgrade(&begun);
            begun.redoer.begin_on_demand(asked);
        } else {
            begun.end();
        }
        begun
    }

    /// Redoes everything that is left, in several threads.
    ///
    /// # Errors
    /// If a page cannot be redone; all others have been then. If it was [interrupted](Self::interrupt).
    pub fn finish(&self) -> Result<(), TxnError> {
        if self.is_done() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut outcome = Ok(());
            loop {
                // Relaxed: it gives each thread another share, and orders nothing.
                let Some(share) = self.shares.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return outcome;
                };
                // Relaxed: it may be seen one share later.
                if self.is_interrupted.load(Ordering::Relaxed) {
                    return Err(LogError::Closed.into());
                }
                outcome = outcome.and(self.redo_share(share, None));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        thread::scope(|scope| {
            // If the system refuses a thread, the other threads and this one do its work.
            let spawn = |_| spawn_scoped(scope, "vellum-redo", work).ok();
            let others: Vec<_> = (1..threads).filter_map(spawn).collect();
            let outcome = work();
            let joined = others.into_iter().map(|other| other.join().unwrap_or(Err(TxnError::Panicked)));
            joined.fold(outcome, Result::and)
        })
    }

    /// Whether everything is redone.
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the subtraction in `redo_share`.
        self.left.load(Ordering::Acquire) == 0
    }

    /// Makes [`finish`](Self::finish) end soon, until this is reset.
    pub fn interrupt(&self, is_interrupted: bool) {
        self.is_interrupted.store(is_interrupted, Ordering::Relaxed);
    }

    /// Redoes the pages of a share that have not been redone. Of those that failed, only `wanted`, if given.
    fn redo_share(&self, share: &Share, wanted: Option<PageId>) -> Result<(), TxnError> {
        if share.is_done() {
            return Ok(());
        }
        let mut debt = share.lock();
        let is_redone = |page| debt.failed.as_ref().is_some_and(|failed| !failed.contains(&page));
        let memory = lock(&self.memory).clone();
        let Some(memory) = memory.filter(|_| !share.is_done() && !wanted.is_some_and(is_redone)) else {
            return Ok(());
        };
        let mut gathered = lock(&self.idle).pop().unwrap_or_default();
        let redone = self.redo_debt(&mut debt, wanted, &memory, &mut gathered);
        lock(&self.idle).push(gathered);
        if debt.failed.as_ref().is_some_and(HashSet::is_empty) {
            *debt = Debt::default();
            // Release: pairs with `Share::is_done`.
            share.is_done.store(true, Ordering::Release);
            // AcqRel: the last share is done after all others.
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.end();
            }
        }
        redone
    }

    fn redo_debt(
        &self,
        debt: &mut Debt,
        wanted: Option<PageId>,
        memory: &KeptMemory,
        gathered: &mut Gathered,
    ) -> Result<(), TxnError> {
        let kept = memory.bytes();
        gathered.gather(kept, debt.parts.iter().map(KeptPart::range))?;
        let is_left = |page| match (&debt.failed, wanted) {
            (None, _) => !debt.forgotten.contains(&page),
            (Some(failed), None) => failed.contains(&page),
            (Some(_), Some(wanted)) => page == wanted,
        };
        let (mut failed, mut outcome) = (debt.failed.clone().unwrap_or_default(), Ok(()));
        for of in gathered.pages().iter().filter(|of| is_left(of.page)) {
            failed.remove(&of.page);
            let redone = self.redo_page(of, gathered, kept);
            if let Err(error) = self.damage.check(redone) {
                failed.insert(of.page);
                // Threads that want the other pages ask for them.
                if wanted.is_none_or(|wanted| wanted == of.page) {
                    outcome = outcome.and(Err(error));
                }
            }
        }
        debt.failed = Some(failed);
        outcome
    }

    fn redo_page(&self, of: &PageChanges, gathered: &Gathered, kept: &[u8]) -> Result<(), TxnError> {
        // Changes of an earlier life are not needed.
        let mut changes = gathered.changes(of, kept);
        let Some(first) = changes.find(|change| self.lives.counts(of.page, change.lsn)) else {
            return Ok(());
        };
        let redo = |page: &mut [u8]| redo_changes(page, iter::once(first).chain(changes));
        Ok(self.redoer.redo_evicted(of.page, first.fresh, redo)?)
    }

    /// Ends redo on demand: everything is redone.
    fn end(&self) {
        self.redoer.end_on_demand();
        lock(&self.idle).clear();
        *lock(&self.memory) = None;
    }

    fn share_of(&self, page: PageId) -> Option<&Share> {
        self.shares.get((page.0 % self.shares.len().max(1) as u64) as usize)
    }
}

impl RedoOnDemand for OnDemand {
    fn redo(&self, page: PageId) -> Result<(), PoolError> {
        let redone = self.share_of(page).map_or(Ok(()), |share| self.redo_share(share, Some(page)));
        redone.map_err(|error| match error {
            TxnError::Pool(error) => error,
            other => PoolError::Log(io::Error::other(other)),
        })
    }

    fn forget(&self, page: PageId) {
        let Some(share) = self.share_of(page).filter(|share| !share.is_done()) else { return };
        let mut debt = share.lock();
        // It has been freed since, so it no longer counts as one that could not be redone.
        debt.failed.as_mut().map(|failed| failed.remove(&page));
        debt.forgotten.insert(page);
    }
}

impl Share {
    fn of(parts: Vec<KeptPart>) -> Self {
        let is_empty = parts.iter().all(KeptPart::is_empty);
        let debt = Debt { parts, ..Debt::default() };
        Self { is_done: AtomicBool::new(is_empty), debt: Mutex::new(debt) }
    }

    fn is_done(&self) -> bool {
        // Acquire: pairs with the store by the thread that has redone the pages.
        self.is_done.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Debt> {
        lock(&self.debt)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::{Kept, tests::format};
    use vellum_access::PageRedo;
    use vellum_base::{Extent, Lsn, PageKind};
    use vellum_pool::{AsynchronousReads, PoolOptions};
    use vellum_vm::SimulatedFile;
    use vellum_wal::Record;

    #[test]
    fn what_a_page_lacked_in_an_earlier_life_is_not_redone_in_the_next() {
        let options =
            PoolOptions::default().pool_bytes(64 * 4096).capacity_bytes(1 << 24).background_eviction(false);
        let pool = Pool::create_on(Arc::new(SimulatedFile::new(1)), &options).unwrap();
        let [page, other] = [0, 1].map(|_| pool.allocate(1, PageKind::TREE_NODE).unwrap().keep().id());
        pool.exclusive(Extent::page(page)).unwrap().free();
        let mut kept = Kept::new(Lsn(0), 64);
        for (number, page) in [page, other].into_iter().enumerate() {
            let bytes = format(page.0, 40);
            let record = Record { lsn: Lsn(100 + 100 * number as u64), payload: &[0; 16] };
            kept.add(record, &PageRedo::decode(&mut &bytes[..]).unwrap());
        }
        let (lives, damage) = (Arc::default(), Arc::new(Damage::new(false)));
        let on_demand = OnDemand::begin(&pool, kept.into_parts(), lives, damage);
        assert!(!on_demand.is_done());
        let mut again = pool.allocate(1, PageKind::TREE_NODE).unwrap();
        assert_eq!(again.id(), page);
        again.payload_mut().fill(9);
        drop(again.keep());
        for _ in 0..200 {
            drop(pool.allocate(1, PageKind::TREE_NODE).unwrap().keep());
        }
        assert!(pool.is_evicted(page) && !on_demand.is_done());
        on_demand.finish().unwrap();
        assert!(on_demand.is_done());
        assert!(pool.shared(Extent::page(page)).unwrap().payload().iter().all(|byte| *byte == 9));
    }
}
