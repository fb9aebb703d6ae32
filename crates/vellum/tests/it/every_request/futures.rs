//! Futures that are held over other steps, and those that are dropped.
//!
//! The driver of the database may make a change of a single operation at any moment between the first poll of its future
//! and the end. Until then nothing else uses the table, and it is found out later which of the transactions that have begun
//! meanwhile see the change. Futures of transactions do everything when they are polled.

use super::{
    Handle, Run, Source, TRANSACTIONS_MAX,
    model::{Clash, Entries, Id, Key, Number, Touch, Value, short},
    watch::Watch,
};
use crate::asynchronous::Unpark;
use rand::RngExt;
use std::{
    collections::BTreeSet,
    future::Future,
    ops::Bound,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};
use vellum::{Error, ErrorKind, Put, Result};

impl Run {
    /// Reads of keys. The value must be one that there was since the first poll; a transaction sees only its own changes.
    pub fn hold_gets(&mut self, source: &Source, table: Id, handle: &Handle) {
        let entries = self.entries(source, table);
        let mut keys = self.draw_keys(table, &entries);
        keys.truncate(8);
        self.tell(format!("{} holds {} futures that get from {table:?}", source.text(), keys.len()));
        let (mut watch, failures) = (Watch::new(entries), self.failures);
        let mut held: Vec<Option<(&Key, Held<'_>, Option<usize>)>> =
            keys.iter().map(|key| Some((key, Held::new(source.get_later(handle, key)), None))).collect();
        for round in self.draw_rounds(held.len()) {
            if !self.go_on(source, table, &mut watch) {
                return self.give_up(source, held.into_iter().flatten().map(|held| held.1));
            }
            for (place, way, _) in round {
                let Some((key, future, since)) = &mut held[place] else { continue };
                self.tell(format!("{way:?} the get of {}", short(key)));
                if way == Next::Drop {
                    self.cancel(held[place].take().unwrap().1);
                    continue;
                }
                let last = watch.count() - 1;
                let since = if source.number.is_some() { last } else { *since.get_or_insert(last) };
                let bounds = (Bound::Included(key.to_vec()), Bound::Included(key.to_vec()));
                self.model.note_read(source.number, table, bounds, false);
                let Some(got) = future.go_on(way) else { continue };
                let got = match got {
                    Err(error) => {
                        assert!(self.is_failure_since(failures, &error), "{error:?}");
                        held[place] = None;
                        continue;
                    }
                    Ok(got) => got,
                };
                let Told::Value(value) = got else { panic!("not a value") };
                let shown = value.as_ref().map(|value| short(value));
                assert!(
                    watch.had_since(since, key, value.as_deref()),
                    "{} has not had {shown:?}",
                    short(key)
                );
                self.model.note_key(source.number, table, key);
                held[place] = None;
            }
        }
    }

    /// Changes by a transaction. Each is made by the poll that says so.
    pub fn hold_own_changes(&mut self, source: &Source, table: Id, handle: &Handle) {
        let number = source.number.unwrap();
        let entries = self.entries(source, table);
        let mut watch = Watch::new(entries.clone());
        let mut held: Vec<Option<(Key, Kind, Held<'_>)>> = Vec::new();
        for _ in 0..self.random.random_range(1..6) {
            let (key, kind) = (self.draw_key(table, &entries), Kind::draw(self, true));
            let future = Held::new(source.change_later(handle, &key, &kind));
            held.push(Some((key, kind, future)));
        }
        self.tell(format!("T{number} holds {} futures that change {table:?}", held.len()));
        for round in self.draw_rounds(held.len()) {
            if !self.go_on(source, table, &mut watch) {
                return self.give_up(source, held.into_iter().flatten().map(|held| held.2));
            }
            for (place, mut way, _) in round {
                let Some((key, kind, future)) = &mut held[place] else { continue };
                let old = self.entries(source, table).get(key).cloned();
                let Effect { touch, told, new } = kind.effect(old);
                let clash = self.model.clash(source.number, table, key, touch);
                if !self.dares(source, clash) {
                    way = Next::Drop;
                }
                self.tell(format!("{way:?} {kind:?} of {}: {clash:?}", short(key)));
                if way == Next::Drop {
                    self.cancel(held[place].take().unwrap().2);
                    continue;
                }
                let Some(done) = future.go_on(way) else {
                    // It may keep the record for itself: to read what is reserved waits, and so does a change of a full
                    // leaf, which takes its claim back and may refuse others all the same (`Isolation::give_up`).
                    self.model.perhaps_hold(number, table, key);
                    if *kind != Kind::Reserve {
                        self.model.touch(number, table, key, Touch::Check, None);
                    }
                    continue;
                };
                let (key, kind, _) = held[place].take().unwrap();
                if !self.settle(source, clash, done, told) {
                    break;
                }
                if touch == Touch::Check && kind != Kind::Reserve {
                    self.model.note_key(source.number, table, &key);
                }
                self.model.touch(number, table, &key, touch, new);
            }
        }
    }

    /// Changes by single operations of different records.
    pub fn hold_changes(&mut self, table: Id, handle: &Handle) {
        let source = Source { number: None, transaction: None };
        // The driver makes no changes while transactions are open.
        if self.random.random_ratio(1, 2) {
            (0..TRANSACTIONS_MAX).for_each(|_| self.end());
        }
        // One of them may have dropped the table.
        let Some(entries) = self.model.view.tables.get(&table).cloned() else { return };
        let mut seen = BTreeSet::new();
        let mut held: Vec<Option<Change<'_>>> = Vec::new();
        for _ in 0..self.random.random_range(1..8) {
            let (key, kind) = (self.draw_key(table, &entries), Kind::draw(self, false));
            if seen.insert(key.clone()) {
                let future = Held::new(source.change_later(handle, &key, &kind));
                held.push(Some(Change { key, kind, future, begun: None }));
            }
        }
        self.tell(format!("holds {} futures that change {table:?}", held.len()));
        self.unsettled.insert(table);
        for round in self.draw_rounds(held.len()) {
            for _ in 0..self.random.random_range(0..4) {
                self.step();
            }
            for (place, way, begins) in round {
                // A transaction that begins after a poll may see the change, or not.
                if held[place].as_mut().is_some_and(|change| self.go_on_with(table, handle, change, way)) {
                    held[place] = None;
                }
                if begins {
                    self.begin();
                }
            }
        }
        self.unsettled.remove(&table);
    }

    /// Goes on with a change; whether it is over.
    fn go_on_with(&mut self, table: Id, handle: &Handle, change: &mut Change<'_>, mut way: Next) -> bool {
        let source = Source { number: None, transaction: None };
        let Change { key, kind, future, begun } = change;
        let is_there = self.model.view.tables.contains_key(&table);
        let old = self.model.entries(None, table).and_then(|entries| entries.get(key).cloned());
        let Effect { touch, told, new } = kind.effect(old.clone());
        let clash = self.model.clash(None, table, key, touch);
        if way == Next::Wait && !self.dares(&source, clash) || begun.is_none() && !is_there {
            way = Next::Drop;
        }
        self.tell(format!("{way:?} {kind:?} of {}: {clash:?}", short(key)));
        if way == Next::Drop {
            future.cancel();
            if let Some((begun, ..)) = *begun
                && is_there
            {
                let now = handle.bytes.get(&key[..]).unwrap();
                let is_new = touch == Touch::Change && now.as_deref() == new.as_ref().map(|new| &new[..]);
                let shown = now.as_ref().map(|now| short(now));
                self.tell(format!("{} was changed: {is_new}", short(key)));
                assert!(
                    is_new || now.as_deref() == old.as_ref().map(|old| &old[..]),
                    "{} has {shown:?} after a future was dropped",
                    short(key)
                );
                if is_new {
                    assert_ne!(clash, Clash::Certain, "{} has been changed nevertheless", short(key));
                    self.apply_since(handle, table, key, (begun, old, new));
                }
            }
            self.has_cancelled = true;
            return true;
        }
        if begun.is_none() {
            self.model.leave(table, key);
        }
        let (begun, first, failures) = *begun.get_or_insert((self.model.now(), clash, self.failures));
        let Some(done) = future.go_on(way) else { return false };
        match done {
            Ok(done) => {
                assert_ne!(clash, Clash::Certain, "there should be a conflict, and not {done:?}");
                assert!(is_there, "the table was dropped");
                assert_eq!(done, told);
                if touch == Touch::Change {
                    self.apply_since(handle, table, key, (begun, old, new));
                }
            }
            Err(Error::NoSuchTable { .. }) => assert!(!is_there),
            Err(error) if self.is_failure_since(failures, &error) => self.model.note_unclear(),
            Err(error) => {
                let may_clash = clash.max(first) != Clash::None;
                assert!(error.kind() == ErrorKind::Conflict && may_clash, "{error:?}, {first:?}, {clash:?}");
            }
        }
        true
    }

    /// A record was changed at some moment since then. The transactions that have begun since tell whether they see it.
    fn apply_since(
        &mut self,
        handle: &Handle,
        table: Id,
        key: &Key,
        (begun, old, new): (u64, Option<Value>, Option<Value>),
    ) {
        let mut seen_by: Vec<Number> = Vec::new();
        for number in self.model.begun_since(begun) {
            let Some(transaction) = self.begun.iter().find(|begun| begun.number == number) else { continue };
            // A dead one shows nothing any more.
            if handle.is_plain || self.model.open[&number].is_dead {
                continue;
            }
            let shown = transaction.transaction.get_untracked(&handle.bytes, &key[..]).unwrap();
            let before = self.model.entries(Some(number), table).unwrap().get(key).cloned();
            let is_new = shown.as_deref() == new.as_ref().map(|new| &new[..]);
            assert!(
                is_new || shown.as_deref() == before.as_ref().map(|before| &before[..]),
                "T{number} sees {:?} for {}, and not {:?} or {:?}",
                shown.map(|shown| short(&shown)),
                short(key),
                old.as_ref().map(|old| short(old)),
                new.as_ref().map(|new| short(new))
            );
            assert!(
                is_new || seen_by.is_empty(),
                "T{number} has begun later, and does not see {}",
                short(key)
            );
            if is_new {
                seen_by.push(number);
            }
        }
        self.tell(format!("{} is changed, which {seen_by:?} see", short(key)));
        self.model.change_since(table, key, new.as_ref(), &seen_by);
        self.model.commits.put_after(begun);
        let begun = self.begun.iter_mut().filter(|begun| seen_by.contains(&begun.number));
        for (_, saved) in begun.flat_map(|begun| &mut begun.savepoints) {
            saved.see(table, key, new.as_ref());
        }
    }

    /// What is done with so many futures, in rounds between which other steps are made, until all are over. Drawn in
    /// advance, so that a seed does the same whenever they are ready. Also whether a transaction begins after each poll.
    fn draw_rounds(&mut self, count: usize) -> Vec<Vec<(usize, Next, bool)>> {
        let (mut rounds, mut rest): (Vec<_>, Vec<usize>) = (Vec::new(), (0..count).collect());
        while !rest.is_empty() {
            let mut round = Vec::new();
            for _ in 0..self.random.random_range(1..6).min(rest.len()) {
                let place = self.random.random_range(0..rest.len());
                let way = Next::draw(self);
                round.push((rest[place], way, self.random.random_ratio(1, 6)));
                if way != Next::Poll {
                    rest.swap_remove(place);
                }
            }
            rounds.push(round);
        }
        rounds
    }

    fn cancel(&mut self, mut future: Held<'_>) {
        future.cancel();
        self.has_cancelled = true;
    }

    /// The source does not show the table any more.
    fn give_up<'f>(&mut self, source: &Source, futures: impl Iterator<Item = Held<'f>>) {
        let is_dead = source.number.is_some_and(|number| self.model.open[&number].is_dead);
        for mut future in futures {
            if is_dead && self.random.random_ratio(1, 2) {
                let done = future.go_on(Next::Wait).unwrap();
                assert_eq!(done.unwrap_err().kind(), ErrorKind::Conflict);
            } else {
                self.cancel(future);
            }
        }
    }
}

/// A change by a single operation.
struct Change<'f> {
    key: Key,
    kind: Kind,
    future: Held<'f>,
    /// When it was first polled, whether it was in the way of others then, and how often the device had failed.
    begun: Option<(u64, Clash, u64)>,
}

