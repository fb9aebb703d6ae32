//! What is under way when the device begins to fail.

use super::{
    Handle, Run, Source,
    futures::{Effect, Held, Kind, Next},
    model::{Bounds, Clash, Entries, Id, Key, Touch, Value, short},
    poisoned::LONGEST,
    prefixes::Floating,
    watch::Watch,
};
use rand::RngExt;
use std::{
    collections::BTreeSet,
    ops::Bound,
    rc::Rc,
    time::{Duration, Instant},
};
use vellum::{Answer, Cursor, Error, ErrorKind, Result, Submissions, Task, ValueReader, Written};

/// What something that is under way borrows.
pub struct Place {
    pub table: Id,
    source: Source,
    handle: Handle,
    entries: Rc<Entries>,
    bounds: Bounds,
    keys: Vec<Key>,
    way: u32,
}

/// A key, and what it was found to have.
type Looked<'k> = (&'k Key, Result<Option<Vec<u8>>>);

/// A read that is under way.
pub struct Opened<'p> {
    place: &'p Place,
    read: Read<'p>,
    watch: Watch,
    /// What is left of the bounds.
    rest: Bounds,
}

enum Read<'p> {
    Entries(Box<vellum::Entries<'p>>),
    Cursor(Box<Cursor<'p>>),
    Lookups(Box<dyn Iterator<Item = Looked<'p>> + 'p>),
    Reader(ValueReader<'p>, Key, Value),
    Get(Held<'p>, Key),
    Nothing,
}

impl Place {
    pub fn draw(run: &mut Run) -> Option<Self> {
        let (source, table, handle) = run.draw()?;
        let entries = run.entries(&source, table);
        let (bounds, keys) = (run.draw_bounds(table, &entries), run.draw_keys(table, &entries));
        let way = run.random.random_range(0..5);
        let all = (Bound::Unbounded, Bound::Unbounded);
        run.model.note_read(source.number, table, all, false);
        run.tell(format!("{} has a read of {table:?} under way, {way}", source.text()));
        Some(Self { table, source, handle, entries, bounds, keys, way })
    }

    pub fn open<'p>(&'p self, run: &mut Run) -> Opened<'p> {
        let Self { source, handle, bounds, keys, entries, .. } = self;
        let large = |(key, value): (&'p Key, &'p Value)| (value.len() > 1024).then_some((key, value));
        let read = match (self.way, &source.transaction) {
            (0, _) => Read::Entries(Box::new(source.range(handle, bounds, true).unwrap())),
            (1, _) => Read::Cursor(Box::new(source.cursor(handle, bounds).unwrap())),
            (2, Some(transaction)) => {
                Read::Lookups(Box::new(transaction.lookups(&handle.bytes, keys).unwrap()))
            }
            (2, None) => Read::Lookups(Box::new(handle.bytes.lookups(keys))),
            (3, _) => match entries.iter().find_map(large) {
                Some((key, value)) => {
                    Read::Reader(source.reader(handle, key).unwrap().unwrap(), key.clone(), value.clone())
                }
                None => Read::Nothing,
            },
            _ => match keys.first() {
                Some(key) => Read::Get(Held::new(source.get_later(handle, key)), key.clone()),
                None => Read::Nothing,
            },
        };
        let mut opened =
            Opened { place: self, read, watch: Watch::new(entries.clone()), rest: bounds.clone() };
        if self.way < 2 {
            (0..run.random.random_range(0..5)).for_each(|_| _ = opened.take(run));
        }
        opened
    }
}

impl Opened<'_> {
    /// Shows the next entry. Whether there may be another.
    fn take(&mut self, run: &Run) -> bool {
        let shown = match &mut self.read {
            Read::Entries(all) => {
                all.next().transpose().map(|entry| entry.map(|(key, value)| (key, Some(value))))
            }
            Read::Cursor(cursor) => {
                cursor.next().map(|entry| entry.map(|entry| (entry.key().to_vec(), None)))
            }
            _ => return false,
        };
        let shown = match shown {
            Ok(shown) => shown,
            Err(error) => {
                self.check_failure(run, &error);
                return false;
            }
        };
        let parts = shown.as_ref().map(|(key, value)| (&key[..], value.as_deref()));
        let objection = self.watch.objection(&self.rest, true, parts);
        assert!(objection.is_none(), "{}", objection.unwrap());
        let Some((key, _)) = shown else { return false };
        self.rest.0 = Bound::Excluded(key);
        true
    }

    #[track_caller]
    fn check_failure(&self, run: &Run, error: &Error) {
        let is_dead = self.place.source.number.is_some_and(|number| run.model.open[&number].is_dead);
        assert!(is_dead && error.kind() == ErrorKind::Conflict || run.is_failure(error), "{error:?}");
    }

    #[track_caller]
    fn check_value(&self, run: &Run, key: &Key, value: Result<Option<Vec<u8>>>) {
        match value {
            Ok(value) => assert!(self.watch.had(key, value.as_deref()), "{} has another value", short(key)),
            Err(error) => self.check_failure(run, &error),
        }
    }
}

