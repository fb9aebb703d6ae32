//! Tables, the lives of transactions and of the database.

use super::{
    Begun, Handle, Run, Source, TRANSACTIONS_MAX,
    model::{CATALOG, Clash, Entries, Id, Touch},
    typed::{Keys, Tuple},
};
use rand::RngExt;
use std::{
    collections::BTreeSet,
    ops::Bound,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use vellum::{
    Database, Error, ErrorKind, IsolationLevel, Table, TableName, TableOptions, Transaction,
    TransactionOptions,
};
use vellum_vm::SimulatedDisk;

impl Run {
    /// A table to begin with.
    pub fn create_first(&mut self, number: u32) {
        let is_plain = number == 2;
        let keys = if number == 1 { Keys::Numbers } else { Keys::ALL[self.random.random_range(0..4)] };
        let transaction = self.database().begin().unwrap();
        let handle = create(&transaction, &format!("table {number}"), is_plain, keys).unwrap();
        transaction.commit().unwrap();
        let id = self.new_id(handle);
        self.model.view.names.insert(format!("table {number}"), id);
        let entries = self.draw_entries(id);
        let loaded = self.tables[&id].bytes.bulk_load(entries.iter().map(|(key, value)| (key, &value[..])));
        assert_eq!(loaded.unwrap(), entries.len() as u64);
        self.model.view.tables.insert(id, Rc::new(entries));
    }

    fn new_id(&mut self, handle: Handle) -> Id {
        let id = Id(self.next_id);
        self.next_id += 1;
        self.feeds.types.insert(id, (handle.keys, handle.is_plain));
        self.tables.insert(id, handle);
        id
    }

    /// Entries for a load.
    fn draw_entries(&mut self, table: Id) -> Entries {
        let (count, mut entries) = (self.random.random_range(0..250), Entries::new());
        for _ in 0..count {
            let number = self.random.random_range(0..200);
            let value = self.draw_value();
            entries.insert(self.key(table, number), value);
        }
        entries
    }

    pub fn begin(&mut self) {
        if self.begun.len() >= TRANSACTIONS_MAX {
            return;
        }
        let is_serializable = self.random.random_ratio(1, 3);
        let isolation = if is_serializable { IsolationLevel::Serializable } else { IsolationLevel::Snapshot };
        let durability = self.draw_durability();
        let options = TransactionOptions::default().isolation(isolation).durability(durability);
        let transaction = Rc::new(self.database().begin_with(options).unwrap());
        let number = self.next_number;
        self.next_number += 1;
        self.tell(format!("T{number} begins, {isolation:?}, {durability:?}"));
        self.model.begin(number, is_serializable);
        self.begun.push(Begun { number, transaction, durability, savepoints: Vec::new() });
    }

    /// Ends a transaction that nothing reads.
    pub fn end(&mut self) {
        let free = |begun: &Begun| Rc::strong_count(&begun.transaction) == 1;
        let all: Vec<usize> = (0..self.begun.len()).filter(|place| free(&self.begun[*place])).collect();
        let Some(place) = all.get(self.random.random_range(0..all.len().max(1))) else { return };
        let begun = self.begun.swap_remove(*place);
        self.end_one(begun);
    }

    /// Rolls back what can only be rolled back.
    pub fn end_dead(&mut self) {
        let model = &self.model;
        let is_dead =
            |begun: &Begun| model.open[&begun.number].is_dead && Rc::strong_count(&begun.transaction) == 1;
        if let Some(place) = self.begun.iter().position(is_dead) {
            let begun = self.begun.swap_remove(place);
            self.end_one(begun);
        }
    }

    fn end_one(&mut self, begun: Begun) {
        let (number, durability) = (begun.number, begun.durability);
        let Ok(transaction) = Rc::try_unwrap(begun.transaction) else { unreachable!("it is used") };
        let clash = self.model.clash_of_commit(number);
        match self.random.random_range(0..8) {
            0 => {
                if let Err(error) = transaction.rollback() {
                    // It is tried again when that is in somebody's way.
                    assert!(self.is_failure(&error), "{error:?}");
                    self.tell(format!("it has failed: {error}"));
                }
            }
            1 => drop(transaction),
            way => {
                self.tell(format!("T{number} is committed: {clash:?}"));
                let committed = if way == 2 {
                    transaction.commit_async().and_then(|arrival| match arrival {
                        Some(arrival) => Ok(crate::asynchronous::block_on(arrival)?),
                        None => Ok(()),
                    })
                } else {
                    transaction.commit()
                };
                match committed {
                    Ok(()) => {
                        assert_ne!(clash, Clash::Certain, "T{number} should have failed");
                        self.model.commit(number);
                        self.model.note_commit(durability);
                        self.forget_tables();
                        return;
                    }
                    Err(error) if self.is_commit_in_doubt(number, &error) => return,
                    Err(error) => {
                        let is_conflict = error.kind() == ErrorKind::Conflict;
                        assert!(is_conflict && clash != Clash::None, "T{number}: {error:?}");
                    }
                }
            }
        }
        if self.is_failing {
            self.model.note_not_undone();
        }
        self.tell(format!("T{number} is rolled back"));
        self.model.roll_back(number);
        self.forget_tables();
    }

    /// Gives up handles on tables that nobody sees, or may see again.
    pub fn forget_tables(&mut self) {
        let model = &self.model;
        let seen: BTreeSet<Id> = model
            .open
            .values()
            .map(|open| &open.view)
            .chain([&model.view])
            .chain(self.begun.iter().flat_map(|begun| &begun.savepoints).map(|(_, saved)| &saved.view))
            .flat_map(|view| view.tables.keys().copied())
            .collect();
        let forgotten = self.tables.extract_if(.., |table, _| !seen.contains(table)).collect();
        self.keep_dropped(forgotten);
    }

    pub fn end_all(&mut self) {
        while let Some(begun) = self.begun.pop() {
            self.end_one(begun);
        }
    }

    pub fn save_or_go_back(&mut self) {
        let model = &self.model;
        let alive = |begun: &Begun| !model.open[&begun.number].is_dead;
        let all: Vec<usize> = (0..self.begun.len()).filter(|place| alive(&self.begun[*place])).collect();
        let Some(place) = all.get(self.random.random_range(0..all.len().max(1))) else { return };
        let number = self.begun[*place].number;
        let count = self.begun[*place].savepoints.len();
        if count == 0 || self.random.random_ratio(1, 2) {
            self.tell(format!("T{number} has savepoint {count}"));
            let begun = &mut self.begun[*place];
            begun.savepoints.push((begun.transaction.savepoint(), self.model.save(number)));
            return;
        }
        let back = self.random.random_range(0..count);
        self.tell(format!("T{number} goes back to savepoint {back}"));
        let begun = &mut self.begun[*place];
        begun.savepoints.truncate(back + 1);
        let (savepoint, saved) = begun.savepoints[back].clone();
        let back = begun.transaction.rollback_to(savepoint);
        if let Err(error) = back {
            assert!(self.is_failure(&error), "{error:?}");
            self.tell(format!("it has failed: {error}"));
            self.model.open.get_mut(&number).unwrap().is_dead = true;
            return;
        }
        self.model.go_back(number, saved);
        self.forget_tables();
    }

    /// A change of tables by a transaction, or a load.
    pub fn change_tables(&mut self) {
        let source = self.draw_source();
        if self.random.random_ratio(1, 2) {
            return self.load(&source);
        }
        let Some(number) = source.number else { return };
        let mut names: Vec<(String, Id)> =
            self.model.open[&number].view.names.iter().map(|(name, id)| (name.clone(), *id)).collect();
        let count = names.len();
        names.retain(|(_, table)| !self.unsettled.contains(table));
        if names.is_empty() || count < 2 || count < 5 && self.random.random_ratio(1, 6) {
            let name = format!("table {}", self.random.random_range(0..6));
            return self.create(&source, name);
        }
        let (name, table) = names[self.random.random_range(0..names.len())].clone();
        match self.random.random_range(0..6) {
            0 => self.drop_table(&source, &name, table),
            1 | 2 => self.rename(&source, &name, table),
            _ => self.clear(&source, &name, table),
        }
    }

    fn clash_of_name(&mut self, source: &Source, name: &str) -> Clash {
        self.note_name(source, name, false);
        self.model.clash(source.number, CATALOG, name.as_bytes(), Touch::Change)
    }

    fn note_name(&mut self, source: &Source, name: &str, is_certain: bool) {
        let key = || Bound::Included(name.as_bytes().to_vec());
        self.model.note_read(source.number, CATALOG, (key(), key()), is_certain);
    }

    fn create(&mut self, source: &Source, name: String) {
        let (transaction, number) = (source.transaction.as_ref().unwrap(), source.number.unwrap());
        let (is_plain, keys) = (self.random.random_ratio(1, 6), Keys::ALL[self.random.random_range(0..4)]);
        if self.model.open[&number].view.names.contains_key(&name) {
            self.note_name(source, &name, true);
            let done = create(transaction, &name, is_plain, keys).map(drop);
            self.expect_exists(done);
            return;
        }
        let clash = self.clash_of_name(source, &name);
        if !self.dares(source, clash) {
            return;
        }
        self.tell(format!("T{number} creates {name}, plain {is_plain}, {:?}: {clash:?}", Id(self.next_id)));
        let done = create(transaction, &name, is_plain, keys);
        let mut made = None;
        if self.settle(source, clash, done.map(|handle| made = Some(handle)), ()) {
            let id = self.new_id(made.unwrap());
            self.model.name(number, &name, Some(id));
            self.model.replace(number, id, Entries::new());
            self.model.open.get_mut(&number).unwrap().created.insert(id);
        }
    }

    fn drop_table(&mut self, source: &Source, name: &str, table: Id) {
        let (transaction, number) = (source.transaction.as_ref().unwrap(), source.number.unwrap());
        let clash = self.clash_of_name(source, name).max(self.model.clash_of_table(number, table));
        if !self.dares(source, clash) {
            return;
        }
        self.tell(format!("T{number} drops {name}, {table:?}: {clash:?}"));
        let done = transaction.drop_table(name);
        if self.settle(source, clash, done, ()) {
            self.model.name(number, name, None);
            self.model.drop_table(number, table);
            // Handles on the old table do not show the new one.
            if self.random.random_ratio(1, 3) {
                self.create(source, name.to_owned());
            }
        }
    }

    /// There is one, as the answer says, unless the device has failed.
    #[track_caller]
    fn expect_exists<T: std::fmt::Debug>(&self, done: vellum::Result<T>) {
        let error = done.unwrap_err();
        assert!(error.kind() == ErrorKind::AlreadyExists || self.is_failure(&error), "{error:?}");
    }

    fn rename(&mut self, source: &Source, name: &str, table: Id) {
        let (transaction, number) = (source.transaction.as_ref().unwrap(), source.number.unwrap());
        let new = format!("table {}", self.random.random_range(0..6));
        if self.model.open[&number].view.names.contains_key(&new) {
            self.note_name(source, name, true);
            self.note_name(source, &new, true);
            let done = transaction.rename_table(name, &new);
            self.expect_exists(done);
            return;
        }
        let clash = self.clash_of_name(source, name).max(self.clash_of_name(source, &new));
        if !self.dares(source, clash) {
            return;
        }
        self.tell(format!("T{number} renames {name} to {new}, {table:?}: {clash:?}"));
        let done = transaction.rename_table(name, &new);
        if self.settle(source, clash, done, ()) {
            self.model.name(number, name, None);
            self.model.name(number, &new, Some(table));
        }
    }

    fn clear(&mut self, source: &Source, name: &str, table: Id) {
        let (transaction, number) = (source.transaction.as_ref().unwrap(), source.number.unwrap());
        let clash = self.clash_of_name(source, name).max(self.model.clash_of_table(number, table));
        if !self.dares(source, clash) {
            return;
        }
        self.tell(format!("T{number} clears {name}, {table:?}: {clash:?}"));
        let done = transaction.clear_table(name);
        if self.settle(source, clash, done, ()) {
            self.model.touch(number, CATALOG, name.as_bytes(), Touch::Change, None);
            self.model.replace(number, table, Entries::new());
        }
    }

    /// A load of a table that is empty, or that is not.
    fn load(&mut self, source: &Source) {
        let Some(number) = source.number else { return self.load_outside() };
        let transaction = source.transaction.as_ref().unwrap();
        let open = &self.model.open[&number];
        let may = |id: &Id| {
            !self.unsettled.contains(id) && (!self.tables[id].is_plain || open.created.contains(id))
        };
        let seen = open.view.names.iter().filter(|(_, id)| may(id));
        let seen: Vec<(String, Id)> = seen.map(|(name, id)| (name.clone(), *id)).collect();
        let empty: Vec<_> = seen.iter().filter(|(_, id)| open.view.tables[id].is_empty()).collect();
        let from =
            if empty.is_empty() || self.random.random_ratio(1, 8) { seen.iter().collect() } else { empty };
        let Some((name, table)) = from.get(self.random.random_range(0..from.len().max(1))).copied() else {
            return;
        };
        let (handle, entries) = (self.tables[table].clone(), self.draw_entries(*table));
        let all = (Bound::Unbounded, Bound::Unbounded);
        let pairs = || entries.iter().map(|(key, value)| (key, &value[..]));
        if !self.model.open[&number].view.tables[table].is_empty() {
            let done = transaction.bulk_load(&handle.bytes, pairs());
            self.expect_exists(done);
            self.model.note_read(source.number, *table, all, false);
            return;
        }
        // Whether others have stored something, and not removed it.
        let is_filled = self.model.is_filled_for(number, *table);
        let filled = if is_filled { Clash::Certain } else { Clash::None };
        let clash =
            self.clash_of_name(source, name).max(self.model.clash_of_table(number, *table)).max(filled);
        if !self.dares(source, clash) {
            return;
        }
        self.tell(format!("T{number} loads {} into {name}, {table:?}: {clash:?}", entries.len()));
        if !handle.is_plain {
            self.model.note_read(source.number, *table, all.clone(), true);
        }
        self.model.note_read(source.number, CATALOG, all, false);
        let done = transaction.bulk_load(&handle.bytes, pairs());
        if self.settle(source, clash, done, entries.len() as u64) {
            self.model.touch(number, CATALOG, name.as_bytes(), Touch::Change, None);
            self.model.replace(number, *table, entries);
        }
    }

    fn load_outside(&mut self) {
        let view = &self.model.view;
        let may = |id: &Id| view.tables[id].is_empty() && !self.unsettled.contains(id);
        let empty: Vec<Id> = view.tables.keys().copied().filter(may).collect();
        let Some(table) = empty.get(self.random.random_range(0..empty.len().max(1))).copied() else { return };
        let (handle, entries) = (self.tables[&table].clone(), self.draw_entries(table));
        let clash = if handle.is_plain {
            if self.model.is_owned(None, table) { Clash::Certain } else { Clash::None }
        } else {
            self.model.clash_of_load(table)
        };
        let source = Source { number: None, transaction: None };
        if !self.dares(&source, clash) {
            return;
        }
        self.tell(format!("{} are loaded into {table:?}: {clash:?}", entries.len()));
        let done = handle.bytes.bulk_load(entries.iter().map(|(key, value)| (key, &value[..])));
        if clash == Clash::Certain
            && done.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
        {
            // What a transaction has stored is in the tree.
            return;
        }
        if self.settle(&source, clash, done, entries.len() as u64) {
            let all = self.model.load(table, &entries);
            let begun = self.begun.iter_mut().filter(|begun| all.contains(&begun.number));
            for (_, saved) in begun.flat_map(|begun| &mut begun.savepoints) {
                saved.view.tables.insert(table, Rc::new(entries.clone()));
            }
        }
    }

    /// Many changes, whose versions need room.
    pub fn churn(&mut self) {
        let source = Source { number: None, transaction: None };
        let is_used = |table: &Id| !self.unsettled.contains(table);
        let tables: Vec<Id> = self.model.view.tables.keys().copied().filter(is_used).collect();
        let Some(table) = tables.get(self.random.random_range(0..tables.len().max(1))).copied() else {
            return;
        };
        self.tell(format!("many changes of {table:?}"));
        let handle = self.tables[&table].clone();
        for _ in 0..self.random.random_range(20..150) {
            let entries = self.entries(&source, table);
            let key = self.draw_key(table, &entries);
            if self.model.clash(None, table, &key, Touch::Change) != Clash::None {
                continue;
            }
            let length = self.random.random_range(0..400);
            let value = self.value_of(length);
            if self.random.random_ratio(1, 6) {
                let is_there = handle.bytes.remove(&key).unwrap();
                assert_eq!(is_there, entries.contains_key(&key));
                if is_there {
                    self.model.change(table, &[(key, None)]);
                }
            } else {
                _ = handle.bytes.put(&key, &value[..]).unwrap();
                self.model.change(table, &[(key, Some(value))]);
            }
        }
    }

    /// Checkpoints and compaction.
    pub fn maintain(&mut self) {
        // A feed that lacks contents tells large values that a compaction has moved like changes.
        let may_compact = self.has_poison || self.feeds.archive.is_some();
        if self.random.random_ratio(1, 2) || !may_compact {
            self.tell("checkpoint".to_owned());
            let has_log = self.database().log_state().is_some();
            let done = self.database().checkpoint();
            let is_failure = done.as_ref().is_err_and(|error| self.is_failure(error));
            let is_right = if has_log { done.is_ok() } else { matches!(done, Err(Error::WithoutLog)) };
            assert!(is_right || is_failure, "{done:?}");
        } else {
            self.tell("compaction".to_owned());
            let done = self.database().compact(|_| true);
            assert!(done.as_ref().is_ok_and(|_| true) || done.is_err_and(|error| self.is_failure(&error)));
            self.model.compact();
            self.compactions += 1;
        }
    }

    /// Closes the database. It may still be in use for futures that were dropped.
    fn close(&mut self) {
        let (mut database, begun) = (self.database.take().unwrap(), Instant::now());
        loop {
            match database.close_in_place() {
                Err(Error::StillInUse { .. })
                    if self.has_cancelled && begun.elapsed() < Duration::from_secs(20) =>
                {
                    std::thread::yield_now();
                }
                closed => return closed.unwrap(),
            }
        }
    }

    /// Closes the database and opens it again, or recovers it.
    pub fn reopen(&mut self) {
        if self.random.random_ratio(2, 3) || self.model.history.is_some() {
            return;
        }
        let crashes = self.random.random_ratio(1, 2) && self.database().log_state().is_some();
        self.tell(format!("opened again, after a crash: {crashes}"));
        let crashed = crashes.then(|| {
            self.database().sync().unwrap();
            self.feeds.archive = self.feeds.archive.as_ref().map(SimulatedDisk::crash);
            self.disk.crash()
        });
        if crashed.is_some() {
            for begun in std::mem::take(&mut self.begun) {
                self.model.roll_back(begun.number);
            }
        } else {
            self.end_all();
        }
        self.tables.clear();
        self.dropped.clear();
        self.end_feeds(crashes);
        self.close();
        self.model.note_undone();
        self.disk = crashed.unwrap_or_else(|| self.disk.clone());
        self.heal();
        self.options = self.feeds.with_archive(self.options.clone());
        let database = Database::open_in(Arc::new(self.disk.clone()), "data", &self.options).unwrap();
        self.go_on_in(database);
    }

    /// Goes on in a database that was opened anew.
    pub fn go_on_in(&mut self, database: Database) {
        for info in database.tables().unwrap() {
            let (name, table) = (info.name.as_str(), self.model.view.names[&info.name]);
            let keys = Keys::ALL.into_iter().find(|keys| keys.name() == info.key_type).unwrap();
            let handle = Handle::new(database.table_as_bytes(name).unwrap(), keys, info.is_plain);
            let handle = match keys {
                Keys::Bytes => handle,
                Keys::Numbers => {
                    Handle { numbers: Some(database.table(TableName::new(name)).unwrap()), ..handle }
                }
                Keys::Texts => {
                    Handle { texts: Some(database.table(TableName::new(name)).unwrap()), ..handle }
                }
                Keys::Tuples => {
                    Handle { tuples: Some(database.table(TableName::new(name)).unwrap()), ..handle }
                }
            };
            self.tables.insert(table, handle);
        }
        self.database = Some(database);
        self.compare_all();
    }
}

impl Handle {
    fn new(bytes: Table, keys: Keys, is_plain: bool) -> Self {
        Self { bytes, keys, numbers: None, texts: None, tuples: None, is_plain }
    }
}

fn create(transaction: &Transaction, name: &str, is_plain: bool, keys: Keys) -> vellum::Result<Handle> {
    let options = TableOptions::default().versions(!is_plain);
    Ok(match keys {
        Keys::Bytes => Handle::new(transaction.create_table_with(name, options)?, keys, is_plain),
        Keys::Numbers => {
            let numbers = transaction.create_table_with(TableName::<u64, [u8]>::new(name), options)?;
            Handle { numbers: Some(numbers.clone()), ..Handle::new(numbers.as_bytes(), keys, is_plain) }
        }
        Keys::Texts => {
            let texts = transaction.create_table_with(TableName::<String, [u8]>::new(name), options)?;
            Handle { texts: Some(texts.clone()), ..Handle::new(texts.as_bytes(), keys, is_plain) }
        }
        Keys::Tuples => {
            let tuples = transaction.create_table_with(TableName::<Tuple, [u8]>::new(name), options)?;
            Handle { tuples: Some(tuples.clone()), ..Handle::new(tuples.as_bytes(), keys, is_plain) }
        }
    })
}
