//! Changes of many records in one call.

use super::{
    Run,
    model::{Clash, Entries, Id, Key, Touch, Value, bounds_text, short, within},
    requests::Pairs,
};
use rand::RngExt;
use std::{collections::BTreeSet, rc::Rc};
use vellum::{Answer, ErrorKind, Put, Task, Written};

impl Run {
    pub fn change_many(&mut self) {
        let commits = self.model.commit_count();
        match self.random.random_range(0..5) {
            0 | 1 => self.multi_put(),
            2 => self.multi_modify(),
            3 => return self.remove_range(),
            _ => self.run_tasks(),
        }
        self.model.note_batch(commits);
    }

    /// Pairs of which nobody is in the way.
    pub fn draw_free_pairs(&mut self, table: Id, entries: &Entries) -> Pairs {
        let mut pairs = self.draw_pairs(table, entries, false);
        pairs.retain(|pair| self.model.clash(None, table, &pair.0, Touch::Change) == Clash::None);
        pairs
    }

    fn draw_pairs(&mut self, table: Id, entries: &Entries, has_doubles: bool) -> Pairs {
        let (mut pairs, mut seen) = (Pairs::new(), BTreeSet::new());
        for _ in 0..self.random.random_range(1..40) {
            let (key, length) = (self.draw_key(table, entries), self.random.random_range(4..1500));
            if seen.insert(key.clone()) || has_doubles {
                pairs.push((key, self.value_of(length)));
            }
        }
        pairs
    }

