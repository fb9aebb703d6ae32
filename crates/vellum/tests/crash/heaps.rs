//! Several threads that make, change, read and delete the objects of one heap, in a pool of few pages, on a disk that crashes, with
//! checkpoints and eviction in the background.
//!
//! Each client has items of its own, which it makes, changes and deletes by numbered changes, and a mark that says how far it is and
//! refers to them. In some changes it notes how far the others are. So after a crash it is known exactly what must be there: of each client
//! a first part of its changes, at least what was acknowledged, nothing in part; and if a change is there all that it has seen is there.
//!
//! Clients know of each other's items, and read them at any moment: an item is whole, is the one that was meant, is no older than what was
//! done before it was read and no newer than what was asked for since; and one that was deleted is gone.
//!
//! Money is moved between accounts, whose sum stays. From two accounts, the *sides*, it is taken from one as long as both together have
//! enough: two such changes that overlook each other take too much.
//!
//! How threads meet is not in the seed, but with `--cfg shuttle` (see `schedule`).

use crate::for_seeds;
use crate::heap_objects::{ACCOUNTS, All, CLIENTS, Item, Mark, audit, create, pay, sum};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use vellum::objects::{Heap, ObjectError, Ref};
use vellum::{Database, Durability, Error, Options, Result};
use vellum_base::primitive::{AtomicBool, thread};
use vellum_vm::SimulatedDisk;

const DURABILITY: [Durability; 3] = [Durability::Synced, Durability::Buffered, Durability::Deferred];

/// The items of a client in their order: the id, the change that has set it, and the length of each.
type State = Vec<(u64, u64, u64)>;

/// Whether an item was deleted.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Deletion {
    No,
    Asked,
    Done,
}

/// What all clients know of an item.
#[derive(Clone, Copy)]
struct Known {
    item: Ref<Item>,
    owner: usize,
    id: u64,
    /// The last change of it that is done, and the last one that was asked for.
    done: u64,
    asked: u64,
    deletion: Deletion,
}

/// What clients work on, and how. What they tell each other beside the database the scheduler does not know.
struct Work<'w> {
    database: &'w Database,
    heap: &'w Heap,
    all: &'w All,
    is_over: &'w AtomicBool,
    commits: usize,
    durability: Durability,
    pause: Duration,
    /// How far each client is: what is done is seen from now on, and nothing later than what was asked for.
    done: [AtomicU64; CLIENTS],
    asked: [AtomicU64; CLIENTS],
    known: Mutex<Vec<Known>>,
}

impl Work<'_> {
    fn with_known<R>(&self, item: Ref<Item>, work: impl FnOnce(&mut Known) -> R) -> Option<R> {
        let mut known = self.known.lock().unwrap();
        known.iter_mut().rev().find(|known| known.item == item).map(work)
    }

    fn some_known(&self, random: &mut StdRng) -> Option<Known> {
        let known = self.known.lock().unwrap();
        // Later ones more often.
        let count = known.len();
        let from = [0, count.saturating_sub(8)][random.random_range(0..2)];
        (count > 0).then(|| known[random.random_range(from..count)])
    }
}

/// A step of a numbered change.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add { id: u64, length: usize, near: usize },
    Set { index: usize, length: usize },
    Delete { index: usize },
}

/// What one client has done since its database was opened.
struct Client {
    number: usize,
    items: Vec<Ref<Item>>,
    /// The number of the last change at the beginning, and what its items were then and after each change, that which may have failed
    /// included.
    first: u64,
    states: Vec<State>,
    /// How many changes were acknowledged as synced, and as written.
    synced: usize,
    buffered: usize,
    next_id: u64,
    random: StdRng,
}

fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::Objects(ObjectError::ChangeTooLarge { .. }))
}

