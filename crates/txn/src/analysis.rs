//! The first pass over the log after a crash: what is allocated, and since when; and what was not committed.
//!
//! A page that was freed and allocated again has records of several lives. Only those of the last one are redone, so the
//! last record that allocates or frees a page says from where on its records count.

use crate::{
    TxnError,
    plant::{Bug, planted},
    transaction::decode_end,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};
use vellum_access::{BlobReference, ChangeRecord, RecordKind, SpaceEvent, UndoChange, node::ValueKind};
use vellum_base::{Extent, Lsn, PageId};
use vellum_pool::PoolFile;
use vellum_wal::Record;

/// A change of a transaction, as its record tells it.
pub(crate) struct LoggedChange {
    pub transaction: u64,
    pub lsn: Lsn,
    pub record: Box<[u8]>,
}

/// What the log says about space and transactions.
pub(crate) struct Analysis {
    /// Space is told of from here on.
    redo: Lsn,
    lives: Lives,
    /// What groups say whose last record has not been seen.
    pending: HashMap<u64, Vec<(Lsn, Extent, SpaceEvent)>>,
    /// The changes of the transactions whose end has not been seen, as the records tell them.
    transactions: HashMap<u64, Vec<LoggedChange>>,
    /// Large values that transactions have replaced which were committed, and that are not freed yet, by their first
    /// pages, each with its tree.
    replaced: HashMap<PageId, (PageId, BlobReference)>,
    pub records: u64,
    pub bytes: u64,
}

impl Analysis {
    /// Of the log from the undo point on.
    pub fn new(redo: Lsn) -> Self {
        Self {
            redo,
            lives: Lives::default(),
            pending: HashMap::new(),
            transactions: HashMap::new(),
            replaced: HashMap::new(),
            records: 0,
            bytes: 0,
        }
    }

    /// Takes the next record into account.
    pub fn add(&mut self, record: Record<'_>, file: &mut PoolFile) -> Result<(), TxnError> {
        self.records += 1;
        self.bytes += record.payload.len() as u64;
        let lsn = record.lsn;
        let faulty = |fault| TxnError::Record { lsn, fault };
        if let Some((transaction, is_committed)) = decode_end(record.payload) {
            self.end(transaction, is_committed);
            return Ok(());
        }
        let change = ChangeRecord::decode(record.payload).map_err(faulty)?;
        match change.kind {
            RecordKind::Transaction(transaction) => {
                self.transactions.entry(transaction).or_default().push(LoggedChange {
                    transaction,
                    lsn,
                    record: record.payload.into(),
                });
            }
            RecordKind::Undo { transaction, of } => {
                let changes = self.transactions.entry(transaction).or_default();
                // Undo goes backwards: it is the last, or close to it.
                if let Some(index) = changes.iter().rposition(|change| change.lsn == of) {
                    changes.remove(index);
                }
            }
            _ => {}
        }
        if lsn < self.redo {
            return self.note_freed(change, lsn);
        }
        if let RecordKind::Member(group) = change.kind
            && !planted(Bug::GroupWithoutEnd)
        {
            let pending = self.pending.entry(group).or_default();
            for event in change.space_events() {
                let (extent, event) = event.map_err(faulty)?;
                pending.push((lsn, extent, event));
            }
            return Ok(());
        }
        if let RecordKind::Last(group) = change.kind {
            for (lsn, extent, event) in self.pending.remove(&group).unwrap_or_default() {
                self.apply(lsn, extent, event, file)?;
            }
        }
        for event in change.space_events() {
            let (extent, event) = event.map_err(faulty)?;
            self.apply(lsn, extent, event, file)?;
        }
        Ok(())
    }

    /// A transaction has ended: what it replaced is not needed any more if it was committed.
    fn end(&mut self, transaction: u64, is_committed: bool) {
        let changes = self.transactions.remove(&transaction).unwrap_or_default();
        for LoggedChange { record, .. } in changes.iter().filter(|_| is_committed) {
            // It was decoded before.
            let undo = ChangeRecord::decode(record).and_then(|record| record.undo());
            if let Ok(Some((tree, UndoChange::Restore { before: Some(before), .. }))) = undo
                && before.kind == ValueKind::Blob
                && let Some(reference) = BlobReference::decode(before.bytes)
            {
                self.replaced.insert(reference.extent().head, (tree, reference));
            }
        }
    }

