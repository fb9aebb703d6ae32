//! Changes of one record.

use super::{
    Handle, Run, Source,
    model::{Clash, Id, Key, Touch, Value, short},
    requests::Way,
};
use rand::RngExt;
use std::rc::Rc;
use vellum::Put;

impl Run {
    pub fn change(&mut self) {
        let Some((source, table, handle)) = self.draw() else { return };
        let entries = self.entries(&source, table);
        let (key, value) = (self.draw_key(table, &entries), self.draw_value());
        let old = entries.get(&key).cloned();
        let way = [Way::Call, Way::Call, Way::Call, Way::Future, Way::From, Way::Many]
            [self.random.random_range(0..6)];
        let change = Change { source, table, handle, key, old };
        match self.random.random_range(0..13) {
            0..4 => self.put(&change, value, way),
            4 => self.insert(&change, value, way),
            5 => self.update(&change, value, way),
            6 | 7 => self.remove(&change, way),
            8 => self.modify(&change, way),
            9 => self.update_with(&change, value),
            10 => self.compare(&change, value),
            11 => self.pop(&change),
            _ => self.get_for_update(&change),
        }
    }

    /// Says what is about to be done; none if it is better not done.
    fn announce(&mut self, change: &Change, what: &str, touch: Touch) -> Option<Clash> {
        let Change { source, table, key, old, .. } = change;
        let clash = self.model.clash(source.number, *table, key, touch);
        let (old, who) = (old.as_ref().map(|old| short(old)), source.text());
        self.dares(source, clash).then(|| {
            self.tell(format!("{who} {what} {table:?} {}, which has {old:?}: {clash:?}", short(key)));
            clash
        })
    }

    /// The record has this value now.
    fn apply(&mut self, change: &Change, touch: Touch, value: Option<Value>) {
        match change.source.number {
            Some(number) => self.model.touch(number, change.table, &change.key, touch, value),
            None if touch == Touch::Change => self.model.change(change.table, &[(change.key.clone(), value)]),
            None => self.model.leave(change.table, &change.key),
        }
    }

    fn put(&mut self, change: &Change, value: Value, way: Way) {
        // What stays as it is may be reserved only.
        let touch = if change.old.as_ref() == Some(&value) { Touch::Reserve } else { Touch::Change };
        let text = format!("puts {} by {way:?} into", short(&value));
        let Some(clash) = self.announce(change, &text, touch) else { return };
        let expected = if change.old.is_some() { Put::Replaced } else { Put::Inserted };
        let done = change.source.put(&change.handle, &change.key, &value, way);
        if self.settle(&change.source, clash, done, expected) {
            self.apply(change, touch, Some(value));
        }
    }

    fn insert(&mut self, change: &Change, value: Value, way: Way) {
        let is_new = change.old.is_none();
        let touch = if is_new { Touch::Change } else { Touch::Check };
        let Some(clash) = self.announce(change, &format!("inserts {} into", short(&value)), touch) else {
            return;
        };
        let done = change.source.insert(&change.handle, &change.key, &value, way);
        if self.settle(&change.source, clash, done, is_new) {
            self.note_unless(change, is_new);
            self.apply(change, touch, Some(value));
        }
    }

    fn update(&mut self, change: &Change, value: Value, way: Way) {
        let touch = match &change.old {
            None => Touch::Check,
            Some(old) if *old == value => Touch::Reserve,
            Some(_) => Touch::Change,
        };
        let Some(clash) = self.announce(change, &format!("updates with {}", short(&value)), touch) else {
            return;
        };
        let done = change.source.update(&change.handle, &change.key, &value, way);
        if self.settle(&change.source, clash, done, change.old.is_some()) {
            self.note_unless(change, change.old.is_some());
            self.apply(change, touch, Some(value));
        }
    }

    fn remove(&mut self, change: &Change, way: Way) {
        let touch = if change.old.is_some() { Touch::Change } else { Touch::Check };
        let Some(clash) = self.announce(change, "removes from", touch) else { return };
        let done = change.source.remove(&change.handle, &change.key, way);
        if self.settle(&change.source, clash, done, change.old.is_some()) {
            self.note_unless(change, change.old.is_some());
            self.apply(change, touch, None);
        }
    }

