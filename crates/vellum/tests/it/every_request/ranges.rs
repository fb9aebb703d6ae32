//! Reads of ranges.

use super::{
    Handle, Run, Source,
    model::{Bounds, Entries, Id, Key, bounds_text, short, within},
    watch::Watch,
};
use crate::asynchronous::block_on;
use rand::RngExt;
use std::{
    ops::{Bound, ControlFlow},
    rc::Rc,
};
use vellum::Cursor;

type Pair = (Key, Vec<u8>);

impl Run {
    /// Any bounds: keys that are there or not, open or closed, also inverted.
    pub fn draw_bounds(&mut self, table: Id, entries: &Entries) -> Bounds {
        let mut bound = || {
            let key = self.draw_key(table, entries);
            match self.random.random_range(0..5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(key),
                _ => Bound::Excluded(key),
            }
        };
        let (mut bounds, is_inverted) = ((bound(), bound()), self.random.random_ratio(1, 15));
        let key = |bound: &Bound<Key>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
            Bound::Unbounded => None,
        };
        if let (Some(lower), Some(upper)) = (key(&bounds.0), key(&bounds.1))
            && lower > upper
            && !is_inverted
        {
            bounds = (bounds.1, bounds.0);
        }
        bounds
    }

    pub fn read_range(&mut self, source: &Source, table: Id, handle: &Handle, entries: &Rc<Entries>) {
        let bounds = self.draw_bounds(table, entries);
        let way = self.random.random_range(0..12);
        self.tell(format!("{} reads {} of {table:?} in way {way}", source.text(), bounds_text(&bounds)));
        let wanted: Vec<Pair> =
            within(entries, &bounds).map(|(key, value)| (key.clone(), value.to_vec())).collect();
        let (mut is_noted, mut is_whole) = (true, true);
        match way {
            0 => {
                is_noted = self.random.random_ratio(2, 3);
                let all = source.range(handle, &bounds, is_noted).unwrap();
                compare(all.map(Result::unwrap), wanted.iter());
            }
            1 => {
                let all = source.range(handle, &bounds, true).unwrap();
                compare(all.rev().map(Result::unwrap), wanted.iter().rev());
            }
            2 => {
                is_whole = false;
                self.read_from_both_ends(source, handle, &bounds, &wanted);
            }
            3 => {
                is_whole = false;
                let prefix = self.draw_prefix(table, entries);
                let wanted: Vec<Pair> = entries
                    .iter()
                    .filter(|(key, _)| key.starts_with(&prefix))
                    .map(|(key, value)| (key.clone(), value.to_vec()))
                    .collect();
                let all = source.prefix(handle, &prefix).unwrap();
                if self.random.random_ratio(1, 2) {
                    compare(all.map(Result::unwrap), wanted.iter());
                } else {
                    compare(all.rev().map(Result::unwrap), wanted.iter().rev());
                }
                assert_eq!(source.count_of_prefix(handle, &prefix).unwrap(), wanted.len() as u64);
                self.model.note_read(source.number, table, (Bound::Unbounded, Bound::Unbounded), false);
            }
            4 => {
                let is_first = self.random.random_ratio(1, 2);
                let end = source.end(handle, is_first).unwrap();
                let entry = if is_first { entries.first_key_value() } else { entries.last_key_value() };
                let wanted = entry.map(|(key, value)| (key.clone(), value.to_vec()));
                assert!(end == wanted, "{:?}", end.map(|end| short(&end.0)));
                is_noted = false;
                self.model.note_read(source.number, table, (Bound::Unbounded, Bound::Unbounded), false);
            }
            5 => assert_eq!(source.count(handle, &bounds).unwrap(), wanted.len() as u64),
            6 => {
                is_whole = false;
                let mut cursor = source.cursor(handle, &bounds).unwrap();
                let watch = Watch::new(entries.clone());
                let mut walk = Walk::new(bounds.clone());
                for _ in 0..self.random.random_range(1..60) {
                    self.walk(&mut walk, &mut cursor, &watch, table, entries);
                }
            }
            7 => {
                is_whole = false;
                self.scan(source, handle, &bounds, &wanted);
            }
            8 | 9 => {
                is_noted = self.random.random_ratio(2, 3);
                let mut all = source.range_async(handle, &bounds, is_noted).unwrap();
                if way == 8 {
                    let next = std::iter::from_fn(|| block_on(all.next()));
                    compare(next.map(Result::unwrap), wanted.iter());
                } else {
                    let next = std::iter::from_fn(|| block_on(all.next_back()));
                    compare(next.map(Result::unwrap), wanted.iter().rev());
                }
            }
            10 => {
                let Some((lower, upper)) = number_of(&bounds.0).zip(number_of(&bounds.1)) else { return };
                let Some(numbers) = &handle.numbers else { return };
                let all = match &source.transaction {
                    Some(transaction) => transaction.range(numbers, (lower, upper)).unwrap(),
                    None => numbers.range((lower, upper)).unwrap(),
                };
                let all =
                    all.map(|entry| entry.map(|(key, value)| (key.to_be_bytes().to_vec(), value)).unwrap());
                compare(all, wanted.iter());
            }
            _ => {
                is_whole = false;
                let limit = self.random.random_range(0..20);
                let all = source.range(handle, &bounds, true).unwrap().limit(limit);
                if self.random.random_ratio(1, 2) {
                    compare(all.map(Result::unwrap), wanted.iter().take(limit));
                } else {
                    compare(all.rev().map(Result::unwrap), wanted.iter().rev().take(limit));
                }
            }
        }
        if is_noted {
            self.model.note_read(source.number, table, bounds, is_whole);
        }
    }

    fn draw_prefix(&mut self, table: Id, entries: &Entries) -> Key {
        let mut key = self.draw_key(table, entries);
        key.truncate(self.random.random_range(0..key.len() + 1));
        if key.len() < vellum::MAX_KEY_BYTES && self.random.random_ratio(1, 10) {
            key.push(0xff);
        }
        key
    }

    /// Takes entries from both ends in turn; each comes once.
    fn read_from_both_ends(&mut self, source: &Source, handle: &Handle, bounds: &Bounds, wanted: &[Pair]) {
        let limit = if self.random.random_ratio(1, 3) { self.random.random_range(0..30) } else { usize::MAX };
        let mut all = source.range(handle, bounds, true).unwrap();
        if limit < usize::MAX {
            all = all.limit(limit);
        }
        let (mut front, mut back) = (0, wanted.len());
        loop {
            let (is_front, has_next) =
                (self.random.random_ratio(1, 2), front < back && front + wanted.len() - back < limit);
            let entry = if is_front { all.next() } else { all.next_back() };
            let Some(entry) = entry else {
                assert!(!has_next, "{front}..{back} of {} are missing", wanted.len());
                return;
            };
            assert!(has_next, "there is nothing left");
            let place = if is_front { front } else { back - 1 };
            assert!(entry.unwrap() == wanted[place], "{place} of {}", wanted.len());
            if is_front { front += 1 } else { back -= 1 }
        }
    }

    fn scan(&mut self, source: &Source, handle: &Handle, bounds: &Bounds, wanted: &[Pair]) {
        let stop = self.random.random_range(0..wanted.len() + 2);
        let mut cursor = source.cursor(handle, bounds).unwrap();
        let (mut count, mut wrong) = (0, None);
        let done = cursor.scan(|entry| {
            let is_right = wanted.get(count).is_some_and(|(key, value)| {
                let is_value = match entry.inline_value() {
                    Some(shown) => shown == value,
                    None => entry.value_length() == value.len() as u64,
                };
                entry.key() == key && is_value
            });
            if !is_right {
                wrong = Some(entry.key().to_vec());
            }
            count += 1;
            if count == stop { ControlFlow::Break(count) } else { ControlFlow::Continue(()) }
        });
        assert!(wrong.is_none(), "{:?}", wrong.map(|wrong| short(&wrong)));
        let is_broken = (1..=wanted.len()).contains(&stop);
        let expected = if is_broken { ControlFlow::Break(stop) } else { ControlFlow::Continue(()) };
        assert_eq!(done.unwrap(), expected);
        // It goes on where it was.
        let next = cursor.next().unwrap().map(|entry| entry.key().to_vec());
        let place = if is_broken { stop } else { wanted.len() };
        assert!(next.as_ref() == wanted.get(place).map(|(key, _)| key));
    }

    /// A step of a cursor, compared with what was seen at any moment since it was begun.
    pub fn walk(
        &mut self,
        walk: &mut Walk,
        cursor: &mut Cursor<'_>,
        watch: &Watch,
        table: Id,
        entries: &Entries,
    ) {
        let room = self.room();
        let is_huge = |length: usize| length > room;
        match self.random.random_range(0..12) {
            0 => {
                cursor.seek_to_start();
                walk.at = At::Start;
            }
            1 => {
                cursor.seek_to_end();
                walk.at = At::End;
            }
            2 => {
                let key = self.draw_key(table, entries);
                cursor.seek(&key).unwrap();
                walk.at = At::Before(key);
            }
            3 => cursor.expect(self.random.random_range(0..50)),
            _ => {
                let is_turned = self.random.random_ratio(1, 4);
                walk.is_forward ^= is_turned;
                let is_forward = walk.is_forward;
                let rest = walk.rest(is_forward);
                let entry = if is_forward { cursor.next() } else { cursor.previous() };
                let entry = match entry {
                    Err(error) => {
                        // It stays where it is.
                        assert!(self.is_failing && error.kind() == vellum::ErrorKind::Io, "{error:?}");
                        return self.heal();
                    }
                    Ok(entry) => entry,
                };
                let mut value = None;
                if let Some(entry) = &entry {
                    let length = entry.value_length() as usize;
                    value = match entry.inline_value() {
                        Some(value) => Some(value.to_vec()),
                        None if is_huge(length) => None,
                        None => {
                            let value = entry.value().map(|value| value.map(vellum::Value::into_vec));
                            let is_gone = matches!(value, Ok(None));
                            assert!(!is_gone || watch.had(entry.key(), None), "a value is gone");
                            assert!(value.is_ok() || self.is_failing, "{value:?}");
                            value.unwrap_or(None)
                        }
                    };
                }
                let shown = entry.as_ref().map(|entry| (entry.key(), value.as_deref()));
                let objection = watch.objection(&rest, is_forward, shown);
                assert!(
                    objection.is_none(),
                    "at {:?}, forward {is_forward}: {}",
                    walk.at,
                    objection.unwrap()
                );
                walk.at = match (&entry, is_forward) {
                    (Some(entry), true) => At::After(entry.key().to_vec()),
                    (Some(entry), false) => At::Before(entry.key().to_vec()),
                    (None, true) => At::End,
                    (None, false) => At::Start,
                };
            }
        }
    }
}

