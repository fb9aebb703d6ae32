//! What is under way over several steps.

use super::{
    Handle, Run, Source,
    model::{Bounds, Id, Key, bounds_text, short},
    ranges::{Walk, earlier, later},
    watch::Watch,
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{ops::Bound, rc::Rc};
use vellum::{Answer, Result};

impl Run {
    /// Holds something while other steps are made.
    pub fn hold(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        self.depth += 1;
        match self.random.random_range(0..11) {
            0 | 1 => self.hold_entries(&source, table, &handle),
            2 | 3 => self.hold_cursor(&source, table, &handle),
            4 => self.hold_lookups(&source, table, &handle),
            5 => self.hold_reader(&source, table, &handle),
            6 | 7 => self.hold_gets(&source, table, &handle),
            8 | 9 if source.number.is_some() => self.hold_own_changes(&source, table, &handle),
            // While commits are watched, they are made in an order that is known.
            8 | 9 if self.model.history.is_some() => {}
            8 | 9 => self.hold_changes(table, &handle),
            _ => self.hold_submissions(&source, table, &handle),
        }
        self.depth -= 1;
        if self.depth == 0 {
            self.model.forget_past();
        }
    }

    /// Other steps. Whether what is held may go on.
    pub fn go_on(&mut self, source: &Source, table: Id, watch: &mut Watch) -> bool {
        let past = self.model.past_count();
        for _ in 0..self.random.random_range(0..4) {
            self.step();
        }
        // A single operation sees what a dropped table held.
        let is_seen = match source.number.map(|number| &self.model.open[&number]) {
            Some(open) => !open.is_dead && open.view.tables.contains_key(&table),
            None => self.model.entries(None, table).is_some(),
        };
        if !is_seen {
            return false;
        }
        self.model.past_of(source.number, table, past).for_each(|entries| watch.add(entries));
        watch.add(self.entries(source, table));
        true
    }

    fn hold_entries(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let bounds = self.draw_bounds(table, &entries);
        let is_async = self.random.random_ratio(1, 3);
        let is_tracked = self.random.random_ratio(2, 3);
        let whose = source.text();
        self.tell(format!("{whose} holds {} of {table:?}, async {is_async}", bounds_text(&bounds)));
        if is_tracked {
            self.model.note_read(source.number, table, bounds.clone(), false);
        }
        let mut watch = Watch::new(entries);
        if is_async {
            let mut all = source.range_async(handle, &bounds, is_tracked).unwrap();
            self.take(source, table, &mut watch, bounds, |is_forward| {
                if is_forward { block_on(all.next()) } else { block_on(all.next_back()) }
            });
        } else {
            let mut all = source.range(handle, &bounds, is_tracked).unwrap();
            self.take(source, table, &mut watch, bounds, |is_forward| {
                if is_forward { all.next() } else { all.next_back() }
            });
        }
    }

    /// Takes entries from both ends, with other steps in between.
    fn take(
        &mut self,
        source: &Source,
        table: Id,
        watch: &mut Watch,
        mut rest: Bounds,
        mut next: impl FnMut(bool) -> Option<Result<(Key, Vec<u8>)>>,
    ) {
        let both = self.random.random_range(0..3);
        for _ in 0..self.random.random_range(1..8) {
            if !self.go_on(source, table, watch) {
                return;
            }
            let fails = self.random.random_ratio(1, 12);
            if fails {
                self.begin_to_fail();
            }
            for _ in 0..self.random.random_range(1..30) {
                let is_forward = if both == 2 { self.random.random_ratio(1, 2) } else { both == 0 };
                let entry = match next(is_forward) {
                    Some(Err(error)) => {
                        assert!(self.is_failure(&error), "{error:?}");
                        self.heal();
                        assert!(next(is_forward).is_none(), "it goes on after an error");
                        return;
                    }
                    entry => entry.map(Result::unwrap),
                };
                let shown = entry.as_ref().map(|(key, value)| (&key[..], Some(&value[..])));
                let objection = watch.objection(&rest, is_forward, shown);
                assert!(objection.is_none(), "forward {is_forward}: {}", objection.unwrap());
                let Some((key, _)) = entry else { return self.heal() };
                self.tell(format!("takes {}, forward {is_forward}", short(&key)));
                let end = Bound::Excluded(key);
                rest = if is_forward { (later(rest.0, end), rest.1) } else { (rest.0, earlier(rest.1, end)) };
            }
            if fails {
                self.heal();
            }
        }
    }

    fn hold_cursor(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let bounds = self.draw_bounds(table, &entries);
        let whose = source.text();
        self.tell(format!("{whose} holds a cursor over {} of {table:?}", bounds_text(&bounds)));
        self.model.note_read(source.number, table, bounds.clone(), false);
        let mut cursor = source.cursor(handle, &bounds).unwrap();
        let (mut watch, mut walk) = (Watch::new(entries.clone()), Walk::new(bounds));
        for _ in 0..self.random.random_range(1..8) {
            if !self.go_on(source, table, &mut watch) {
                return;
            }
            let fails = self.random.random_ratio(1, 12);
            if fails {
                self.begin_to_fail();
            }
            for _ in 0..self.random.random_range(1..25) {
                self.walk(&mut walk, &mut cursor, &watch, table, &entries);
            }
            if fails {
                self.heal();
            }
        }
    }

    /// Lookups take keys in advance.
    fn hold_lookups(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let keys = self.draw_keys(table, &entries);
        let whose = source.text();
        self.tell(format!("{whose} holds lookups of {} of {table:?}", keys.len()));
        let mut watch = Watch::new(entries);
        let mut lookups: Box<dyn Iterator<Item = Looked<'_>>> = match &source.transaction {
            Some(transaction) => Box::new(transaction.lookups(&handle.bytes, &keys).unwrap()),
            None => Box::new(handle.bytes.lookups(&keys)),
        };
        let (mut number, failures) = (0, self.failures);
        loop {
            if !self.go_on(source, table, &mut watch) {
                return;
            }
            for _ in 0..self.random.random_range(1..20) {
                let Some((key, value)) = lookups.next() else {
                    assert_eq!(number, keys.len());
                    return;
                };
                assert_eq!(*key, keys[number]);
                number += 1;
                let value = match value {
                    Err(error) => {
                        assert!(self.is_failure_since(failures, &error), "{error:?}");
                        self.model.note_read(
                            source.number,
                            table,
                            (Bound::Unbounded, Bound::Unbounded),
                            false,
                        );
                        continue;
                    }
                    Ok(value) => value,
                };
                assert!(
                    watch.had(key, value.as_deref()),
                    "{} has not had {:?}",
                    short(key),
                    value.map(|v| short(&v))
                );
                self.model.note_key(source.number, table, key);
            }
        }
    }

    /// A reader shows one value, or fails if that is replaced.
    fn hold_reader(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let large: Vec<&Key> =
            entries.iter().filter(|(_, value)| value.len() > 1024).map(|(key, _)| key).collect();
        let key = match large.get(self.random.random_range(0..large.len().max(1))) {
            Some(key) => (*key).clone(),
            None => self.draw_key(table, &entries),
        };
        self.tell(format!("{} holds a reader of {table:?} {}", source.text(), short(&key)));
        self.model.note_key(source.number, table, &key);
        let (reader, value) = (source.reader(handle, &key).unwrap(), entries.get(&key).cloned());
        assert_eq!(reader.is_some(), value.is_some());
        let Some((mut reader, value)) = reader.zip(value) else { return };
        let (mut watch, compactions) = (Watch::new(entries.clone()), self.compactions);
        for _ in 0..self.random.random_range(1..6) {
            if !self.go_on(source, table, &mut watch) {
                return;
            }
            let begin = self.random.random_range(0..value.len() + 1);
            let mut buffer = vec![0; self.random.random_range(0..value.len() + 10)];
            let end = value.len().min(begin + buffer.len());
            let fails = self.random.random_ratio(1, 12);
            if fails {
                self.begin_to_fail();
            }
            let shown = reader.read_at(begin as u64, &mut buffer);
            if fails {
                self.heal();
            }
            match shown {
                Err(error) if fails && error.kind() == vellum::ErrorKind::Io => {}
                Ok(count) => assert!(buffer[..count] == value[begin..end], "another value"),
                Err(error) => {
                    // It was replaced, or a compaction has stored it again.
                    let is_same = |now: Option<&Rc<Vec<u8>>>| now.is_some_and(|now| Rc::ptr_eq(now, &value));
                    let is_kept = watch.is_always(|entries| is_same(entries.get(&key)));
                    let is_moved = source.number.is_none() && self.compactions > compactions;
                    assert!(!is_kept || is_moved, "a reader of what has not changed: {error:?}");
                    return;
                }
            }
        }
    }

    fn hold_submissions(&mut self, source: &Source, table: Id, handle: &Handle) {
        if source.number.is_some() {
            return;
        }
        let entries = self.entries(source, table);
        let keys = self.draw_keys(table, &entries);
        self.tell(format!("submissions of {} of {table:?}", keys.len()));
        let (mut watch, mut submissions) = (Watch::new(entries), handle.bytes.submissions());
        let (mut number, mut reaped, failures) = (0, 0, self.failures);
        while reaped < keys.len() {
            if !self.go_on(source, table, &mut watch) {
                return;
            }
            for _ in 0..self.random.random_range(0..20) {
                if let Some(key) = keys.get(number) {
                    submissions.submit_get(key, number as u64);
                    number += 1;
                }
            }
            if number == keys.len() || self.random.random_ratio(1, 2) {
                submissions.wait();
            } else {
                submissions.poll();
            }
            reaped += submissions.reap(|tag, key, answer| {
                assert_eq!(key, keys[tag as usize]);
                let answer = match answer {
                    Err(error) => return assert!(self.is_failure_since(failures, &error), "{error:?}"),
                    Ok(answer) => answer,
                };
                let Answer::Value(value) = answer else { panic!("not a value") };
                assert!(watch.had(key, value), "{} has not had {:?}", short(key), value.map(short));
            });
        }
        assert!(submissions.is_empty());
    }
}

/// A key, and what it was found to have.
type Looked<'k> = (&'k Key, Result<Option<Vec<u8>>>);
