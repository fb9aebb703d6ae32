//! Syncs, and writes of the log, that fail while anything is open or under way. The database then takes no more changes, shows
//! what it did, and can be closed. Opened anew, it holds the commits up to one of them, and all that were said to be durable.

use super::{
    Run, Source,
    model::{Id, Key, Model, Number, Saved, Value},
    prefixes::Found,
    under_way::{Floats, Place, read_on},
};
use rand::RngExt;
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use vellum::{Database, Durability, Error, ErrorKind, Savepoint};
use vellum_vm::{Directory, Faults, FileOperation, SimulatedDisk};

/// No call takes longer, on a busy machine either.
pub const LONGEST: Duration = Duration::from_secs(20);

/// What fails, and what is known of it.
pub struct Poison {
    /// The device is full. Otherwise it fails.
    is_full: bool,
    /// A request was told that the log has ended.
    has_ended: Cell<bool>,
    /// A single operation or the commit of a transaction has failed, and may have been done.
    doubt: Option<Option<Number>>,
    /// So may these changes by single operations.
    records: Vec<(Id, Key, Option<Value>)>,
    /// Reads fail as well, so nothing is known of the last request.
    is_unknown: bool,
}

/// What there was before a request.
struct Before {
    model: Model,
    savepoints: Vec<Vec<(Savepoint, Saved)>>,
    commits: usize,
    had_ended: bool,
}

/// A disk as the end of a process or a crash leaves it.
struct Image {
    disk: SimulatedDisk,
    /// What certainly survives that, and the first commit that may be the last that has.
    least: Durability,
    first: usize,
}

impl Poison {
    /// Whether this is what the device may cause. Then it says why, and what to do.
    pub fn explains(&self, error: &Error) -> bool {
        let text = error.to_string();
        let reason = if self.is_full { "No space left" } else { "os error 5" };
        let advice: &[&str] = match error.kind() {
            ErrorKind::OutcomeUnknown if self.is_full => &["make room first, and open the database anew"],
            ErrorKind::OutcomeUnknown => &["open the database anew"],
            ErrorKind::OutOfSpace if self.is_full => &["Make room"],
            ErrorKind::Io if !self.is_full => &["open it again", "try again", "the next opening"],
            _ => return false,
        };
        assert!(text.contains(reason), "it does not say why: {error:?}, {text}");
        assert!(
            advice.iter().any(|what| text.contains(what)),
            "it does not say what to do: {error:?}, {text}"
        );
        if error.kind() == ErrorKind::OutcomeUnknown {
            self.has_ended.set(true);
        }
        true
    }
}

impl Run {
    pub fn draw_durability(&mut self) -> Durability {
        [Durability::Deferred, Durability::Deferred, Durability::Buffered, Durability::Synced]
            [self.random.random_range(0..4)]
    }

    /// Watches some steps, and lets the device fail while something is under way. Then opens the database anew.
    pub fn poison(&mut self) {
        if self.model.history.is_some() || self.database().log_state().is_none() {
            return;
        }
        self.tell("commits are watched".to_owned());
        self.database().sync().unwrap();
        self.model.watch_commits();
        for _ in 0..self.random.random_range(0..6) {
            self.step();
        }
        let floats_place = self.draw_floats();
        let places: Vec<Place> =
            (0..self.random.random_range(0..7)).filter_map(|_| Place::draw(self)).collect();
        let mut opened: Vec<_> = places.iter().map(|place| place.open(self)).collect();
        let mut floats = floats_place.as_ref().map(|place| Floats::begin(self, place));
        let past = self.model.past_count();
        self.begin_to_poison();
        for _ in 0..self.random.random_range(3..16) {
            if self.poison.as_ref().is_some_and(|poison| !poison.is_unknown) {
                self.request_while_poisoned();
            }
        }
        let moment = self.random.random_range(0..4);
        let mut image = (moment == 0).then(|| self.image());
        if !self.poison.as_ref().unwrap().is_unknown {
            opened.iter_mut().for_each(|opened| read_on(self, opened, past));
        }
        let mut floating = floats.as_mut().map(|floats| floats.end(self)).unwrap_or_default();
        if moment == 0 {
            floating.iter_mut().for_each(|change| change.promise = None);
        }
        let begun = Instant::now();
        drop(opened);
        drop(floats);
        drop(places);
        image = image.or_else(|| (moment == 1).then(|| self.image()));
        self.end_while_poisoned();
        image = image.or_else(|| (moment == 2).then(|| self.image()));
        let types = self.tables.iter().chain(self.dropped.iter().map(|(id, handle)| (id, handle)));
        let types = types.map(|(id, handle)| (*id, (handle.keys, handle.is_plain))).collect();
        let floating = floats_place.map(|place| (place.table, floating));
        self.tables.clear();
        self.dropped.clear();
        self.close_while_poisoned();
        assert!(begun.elapsed() < LONGEST, "everything was dropped and closed after {:?}", begun.elapsed());
        let image = image.unwrap_or_else(|| self.image());
        self.database = None;
        self.open_anew(image, floating, &types);
    }

