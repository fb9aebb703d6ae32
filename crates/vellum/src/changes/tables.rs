//! Which table a tree belonged to at a place in the log, derived from the catalog's own changes.

use super::commit::{Change, ChangedValue, ContentsSource, Event, LoadedRecords};
use crate::catalog::{self, TableRecord};
use std::{collections::HashMap, sync::Arc};
use vellum_base::PageId;
use vellum_txn::{LoggedValue, TreeChange, TreeChangeKind};

/// The tables by their roots, at the position of the feed.
pub(super) struct Tables {
    catalog: PageId,
    names: HashMap<PageId, Arc<str>>,
}

impl Tables {
    pub fn new(catalog: PageId, tables: Vec<(String, TableRecord)>) -> Self {
        let tables = tables.into_iter().filter(|(_, record)| !record.is_heap);
        let names = tables.map(|(name, record)| (record.root, Arc::from(name))).collect();
        Self { catalog, names }
    }

    /// Takes the tables back to what they were before these changes of the catalog: a table's original name is the one
    /// in its first change.
    pub fn go_back(&mut self, changes: &[TreeChange]) {
        for change in changes.iter().rev() {
            let (new, old) = records_of(change);
            if let Some(record) = new {
                self.names.remove(&record.root);
            }
            if let (Some(record), Some(name)) = (old, name_of(&change.key)) {
                self.names.insert(record.root, name);
            }
        }
    }

    /// The changes of a commit, with the names of tables.
    pub fn translate(&mut self, changes: Vec<TreeChange>, source: &ContentsSource) -> Vec<Change> {
        let mut told = Vec::with_capacity(changes.len());
        // Tables whose records were removed: they are being renamed, or dropped.
        let mut unnamed: HashMap<PageId, usize> = HashMap::new();
        for change in changes {
            if change.tree == self.catalog {
                self.translate_table(&change, &mut told, &mut unnamed);
                continue;
            }
            // A tree that belongs to no table is being made or freed.
            let Some(table) = self.names.get(&change.tree).cloned() else { continue };
            let value = |stored| ChangedValue { stored, source: source.clone() };
            let key = change.key;
            let event = match change.kind {
                TreeChangeKind::Insert(stored) => Event::Inserted { key, value: value(stored) },
                TreeChangeKind::Replace(stored) => Event::Replaced { key, value: value(stored) },
                TreeChangeKind::Remove => Event::Removed { key },
                TreeChangeKind::Patch(offset, bytes) => Event::Patched { key, offset: offset.into(), bytes },
                TreeChangeKind::Load(tree) => {
                    Event::Loaded { records: LoadedRecords { tree, source: source.clone() } }
                }
            };
            told.push(Change { table, event });
        }
        told
    }

    fn translate_table(
        &mut self,
        change: &TreeChange,
        told: &mut Vec<Change>,
        unnamed: &mut HashMap<PageId, usize>,
    ) {
        let (new, old) = records_of(change);
        let Some(name) = name_of(&change.key) else { return };
        if let Some(record) = old {
            self.names.remove(&record.root);
            unnamed.insert(record.root, told.len());
            told.push(Change { table: name.clone(), event: Event::Dropped });
        }
        if let Some(record) = new {
            let TableRecord { types: (key_type, value_type), is_plain, .. } = record;
            self.names.insert(record.root, name.clone());
            match unnamed.remove(&record.root).and_then(|index| told.get_mut(index)) {
                Some(dropped) => dropped.event = Event::Renamed { to: name },
                None => told
                    .push(Change { table: name, event: Event::Created { key_type, value_type, is_plain } }),
            }
        }
    }
}

/// What a change of the catalog says about a table: its new record and its old one. Nothing is reported for heaps.
fn records_of(change: &TreeChange) -> (Option<TableRecord>, Option<TableRecord>) {
    if name_of(&change.key).is_none() {
        return (None, None);
    }
    let new = match &change.kind {
        TreeChangeKind::Insert(LoggedValue::Inline(new))
        | TreeChangeKind::Replace(LoggedValue::Inline(new)) => TableRecord::decode(new),
        _ => None,
    };
    let is_table = |record: &TableRecord| !record.is_heap;
    (new.filter(is_table), change.before.as_deref().and_then(TableRecord::decode).filter(is_table))
}

/// The name of a table, if this key of the catalog is one.
fn name_of(key: &[u8]) -> Option<Arc<str>> {
    (!key.starts_with(&catalog::DOOMED)).then(|| String::from_utf8_lossy(key).into())
}