/// Where a cursor stands.
#[derive(Debug)]
pub enum At {
    Start,
    End,
    Before(Key),
    After(Key),
}

/// The way of a cursor.
pub struct Walk {
    bounds: Bounds,
    at: At,
    is_forward: bool,
}

impl Walk {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, at: At::Start, is_forward: true }
    }

    /// What is left of its range in a direction.
    fn rest(&self, is_forward: bool) -> Bounds {
        let (lower, upper) = self.bounds.clone();
        let nothing = (Bound::Excluded(Vec::new()), Bound::Included(Vec::new()));
        match (&self.at, is_forward) {
            (At::Start, true) | (At::End, false) => (lower, upper),
            (At::Start, false) | (At::End, true) => nothing,
            (At::Before(key), true) => (later(lower, Bound::Included(key.clone())), upper),
            (At::After(key), true) => (later(lower, Bound::Excluded(key.clone())), upper),
            (At::Before(key), false) => (lower, earlier(upper, Bound::Excluded(key.clone()))),
            (At::After(key), false) => (lower, earlier(upper, Bound::Included(key.clone()))),
        }
    }
}

/// The stricter one of two lower bounds.
pub fn later(one: Bound<Key>, other: Bound<Key>) -> Bound<Key> {
    stricter(one, other, |one, other| one > other)
}