/// Goes on with a read after the device has begun to fail.
pub fn read_on(run: &mut Run, opened: &mut Opened<'_>, past: usize) {
    let Place { source, table, .. } = opened.place;
    let is_seen = match source.number.map(|number| &run.model.open[&number]) {
        Some(open) => !open.is_dead && open.view.tables.contains_key(table),
        None => run.model.entries(None, *table).is_some(),
    };
    if !is_seen {
        return;
    }
    run.model.past_of(source.number, *table, past).for_each(|entries| opened.watch.add(entries));
    opened.watch.add(run.entries(source, *table));
    run.tell(format!("{} reads on in {table:?}, {}", source.text(), opened.place.way));
    match std::mem::replace(&mut opened.read, Read::Nothing) {
        Read::Lookups(lookups) => {
            for (key, value) in lookups {
                opened.check_value(run, key, value);
            }
        }
        Read::Get(mut get, key) => match finish(&mut get) {
            Ok(super::futures::Told::Value(value)) => opened.check_value(run, &key, Ok(value)),
            Ok(_) => panic!("not a value"),
            Err(error) => opened.check_failure(run, &error),
        },
        Read::Reader(mut reader, key, value) => {
            let mut buffer = vec![0; value.len()];
            match reader.read_at(0, &mut buffer) {
                Ok(count) => assert!(buffer[..count] == value[..count], "another value"),
                Err(error) => {
                    let is_same = |now: Option<&Value>| now.is_some_and(|now| Rc::ptr_eq(now, &value));
                    let is_kept = opened.watch.is_always(|entries| is_same(entries.get(&key)));
                    // A compaction may have moved it.
                    assert!(!is_kept || source.number.is_none() || run.is_failure(&error), "{error:?}");
                }
            }
        }
        read => {
            opened.read = read;
            for _ in 0..30 {
                if !opened.take(run) {
                    return;
                }
            }
        }
    }
}

