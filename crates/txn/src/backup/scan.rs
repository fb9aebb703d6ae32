//! What the log says while a backup is made: what was written past it and must be copied too, and what need not be
//! right in the copy because the log makes it anew.

use crate::{TxnError, records::is_change};
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};
use vellum_access::{ChangeRecord, PageChange, RecordKind};
use vellum_base::{Extent, Lsn, PageId};
use vellum_wal::Record;

/// What the records since the redo point say.
pub(super) struct LogScan {
    redo: Lsn,
    /// One bit per page: the log makes the extent that begins there anew, or says that it is free.
    renewed: Vec<u64>,
    pub outside: Outside,
    /// What the groups say whose last record has not been seen.
    pending: HashMap<u64, Vec<Event>>,
}

/// What was written past the log since then, and has not been copied yet: runs of pages by their first pages.
#[derive(Default)]
pub(super) struct Outside(BTreeMap<u64, Run>);

#[derive(Clone, Copy)]
enum Run {
    /// A large value of so many pages.
    Value(u32),
    /// Nodes up to this page.
    Nodes(u64),
}

enum Event {
    Value(Extent),
    Nodes(u64, u64),
    Made(PageId),
    Freed(Extent),
}

impl LogScan {
    pub fn new(redo: Lsn) -> Self {
        Self { redo, renewed: Vec::new(), outside: Outside::default(), pending: HashMap::new() }
    }

    /// Takes the next record into account.
    pub fn add(&mut self, record: Record<'_>) -> Result<(), TxnError> {
        if record.lsn < self.redo || !is_change(record.payload) {
            return Ok(());
        }
        let faulty = |fault| TxnError::Record { lsn: record.lsn, fault };
        let change = ChangeRecord::decode(record.payload).map_err(faulty)?;
        if let RecordKind::Last(group) | RecordKind::Loaded { group, .. } = change.kind {
            self.pending.remove(&group).unwrap_or_default().into_iter().for_each(|event| self.apply(event));
        }
        for change_of_page in change.changes() {
            let (page, change_of_page) = change_of_page.map_err(faulty)?;
            let event = match change_of_page {
                PageChange::Write { pages, .. } => Event::Value(Extent { head: page, pages }),
                PageChange::Nodes { count } => Event::Nodes(page.0, page.0.saturating_add(count.into())),
                PageChange::Free { pages } => Event::Freed(Extent { head: page, pages }),
                change if change.is_format() || change.is_image() => Event::Made(page),
                _ => continue,
            };
            match change.kind {
                RecordKind::Member(group) => self.pending.entry(group).or_default().push(event),
                _ => self.apply(event),
            }
        }
        Ok(())
    }

    /// Whether it does not matter what the copy has for the extent that begins at a page.
    pub fn is_renewed(&self, head: PageId) -> bool {
        self.renewed.get((head.0 / 64) as usize).is_some_and(|word| word >> (head.0 % 64) & 1 != 0)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Value(extent) => {
                self.set_renewed(extent.head.0, false);
                self.outside.0.insert(extent.head.0, Run::Value(extent.pages));
            }
            Event::Nodes(first, end) => {
                (first..end).for_each(|page| self.set_renewed(page, false));
                self.outside.0.insert(first, Run::Nodes(end));
            }
            Event::Made(page) => self.set_renewed(page.0, true),
            Event::Freed(extent) => {
                self.set_renewed(extent.head.0, true);
                self.outside.remove(extent);
            }
        }
    }

    fn set_renewed(&mut self, page: u64, renewed: bool) {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        if renewed && word >= self.renewed.len() {
            self.renewed.resize(word + 1, 0);
        }
        if let Some(word) = self.renewed.get_mut(word) {
            if renewed { *word |= bit } else { *word &= !bit }
        }
    }
}

impl Outside {
    /// Notes that an extent was freed.
    fn remove(&mut self, extent: Extent) {
        let page = extent.head.0;
        match self.0.range(..=page).next_back() {
            Some((&first, Run::Value(_))) if first == page => drop(self.0.remove(&first)),
            Some((&first, &Run::Nodes(end))) if extent.pages == 1 && page < end => {
                self.0.remove(&first);
                let rest = [(first, page), (page + 1, end)].into_iter().filter(|(first, end)| first < end);
                self.0.extend(rest.map(|(first, end)| (first, Run::Nodes(end))));
            }
            _ => {}
        }
    }

    /// The extents, in page order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        self.0.iter().flat_map(|(&first, &run)| {
            let (end, pages) = match run {
                Run::Value(pages) => (first + 1, pages),
                Run::Nodes(end) => (end, 1),
            };
            (first..end).map(move |page| Extent { head: PageId(page), pages })
        })
    }

    /// The pages of the extents, as ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&first, &run)| match run {
            Run::Value(pages) => first..first + u64::from(pages),
            Run::Nodes(end) => first..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_freed_are_taken_out_of_their_runs() {
        let mut outside = Outside::default();
        outside.0.insert(10, Run::Nodes(20));
        outside.0.insert(30, Run::Value(5));
        outside.0.insert(35, Run::Value(2));
        for page in [10, 15, 19, 16] {
            outside.remove(Extent::page(PageId(page)));
        }
        outside.remove(Extent { head: PageId(30), pages: 5 });
        let left: Vec<u64> = outside.extents().map(|extent| extent.head.0).collect();
        assert_eq!(left, [11, 12, 13, 14, 17, 18, 35]);
        assert_eq!(outside.ranges().collect::<Vec<_>>(), [11..15, 17..19, 35..37]);
    }
}