    fn modify(&mut self, change: &Change, way: Way) {
        let touch = match &change.old {
            None => Touch::Check,
            Some(old) if old.is_empty() => Touch::Reserve,
            Some(_) => Touch::Change,
        };
        let Some(clash) = self.announce(change, &format!("modifies by {way:?} in"), touch) else { return };
        let done = change.source.modify(&change.handle, &change.key, way, add_to_each);
        if self.settle(&change.source, clash, done, change.old.is_some()) {
            self.note_unless(change, change.old.is_some());
            let new = change.old.as_ref().map(|old| {
                let mut new = old.to_vec();
                add_to_each(&mut new);
                Rc::new(new)
            });
            self.apply(change, touch, new);
        }
    }

    /// Replaces, stores or removes a value, of whatever length.
    fn update_with(&mut self, change: &Change, value: Value) {
        let new = self.random.random_ratio(3, 4).then_some(value);
        let touch = match (&change.old, &new) {
            (None, None) => Touch::Check,
            (old, new) if old == new => Touch::Reserve,
            _ => Touch::Change,
        };
        let text = format!("exchanges for {:?}", new.as_ref().map(|new| short(new)));
        let Some(clash) = self.announce(change, &text, touch) else { return };
        let done = change.source.update_with(&change.handle, &change.key, new.as_ref());
        self.model.note_key(change.source.number, change.table, &change.key);
        if self.settle(&change.source, clash, done, change.old.as_ref().map(|old| old.to_vec())) {
            self.apply(change, touch, new);
        }
    }

    fn compare(&mut self, change: &Change, value: Value) {
        let new = self.random.random_ratio(2, 3).then_some(value.clone());
        let old = match &change.old {
            Some(old) if self.random.random_ratio(3, 4) => old.clone(),
            _ => self.draw_value(),
        };
        let is_equal = change.old.as_ref() == Some(&old);
        let touch = match is_equal {
            false => Touch::Check,
            true if new.as_ref() == Some(&old) => Touch::Reserve,
            true => Touch::Change,
        };
        let text = format!("compares with {}, {:?}", short(&old), new.as_ref().map(|new| short(new)));
        let Some(clash) = self.announce(change, &text, touch) else { return };
        let done = change.source.compare(&change.handle, &change.key, &old, new.as_ref());
        self.model.note_key(change.source.number, change.table, &change.key);
        if self.settle(&change.source, clash, done, is_equal) {
            self.apply(change, touch, new);
        }
    }

    /// Takes the first or the last entry.
    fn pop(&mut self, change: &Change) {
        let (entries, is_first) =
            (self.entries(&change.source, change.table), self.random.random_ratio(1, 2));
        let entry = if is_first { entries.first_key_value() } else { entries.last_key_value() };
        let key = entry.map_or(Vec::new(), |entry| entry.0.clone());
        let popped = Change { key, old: entry.map(|entry| entry.1.clone()), ..change.clone() };
        let touch = if entry.is_some() { Touch::Change } else { Touch::Check };
        let clash = if entry.is_some() {
            let Some(clash) = self.announce(&popped, "pops", touch) else { return };
            clash
        } else if change.source.number.is_none() {
            // It is a change, though there is nothing to change: as a removal of what is not there.
            match self.model.is_owned(None, change.table) {
                true => Clash::Certain,
                false => self.model.clash_with_dead(None),
            }
        } else {
            Clash::None
        };
        let expected = entry.map(|(key, value)| (key.clone(), value.to_vec()));
        let done = popped.source.pop(&popped.handle, is_first);
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        self.model.note_read(popped.source.number, popped.table, all, false);
        if self.settle(&popped.source, clash, done, expected) && entry.is_some() {
            self.apply(&popped, touch, None);
        }
    }

    fn get_for_update(&mut self, change: &Change) {
        let Change { source, handle, key, old, .. } = change;
        let Some(transaction) = &source.transaction else { return };
        let Some(clash) = self.announce(change, "gets for update", Touch::Reserve) else { return };
        let done = if self.random.random_ratio(1, 2) {
            transaction.get_for_update(&handle.bytes, key)
        } else {
            crate::asynchronous::block_on(transaction.get_for_update_async(&handle.bytes, key))
        };
        if self.settle(source, clash, done, old.as_ref().map(|old| old.to_vec())) {
            self.apply(change, Touch::Reserve, None);
        }
    }

    /// A change that has changed nothing has read the record.
    fn note_unless(&mut self, change: &Change, is_done: bool) {
        if !is_done {
            self.model.note_key(change.source.number, change.table, &change.key);
        }
    }
}

/// A change that is about to be made.
#[derive(Clone)]
struct Change {
    source: Source,
    table: Id,
    handle: Handle,
    key: Key,
    /// What the source sees before it.
    old: Option<Value>,
}

fn add_to_each(value: &mut [u8]) {
    value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(7));
}
