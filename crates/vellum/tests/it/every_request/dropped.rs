//! Handles on tables that were dropped, or whose creation was undone.

use super::{
    Handle, Run, Source,
    model::{Entries, Id, Key, short},
    requests::Way,
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{ops::Bound, rc::Rc};
use vellum::{Error, ErrorKind, Result, Task};

impl Run {
    /// Keeps some handles on tables that nobody sees any more.
    pub fn keep_dropped(&mut self, handles: Vec<(Id, Handle)>) {
        for dropped in handles {
            if self.random.random_ratio(2, 3) {
                self.dropped.push(dropped);
            }
        }
        let surplus = self.dropped.len().saturating_sub(4);
        self.dropped.drain(..surplus);
    }

    /// Changes are refused, and what the table held is shown, even if another table has its name.
    pub fn use_dropped(&mut self) {
        let source = self.draw_source();
        let open = source.number.map(|number| &self.model.open[&number]);
        let is_dropped = |table: &Id| match open {
            // It may be a table that was created later.
            Some(open) => {
                !open.view.tables.contains_key(table)
                    && (self.model.is_gone(*table) || open.owned.contains(table))
            }
            None => !self.model.view.tables.contains_key(table),
        };
        let all: Vec<(Id, Handle)> = self
            .dropped
            .iter()
            .map(|(table, handle)| (*table, handle.clone()))
            .chain(self.tables.iter().map(|(table, handle)| (*table, handle.clone())))
            .filter(|(table, handle)| is_dropped(table) && (open.is_none() || !handle.is_plain))
            .filter(|(table, _)| !self.unsettled.contains(table))
            .collect();
        let Some((table, handle)) = all.get(self.random.random_range(0..all.len().max(1))).cloned() else {
            return;
        };
        let held = self.model.held_when_dropped(source.number, table);
        let text = held.as_ref().map(|held| held.len());
        self.tell(format!("{} uses {table:?}, which is dropped and held {text:?}", source.text()));
        if source.number.is_none() && self.model.is_owned(None, table) {
            // Whoever has created it may still go back to when it was there.
            if self.random.random_ratio(1, 8) {
                let refused = handle.bytes.put("key", "value").unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused:?}");
            }
            return;
        }
        for _ in 0..self.random.random_range(1..4) {
            let entries = held.clone().unwrap_or_default();
            let refused = self.change_dropped(&source, table, &handle, &entries);
            assert!(matches!(refused, Err(Error::NoSuchTable { .. })), "{refused:?}");
        }
        if let Some(held) = held {
            self.read_dropped(&source, table, &handle, &held);
        }
    }

    /// A request that would change something.
    fn change_dropped(
        &mut self,
        source: &Source,
        table: Id,
        handle: &Handle,
        entries: &Rc<Entries>,
    ) -> Result<()> {
        let way = [Way::Call, Way::Future, Way::From, Way::Many][self.random.random_range(0..4)];
        let (key, length) = (self.draw_key(table, entries), self.random.random_range(1..5000));
        let (value, all) = (self.value_of(length), (Bound::Unbounded, Bound::Unbounded));
        let what = self.random.random_range(0..12);
        self.tell(format!("change {what} by {way:?} of {}", short(&key)));
        match (what, entries.get(&key)) {
            (0, None) => source.insert(handle, &key, &value, way).map(drop),
            (0, Some(_)) => source.update(handle, &key, &value, way).map(drop),
            (1, Some(_)) => source.remove(handle, &key, way).map(drop),
            (2, Some(old)) if !old.is_empty() => {
                source.modify(handle, &key, way, |value| value.fill(0)).map(drop)
            }
            (3, _) => source.update_with(handle, &key, Some(&value)).map(drop),
            (4, Some(old)) => source.compare(handle, &key, old, None).map(drop),
            (5, Some(_)) => source.pop(handle, self.random.random_ratio(1, 2)).map(drop),
            (6, Some(_)) => source.remove_range(handle, &all).map(drop),
            (7, _) if source.number.is_none() => {
                let mut refused = Ok(());
                let tasks = [(&key, Task::Upsert(value.to_vec()))];
                handle.bytes.multi_run(tasks, |_, answer| refused = answer.map(drop))?;
                refused
            }
            (8, _) if source.number.is_none() => {
                let (mut refused, mut submissions) = (Ok(()), handle.bytes.submissions());
                submissions.submit(&key, Task::Upsert(value.to_vec()), 0);
                submissions.wait();
                submissions.reap(|_, _, answer| refused = answer.map(drop));
                refused
            }
            (9, _) => match &source.transaction {
                Some(transaction) => transaction.get_for_update(&handle.bytes, &key).map(drop),
                None if entries.is_empty() => handle.bytes.bulk_load([(&key, &value[..])]).map(drop),
                None => source.put(handle, &key, &value, way).map(drop),
            },
            _ => source.put(handle, &key, &value, way).map(drop),
        }
    }

    fn read_dropped(&mut self, source: &Source, table: Id, handle: &Handle, held: &Rc<Entries>) {
        // A transaction may also be told that the table is gone.
        let check = |shown: Result<bool>| match shown {
            Ok(is_same) => assert!(is_same, "{} sees something else", source.text()),
            Err(Error::NoSuchTable { .. }) if source.number.is_some() => {}
            Err(error) => panic!("{error:?}"),
        };
        let keys: Vec<Key> = (0..5).map(|_| self.draw_key(table, held)).collect();
        for key in &keys {
            let got = match &source.transaction {
                Some(transaction) if self.random.random_ratio(1, 2) => transaction.get(&handle.bytes, key),
                Some(transaction) => block_on(transaction.get_async(&handle.bytes, key)),
                None if self.random.random_ratio(1, 2) => handle.bytes.get(key),
                None => block_on(handle.bytes.get_async(key)),
            };
            check(got.map(|got| got.as_deref() == held.get(key).map(|value| &value[..])));
        }
        let all: Result<Vec<_>> =
            source.range(handle, &(Bound::Unbounded, Bound::Unbounded), true).and_then(|all| all.collect());
        check(all.map(|all| {
            let all = all.iter().map(|(key, value)| (key, value));
            all.eq(held.iter().map(|(key, value)| (key, &**value)))
        }));
    }
}
