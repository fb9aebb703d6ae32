//! The first pass over the log after a crash: which pages are allocated and since when, and what was not committed.
//!
//! A page that was freed and allocated again has records of several lives. Only those of the last life are redone: the
//! last record that allocates or frees the page says from where on its records count.

use crate::{
    TxnError,
    plant::{Bug, planted},
    records::{End, LogRecord},
};
use std::collections::BTreeMap;
use vellum_access::{
    BlobReference, ChangeRecord, PageChange, PageRedo, RecordKind, SpaceEvent, node::ValueKind,
};
use vellum_base::{Extent, Lsn, PageId};
use vellum_pool::PoolFile;
use vellum_wal::Record;

/// A transaction whose end has not been seen. Its changes are read again if they are to be undone: memory may not have
/// room for all of them.
#[derive(Default)]
struct Unended {
    /// The places of the records of its changes, in order.
    changes: Vec<Lsn>,
    /// The large values that it has replaced, each with the place of the record, and the tree.
    replaced: Vec<(Lsn, PageId, BlobReference)>,
}

/// What the log says about space and transactions. Everything is kept in order, so that recovery is deterministic.
pub(crate) struct Analysis {
    /// Records about space count from here on.
    redo: Lsn,
    lives: Lives,
    /// What the groups say whose last record has not been seen.
    pending: BTreeMap<u64, Vec<(Lsn, Extent, SpaceEvent)>>,
    /// Few at a time, so the tree has a node or two.
    transactions: BTreeMap<u64, Unended>,
    /// Large values that committed transactions have replaced and that have not been freed yet, by their first pages,
    /// each with its tree.
    replaced: BTreeMap<PageId, (PageId, BlobReference)>,
    pub records: u64,
    pub bytes: u64,
}

impl Analysis {
    /// For the log from the undo point on.
    pub fn new(redo: Lsn) -> Self {
        Self {
            redo,
            lives: Lives::default(),
            pending: BTreeMap::new(),
            transactions: BTreeMap::new(),
            replaced: BTreeMap::new(),
            records: 0,
            bytes: 0,
        }
    }

