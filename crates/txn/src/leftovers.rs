//! What a transaction has changed and claimed, while it is open and after its commit, until no snapshot needs it any more.

use crate::before::Before;
use crate::depot::{Depot, Kept};
use crate::reads::ReadSet;
use crate::undo_list::UndoList;
use hashbrown::HashTable;
use std::cell::RefCell;
use vellum_access::BlobReference;
use vellum_base::{Lsn, PageId};
use vellum_pool::PoolError;

/// A change that may have to be undone.
pub(crate) struct Undo {
    pub before: Before,
    pub lsn: Lsn,
    /// Its record is among those that were touched.
    pub is_touched: bool,
    /// It has removed the record.
    pub is_removal: bool,
}

/// Longer lists are not kept.
const CHANGES_MAX: usize = 256;
/// A batch has so many lists: a thread keeps two, and threads have handed over so many at most.
const LISTS: usize = 8;
const BATCHES_MAX: usize = 16;

thread_local! {
    /// What the thread keeps, as in [`spare`](crate::spare).
    static KEPT: RefCell<Kept<Vec<Undo>>> = const { RefCell::new(Kept::new()) };
}

static DEPOT: Depot<Vec<Undo>> = Depot::new(BATCHES_MAX);

/// An empty list with room for `few` changes or more.
pub(crate) fn list(few: usize) -> Vec<Undo> {
    // There is none if the thread is about to end.
    let kept = KEPT.try_with(|kept| kept.borrow_mut().take(&DEPOT));
    kept.ok().flatten().unwrap_or_else(|| Vec::with_capacity(few))
}

/// Gives up a list of changes, with what was kept of their records.
pub(crate) fn give_up_list(mut list: Vec<Undo>) {
    list.drain(..).for_each(|undo| undo.before.give_up());
    if (1..=CHANGES_MAX).contains(&list.capacity()) {
        let _ = KEPT.try_with(|kept| kept.borrow_mut().keep(list, &DEPOT, LISTS));
    }
}

/// What a transaction leaves behind that goes when no snapshot needs it any more.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// What it has changed.
    pub changed: Vec<Undo>,
    /// Other records that it has claimed.
    pub touched: Vec<Before>,
    /// Those that transactions have changed which were committed before, and between which and this one there is no snapshot.
    joined: HashTable<Before>,
    /// The large values that it has replaced, each with its tree.
    pub large: Vec<(PageId, BlobReference)>,
    /// How many bytes of keys and old values that is.
    pub bytes: u64,
    /// The records for which memory had no room.
    pub spilled: Vec<UndoList>,
    /// Whether its changes are among the versions: it was not always the only transaction.
    pub is_published: bool,
}

impl Leftovers {
    /// A record that was changed, and that a transaction with these reads has read.
    pub fn find(&self, reads: &ReadSet) -> Result<Option<Before>, PoolError> {
        let mut found = None;
        self.for_each_record(|record| {
            if reads.has(record.tree, record.key()) {
                found = Some(record.clone());
            }
            found.is_none().then_some(())
        })?;
        Ok(found)
    }

    /// What is left behind by the commit of a transaction that has made these changes, claimed these other records, and replaced these
    /// large values.
    pub fn new(
        (changed, touched, spilled): (Vec<Undo>, Vec<Before>, Option<UndoList>),
        large: Vec<(PageId, BlobReference)>,
        bytes: u64,
        is_published: bool,
    ) -> Self {
        let spilled = spilled.into_iter().collect();
        Self { changed, touched, joined: HashTable::new(), large, bytes, spilled, is_published }
    }

    /// Shows the records whose versions are looked up to be taken out when no snapshot needs them: all of a large transaction, or of several
    /// that were joined. Of a small one those of removed records, whose keys cost scans as long as they are there, and those that
    /// may be; the others go when their shard is [swept](crate::shard).
    pub fn for_each_to_prune(&self, mut show: impl FnMut(&Before)) -> Result<(), PoolError> {
        /// So many changes are few.
        const FEW: usize = if cfg!(test) { 4 } else { 256 };
        if self.changed.len() <= FEW && self.joined.is_empty() && self.spilled.is_empty() {
            let removed = self.changed.iter().filter(|undo| undo.is_removal).map(|undo| &undo.before);
            removed.chain(&self.touched).for_each(show);
            return Ok(());
        }
        self.for_each_record(|record| {
            show(record);
            Some(())
        })
    }

    /// The large values alone, if there are some.
    pub fn only_large(&self) -> Option<Self> {
        let large = self.large.clone();
        (!large.is_empty()).then(|| Self { large, ..Self::default() })
    }

    /// Shows the records that were changed, some several times, until `show` says that it has seen enough.
    pub fn for_each_record(&self, mut show: impl FnMut(&Before) -> Option<()>) -> Result<(), PoolError> {
        let changed = self.changed.iter().map(|undo| &undo.before);
        let mut goes_on = changed.chain(&self.touched).chain(&self.joined).try_for_each(&mut show);
        for list in &self.spilled {
            if goes_on.is_some() {
                list.for_each_record(|record| {
                    goes_on = show(record);
                    goes_on
                })?;
            }
        }
        Ok(())
    }

    /// Takes over what commits before this one have left behind.
    pub fn join(&mut self, mut other: Self) {
        if self.joined.len() < other.joined.len() {
            std::mem::swap(&mut self.joined, &mut other.joined);
        }
        let changed = other.changed.drain(..).chain(self.changed.drain(..)).map(|undo| undo.before);
        let touched = other.touched.drain(..).chain(self.touched.drain(..)).chain(changed);
        let without_values = touched.map(|touched| {
            let record = touched.without_value();
            touched.give_up();
            record
        });
        for record in other.joined.drain().chain(without_values) {
            let place = self.joined.entry(record.hash(), |one| one.is_same(&record), Before::hash);
            place.or_insert(record);
        }
        give_up_list(std::mem::take(&mut other.changed));
        give_up_list(std::mem::take(&mut self.changed));
        if self.large.len() < other.large.len() {
            std::mem::swap(&mut self.large, &mut other.large);
        }
        self.large.append(&mut other.large);
        self.bytes += other.bytes;
        self.is_published |= other.is_published;
        self.spilled.append(&mut other.spilled);
    }
}
