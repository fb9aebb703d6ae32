//! Feeds of changes: what they tell is compared with what the model has committed, commit by commit.

use super::{
    Run,
    commits::{Follow, Replica, Told, Traits},
    model::{Id, Key, Value, short},
    typed::Keys,
};
use rand::{RngExt, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use vellum::{
    Change, ChangedValue, Changes, ChangesFrom, ChangesOptions, ChangesPosition, Commit, Contents, Error,
    ErrorKind, Event, LoadedRecords, Lsn, Options, Result,
};
use vellum_vm::{FileOperation, SimulatedDisk};

const FEEDS_MAX: usize = 3;
const POSITIONS_MAX: usize = 12;
/// Longer than anything takes that ends.
const LONG: Duration = Duration::from_secs(20);

/// The feeds of a run, and what they have told.
#[derive(Default)]
pub struct Feeds {
    pub archive: Option<SimulatedDisk>,
    is_whole: bool,
    open: Vec<Feed>,
    pub positions: Vec<Position>,
    /// Large values that are read again.
    kept: Vec<KeptValue>,
    /// The types of the keys of all tables, and whether they keep no versions.
    pub types: BTreeMap<Id, (Keys, bool)>,
}

struct Feed {
    changes: Changes,
    follow: Follow,
    /// What was committed later comes after its beginning.
    started: u64,
    /// No log is discarded that it has not read.
    keeps_all: bool,
    last: Lsn,
}

/// A place in the log that a feed has told, and what there was.
#[derive(Clone)]
pub struct Position {
    pub place: ChangesPosition,
    /// The commit before it, if it was told with one.
    pub commit: Option<Lsn>,
    pub follow: Follow,
    /// What was committed later comes after it.
    time: u64,
}

struct KeptValue {
    told: ChangedValue,
    value: Value,
    may_be_gone: bool,
}

/// What is to be checked when it is known which commit was told.
#[derive(Default)]
struct Pending {
    /// The log has the contents of large values and loads, as far as the feed was there in time.
    has_log: bool,
    gone: Vec<(Arc<str>, Key)>,
    has_created: bool,
    /// Tables were created, dropped or renamed.
    has_tables: bool,
    /// Where small values were stored that there were.
    unchanged: BTreeSet<(String, Key)>,
    kept: Vec<(ChangedValue, Value)>,
    /// How many changes have left a large value as it was.
    same: usize,
}

impl Feeds {
    /// Whether the log is archived, and whether it holds whole values.
    pub fn draw(random: &mut StdRng, options: Options, may_archive: bool) -> (Options, Self) {
        let has_archive = random.random_ratio(1, 2) && may_archive;
        let archive = has_archive.then(|| SimulatedDisk::new(random.random()));
        let (is_whole, segment) = (random.random_ratio(1, 3), [64 << 10, 1 << 20][random.random_range(0..2)]);
        let feeds = Self { archive, is_whole, ..Self::default() };
        let options = options.log_whole_values(is_whole).log_segment_bytes(segment);
        (feeds.with_archive(options), feeds)
    }

    pub fn with_archive(&self, options: Options) -> Options {
        match &self.archive {
            Some(archive) => options.log_archive_in(Arc::new(archive.clone())),
            None => options,
        }
    }
}

impl Run {
    /// Something with feeds. It is unknown where the changes of futures are that are under way.
    pub fn feed(&mut self) {
        if !self.unsettled.is_empty() {
            return;
        }
        if self.database().log_state().is_none() {
            let refused = self.database().changes(ChangesFrom::Now);
            assert!(matches!(refused, Err(Error::WithoutLog)), "{refused:?}");
            return;
        }
        if self.feeds.open.is_empty() || self.feeds.open.len() < FEEDS_MAX && self.random.random_ratio(1, 5) {
            self.open_feed();
        }
        if self.feeds.open.is_empty() {
            return;
        }
        let place = self.random.random_range(0..self.feeds.open.len());
        // The feed is not one of the open ones meanwhile.
        let mut feed = self.feeds.open.swap_remove(place);
        let goes_on = match self.random.random_range(0..10) {
            0..7 => {
                let count = self.random.random_range(1..40);
                self.read_feed(&mut feed, count)
            }
            7 => self.read_feed_or_fail(&mut feed),
            8 => self.read_to_end(&mut feed),
            _ => {
                self.tell("a feed ends".to_owned());
                false
            }
        };
        if goes_on {
            self.feeds.open.push(feed);
        } else {
            self.keep_position((feed.changes.position(), None), feed.follow, None);
        }
        self.read_kept();
    }

    fn open_feed(&mut self) {
        let commits = &self.model.commits;
        let count = self.feeds.positions.len();
        let chosen = match self.random.random_range(0..6) {
            0 => Some((ChangesFrom::Lsn(Lsn(0)), Lsn(0), Follow::default(), 0)),
            1..4 if count > 0 => {
                let position = self.feeds.positions[self.random.random_range(0..count)].clone();
                Some((position.place.into(), position.place.lsn(), position.follow, position.time))
            }
            _ => None,
        };
        let from = chosen.as_ref().map_or(ChangesFrom::Now, |chosen| chosen.0);
        let (place, now) = (chosen.as_ref().map(|chosen| chosen.1), self.model.now());
        let (follow, started) = match chosen {
            Some((_, _, follow, time)) => (follow, time),
            None => (Follow::now(commits, &self.model.view), now),
        };
        let keeps_all = self.random.random_ratio(7, 8);
        let options = ChangesOptions::default();
        let options = if keeps_all { options } else { options.keep_bytes(100 << 10) };
        self.tell(format!("a feed from {place:?} on, keeps all {keeps_all}, told were {}", follow.next()));
        match self.database().changes_with(from, options) {
            Ok(changes) => {
                let last = changes.position().lsn();
                assert!(place.is_none_or(|place| place <= last), "{place:?}, {last:?}");
                self.feeds.open.push(Feed { changes, follow, started, keeps_all, last });
            }
            Err(Error::ChangesDiscarded { from, oldest }) => {
                self.tell(format!("discarded, the oldest is {oldest:?}"));
                assert_eq!(Some(from), place);
                let keeps = |feed: &Feed| feed.keeps_all && feed.changes.position().lsn() <= from;
                assert!(self.feeds.archive.is_none(), "{from:?} is in the archive");
                assert!(!self.feeds.open.iter().any(keeps), "{from:?} is kept for another feed");
                self.feeds.positions.retain(|position| position.place.lsn() != from);
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Reads some commits. Whether the feed goes on.
    fn read_feed(&mut self, feed: &mut Feed, count: usize) -> bool {
        let waits = !self.is_failing && self.random.random_ratio(1, 3);
        self.tell(format!("reads {count} commits of a feed, waits {waits}"));
        for _ in 0..count {
            let is_due = waits && !feed.follow.is_at_end(&self.model.commits);
            let next = if is_due { feed.changes.next_within(LONG) } else { feed.changes.next() };
            match next {
                Ok(Some(commit)) => self.take_commit(feed, commit),
                Ok(None) => {
                    assert!(!is_due, "commit {} is missing", feed.follow.next());
                    return true;
                }
                Err(error) => return self.expect_feed_error(feed, &error),
            }
        }
        true
    }

    fn expect_feed_error(&mut self, feed: &Feed, error: &Error) -> bool {
        self.tell(format!("the feed has failed: {error}"));
        if matches!(error, Error::ChangesDiscarded { .. }) {
            assert!(self.feeds.archive.is_none() && !feed.keeps_all, "{error:?}");
            return false;
        }
        assert!(self.is_failure(error), "{error:?}");
        true
    }

    /// A feed that has failed goes on where it was.
    fn read_feed_or_fail(&mut self, feed: &mut Feed) -> bool {
        self.begin_to_fail();
        if let Some(archive) = &self.feeds.archive {
            archive.fail_nth_of(FileOperation::Read, self.random.random_range(1..6));
        }
        let goes_on = self.read_feed(feed, 10);
        self.heal();
        if let Some(archive) = &self.feeds.archive {
            archive.heal();
        }
        goes_on && self.read_feed(feed, 10)
    }

    /// Everything that was committed is told when it is durable.
    fn read_to_end(&mut self, feed: &mut Feed) -> bool {
        self.tell("reads a feed to its end".to_owned());
        self.database().sync().unwrap();
        loop {
            match feed.changes.next() {
                Ok(Some(commit)) => self.take_commit(feed, commit),
                Ok(None) => break,
                Err(error) => return self.expect_feed_error(feed, &error),
            }
        }
        assert!(feed.follow.is_at_end(&self.model.commits), "commit {} is missing", feed.follow.next());
        feed.follow.compare(&self.model.view);
        feed.follow.skip_rest(&self.model.commits);
        self.keep_position((feed.changes.position(), None), feed.follow.clone(), None);
        true
    }

    /// All feeds end, as the database is closed, or has crashed.
    pub fn end_feeds(&mut self, crashed: bool) {
        for mut feed in std::mem::take(&mut self.feeds.open) {
            if !crashed && self.random.random_ratio(1, 2) {
                self.read_to_end(&mut feed);
            }
            self.keep_position((feed.changes.position(), None), feed.follow, None);
        }
        self.feeds.kept.clear();
    }

    /// What all open feeds have not told yet.
    pub fn read_all_feeds(&mut self) {
        for mut feed in std::mem::take(&mut self.feeds.open) {
            self.read_to_end(&mut feed);
        }
        self.feeds.kept.clear();
    }

    fn keep_position(
        &mut self,
        (place, commit): (ChangesPosition, Option<Lsn>),
        follow: Follow,
        time: Option<u64>,
    ) {
        let time = time.unwrap_or(self.model.now());
        if self.feeds.positions.len() >= POSITIONS_MAX {
            let surplus = self.random.random_range(0..POSITIONS_MAX);
            self.feeds.positions.swap_remove(surplus);
        }
        self.feeds.positions.push(Position { place, commit, follow, time });
    }

    fn take_commit(&mut self, feed: &mut Feed, commit: Commit) {
        let Commit { lsn, position, number, .. } = commit;
        assert!(feed.last <= lsn && lsn < position.lsn(), "{lsn:?}, {position:?} after {:?}", feed.last);
        assert_eq!(feed.changes.position(), position);
        assert!(!commit.changes.is_empty());
        feed.last = position.lsn();
        let candidates = feed.follow.candidates(&self.model.commits);
        let has_log = self.feeds.is_whole && feed.keeps_all || self.feeds.archive.is_some();
        let mut pending = Pending { has_log, ..Pending::default() };
        for change in &commit.changes {
            self.apply_told(&mut feed.follow.tables, change, &mut pending);
        }
        let traits = Traits {
            is_numbered: number.is_some(),
            is_same: pending.same == commit.changes.len(),
            unchanged: &pending.unchanged,
            has_tables: pending.has_tables,
        };
        let settled = feed.follow.settle(&self.model.commits, &candidates, traits);
        if settled.is_err() && pending.unchanged.len() == commit.changes.len() {
            // What has no effect need not be known to the model.
            return;
        }
        let place = settled.unwrap_or_else(|objections| {
            panic!("{lsn:?}, of number {number:?}, is no commit: {:?}{objections}", commit.changes)
        });
        let is_before = Follow::begun(&self.model.commits, place) <= feed.started;
        self.check_pending(feed, pending, (place, is_before));
        self.show_missing(feed);
        if self.random.random_ratio(1, 8) {
            self.keep_position((position, Some(lsn)), feed.follow.clone(), None);
        }
    }

    fn check_pending(&mut self, feed: &Feed, pending: Pending, (place, is_before): (usize, bool)) {
        for (name, key) in pending.gone {
            let told =
                feed.follow.tables.get(&*name).map(|replica| (replica.is_ahead, replica.entries.get(&key)));
            // It may have been told again by the same commit.
            let (Some((false, Some(Told::Gone(_)))), Some(table)) = (told, feed.follow.table_named(&name))
            else {
                continue;
            };
            assert!(!pending.has_log || is_before, "{} in {name} is gone, and the log had it", short(&key));
            let is_changed = self.model.commits.is_changed_since((table, &key), place + 1);
            assert!(is_changed, "{} in {name} is gone, and was not changed", short(&key));
        }
        for (name, replica) in feed.follow.tables.iter().filter(|_| pending.has_created) {
            let (keys, is_plain) = self.feeds.types[&feed.follow.table_named(name).unwrap()];
            let told = replica.types.as_ref().map(|(keys, is_plain)| (&keys[..], *is_plain));
            assert!(told.is_none_or(|told| told == (keys.name(), is_plain)), "{name}: {told:?}");
        }
        for (told, value) in pending.kept {
            let may_be_gone = self.feeds.archive.is_none() || is_before;
            if self.feeds.kept.len() < 6 {
                self.feeds.kept.push(KeptValue { told, value, may_be_gone });
            }
        }
    }

    /// Stores what tables hold now whose loads were not told.
    fn show_missing(&mut self, feed: &mut Feed) {
        let missing: Vec<String> = feed
            .follow
            .tables
            .iter()
            .filter(|(_, replica)| replica.is_missing)
            .map(|(name, _)| name.clone())
            .collect();
        for name in missing {
            let table = feed.follow.table_named(&name).unwrap();
            let entries = self.model.view.tables.get(&table).cloned().unwrap_or_default();
            let replica = Rc::make_mut(feed.follow.tables.get_mut(&name).unwrap());
            let told = entries.iter().map(|(key, value)| (key.clone(), Told::Value(value.clone())));
            (replica.entries, replica.is_missing) = (told.collect(), false);
        }
    }

    fn apply_told(
        &mut self,
        tables: &mut BTreeMap<String, Rc<Replica>>,
        change: &Change,
        pending: &mut Pending,
    ) {
        let name = &change.table;
        pending.has_tables |=
            matches!(change.event, Event::Created { .. } | Event::Dropped | Event::Renamed { .. });
        match &change.event {
            Event::Created { key_type, is_plain, .. } => {
                let types = Some((key_type.clone(), *is_plain));
                let created = Rc::new(Replica { types, is_new: true, ..Replica::default() });
                assert!(tables.insert(name.to_string(), created).is_none(), "{name} is created again");
                pending.has_created = true;
                return;
            }
            Event::Dropped => {
                assert!(tables.remove(&**name).is_some(), "{name} is dropped, and was not there");
                return;
            }
            Event::Renamed { to } => {
                let Some(table) = tables.remove(&**name) else {
                    panic!("{name} is renamed, and was not there")
                };
                assert!(tables.insert(to.to_string(), table).is_none(), "{name} is renamed to {to}");
                return;
            }
            _ => {}
        }
        let Some(replica) = tables.get_mut(&**name) else { panic!("{name} is not there: {change:?}") };
        let replica = Rc::make_mut(replica);
        let is_ahead = replica.is_ahead;
        let (key, was_there) = match &change.event {
            Event::Inserted { key, value } => {
                let told = self.read_told(name, key, value, pending);
                (key, replica.entries.insert(key.clone(), told).is_none())
            }
            Event::Replaced { key, value } => {
                let told = self.read_told(name, key, value, pending);
                let is_same = replica.entries.get(key).is_some_and(|before| before.may_be(&told));
                // In a table that is ahead it may be another one by now.
                pending.same += usize::from(value.inline().is_none() && (is_ahead || is_same));
                let was_there = replica.entries.insert(key.clone(), told).is_some();
                if is_same && was_there && !is_ahead && value.inline().is_some() {
                    // It may have stored what there was.
                    pending.unchanged.insert((name.to_string(), key.clone()));
                    return;
                }
                (key, was_there)
            }
            Event::Removed { key } => (key, replica.entries.remove(key).is_some()),
            Event::Patched { key, offset, bytes } => {
                assert!(!self.feeds.is_whole, "only a part is told of {}", short(key));
                let told = replica.entries.get_mut(key);
                (key, told.is_some_and(|told| told.patch(*offset, bytes) || is_ahead))
            }
            Event::Loaded { records } => {
                assert!(is_ahead || replica.entries.is_empty(), "a load of {name}, which is not empty");
                self.read_loaded(name, replica, records, pending);
                return;
            }
            other => panic!("{other:?}"),
        };
        assert!(was_there || is_ahead, "{name} {}: {change:?}", short(key));
        let is_whole = !matches!(change.event, Event::Patched { .. });
        *replica.touched.entry(key.clone()).or_insert(true) &= is_whole;
    }

    fn read_loaded(
        &mut self,
        name: &Arc<str>,
        replica: &mut Replica,
        records: &LoadedRecords,
        pending: &mut Pending,
    ) {
        let is_told = self.again(|run| {
            let (mut entries, mut last) = (BTreeMap::new(), None);
            let is_told = records.for_each(|key, value| {
                assert!(last.as_ref() < Some(&key), "{} is not in order", short(&key));
                let told = match value.read()? {
                    Contents::Value(value) => Told::Value(Rc::new(value)),
                    Contents::Gone => {
                        pending.gone.push((name.clone(), key.clone()));
                        Told::Gone(value.length())
                    }
                };
                last = Some(key.clone());
                entries.insert(key, told);
                Ok(true)
            })?;
            if is_told {
                replica.entries = entries;
            }
            run.tell(format!("a load of {name} is told: {is_told}"));
            Ok(is_told)
        });
        if !is_told {
            assert!(!pending.has_log, "a load of {name} is missing");
            (replica.is_ahead, replica.is_missing) = (true, true);
        }
        replica.has_load = true;
    }

    fn read_told(&mut self, name: &Arc<str>, key: &Key, told: &ChangedValue, pending: &mut Pending) -> Told {
        let contents = self.again(|_| told.read());
        assert!(told.inline().is_none_or(|inline| inline.len() <= 1024));
        match contents {
            Contents::Value(value) => {
                assert_eq!(value.len() as u64, told.length());
                let value = Rc::new(value);
                if told.inline().is_none() {
                    pending.kept.push((told.clone(), value.clone()));
                }
                Told::Value(value)
            }
            Contents::Gone => {
                pending.gone.push((name.clone(), key.clone()));
                Told::Gone(told.length())
            }
        }
    }

    /// Reads something again when the device has failed.
    fn again<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> T {
        match read(self) {
            Ok(done) => done,
            Err(error) => {
                assert!(self.is_failure(&error), "{error:?}");
                self.heal();
                if let Some(archive) = &self.feeds.archive {
                    archive.heal();
                }
                read(self).unwrap()
            }
        }
    }

    /// A value that was told is still what it was, or gone.
    fn read_kept(&mut self) {
        let mut kept = std::mem::take(&mut self.feeds.kept);
        for KeptValue { told, value, may_be_gone } in &kept {
            match told.read() {
                Ok(Contents::Value(told)) => {
                    assert!(told == **value, "{} became {}", short(value), short(&told))
                }
                Ok(Contents::Gone) => assert!(may_be_gone, "{} is gone", short(value)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error:?}"),
            }
        }
        kept.retain(|_| self.random.random_ratio(3, 4));
        self.feeds.kept = kept;
    }
}
