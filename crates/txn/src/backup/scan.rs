//! What the log says while a backup is made: what was written past it and must be copied too, and what need not be
//! right in the copy because the log makes it anew.

use crate::{TxnError, records::is_change};
use std::collections::{BTreeMap, HashMap};
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

/// What was written past the log since then, and has not been copied yet.
#[derive(Default)]
pub(super) struct Outside {
    /// Ranges of nodes: the first page, and the page after the last one.
    nodes: BTreeMap<u64, u64>,
    /// Large values: the first page, and the number of pages.
    values: BTreeMap<u64, u32>,
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
                self.outside.values.insert(extent.head.0, extent.pages);
            }
            Event::Nodes(first, end) => {
                (first..end).for_each(|page| self.set_renewed(page, false));
                self.outside.nodes.insert(first, end);
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
        self.values.remove(&extent.head.0);
        if extent.pages == 1
            && let page = extent.head.0
            && let Some((&first, &end)) = self.nodes.range(..=page).next_back()
            && page < end
        {
            self.nodes.remove(&first);
            let rest = [(first, page), (page + 1, end)];
            self.nodes.extend(rest.into_iter().filter(|(first, end)| first < end));
        }
    }

    /// The extents: nodes first, then values, each in page order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        let nodes =
            self.nodes.iter().flat_map(|(first, end)| (*first..*end).map(|page| Extent::page(PageId(page))));
        nodes.chain(self.values.iter().map(|(head, pages)| Extent { head: PageId(*head), pages: *pages }))
    }

    /// Puts back what was taken out.
    pub fn add_all(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.values.extend(other.values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_freed_are_taken_out_of_their_runs() {
        let mut outside = Outside::default();
        outside.nodes.insert(10, 20);
        outside.values.insert(30, 5);
        for page in [10, 15, 19, 16] {
            outside.remove(Extent::page(PageId(page)));
        }
        outside.remove(Extent { head: PageId(30), pages: 5 });
        let left: Vec<u64> = outside.extents().map(|extent| extent.head.0).collect();
        assert_eq!(left, [11, 12, 13, 14, 17, 18]);
    }
}