/// What is done with a future.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Poll,
    Wait,
    Drop,
}

impl Next {
    fn draw(run: &mut Run) -> Self {
        match run.random.random_range(0..8) {
            0 => Self::Drop,
            1..5 => Self::Poll,
            _ => Self::Wait,
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    Put(Value),
    Insert(Value),
    Update(Value),
    Remove,
    Reserve,
}

impl Kind {
    pub fn draw(run: &mut Run, has_reservations: bool) -> Self {
        let value = run.draw_value();
        match run.random.random_range(0..if has_reservations { 7 } else { 6 }) {
            0..3 => Self::Put(value),
            3 => Self::Insert(value),
            4 => Self::Update(value),
            5 => Self::Remove,
            _ => Self::Reserve,
        }
    }

    /// What it does to a record with this value.
    pub fn effect(&self, old: Option<Value>) -> Effect {
        let is_there = old.is_some();
        let stored = |new: &Value, told| {
            let touch = if old.as_ref() == Some(new) { Touch::Reserve } else { Touch::Change };
            Effect { touch, told, new: Some(new.clone()) }
        };
        let put = if is_there { Put::Replaced } else { Put::Inserted };
        match self {
            Self::Put(value) => stored(value, Told::Put(put)),
            Self::Insert(value) if !is_there => stored(value, Told::Done(true)),
            Self::Update(value) if is_there => stored(value, Told::Done(true)),
            Self::Remove if is_there => Effect { touch: Touch::Change, told: Told::Done(true), new: None },
            Self::Insert(_) | Self::Update(_) | Self::Remove => {
                Effect { touch: Touch::Check, told: Told::Done(false), new: old }
            }
            Self::Reserve => {
                let told = Told::Value(old.as_ref().map(|old| old.to_vec()));
                Effect { touch: Touch::Reserve, told, new: old }
            }
        }
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Put(value) => write!(f, "put {}", short(value)),
            Self::Insert(value) => write!(f, "insert {}", short(value)),
            Self::Update(value) => write!(f, "update {}", short(value)),
            Self::Remove => f.write_str("remove"),
            Self::Reserve => f.write_str("reserve"),
        }
    }
}

pub struct Effect {
    pub touch: Touch,
    pub told: Told,
    /// What the record has then.
    pub new: Option<Value>,
}

/// What a future answers.
#[derive(PartialEq, Eq, Debug)]
pub enum Told {
    Value(Option<Vec<u8>>),
    Put(Put),
    Done(bool),
}

pub type Boxed<'f> = Pin<Box<dyn Future<Output = Result<Told>> + 'f>>;

fn told<'f, T>(future: impl Future<Output = Result<T>> + 'f, tell: impl FnOnce(T) -> Told + 'f) -> Boxed<'f> {
    Box::pin(async move { future.await.map(tell) })
}

impl Source {
    pub fn get_later<'s>(&'s self, table: &'s Handle, key: &Key) -> Boxed<'s> {
        match &self.transaction {
            Some(transaction) => told(transaction.get_async(&table.bytes, key), Told::Value),
            None => told(table.bytes.get_async(key), Told::Value),
        }
    }