impl Client {
    fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            items: Vec::new(),
            first: 0,
            states: vec![State::new()],
            synced: 0,
            buffered: 0,
            next_id: 0,
            random: StdRng::seed_from_u64(seed ^ (number as u64) << 32),
        }
    }

    /// Works until something fails, or it is over, or so many changes are done.
    fn work(&mut self, work: &Work<'_>) -> Result<()> {
        let end = self.states.len() + work.commits;
        while !work.is_over.load(SeqCst) && self.states.len() < end {
            match self.random.random_range(0..21) {
                0..5 => self.change(work)?,
                5..12 => self.look(work)?,
                12 => self.transfer(work)?,
                13 => {
                    if let Err(wrong) = audit(work.heap, work.all)? {
                        panic!("client {} sees {wrong}", self.number);
                    }
                }
                14 => self.fetch(work)?,
                15..20 => self.take(work)?,
                _ if self.random.random_ratio(1, 4) => {
                    let before = self.states.len() - 1;
                    work.database.sync()?;
                    self.synced = before;
                    self.buffered = before;
                }
                _ => self.look_at_account(work)?,
            }
            if !work.pause.is_zero() {
                thread::sleep(work.pause.mul_f64(self.random.random()));
            }
        }
        Ok(())
    }

    fn length(&mut self) -> usize {
        match self.random.random_range(0..24) {
            0 => 9000,
            1..4 => self.random.random_range(1200..2600),
            _ => self.random.random_range(0..300),
        }
    }

    /// The steps of the next change, and what they leave.
    fn plan(&mut self, commit: u64) -> (Vec<Step>, State) {
        let mut state = self.states.last().cloned().unwrap_or_default();
        let mut steps = Vec::new();
        for _ in 0..self.random.random_range(0..3) {
            let length = self.length();
            let (many, count) = (state.len() > 30, state.len().max(1));
            let index = self.random.random_range(0..count);
            let step = match self.random.random_range(0..6) {
                0..3 if !many || state.is_empty() => {
                    self.next_id += 1;
                    Step::Add { id: self.next_id, length, near: index }
                }
                1..5 if !state.is_empty() => Step::Set { index, length },
                5 if !state.is_empty() => Step::Delete { index },
                _ => continue,
            };
            match step {
                Step::Add { id, length, .. } => state.push((id, commit, length as u64)),
                Step::Set { index, length } => state[index] = (state[index].0, commit, length as u64),
                Step::Delete { index } => drop(state.swap_remove(index)),
            }
            steps.push(step);
        }
        (steps, state)
    }

    /// One numbered change.
    fn change(&mut self, work: &Work<'_>) -> Result<()> {
        let commit = self.first + self.states.len() as u64;
        let (steps, state) = self.plan(commit);
        let (before, number, own) = (self.items.clone(), self.number, work.all.marks[self.number]);
        // Those that are there already are known to the others.
        let touched = |step: &Step| match step {
            Step::Set { index, .. } => before.get(*index).map(|item| (*item, false)),
            Step::Delete { index } => before.get(*index).map(|item| (*item, true)),
            Step::Add { .. } => None,
        };
        let notes = self.random.random_ratio(1, 3);
        // Which item an index means may have been changed by the steps before: so all are noted as perhaps touched.
        let all_touched: Vec<_> = match steps.iter().any(|step| matches!(step, Step::Delete { .. })) {
            true => before.iter().map(|item| (*item, true)).collect(),
            false => steps.iter().filter_map(touched).collect(),
        };
        let saved: Vec<_> = all_touched
            .iter()
            .filter_map(|(item, may_go)| {
                work.with_known(*item, |known| {
                    let saved = *known;
                    known.asked = commit;
                    known.deletion = if *may_go { Deletion::Asked } else { known.deletion };
                    saved
                })
            })
            .collect();
        let done_before: Vec<u64> = work.done.iter().map(|done| done.load(SeqCst)).collect();
        work.asked[number].store(commit, SeqCst);
        let changed = work.heap.change(|change| {
            let mut items = before.clone();
            let mut mark = change.get(own)?;
            assert_eq!(
                (mark.commit, &mark.items[..]),
                (commit - 1, &before[..]),
                "client {number}: its mark"
            );
            mark.commit = commit;
            if notes {
                for (seen, other) in mark.seen.iter_mut().zip(work.all.marks) {
                    *seen = change.get(other)?.commit;
                }
                mark.seen[number] = commit;
            }
            for step in &steps {
                match *step {
                    Step::Add { id, length, near } => {
                        let item = Item::new(number, id, commit, length);
                        let item = match items.get(near) {
                            Some(near) => change.allocate_near(*near, &item)?,
                            None => change.allocate(&item)?,
                        };
                        items.push(item);
                    }
                    Step::Set { index, length } => {
                        let id = change.get(items[index])?.id;
                        change.set(items[index], &Item::new(number, id, commit, length))?;
                    }
                    Step::Delete { index } => change.delete(items.swap_remove(index))?,
                }
            }
            mark.items = items.clone().into();
            change.set(own, &mark)?;
            Ok((items, mark.seen))
        });
        let (items, seen) = match changed {
            Err(error) if is_too_large(&error) => {
                for saved in saved {
                    work.with_known(saved.item, |known| *known = saved);
                }
                return Ok(());
            }
            other => {
                self.states.push(state);
                other?
            }
        };
        if notes {
            for (other, (seen, done)) in seen.iter().zip(done_before).enumerate() {
                let asked = work.asked[other].load(SeqCst);
                let is_between = (done..=asked).contains(seen);
                assert!(is_between, "client {number} sees change {seen} of {other}: {done}..={asked}");
            }
        }
        let now = &self.states[self.states.len() - 1];
        let mut known = work.known.lock().unwrap();
        for known in known.iter_mut().filter(|known| known.owner == number) {
            if known.deletion == Deletion::Asked {
                let is_gone = !items.contains(&known.item);
                known.deletion = if is_gone { Deletion::Done } else { Deletion::No };
            }
        }
        for (item, (id, set, _)) in items.iter().zip(now) {
            match known.iter_mut().find(|known| known.item == *item && known.deletion != Deletion::Done) {
                Some(known) => (known.done, known.asked) = (*set, *set),
                None => known.push(Known {
                    item: *item,
                    owner: number,
                    id: *id,
                    done: *set,
                    asked: *set,
                    deletion: Deletion::No,
                }),
            }
        }
        drop(known);
        self.items = items;
        work.done[number].store(commit, SeqCst);
        let count = self.states.len() - 1;
        if work.durability >= Durability::Buffered {
            self.buffered = count;
        }
        if work.durability == Durability::Synced {
            self.synced = count;
        }
        Ok(())
    }

    /// Reads an item of anyone, which may change or go meanwhile.
    fn look(&mut self, work: &Work<'_>) -> Result<()> {
        let Some(before) = work.some_known(&mut self.random) else { return Ok(()) };
        let found = match self.random.random_range(0..3) {
            0 => work.heap.change(|change| change.get(before.item)),
            1 => work.heap.get(before.item),
            // Some fields, of which the others are made.
            _ => {
                let fields = (Item::COMMIT, Item::TWINS, Item::OWNER, Item::ID);
                work.heap.fields(before.item, fields).map(|(commit, twins, owner, id)| Item {
                    twins,
                    owner,
                    id,
                    ..Item::new(before.owner, before.id, commit, 0)
                })
            }
        };
        let after = work.with_known(before.item, |known| *known).unwrap_or(before);
        let number = self.number;
        match found {
            Ok(item) => {
                assert!(
                    before.deletion != Deletion::Done,
                    "client {number} sees {item:.80?}, deleted before"
                );
                assert!(item.is_whole(), "client {number} sees in part {item:.300?}");
                let is_meant = (item.owner, item.id) == (before.owner as u64, before.id);
                assert!(is_meant, "client {number} sees {item:.80?} for {} of {}", before.id, before.owner);
                let may = before.done..=after.asked;
                assert!(may.contains(&item.commit), "client {number} sees {}, not in {may:?}", item.commit);
            }
            Err(Error::Objects(ObjectError::Dangling { .. })) => {
                let (id, owner) = (before.id, before.owner);
                assert!(after.deletion != Deletion::No, "client {number} misses item {id} of {owner}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn look_at_account(&mut self, work: &Work<'_>) -> Result<()> {
        let account = work.heap.get(work.all.accounts[self.random.random_range(0..ACCOUNTS)])?;
        assert_eq!(account.twins, [account.changes; 5], "client {} sees in part", self.number);
        Ok(())
    }

    fn transfer(&mut self, work: &Work<'_>) -> Result<()> {
        let (from, to) = (self.random.random_range(0..ACCOUNTS), self.random.random_range(0..ACCOUNTS));
        let amount = self.random.random_range(1..50);
        work.heap.change(|change| {
            pay(change, work.all.accounts[from], -amount)?;
            pay(change, work.all.accounts[to], amount)
        })
    }

    /// Takes money from a side if both together have enough, or gives it back.
    fn take(&mut self, work: &Work<'_>) -> Result<()> {
        let (own, side) = (work.all.marks[self.number], work.all.sides[self.random.random_range(0..2)]);
        let amount = self.random.random_range(-30..40i64);
        work.heap.change(|change| {
            let mut mark = change.get(own)?;
            let enough = if amount < 0 { mark.purse } else { sum(change, &work.all.sides)? };
            if enough >= amount.abs() {
                pay(change, side, -amount)?;
                mark.purse += amount;
                change.set(own, &mark)?;
            }
            Ok(())
        })
    }

    /// Brings items into memory side by side.
    fn fetch(&mut self, work: &Work<'_>) -> Result<()> {
        let chosen: Vec<_> = (0..6).filter_map(|_| work.some_known(&mut self.random)).collect();
        work.heap.fetch_all(chosen.iter().map(|known| known.item))?;
        self.look(work)
    }

    /// Whether its items are what some number of its changes have left, at least so many; it goes on with that.
    fn check(&mut self, heap: &Heap, mark: &Mark, least: usize) -> std::result::Result<(), String> {
        let number = self.number;
        let there = mark.commit.checked_sub(self.first).map(|there| there as usize);
        let there = there.filter(|there| (least..self.states.len()).contains(there));
        let there = there.ok_or_else(|| {
            let (first, last) = (self.first, self.first + self.states.len() as u64 - 1);
            format!("client {number}: change {} is there, of {first} + {least} to {last}", mark.commit)
        })?;
        let mut found = State::new();
        for item in &mark.items {
            let item = heap.get(*item).map_err(|error| format!("client {number}: {error}"))?;
            if !item.is_whole() || item.owner != number as u64 {
                return Err(format!("client {number}: an item is {item:.300?}"));
            }
            found.push(item.state());
        }
        if found != self.states[there] {
            let (found, expected) = (found.iter(), self.states[there].iter());
            let wrong = found.zip(expected).find(|(found, expected)| found != expected);
            return Err(format!("client {number}: change {} has left {wrong:?}", mark.commit));
        }
        self.items = mark.items.to_vec();
        (self.first, self.states) = (mark.commit, vec![self.states.swap_remove(there)]);
        (self.synced, self.buffered) = (0, 0);
        Ok(())
    }
}

/// Whether a database that was opened again holds what its clients were told; they begin with that.
fn check(
    database: &Database,
    clients: &mut [Client],
    is_killed: bool,
) -> std::result::Result<(Heap, All), String> {
    let said = |error: Error| error.to_string();
    let heap = database.heap("heap").map_err(said)?;
    let all = heap.root::<All>().map_err(said)?.ok_or("there is no root")?;
    let all = heap.get(all).map_err(said)?;
    let marks = all.marks.iter().map(|mark| heap.get(*mark)).collect::<Result<Vec<_>>>().map_err(said)?;
    for (client, mark) in clients.iter_mut().zip(&marks) {
        let least = if is_killed { client.buffered } else { client.synced };
        client.check(&heap, mark, least)?;
        if mark.seen.iter().zip(&marks).any(|(seen, mark)| *seen > mark.commit) {
            return Err(format!("client {} has seen {:?}, of which some is lost", client.number, mark.seen));
        }
    }
    audit(&heap, &all).map_err(said)??;
    let report = database.verify(|_| {});
    match report.problems.first() {
        Some(problem) => Err(format!("{} problems: {problem}", report.problems.len())),
        None => Ok((heap, all)),
    }
}

fn options(random: &mut StdRng) -> Options {
    Options::default()
        .pool_bytes([128 << 10, 256 << 10, 1 << 20][random.random_range(0..3)])
        .capacity_bytes(256 << 20)
        .log_segment_bytes(256 << 10)
        .log_buffer_bytes(4 << 20)
        .checkpoint_log_bytes(random.random_range(10_000..200_000))
        .checkpoint_interval(Duration::from_millis(random.random_range(0..5)))
        .huge_pages(false)
}

/// Lets all clients work, for a while or until they are done.
fn live(
    (database, heap, all): (&Database, &Heap, &All),
    clients: &mut [Client],
    (is_last, durability): (bool, Durability),
    random: &mut StdRng,
) -> Vec<Result<()>> {
    let is_over = AtomicBool::new(false);
    let numbers = || std::array::from_fn(|client| clients[client].first.into());
    let known = clients.iter().flat_map(|client| {
        client.items.iter().zip(&client.states[0]).map(|(item, (id, commit, _))| Known {
            item: *item,
            owner: client.number,
            id: *id,
            done: *commit,
            asked: *commit,
            deletion: Deletion::No,
        })
    });
    let work = Work {
        database,
        heap,
        all,
        is_over: &is_over,
        commits: if is_last { 20 } else { usize::MAX / 2 },
        durability,
        pause: Duration::from_micros([0, 0, 20, 200][random.random_range(0..4)]),
        done: numbers(),
        asked: numbers(),
        known: Mutex::new(known.collect()),
    };
    let pause = Duration::from_millis(random.random_range(1..40));
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || client.work(work))).collect();
        if !is_last {
            thread::sleep(pause);
            is_over.store(true, SeqCst);
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn run(seed: u64) -> std::result::Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let durability = DURABILITY[random.random_range(0..3)];
    let options = options(&mut random).durability(durability);
    let mut disk = SimulatedDisk::new(seed);
    let mut clients: Vec<_> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let database = create(&disk, &options).map_err(|error| error.to_string())?;
    let (mut database, mut is_killed) = (Some(database), false);
    for life in 0..4 {
        let told = |error: Error| format!("life {life}: {error}");
        let open = || Database::open_in(Arc::new(disk.clone()), "data", &options);
        let opened = database.take().map_or_else(open, Ok).map_err(told)?;
        let (heap, all) =
            check(&opened, &mut clients, is_killed).map_err(|why| format!("life {life}: {why}"))?;
        // In the last one nothing fails, and everything has to end.
        let is_last = life == 3;
        let fails = !is_last && random.random_ratio(1, 2);
        if fails {
            disk.fail_from(random.random_range(1..1500));
        }
        let outcomes = live((&opened, &heap, &all), &mut clients, (is_last, durability), &mut random);
        if !fails {
            outcomes.into_iter().collect::<Result<()>>().map_err(told)?;
        }
        is_killed = random.random();
        let survivor = if is_killed { disk.kill() } else { disk.crash() };
        disk.fail_from(1);
        drop((heap, opened));
        disk = survivor;
    }
    let opened = Database::open_in(Arc::new(disk.clone()), "data", &options);
    let opened = opened.map_err(|error| error.to_string())?;
    drop(check(&opened, &mut clients, is_killed)?);
    opened.close().map_err(|error| error.to_string())
}

#[test]
fn heaps() {
    for_seeds(60, run);
}