/// The stricter one of two upper bounds.
pub fn earlier(one: Bound<Key>, other: Bound<Key>) -> Bound<Key> {
    stricter(one, other, |one, other| one < other)
}

fn stricter(one: Bound<Key>, other: Bound<Key>, is_stricter: fn(&Key, &Key) -> bool) -> Bound<Key> {
    match (&one, &other) {
        (_, Bound::Unbounded) => one,
        (Bound::Unbounded, _) => other,
        (
            Bound::Included(first) | Bound::Excluded(first),
            Bound::Included(second) | Bound::Excluded(second),
        ) => {
            if is_stricter(first, second) || first == second && matches!(one, Bound::Excluded(_)) {
                one
            } else {
                other
            }
        }
    }
}

#[track_caller]
fn compare<'w>(shown: impl Iterator<Item = Pair>, mut wanted: impl Iterator<Item = &'w Pair>) {
    for (key, value) in shown {
        let next = wanted.next();
        let text = || next.map(|(key, value)| (short(key), short(value)));
        let is_right = next.is_some_and(|next| next.0 == key && next.1 == value);
        assert!(is_right, "({}, {}) instead of {:?}", short(&key), short(&value), text());
    }
    let missing = wanted.next();
    assert!(missing.is_none(), "{:?} is missing", missing.map(|missing| short(&missing.0)));
}

/// A bound of a table whose keys are numbers.
fn number_of(bound: &Bound<Key>) -> Option<Bound<u64>> {
    Some(match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(u64::from_be_bytes(key[..].try_into().ok()?)),
        Bound::Excluded(key) => Bound::Excluded(u64::from_be_bytes(key[..].try_into().ok()?)),
    })
}
