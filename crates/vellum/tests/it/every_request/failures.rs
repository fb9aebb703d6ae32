//! Requests while the device fails to read, or to write pages: each says so and has done nothing, or answers as ever.

use super::{
    Handle, Run, Source,
    model::{Entries, Id, Key, Number, Value, bounds_text, short, within},
    requests::read_all,
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{
    fmt::Debug,
    ops::Bound,
    rc::Rc,
    time::{Duration, Instant},
};
use vellum::{Answer, Error, ErrorKind, Put, Result, Task};
use vellum_vm::{Faults, FileOperation};

impl Run {
    /// The device is slow, perhaps, and fails no more.
    pub fn heal(&mut self) {
        if self.poison.is_some() {
            return;
        }
        self.disk.heal();
        if self.is_slow {
            let delay_max = Duration::from_micros(20);
            self.disk.set_faults(Faults { delay_max, short: 0.2, interrupted: 0.2, ..Faults::default() });
        }
        if std::mem::take(&mut self.is_failing) {
            self.wait_for_outage();
        }
    }

    /// While pages could not be written, changes are refused until one can be.
    fn wait_for_outage(&self) {
        let Some(handle) = self.tables.values().find(|handle| !handle.is_plain) else { return };
        let begun = Instant::now();
        loop {
            let transaction = self.database().begin().unwrap();
            let changed = transaction.put(&handle.bytes, "not there", "value").map(drop);
            let done = changed.and(transaction.rollback());
            match done {
                Err(error) if error.kind() == ErrorKind::Io => {
                    assert!(begun.elapsed() < Duration::from_secs(20), "{error:?}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }

    pub fn begin_to_fail(&mut self) {
        let nth = self.random.random_range(1..12);
        let way = self.random.random_range(0..6);
        self.tell(format!("the device fails in way {way}, {nth}"));
        let data = self.disk.file("data");
        match way {
            0 => self.disk.fail_nth_of(FileOperation::Read, nth),
            1 => self.disk.fail_from_of(FileOperation::Read, nth),
            2 => self.disk.set_faults(Faults { read_error: 0.3, ..Faults::default() }),
            3 => data.fail_nth_of(FileOperation::Write, nth),
            4 => data.fail_from_of(FileOperation::Write, nth),
            _ => data.set_faults(Faults { read_error: 0.2, write_error: 0.3, ..Faults::default() }),
        }
        self.is_failing = true;
        self.failures += 1;
    }

    /// Something while the device fails. What is held meanwhile goes on when it does so no more.
    pub fn fail(&mut self) {
        self.begin_to_fail();
        for _ in 0..self.random.random_range(1..4) {
            match self.random.random_range(0..18) {
                0..6 => self.change(),
                6 => self.multi_put(),
                7 => self.run_tasks_or_fail(),
                8 => self.remove_range(),
                9 => self.change_tables(),
                10 => self.maintain(),
                11 => self.save_or_go_back(),
                12 => self.end(),
                _ => self.read_or_fail(),
            }
        }
        self.heal();
        // It waits for what is open.
        if self.depth == 0 && self.begun.is_empty() {
            self.tell("verified".to_owned());
            super::assert_clean(self.database());
            self.model.note_undone();
        }
    }

    /// Whether this is what the device may cause.
    pub fn is_failure(&self, error: &Error) -> bool {
        match &self.poison {
            Some(poison) => poison.explains(error),
            None => self.is_failing && error.kind() == ErrorKind::Io,
        }
    }

    /// Whether this is what the device may have caused since it had failed so often. Something may have been read in advance.
    pub fn is_failure_since(&self, failures: u64, error: &Error) -> bool {
        self.failures > failures && error.kind() == ErrorKind::Io || self.is_failure(error)
    }

    /// A change has failed. If its transaction is not over, it has done nothing.
    pub fn note_failure(&mut self, source: &Source, error: &Error) {
        let Some(number) = source.number else {
            self.tell(format!("it has failed: {error}"));
            return self.model.note_unclear();
        };
        let is_dead = self.is_over(number);
        self.tell(format!("T{number} has failed, and is dead: {is_dead}: {error}"));
        let open = self.model.open.get_mut(&number).unwrap();
        if is_dead {
            open.is_dead = true;
        } else {
            open.is_unclear = true;
        }
    }

    /// Whether a transaction can only be rolled back.
    pub fn is_over(&self, number: Number) -> bool {
        let begun = self.begun.iter().find(|begun| begun.number == number).unwrap();
        match begun.transaction.tables() {
            Err(error) if error.kind() == ErrorKind::Conflict => true,
            Err(error) => {
                assert!(self.is_failure(&error), "{error:?}");
                false
            }
            Ok(_) => false,
        }
    }

    /// Each operation of a call fails by itself.
    pub fn multi_put_or_fail(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let pairs = self.draw_free_pairs(table, &entries);
        self.tell(format!("{} puts {} into {table:?}", source.text(), pairs.len()));
        let given: Vec<(&Key, &[u8])> = pairs.iter().map(|(key, value)| (key, &value[..])).collect();
        let done = handle.bytes.multi_put(&given);
        let commits = self.model.commits.count();
        for ((key, value), done) in pairs.into_iter().zip(done) {
            match done {
                Ok(put) => {
                    assert_eq!(put == Put::Replaced, entries.contains_key(&key));
                    self.model.change(table, &[(key, Some(value))]);
                }
                Err(error) => self.expect_failure(table, key, Some(value), &error),
            }
        }
        self.model.commits.join(commits);
    }

    pub fn run_tasks_or_fail(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        if source.number.is_some() {
            return;
        }
        let entries = self.entries(&source, table);
        let pairs = self.draw_free_pairs(table, &entries);
        let removes = self.random.random_ratio(1, 2);
        self.tell(format!("{} runs {} on {table:?}, removals {removes}", source.text(), pairs.len()));
        let (mut answers, mut is_durable) = (Vec::new(), true);
        let task = |value: &Value| if removes { Task::Remove } else { Task::Upsert(value.to_vec()) };
        if self.random.random_ratio(1, 2) {
            let tasks = pairs.iter().map(|(key, value)| (key, task(value)));
            let ended = handle.bytes.multi_run(tasks, |place, answer| {
                answers.push((place, answer.map(|answer| written(&answer))));
            });
            if let Err(error) = ended {
                assert!(self.poison.is_some() && self.is_failure(&error), "{error:?}");
                is_durable = false;
            }
        } else {
            let mut submissions = handle.bytes.submissions();
            for (place, (key, value)) in pairs.iter().enumerate() {
                submissions.submit(key, task(value), place as u64);
            }
            while !submissions.is_empty() {
                submissions.wait();
                submissions.reap(|tag, _, answer| {
                    answers.push((tag as usize, answer.map(|answer| written(&answer))));
                });
            }
        }
        assert_eq!(answers.len(), pairs.len());
        let commits = self.model.commits.count();
        for (place, answer) in answers {
            let (key, value) = &pairs[place];
            match answer {
                Ok(was_there) => {
                    assert_eq!(was_there, entries.contains_key(key), "{}", short(key));
                    if !is_durable {
                        self.doubt_record(table, key.clone(), (!removes).then(|| value.clone()));
                    } else if !removes {
                        self.model.change(table, &[(key.clone(), Some(value.clone()))]);
                    } else if was_there {
                        self.model.change(table, &[(key.clone(), None)]);
                    }
                }
                Err(error) => {
                    let value = (!removes).then(|| value.clone());
                    self.expect_failure(table, key.clone(), value, &error);
                }
            }
        }
        self.model.commits.join(commits);
    }

    #[track_caller]
    fn expect_failure(&mut self, table: Id, key: Key, value: Option<Value>, error: &Error) {
        assert!(self.is_failure(error), "{error:?}");
        self.model.note_unclear();
        self.doubt_record(table, key, value);
    }

    /// None if there is an error that is allowed.
    #[track_caller]
    fn right<T: Debug>(&mut self, shown: Result<T>) -> Option<T> {
        match shown {
            Ok(shown) => Some(shown),
            Err(error) => {
                assert!(self.is_failure(&error), "{error:?}");
                self.tell(format!("it has failed: {error}"));
                None
            }
        }
    }

    pub fn read_or_fail(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.model.note_read(source.number, table, all, false);
        match self.random.random_range(0..8) {
            0 | 1 => self.get_or_fail(&source, table, &handle, &entries),
            2 | 3 => self.get_all_or_fail(&source, table, &handle, &entries),
            4 => self.walk_or_fail(&source, table, &handle, &entries),
            _ => self.range_or_fail(&source, table, &handle, &entries),
        }
    }

    fn get_or_fail(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let key = self.draw_key(table, entries);
        let wanted = entries.get(&key).map(|value| &value[..]);
        let way = self.random.random_range(0..4);
        self.tell(format!("{} gets {table:?} {} in way {way}", source.text(), short(&key)));
        let got = match (&source.transaction, way) {
            (Some(transaction), 0 | 1) => transaction.get(&handle.bytes, &key),
            (Some(transaction), 2) => block_on(transaction.get_async(&handle.bytes, &key)),
            (None, 0 | 1) => handle.bytes.get(&key),
            (None, 2) => block_on(handle.bytes.get_async(&key)),
            _ => {
                let reader = source.reader(handle, &key);
                let Some(reader) = self.right(reader.map(|reader| reader.map(Whole))) else { return };
                let Some(Whole(mut reader)) = reader else {
                    assert!(wanted.is_none());
                    return;
                };
                let mut buffer = vec![0; reader.len() as usize];
                if let Some(count) = self.right(reader.read_at(0, &mut buffer)) {
                    assert!(Some(&buffer[..count]) == wanted.map(|wanted| &wanted[..count]));
                }
                if self.poison.is_some() {
                    return;
                }
                // The reader goes on when the device does.
                self.heal();
                assert!(Some(&read_all(&mut reader)[..]) == wanted);
                return;
            }
        };
        if let Some(got) = self.right(got) {
            assert!(got.as_deref() == wanted, "{:?}", got.as_deref().map(short));
        }
    }

    fn get_all_or_fail(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let keys = self.draw_keys(table, entries);
        let way = self.random.random_range(0..3);
        self.tell(format!("{} gets {} of {table:?} in way {way}", source.text(), keys.len()));
        let mut shown: Vec<(usize, Result<Option<Vec<u8>>>)> = Vec::new();
        let bytes = &handle.bytes;
        match (&source.transaction, way) {
            (Some(transaction), 0) => match transaction.multi_get(bytes, &keys) {
                Ok(all) => shown.extend(all.into_iter().enumerate()),
                Err(error) => return assert!(self.is_failure(&error), "{error:?}"),
            },
            (None, 0) => shown.extend(bytes.multi_get(&keys).into_iter().enumerate()),
            (_, 1) => {
                let done = source.multi_get_with(handle, &keys, None, |place, value| {
                    shown.push((place, value.map(|value| value.map(<[u8]>::to_vec))));
                });
                if let Err(error) = done {
                    return assert!(self.is_failure(&error), "{error:?}");
                }
            }
            (Some(transaction), _) => match transaction.lookups(bytes, &keys) {
                Ok(all) => shown.extend(all.map(|(_, value)| value).enumerate()),
                Err(error) => return assert!(self.is_failure(&error), "{error:?}"),
            },
            (None, _) => shown.extend(bytes.lookups(&keys).map(|(_, value)| value).enumerate()),
        }
        assert_eq!(shown.len(), keys.len());
        for (place, value) in shown {
            let wanted = entries.get(&keys[place]);
            if way == 1
                && let Err(error) = &value
                && error.kind() == ErrorKind::OutOfMemory
                && self.is_huge(wanted.map_or(0, |wanted| wanted.len()))
            {
                continue;
            }
            if let Some(value) = self.right(value) {
                assert!(value.as_deref() == wanted.map(|wanted| &wanted[..]), "{}", short(&keys[place]));
            }
        }
    }

    /// An iterator shows what there is until it fails, and then nothing.
    fn range_or_fail(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Entries) {
        let bounds = self.draw_bounds(table, entries);
        let way = self.random.random_range(0..4);
        self.tell(format!("{} reads {} of {table:?} in way {way}", source.text(), bounds_text(&bounds)));
        let wanted: Vec<(&Key, &Value)> = within(entries, &bounds).collect();
        if way == 0 {
            if let Some(count) = self.right(source.count(handle, &bounds)) {
                assert_eq!(count, wanted.len() as u64);
            }
            return;
        }
        if way == 1 {
            let is_first = self.random.random_ratio(1, 2);
            let end = if is_first { entries.first_key_value() } else { entries.last_key_value() };
            if let Some(shown) = self.right(source.end(handle, is_first)) {
                assert!(shown == end.map(|(key, value)| (key.clone(), value.to_vec())));
            }
            return;
        }
        let mut all = match source.range(handle, &bounds, true) {
            Ok(all) => all,
            Err(error) => return assert!(self.is_failure(&error), "{error:?}"),
        };
        let (mut front, mut back) = (0, wanted.len());
        loop {
            let is_front = way == 2 || self.random.random_ratio(1, 2);
            let next = if is_front { all.next() } else { all.next_back() };
            let Some(next) = next else {
                assert_eq!(front, back, "entries are missing");
                return;
            };
            let Some((key, value)) = self.right(next) else {
                assert!(all.next().is_none() && all.next_back().is_none(), "it goes on after an error");
                return;
            };
            let place = if is_front { front } else { back - 1 };
            assert!((&key, &value) == (wanted[place].0, &**wanted[place].1), "{}", short(&key));
            if is_front { front += 1 } else { back -= 1 }
        }
    }

    /// A cursor that fails stays where it is.
    fn walk_or_fail(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Rc<Entries>) {
        let bounds = self.draw_bounds(table, entries);
        self.tell(format!("{} walks over {} of {table:?}", source.text(), bounds_text(&bounds)));
        let wanted: Vec<&Key> = within(entries, &bounds).map(|entry| entry.0).collect();
        let mut cursor = match source.cursor(handle, &bounds) {
            Ok(cursor) => cursor,
            Err(error) => return assert!(self.is_failure(&error), "{error:?}"),
        };
        let (mut place, mut failures) = (0, 0);
        for _ in 0..self.random.random_range(1..2 * wanted.len() + 5) {
            let is_forward = self.random.random_ratio(4, 5);
            let shown = if is_forward { cursor.next() } else { cursor.previous() };
            let Some(key) = self.right(shown.map(|entry| entry.map(|entry| entry.key().to_vec()))) else {
                failures += 1;
                if failures == 3 {
                    self.heal();
                }
                continue;
            };
            let expected =
                if is_forward { wanted.get(place) } else { place.checked_sub(1).map(|at| &wanted[at]) };
            let text = || expected.map(|key| short(key));
            assert!(
                key.as_ref() == expected.copied(),
                "{:?} instead of {:?}",
                key.as_deref().map(short),
                text()
            );
            match (is_forward, expected) {
                (true, Some(_)) => place += 1,
                (false, Some(_)) => place -= 1,
                _ => {}
            }
        }
    }
}

/// A reader, of which there is nothing to print.
struct Whole<'r>(vellum::ValueReader<'r>);

impl Debug for Whole<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a reader")
    }
}

/// Whether a change has found a value.
fn written(answer: &Answer<'_>) -> bool {
    match answer {
        Answer::Written(written) => *written == vellum::Written::Replaced,
        Answer::Removed(is_removed) => *is_removed,
        Answer::Value(_) => panic!("a value"),
    }
}