    fn clash_of_all<'k>(
        &mut self,
        number: Option<u64>,
        table: Id,
        keys: impl IntoIterator<Item = &'k Key>,
    ) -> Clash {
        let clashes = keys.into_iter().map(|key| self.model.clash(number, table, key, Touch::Change));
        clashes.max().unwrap_or(Clash::None)
    }

    pub fn multi_put(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        let has_doubles = source.number.is_some() && self.random.random_ratio(1, 4);
        if source.number.is_none() && self.is_failing {
            return self.multi_put_or_fail(&source, table, &handle);
        }
        let pairs = self.draw_pairs(table, &entries, has_doubles);
        let clash = self.clash_of_all(source.number, table, pairs.iter().map(|pair| &pair.0));
        if clash != Clash::None && (source.number.is_none() || !self.dares(&source, clash)) {
            return;
        }
        self.tell(format!("{} puts {} into {table:?}: {clash:?}", source.text(), pairs.len()));
        let mut known: BTreeSet<&Key> = entries.keys().collect();
        let expected: Vec<Put> = pairs
            .iter()
            .map(|(key, _)| if known.insert(key) { Put::Inserted } else { Put::Replaced })
            .collect();
        let given: Vec<(&Key, &[u8])> = pairs.iter().map(|(key, value)| (key, &value[..])).collect();
        let done = match &source.transaction {
            Some(transaction) => transaction.multi_put(&handle.bytes, &given),
            None => handle.bytes.multi_put(&given).into_iter().collect(),
        };
        if self.settle(&source, clash, done, expected) {
            match source.number {
                Some(number) => {
                    for (key, value) in pairs {
                        self.model.touch(number, table, &key, Touch::Change, Some(value));
                    }
                }
                None => self.change_all(table, pairs),
            }
        }
    }

    fn change_all(&mut self, table: Id, pairs: Pairs) {
        let changes: Vec<_> = pairs.into_iter().map(|(key, value)| (key, Some(value))).collect();
        self.model.change(table, &changes);
    }

    fn multi_modify(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        let keys: Vec<Key> = self.draw_pairs(table, &entries, true).into_iter().map(|pair| pair.0).collect();
        let mut clash = Clash::None;
        for key in &keys {
            let touch = if entries.contains_key(key) { Touch::Change } else { Touch::Check };
            clash = clash.max(self.model.clash(source.number, table, key, touch));
        }
        if clash != Clash::None && (source.number.is_none() || !self.dares(&source, clash)) {
            return;
        }
        self.tell(format!("{} modifies {} of {table:?}: {clash:?}", source.text(), keys.len()));
        let expected: Vec<bool> = keys.iter().map(|key| entries.contains_key(key)).collect();
        let change = |place: usize, value: &mut [u8]| {
            if let Some(byte) = value.first_mut() {
                *byte = byte.wrapping_add(place as u8 + 1);
            }
        };
        let done = match &source.transaction {
            Some(transaction) => transaction.multi_modify(&handle.bytes, &keys, change),
            None => handle.bytes.multi_modify(&keys, change).into_iter().collect(),
        };
        if !self.settle(&source, clash, done, expected) {
            return;
        }
        let commits = self.model.commits.count();
        for (place, key) in keys.iter().enumerate() {
            let now = self.entries(&source, table).get(key).cloned();
            let touch = match &now {
                None => Touch::Check,
                Some(value) if value.is_empty() => Touch::Reserve,
                Some(_) => Touch::Change,
            };
            let new = now.map(|value| {
                let mut new = value.to_vec();
                change(place, &mut new);
                Rc::new(new)
            });
            match source.number {
                Some(number) => {
                    if touch == Touch::Check {
                        self.model.note_key(source.number, table, key);
                    }
                    self.model.touch(number, table, key, touch, new);
                }
                None if touch == Touch::Change => self.model.change(table, &[(key.clone(), new)]),
                None => self.model.leave(table, key),
            }
        }
        self.model.commits.join(commits);
    }

    pub fn remove_range(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        if source.number.is_none() && self.is_failing && handle.is_plain {
            // A plain table may lose some of them.
            return;
        }
        let bounds = self.draw_bounds(table, &entries);
        let keys: Vec<Key> = within(&entries, &bounds).map(|entry| entry.0.clone()).collect();
        // Most tables should hold something.
        if keys.len() > 60 && self.random.random_ratio(9, 10) {
            return;
        }
        let mut clash = self.clash_of_all(source.number, table, &keys);
        if source.number.is_none() && self.model.is_owned(None, table) {
            clash = Clash::Certain;
        }
        // A single removal would wait for long.
        if clash != Clash::None && (source.number.is_none() || !self.dares(&source, clash)) {
            return;
        }
        self.tell(format!("{} removes {} of {table:?}: {clash:?}", source.text(), bounds_text(&bounds)));
        let done = source.remove_range(&handle, &bounds);
        self.model.note_read(source.number, table, bounds, true);
        if self.settle(&source, clash, done, keys.len() as u64) {
            match source.number {
                Some(number) => {
                    for key in keys {
                        self.model.touch(number, table, &key, Touch::Change, None);
                    }
                }
                None if keys.is_empty() => {}
                None => {
                    let changes: Vec<_> = keys.into_iter().map(|key| (key, None)).collect();
                    let (commits, watched) = (self.model.commits.count(), self.model.commit_count());
                    self.model.change(table, &changes);
                    if handle.is_plain {
                        // One by one.
                        self.model.note_batch(watched);
                    } else {
                        self.model.commits.make_one(commits);
                    }
                }
            }
        }
    }

    /// Operations of any kind, by `multi_run` or submissions.
    fn run_tasks(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        if source.number.is_some() {
            return;
        }
        let entries = self.entries(&source, table);
        let pairs = self.draw_pairs(table, &entries, false);
        if self.clash_of_all(None, table, pairs.iter().map(|pair| &pair.0)) != Clash::None {
            return;
        }
        self.tell(format!("{} operations on {table:?}", pairs.len()));
        let (mut tasks, mut changes) = (Vec::new(), Vec::new());
        for (key, value) in pairs {
            let old = entries.get(&key).cloned();
            let (task, expected, new) = self.draw_task(old, value);
            if let Some(new) = new {
                changes.push((key.clone(), new));
            }
            tasks.push((key, task, expected));
        }
        let (mut answers, room) = (0, self.room());
        let is_huge = |length: usize| length > room;
        let mut compare = |place: usize, key: &[u8], answer: vellum::Result<Answer<'_>>| {
            let (wanted, task, expected) = &tasks[place];
            assert_eq!(wanted, key);
            answers += 1;
            match answer {
                Ok(answer) => assert!(expected.is(&answer), "{answer:?} for {}", short(key)),
                Err(error) => {
                    let is_part =
                        matches!(task, Task::GetPart { .. }) && error.kind() == ErrorKind::OutOfMemory;
                    assert!(is_part && is_huge(entries.get(key).map_or(0, |value| value.len())), "{error:?}");
                }
            }
        };
        if self.random.random_ratio(1, 2) {
            let given = tasks.iter().map(|(key, task, _)| (key, task.clone()));
            handle.bytes.multi_run(given, |place, answer| compare(place, &tasks[place].0, answer)).unwrap();
        } else {
            let mut submissions = handle.bytes.submissions();
            for (place, (key, task, _)) in tasks.iter().enumerate() {
                submissions.submit(key, task.clone(), place as u64);
                if self.random.random_ratio(1, 3) {
                    submissions.poll();
                    submissions.reap(|tag, key, answer| compare(tag as usize, key, answer));
                }
            }
            while !submissions.is_empty() {
                submissions.wait();
                submissions.reap(|tag, key, answer| compare(tag as usize, key, answer));
            }
        }
        assert_eq!(answers, tasks.len());
        if !changes.is_empty() {
            self.model.change(table, &changes);
        }
    }

    /// A task, its answer, and what becomes of the record if that is changed.
    fn draw_task(
        &mut self,
        old: Option<Value>,
        value: Value,
    ) -> (Task<Vec<u8>>, Expected, Option<Option<Value>>) {
        let bytes = value.to_vec();
        match self.random.random_range(0..6) {
            0 => (Task::Get, Expected::Value(old), None),
            1 => {
                let (offset, length) = (self.random.random_range(0..300), self.random.random_range(0..300));
                let part =
                    |old: Value| Rc::new(old.iter().copied().skip(offset).take(length).collect::<Vec<u8>>());
                (Task::GetPart { offset, length }, Expected::Value(old.map(part)), None)
            }
            2 => match old {
                None => (Task::Insert(bytes), Expected::Written(Written::Inserted), Some(Some(value))),
                Some(_) => (Task::Insert(bytes), Expected::Written(Written::Refused), None),
            },
            3 => match old {
                None => (Task::Update(bytes), Expected::Written(Written::Refused), None),
                Some(_) => (Task::Update(bytes), Expected::Written(Written::Replaced), Some(Some(value))),
            },
            4 => {
                let written = if old.is_some() { Written::Replaced } else { Written::Inserted };
                (Task::Upsert(bytes), Expected::Written(written), Some(Some(value)))
            }
            _ => (Task::Remove, Expected::Removed(old.is_some()), old.map(|_| None)),
        }
    }
}

/// An answer that is expected.
enum Expected {
    Value(Option<Value>),
    Written(Written),
    Removed(bool),
}

impl Expected {
    fn is(&self, answer: &Answer<'_>) -> bool {
        match (self, answer) {
            (Self::Value(wanted), Answer::Value(value)) => {
                wanted.as_ref().map(|wanted| &wanted[..]) == *value
            }
            (Self::Written(wanted), Answer::Written(written)) => wanted == written,
            (Self::Removed(wanted), Answer::Removed(removed)) => wanted == removed,
            _ => false,
        }
    }
}