    fn begin_to_poison(&mut self) {
        let (is_full, is_once) = (self.random.random_ratio(1, 3), self.random.random_ratio(1, 3));
        let (way, nth) = (self.random.random_range(0..8), self.random.random_range(1..8));
        self.tell(format!("syncs fail in way {way}, {nth}, full: {is_full}, once: {is_once}"));
        let delay_max = if self.is_slow { Duration::from_micros(20) } else { Duration::ZERO };
        self.disk.set_faults(Faults { full_syncs: is_full, delay_max, ..Faults::default() });
        let log = self.disk.names().unwrap().into_iter().filter(|name| name != "data");
        let log: Vec<_> = log.map(|name| self.disk.file(&name)).collect();
        let data = self.disk.file("data");
        match way {
            0 | 1 if is_once => self.disk.fail_nth_of(FileOperation::Sync, nth),
            0 | 1 => self.disk.fail_from_of(FileOperation::Sync, nth),
            2 if is_once => data.fail_nth_of(FileOperation::Sync, nth.div_ceil(3)),
            2 | 3 => data.fail_from_of(FileOperation::Sync, nth.div_ceil(3)),
            4 | 5 if is_once => log.iter().for_each(|file| file.fail_nth_of(FileOperation::Sync, nth)),
            4 | 5 => log.iter().for_each(|file| file.fail_from_of(FileOperation::Sync, nth)),
            _ if is_full => {
                let faults = Faults { reserved_bytes: Some(0), delay_max, ..Faults::default() };
                log.iter().for_each(|file| file.set_faults(faults.clone()));
            }
            _ if is_once => log.iter().for_each(|file| file.fail_nth_of(FileOperation::Write, nth)),
            _ => log.iter().for_each(|file| file.fail_from_of(FileOperation::Write, nth)),
        }
        self.is_failing = true;
        self.failures += 1;
        self.poison = Some(Poison {
            is_full,
            has_ended: Cell::new(false),
            doubt: None,
            records: Vec::new(),
            is_unknown: false,
        });
    }

    fn request_while_poisoned(&mut self) {
        let way = self.random.random_range(0..24);
        self.request(|run| match way {
            0..6 => run.change(),
            6 => run.multi_put(),
            7 => run.run_tasks_or_fail(),
            8 => run.remove_range(),
            9 | 10 => run.change_tables(),
            11 | 12 => run.maintain(),
            13 => run.save_or_go_back(),
            14..17 => run.end(),
            17 => run.begin(),
            18 | 19 => run.sync_or_fail(),
            _ => run.read_or_fail(),
        });
    }

    fn sync_or_fail(&mut self) {
        self.tell("sync".to_owned());
        match self.database().sync() {
            Ok(()) => self.model.note_sync(),
            Err(error) => assert!(self.is_failure(&error), "{error:?}"),
        }
    }

    /// Makes a request, and finds out whether it was done if it has failed.
    fn request(&mut self, act: impl FnOnce(&mut Self)) {
        let poison = self.poison.as_ref().unwrap();
        let before = Before {
            model: self.model.clone(),
            savepoints: self.begun.iter().map(|begun| begun.savepoints.clone()).collect(),
            commits: self.model.commit_count(),
            had_ended: poison.has_ended.get(),
        };
        let (begun, before_commits) = (Instant::now(), before.commits);
        act(self);
        assert!(begun.elapsed() < LONGEST, "it took {:?}", begun.elapsed());
        let poison = self.poison.as_mut().unwrap();
        let (doubt, records) = (poison.doubt.take(), std::mem::take(&mut poison.records));
        match doubt {
            Some(number) => self.settle_doubt(before, number),
            None => {
                let is_done = self.model.commit_count() > before.commits;
                assert!(!is_done || !before.had_ended, "the log has ended, and a change is acknowledged");
            }
        }
        for (table, key, value) in records {
            self.settle_record(table, key, value);
        }
        if self.model.commit_count() > before_commits + 1 {
            self.model.note_batch(before_commits);
        }
        self.forget_tables();
    }

    /// A request that has failed was done as a whole, or not at all.
    fn settle_doubt(&mut self, before: Before, number: Option<Number>) {
        self.model.promise_from(before.commits, Durability::Deferred);
        let found = match Found::read(self.database()) {
            Ok(found) => found,
            Err(error) => return self.know_nothing(&error),
        };
        let Some(objection) = found.objection(&self.model.view, &self.unsettled) else {
            return self.tell("it is done, for now".to_owned());
        };
        let other = found.objection(&before.model.view, &self.unsettled);
        assert!(other.is_none(), "it is neither done nor not done: {objection}; {}", other.unwrap());
        self.tell("it is not done".to_owned());
        self.model = before.model;
        for (begun, savepoints) in self.begun.iter_mut().zip(before.savepoints) {
            begun.savepoints = savepoints;
        }
        if let Some(number) = number {
            self.model.roll_back(number);
        }
        self.model.note_unclear();
    }