    /// A record before the redo point, of which the map tells, may free what a transaction has replaced.
    fn note_freed(&mut self, change: ChangeRecord<'_>, lsn: Lsn) -> Result<(), TxnError> {
        for event in change.space_events() {
            let (extent, event) = event.map_err(|fault| TxnError::Record { lsn, fault })?;
            if event == SpaceEvent::Freed {
                self.replaced.remove(&extent.head);
            }
        }
        Ok(())
    }

    /// The transactions that have not ended, and their changes, the latest first.
    pub fn take_losers(&mut self) -> (Vec<u64>, Vec<LoggedChange>) {
        let losers = self.transactions.keys().copied().collect();
        let mut changes: Vec<_> = self.transactions.drain().flat_map(|(_, changes)| changes).collect();
        changes.sort_by_key(|change| Reverse(change.lsn));
        (losers, changes)
    }

    /// The large values that nothing refers to any more.
    pub fn take_replaced(&mut self) -> Vec<(PageId, BlobReference)> {
        self.replaced.drain().map(|(_, replaced)| replaced).collect()
    }

    fn apply(
        &mut self,
        lsn: Lsn,
        extent: Extent,
        event: SpaceEvent,
        file: &mut PoolFile,
    ) -> Result<(), TxnError> {
        self.lives.begin(extent, lsn);
        match event {
            SpaceEvent::Allocated => file.note_allocated(extent)?,
            SpaceEvent::Freed => {
                self.replaced.remove(&extent.head);
                file.note_freed(extent);
            }
        }
        Ok(())
    }

    /// Whether a record tells of a page's present life.
    pub fn counts(&self, page: PageId, lsn: Lsn) -> bool {
        self.lives.of(page).is_none_or(|life| life <= lsn) || planted(Bug::EarlierLifeRedone)
    }
}

/// Since when pages are what they are: the LSN of the record that allocated or freed them last, if one of the log did. Ranges
/// that do not overlap, by their first pages, each with the page after its last.
#[derive(Default)]
struct Lives(BTreeMap<u64, (u64, Lsn)>);

impl Lives {
    /// The pages of an extent begin another life.
    fn begin(&mut self, extent: Extent, lsn: Lsn) {
        let (mut start, end) = (extent.head.0, extent.end().0);
        self.cut(start);
        self.cut(end);
        while let Some((&covered, _)) = self.0.range(start..end).next() {
            self.0.remove(&covered);
        }
        // Runs of nodes and neighbouring frees come page by page.
        if let Some((before, _)) =
            self.0.range(..start).next_back().filter(|(_, life)| **life == (start, lsn))
        {
            start = *before;
        }
        self.0.insert(start, (end, lsn));
    }

    /// Divides the range that goes on across a page.
    fn cut(&mut self, page: u64) {
        if let Some((_, life)) = self.0.range_mut(..page).next_back()
            && life.0 > page
        {
            let rest = *life;
            life.0 = page;
            self.0.insert(page, rest);
        }
    }

    fn of(&self, page: PageId) -> Option<Lsn> {
        let (_, (end, lsn)) = self.0.range(..=page.0).next_back()?;
        (page.0 < *end).then_some(*lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn lives_are_those_of_a_table_of_pages() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut lives, mut table) = (Lives::default(), vec![None; 200]);
        for lsn in 1..3000 {
            let (head, pages) = (random.random_range(0..190), random.random_range(1..10));
            // Now and then several of one record.
            let lsn = Lsn(lsn / 3);
            lives.begin(Extent { head: PageId(head), pages }, lsn);
            table[head as usize..head as usize + pages as usize].fill(Some(lsn));
            for page in 0..200 {
                assert_eq!(lives.of(PageId(page)), table[page as usize], "page {page} at {lsn}");
            }
        }
    }
}