/// Waits for a future, for not too long.
fn finish(future: &mut Held<'_>) -> Result<super::futures::Told> {
    let begun = Instant::now();
    loop {
        if let Some(told) = future.go_on(Next::Poll) {
            return told;
        }
        assert!(begun.elapsed() < LONGEST, "the future is not ready");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Changes by single operations, by futures and submissions, of a table that nothing else uses meanwhile.
pub struct Floats<'p> {
    place: &'p Place,
    futures: Vec<(Key, Effect, Held<'p>)>,
    submissions: Submissions<'p>,
    submitted: Vec<(Key, Value)>,
}

impl Run {
    /// A table for such changes.
    pub fn draw_floats(&mut self) -> Option<Place> {
        if self.random.random_ratio(1, 3) {
            return None;
        }
        let place = Place::draw(self)?;
        let is_used = self.model.open.values().any(|open| open.owned.contains(&place.table));
        if is_used || !self.model.view.tables.contains_key(&place.table) {
            return None;
        }
        self.unsettled.insert(place.table);
        let entries = self.model.view.tables[&place.table].clone();
        Some(Place { source: Source { number: None, transaction: None }, entries, ..place })
    }
}

impl<'p> Floats<'p> {
    pub fn begin(run: &mut Run, place: &'p Place) -> Self {
        // Transactions that begin from now on may conflict with the changes.
        run.model.note_unclear();
        let (mut seen, mut futures, mut submitted) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut submissions = place.handle.bytes.submissions();
        for _ in 0..run.random.random_range(1..12) {
            let key = run.draw_key(place.table, &place.entries);
            let is_free = run.model.clash(None, place.table, &key, Touch::Change) != Clash::Certain;
            if !is_free || !seen.insert(key.clone()) {
                continue;
            }
            if run.random.random_ratio(1, 2) {
                let kind = Kind::draw(run, false);
                let effect = kind.effect(place.entries.get(&key).cloned());
                run.tell(format!("a future is to {kind:?} {} of {:?}", short(&key), place.table));
                let mut future = Held::new(place.source.change_later(&place.handle, &key, &kind));
                if run.random.random_ratio(1, 2)
                    && let Some(done) = future.go_on(Next::Poll)
                {
                    run.has_cancelled = true;
                    let value = (effect.touch == Touch::Change).then_some(effect.new.clone());
                    match done {
                        Ok(told) => {
                            assert_eq!(told, effect.told);
                            if let Some(value) = value {
                                run.model.change(place.table, &[(key, value)]);
                            }
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
                    }
                    continue;
                }
                futures.push((key, effect, future));
            } else {
                let value = run.draw_value();
                run.tell(format!("{} is submitted to {:?}", short(&key), place.table));
                submissions.submit(&key, Task::Upsert(value.to_vec()), submitted.len() as u64);
                submitted.push((key, value));
            }
        }
        if run.random.random_ratio(1, 2) {
            submissions.poll();
        }
        Self { place, futures, submissions, submitted }
    }

    /// Waits for them or drops them. Returns those that may have been made.
    pub fn end(&mut self, run: &mut Run) -> Vec<Floating> {
        let (mut floating, promise) = (Vec::new(), run.model.durability);
        for (key, effect, mut future) in self.futures.drain(..) {
            let Effect { touch, told, new } = effect;
            let mut made = None;
            if run.random.random_ratio(1, 4) {
                future.cancel();
                run.has_cancelled = true;
            } else {
                match finish(&mut future) {
                    Ok(done) => {
                        assert_eq!(done, told);
                        made = Some(promise);
                    }
                    Err(error) => {
                        let is_conflict = error.kind() == ErrorKind::Conflict;
                        assert!(is_conflict || run.is_failure(&error), "{error:?}");
                    }
                }
            }
            if touch == Touch::Change {
                floating.push(Floating { key, value: new, promise: made });
            }
        }
        let is_dropped = run.random.random_ratio(1, 4);
        let mut promises = vec![None; self.submitted.len()];
        let begun = Instant::now();
        while !is_dropped && !self.submissions.is_empty() {
            self.submissions.wait();
            self.submissions.reap(|tag, key, answer| {
                let old = self.place.entries.contains_key(key);
                match answer {
                    Ok(Answer::Written(written)) => {
                        assert_eq!(written == Written::Replaced, old);
                        promises[tag as usize] = Some(promise);
                    }
                    Ok(_) => panic!("another answer"),
                    Err(error) => {
                        let is_conflict = error.kind() == ErrorKind::Conflict;
                        assert!(is_conflict || run.is_failure(&error), "{error:?}");
                    }
                }
            });
            assert!(begun.elapsed() < LONGEST, "the submissions do not end");
        }
        let submitted = self.submitted.drain(..).zip(promises);
        floating.extend(submitted.map(|((key, value), promise)| Floating {
            key,
            value: Some(value),
            promise,
        }));
        floating
    }
}