    fn settle_record(&mut self, table: Id, key: Key, value: Option<Value>) {
        let commits = self.model.commit_count();
        let handle = self.tables[&table].clone();
        let now = match handle.bytes.get(&key) {
            Ok(now) => now,
            Err(error) => {
                self.model.change(table, &[(key, value)]);
                self.model.promise_from(commits, Durability::Deferred);
                return self.know_nothing(&error);
            }
        };
        let is_done = now.as_ref() == value.as_deref();
        let old = self.entries(&Source { number: None, transaction: None }, table).get(&key).cloned();
        assert!(is_done || now.as_ref() == old.as_deref(), "it has another value");
        if is_done {
            self.model.change(table, &[(key, value)]);
            self.model.promise_from(commits, Durability::Deferred);
        }
    }

    fn know_nothing(&mut self, error: &Error) {
        assert!(self.is_failure(error), "{error:?}");
        self.tell(format!("it is not known whether it is done: {error}"));
        self.poison.as_mut().unwrap().is_unknown = true;
    }

    /// Whether a single operation that has failed counts as done until that is known.
    pub fn doubts(&mut self, error: &Error) -> bool {
        let Some(poison) = &mut self.poison else { return false };
        poison.doubt = Some(None);
        self.tell(format!("it has failed, and may be done: {error}"));
        true
    }

    /// The same for the commit of a transaction.
    pub fn is_commit_in_doubt(&mut self, number: Number, error: &Error) -> bool {
        if self.poison.is_none() || !self.is_failure(error) {
            return false;
        }
        self.tell(format!("the commit has failed, and may be done: {error}"));
        self.poison.as_mut().unwrap().doubt = Some(Some(number));
        self.model.commit(number);
        self.model.note_commit(Durability::Deferred);
        true
    }

    /// The same for one of several changes.
    pub fn doubt_record(&mut self, table: Id, key: Key, value: Option<Value>) {
        if let Some(poison) = &mut self.poison {
            poison.records.push((table, key, value));
        }
    }

    /// What is left of the disk if the process ends now, or the power fails.
    fn image(&mut self) -> Image {
        let is_kill = self.random.random_ratio(1, 2);
        self.tell(format!("the process ends, without a crash: {is_kill}"));
        let (disk, least) = match is_kill {
            true => (self.disk.kill(), Durability::Buffered),
            false => (self.disk.crash(), Durability::Synced),
        };
        Image { disk, least, first: self.model.last_promised(least) }
    }

    /// Ends the transactions in any way.
    fn end_while_poisoned(&mut self) {
        while !self.begun.is_empty() && !self.poison.as_ref().unwrap().is_unknown {
            self.request(Self::end);
        }
        for begun in std::mem::take(&mut self.begun) {
            self.model.roll_back(begun.number);
        }
    }

    fn close_while_poisoned(&mut self) {
        let (mut database, begun) = (self.database.take().unwrap(), Instant::now());
        let closed = loop {
            match database.close_in_place() {
                Err(Error::StillInUse { .. }) if self.has_cancelled && begun.elapsed() < LONGEST => {
                    std::thread::yield_now();
                }
                closed => break closed,
            }
        };
        match closed {
            Ok(()) => {
                self.tell("it is closed".to_owned());
                if !self.poison.as_ref().unwrap().is_unknown {
                    self.model.note_sync();
                }
            }
            Err(error) => {
                assert!(self.is_failure(&error), "{error:?}");
                self.tell(format!("it is not closed: {error}"));
            }
        }
        // The last image may be made before the last handle is dropped.
        self.database = Some(database);
    }

    fn open_anew(
        &mut self,
        image: Image,
        floating: Option<(Id, Vec<super::prefixes::Floating>)>,
        types: &BTreeMap<Id, (super::typed::Keys, bool)>,
    ) {
        (self.poison, self.is_failing) = (None, false);
        self.unsettled.clear();
        self.disk = image.disk;
        self.heal();
        let durability = self.draw_durability();
        self.options = self.options.clone().durability(durability);
        let database = self.opened(&self.disk);
        let found = Found::read(&database).unwrap();
        let lost = self.model.take_found(&found, image.first, floating.as_ref(), image.least);
        self.model.durability = durability;
        self.compare_types(&found, types);
        self.tell(format!("opened anew, {durability:?}, without the last {lost} commits"));
        // What was found stays, also if the power fails at once, or after what comes next.
        if self.random.random_ratio(1, 3) {
            self.compare_after_crash();
        }
        self.go_on_in(database);
        if self.random.random_ratio(1, 2) {
            (0..3).for_each(|_| self.change());
            self.database().sync().unwrap();
        }
        if self.random.random_ratio(1, 2) {
            self.compare_after_crash();
        }
    }

    fn compare_after_crash(&self) {
        let database = self.opened(&self.disk.crash());
        let objection = Found::read(&database).unwrap().objection(&self.model.view, &self.unsettled);
        assert!(objection.is_none(), "after a crash: {}", objection.unwrap());
    }

    fn opened(&self, disk: &SimulatedDisk) -> Database {
        let opened = Database::open_in(Arc::new(disk.clone()), "data", &self.options);
        opened.unwrap_or_else(|error| panic!("it does not open: {error:?}, {}", disk.history()))
    }
}