    /// Takes the next record into account, and shows `redone` those of its changes that must be redone.
    pub fn add(
        &mut self,
        record: Record<'_>,
        file: &mut PoolFile,
        mut redone: impl FnMut(&PageRedo<'_>),
    ) -> Result<(), TxnError> {
        self.records += 1;
        self.bytes += record.end().0 - record.lsn.0;
        let lsn = record.lsn;
        let faulty = |fault| TxnError::Record { lsn, fault };
        match LogRecord::decode(record.payload) {
            LogRecord::End(End { number, is_committed, .. }) => {
                self.end(number, is_committed);
                return Ok(());
            }
            LogRecord::Time(_) | LogRecord::Contents(..) => return Ok(()),
            LogRecord::Change | LogRecord::Unknown => {}
        }
        let record = ChangeRecord::decode(record.payload).map_err(faulty)?;
        match record.kind {
            RecordKind::Transaction(transaction) => {
                self.transactions.entry(transaction).or_default().changes.push(lsn);
            }
            RecordKind::Undo { transaction, of } => {
                let unended = self.transactions.entry(transaction).or_default();
                // Undo goes backwards: the change is the last one, or close to it.
                if let Some(index) = unended.changes.iter().rposition(|change| *change == of) {
                    unended.changes.remove(index);
                }
                // In ascending order: most changes replace no large value, and are looked for in vain.
                if let Ok(index) = unended.replaced.binary_search_by_key(&of, |(lsn, ..)| *lsn) {
                    unended.replaced.remove(index);
                }
            }
            RecordKind::Last(group) | RecordKind::Loaded { group, .. } => {
                for (lsn, extent, event) in self.pending.remove(&group).unwrap_or_default() {
                    self.apply(lsn, extent, event, file)?;
                }
            }
            _ => {}
        }
        for change in record.redone_and_others() {
            let (redo, is_redone) = change.map_err(faulty)?;
            if is_redone {
                redone(&redo);
            }
            let PageRedo { page, change, .. } = redo;
            if let PageChange::Replace { before, .. } | PageChange::Remove { before, .. } = change
                && let RecordKind::Transaction(transaction) = record.kind
                && before.kind == ValueKind::Blob
                && let Some(reference) = BlobReference::decode(before.bytes)
            {
                let unended = self.transactions.entry(transaction).or_default();
                unended.replaced.push((lsn, record.tree, reference));
            }
            for (extent, event) in change.space_events(page) {
                self.note((lsn, record.kind), extent, event, file)?;
            }
        }
        Ok(())
    }

    /// Notes what a record says about an extent.
    fn note(
        &mut self,
        (lsn, kind): (Lsn, RecordKind),
        extent: Extent,
        event: SpaceEvent,
        file: &mut PoolFile,
    ) -> Result<(), TxnError> {
        match kind {
            // The map covers what was before the redo point; but such a record may free what a transaction has
            // replaced.
            _ if lsn < self.redo => {
                if event == SpaceEvent::Freed {
                    self.replaced.remove(&extent.head);
                }
            }
            RecordKind::Member(group) if !planted(Bug::GroupWithoutEnd) => {
                self.pending.entry(group).or_default().push((lsn, extent, event));
            }
            _ => self.apply(lsn, extent, event, file)?,
        }
        Ok(())
    }

    /// Notes that a transaction has ended. If it was committed, what it replaced is no longer needed.
    fn end(&mut self, transaction: u64, is_committed: bool) {
        let ended = self.transactions.remove(&transaction).unwrap_or_default();
        for (_, tree, reference) in ended.replaced.into_iter().filter(|_| is_committed) {
            self.replaced.insert(reference.extent().head, (tree, reference));
        }
    }

    /// The transactions that have not ended, and the places of their changes, in order, each with its transaction.
    pub fn take_losers(&mut self) -> (Vec<u64>, Vec<(Lsn, u64)>) {
        let losers = self.transactions.keys().copied().collect();
        let of = |(loser, unended): (u64, Unended)| unended.changes.into_iter().map(move |lsn| (lsn, loser));
        let mut changes: Vec<_> = std::mem::take(&mut self.transactions).into_iter().flat_map(of).collect();
        changes.sort_unstable();
        (losers, changes)
    }

    /// The large values that nothing refers to any more.
    pub fn take_replaced(&mut self) -> Vec<(PageId, BlobReference)> {
        std::mem::take(&mut self.replaced).into_values().collect()
    }

    fn apply(
        &mut self,
        lsn: Lsn,
        extent: Extent,
        event: SpaceEvent,
        file: &mut PoolFile,
    ) -> Result<(), TxnError> {
        if file.has_address(extent) {
            self.lives.begin(extent, lsn);
        }
        match event {
            SpaceEvent::Allocated => file.note_allocated(extent)?,
            SpaceEvent::Freed => {
                self.replaced.remove(&extent.head);
                file.note_freed(extent);
            }
        }
        Ok(())
    }

    /// Since when pages have been what they are, after the whole log has been read.
    pub fn take_lives(&mut self) -> Lives {
        std::mem::take(&mut self.lives)
    }
}

/// Since when pages have been what they are: the LSN of the record that last allocated or freed them, or zero if the
/// log has none. It is looked up for each record, so it is a table, which covers only what the log mentions.
#[derive(Default)]
pub(crate) struct Lives(Vec<Option<Box<[Lsn; LIVES]>>>);

/// The number of pages in a part of the table.
const LIVES: usize = 512;

impl Lives {
    /// Begins another life of the pages of an extent.
    fn begin(&mut self, extent: Extent, lsn: Lsn) {
        let (mut page, end) = (extent.head.0 as usize, extent.end().0 as usize);
        let parts = end.div_ceil(LIVES);
        if self.0.len() < parts {
            self.0.resize_with(parts, || None);
        }
        while page < end {
            let (part, from) = (page / LIVES, page % LIVES);
            let to = (from + end - page).min(LIVES);
            if let Some(part) = self.0.get_mut(part) {
                let part = part.get_or_insert_with(|| Box::new([Lsn(0); LIVES]));
                part.get_mut(from..to).unwrap_or_default().fill(lsn);
            }
            page += to - from;
        }
    }

    /// Whether a record belongs to a page's present life.
    pub fn counts(&self, page: PageId, lsn: Lsn) -> bool {
        self.of(page) <= lsn || planted(Bug::EarlierLifeRedone)
    }

    fn of(&self, page: PageId) -> Lsn {
        let part = self.0.get(page.0 as usize / LIVES).and_then(Option::as_ref);
        part.and_then(|part| part.get(page.0 as usize % LIVES)).copied().unwrap_or(Lsn(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn lives_are_those_of_a_table_of_pages() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut lives, mut table) = (Lives::default(), vec![Lsn(0); 1100]);
        for lsn in 1..3000 {
            let (head, pages) = (random.random_range(400..1000), random.random_range(1..100));
            // Now and then several of one record.
            let lsn = Lsn(lsn / 3);
            lives.begin(Extent { head: PageId(head), pages }, lsn);
            table[head as usize..head as usize + pages as usize].fill(lsn);
            for page in 0..1100 {
                assert_eq!(lives.of(PageId(page)), table[page as usize], "page {page} at {lsn}");
            }
        }
    }
}