    pub fn change_later<'s>(&'s self, table: &'s Handle, key: &Key, kind: &Kind) -> Boxed<'s> {
        let bytes = &table.bytes;
        match (&self.transaction, kind) {
            (Some(transaction), Kind::Put(value)) => {
                told(transaction.put_async(bytes, key, &value[..]), Told::Put)
            }
            (Some(transaction), Kind::Insert(value)) => {
                told(transaction.insert_async(bytes, key, &value[..]), Told::Done)
            }
            (Some(transaction), Kind::Update(value)) => {
                told(transaction.update_async(bytes, key, &value[..]), Told::Done)
            }
            (Some(transaction), Kind::Remove) => told(transaction.remove_async(bytes, key), Told::Done),
            (Some(transaction), Kind::Reserve) => {
                told(transaction.get_for_update_async(bytes, key), Told::Value)
            }
            (None, Kind::Put(value)) => told(bytes.put_async(key, &value[..]), Told::Put),
            (None, Kind::Insert(value)) => told(bytes.insert_async(key, &value[..]), Told::Done),
            (None, Kind::Update(value)) => told(bytes.update_async(key, &value[..]), Told::Done),
            (None, Kind::Remove) => told(bytes.remove_async(key), Told::Done),
            (None, Kind::Reserve) => unreachable!("only transactions reserve"),
        }
    }
}

/// A future, which is over once it was answered or dropped.
pub struct Held<'f> {
    future: Option<Boxed<'f>>,
    unpark: Arc<Unpark>,
}

impl<'f> Held<'f> {
    pub fn new(future: Boxed<'f>) -> Self {
        Self { future: Some(future), unpark: Arc::new(Unpark(thread::current())) }
    }

    /// Polls it once, or until it is ready.
    pub fn go_on(&mut self, way: Next) -> Option<Result<Told>> {
        let waker = Waker::from(self.unpark.clone());
        let future = self.future.as_mut().unwrap();
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(told) => return Some(told),
                Poll::Pending if way == Next::Poll => return None,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Drops it, and waits until the database has forgotten it: nobody keeps its waker then.
    pub fn cancel(&mut self) {
        self.future = None;
        let begun = Instant::now();
        while Arc::strong_count(&self.unpark) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the future is still known");
            thread::yield_now();
        }
    }
}

impl super::model::Saved {
    fn see(&mut self, table: Id, key: &Key, value: Option<&Value>) {
        if let Some(entries) = self.view.tables.get_mut(&table) {
            let entries: &mut Entries = Rc::make_mut(entries);
            match value {
                Some(value) => _ = entries.insert(key.clone(), value.clone()),
                None => _ = entries.remove(key),
            }
        }
    }
}
