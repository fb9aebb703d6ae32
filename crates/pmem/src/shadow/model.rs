//! What a store must hold after a crash, and running histories against it.

use super::{CrashStates, Shadow, Switch};
use crate::{
    Client, Layout, Options, PmemError, Put, ReclaimOptions, Recovery, Store, Variable,
    blocks::State,
    format::fixed::Fixed,
    medium::{Lane, Medium},
    space::Purpose,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The outcome of a history: the violation, the ledger, and the steps that were taken.
pub type Outcome = (Option<String>, Ledger, BTreeSet<Switch>);

/// Layouts whose keys and values tests make from any bytes.
pub trait Testable: Layout {
    fn key(bytes: &[u8]) -> &Self::Key;
    fn value(bytes: &[u8]) -> &Self::Value;
    /// Some value.
    fn any_value() -> Vec<u8>;
}

impl<const K: usize, const V: usize> Testable for Fixed<K, V> {
    fn key(bytes: &[u8]) -> &[u8; K] {
        bytes.try_into().unwrap()
    }

    fn value(bytes: &[u8]) -> &[u8; V] {
        bytes.try_into().unwrap()
    }

    fn any_value() -> Vec<u8> {
        vec![0xa5; V]
    }
}

impl Testable for Variable {
    fn key(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn value(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn any_value() -> Vec<u8> {
        vec![0xa5; 40]
    }
}

/// The acknowledged contents, and the operations under way.
#[derive(Clone, Default, Debug)]
pub struct Expected {
    pub acknowledged: Entries,
    pub under_way: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Expected {
    /// Checks whether a store may have these contents.
    pub fn check(&self, found: &Entries) -> Result<(), String> {
        let under_way = self.under_way.iter().map(|(key, _)| key);
        let keys: BTreeSet<&Vec<u8>> =
            self.acknowledged.keys().chain(found.keys()).chain(under_way).collect();
        for key in keys {
            let value = found.get(key);
            let was = self.acknowledged.get(key);
            let may = self.under_way.iter().any(|(other, new)| other == key && new.as_ref() == value);
            if value != was && !may {
                let shown = |value: Option<&Vec<u8>>| {
                    value.map(|v| (v.len(), v.iter().take(8).copied().collect::<Vec<_>>()))
                };
                return Err(format!(
                    "key {key:x?} has {:?}, acknowledged was {:?}",
                    shown(value),
                    shown(was)
                ));
            }
        }
        Ok(())
    }
}

/// How a history is run and its states are checked.
#[derive(Clone)]
pub struct Setting {
    pub pages_per_block: u32,
    pub checksums: bool,
    /// The most bytes the store may have.
    pub bytes: u64,
    /// How many states are checked for each fence.
    pub states: u64,
    /// How many levels of crashes during recovery are also checked.
    pub depth: u32,
    pub omitted: Option<Switch>,
    /// Of how many bytes the size after a cut is a multiple.
    pub cut_step: u64,
    pub seed: u64,
    /// The contents of the medium before the store is created: words, and the entries of the store that they represent.
    pub before: Option<Arc<(Vec<u64>, Entries)>>,
    /// How many states are checked for each fence after the process was killed; zero for a check at the end only.
    pub states_killed: u64,
    /// What is done after the process was killed; if this is empty, one put.
    pub after_kill: Arc<[Op]>,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            pages_per_block: 2,
            checksums: true,
            bytes: 256 << 10,
            states: 64,
            depth: 0,
            omitted: None,
            cut_step: 1,
            seed: 1,
            before: None,
            states_killed: 4,
            after_kill: [].into(),
        }
    }
}

impl Setting {
    pub fn options(&self) -> Options {
        Options {
            pages_per_block: self.pages_per_block,
            checksums: self.checksums,
            recovery_threads: std::num::NonZeroUsize::new(1),
            reclaim: ReclaimOptions { background: false, ..ReclaimOptions::default() },
            ..Options::default()
        }
    }

    pub fn open<L: Layout>(&self, shadow: Shadow) -> Result<Store<L, Shadow>, PmemError> {
        Store::open_on(shadow, Path::new("shadow"), &self.options(), (4, 2), &|_, _| {})
    }
}

/// The state of the checks while a history runs.
#[derive(Default)]
pub struct Ledger {
    pub expected: Expected,
    /// Whether the store was made.
    pub created: bool,
    /// The first thing that was wrong.
    pub violation: Option<String>,
    /// States that were checked.
    pub states: u64,
    /// Moments of which all states were checked, and other moments, since the store was created.
    pub moments: (u64, u64),
    fences: u64,
}

/// An operation of a client. The first number is the client.
#[derive(Clone, Debug)]
pub enum Op {
    Put(usize, Vec<u8>, Vec<u8>),
    Update(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    PutBatch(usize, Vec<(Vec<u8>, Vec<u8>)>),
    DeleteBatch(usize, Vec<Vec<u8>>),
    Reclaim,
    /// Takes a block, as by a client that then sleeps for ever.
    Stall,
    /// Ends a client and creates another.
    Renew(usize),
}

/// Runs histories.
pub struct Runner<L: Testable> {
    pub store: Store<L, Shadow>,
    clients: BTreeMap<usize, Client<L, Shadow>>,
    pub ledger: Arc<Mutex<Ledger>>,
    setting: Setting,
}

pub fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap()
}

impl<L: Testable> Runner<L> {
    /// Creates a store whose crash states are checked from the first fence on.
    pub fn new(setting: &Setting) -> Self {
        let ledger = Arc::<Mutex<Ledger>>::default();
        let (own, how) = (ledger.clone(), setting.clone());
        let observer = Box::new(move |states: &CrashStates| look::<L>(states, &how, &own));
        let image = setting.before.as_ref().map(|before| before.0.clone()).unwrap_or_default();
        let shadow = Shadow::with(image, setting.bytes).cut_at(setting.cut_step);
        let shadow = shadow.omit(setting.omitted).observe(observer);
        let store = Store::create_on(shadow, &setting.options(), 4, 2).unwrap();
        lock(&ledger).created = true;
        Self::resume(store, ledger, setting)
    }

    /// Goes on with a store that is there.
    pub fn resume(store: Store<L, Shadow>, ledger: Arc<Mutex<Ledger>>, setting: &Setting) -> Self {
        Self { store, clients: BTreeMap::new(), ledger, setting: setting.clone() }
    }

    fn client(&mut self, number: usize) -> &mut Client<L, Shadow> {
        let store = &self.store;
        self.clients.entry(number).or_insert_with(|| store.client().unwrap())
    }

    fn begin(&self, changes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        lock(&self.ledger).expected.under_way = changes;
    }

    fn acknowledge(&self) {
        let mut ledger = lock(&self.ledger);
        for (key, value) in std::mem::take(&mut ledger.expected.under_way) {
            match value {
                Some(value) => ledger.expected.acknowledged.insert(key, value),
                None => ledger.expected.acknowledged.remove(&key),
            };
        }
    }

    pub fn run(&mut self, op: &Op) {
        self.try_run(op).unwrap();
    }

    fn try_run(&mut self, op: &Op) -> Result<(), PmemError> {
        let had = |key: &[u8]| lock(&self.ledger).expected.acknowledged.contains_key(key);
        match op {
            Op::Put(client, key, value) => {
                let expected = if had(key) { Put::Replaced } else { Put::Inserted };
                self.begin(vec![(key.clone(), Some(value.clone()))]);
                assert_eq!(self.client(*client).put(L::key(key), L::value(value))?, expected);
            }
            Op::Update(client, key, value) => {
                assert!(had(key), "a history updates what is there");
                self.begin(vec![(key.clone(), Some(value.clone()))]);
                let new = value.clone();
                assert!(self.client(*client).update(L::key(key), |old| *old = new.clone())?);
            }
            Op::Delete(client, key) => {
                let expected = had(key);
                self.begin(vec![(key.clone(), None)]);
                assert_eq!(self.client(*client).delete(L::key(key))?, expected);
            }
            Op::PutBatch(client, entries) => {
                self.begin(entries.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect());
                let entries: Vec<_> =
                    entries.iter().map(|(key, value)| (L::key(key), L::value(value))).collect();
                self.client(*client).put_batch(entries)?;
            }
            Op::DeleteBatch(client, keys) => {
                self.begin(keys.iter().map(|key| (key.clone(), None)).collect());
                self.client(*client).delete_batch(keys.iter().map(|key| L::key(key)))?;
            }
            Op::Reclaim => {
                self.store.reclaim()?;
            }
            Op::Stall => {
                let core = self.store.core();
                let mut lane = Lane { number: u64::MAX, ..Lane::default() };
                let (block, _) = core.space.take_run(&core.medium, &mut lane, 1, Purpose::Write)?;
                core.space.block(block).open(u16::MAX);
            }
            Op::Renew(client) => {
                self.clients.remove(client);
            }
        }
        self.acknowledge();
        Ok(())
    }

    /// Runs a history to its end or the first violation; returns the violation, if any.
    pub fn run_all(mut self, history: &[Op]) -> Outcome {
        for (number, op) in history.iter().enumerate() {
            self.run(op);
            let violation = lock(&self.ledger).violation.clone();
            if let Some(violation) = violation {
                let what = format!("{op:?}");
                return self
                    .end(Some(format!("{violation} (step {number}: {})", &what[..what.len().min(80)])));
            }
        }
        // The states after the last operation.
        look::<L>(&self.store.core().medium.crash_states(), &self.setting, &self.ledger);
        assert_eq!(contents(&self.store), lock(&self.ledger).expected.acknowledged);
        // Without clients nothing is being written.
        self.clients.clear();
        if let Err(problem) = audit(&self.store) {
            return self.end(Some(problem));
        }
        let problem = check_settled::<L>(&self.store.core().medium.crash_states(), &self.setting).err();
        self.end(problem)
    }

    fn end(&self, problem: Option<String>) -> Outcome {
        let ledger = std::mem::take(&mut *lock(&self.ledger));
        let problem = problem.or(ledger.violation.clone());
        (problem, ledger, self.store.core().medium.seen())
    }
}

/// Checks the states of one moment.
pub fn look<L: Testable>(states: &CrashStates, setting: &Setting, ledger: &Mutex<Ledger>) {
    let (expected, created, fence) = {
        let mut ledger = lock(ledger);
        if ledger.violation.is_some() {
            return;
        }
        ledger.fences += 1;
        (ledger.expected.clone(), ledger.created, ledger.fences)
    };
    let (mut count, mut violation) = (0, None);
    // Of the many states in which the store does not exist yet, a few suffice.
    let most = if created { setting.states } else { setting.states.min(100) };
    let all = states.for_each(most, setting.seed ^ fence << 20, |shadow| {
        if violation.is_none() {
            count += 1;
            violation = check_state::<L>(shadow, setting, &expected, created).err();
        }
    });
    if violation.is_none() {
        violation = check_killed::<L>(states, setting, &expected, created).err();
    }
    let mut ledger = lock(ledger);
    ledger.states += count;
    if all {
        ledger.moments.0 += 1;
    } else if created {
        ledger.moments.1 += 1;
    }
    ledger.violation = violation.map(|problem| format!("at fence {fence}: {problem}"));
}

/// Checks that in a store without open clients all records are marked as ones that must be right, so that damage to
/// them is noticed.
fn check_settled<L: Testable>(states: &CrashStates, setting: &Setting) -> Result<(), String> {
    let mut outcome = Ok(());
    states.for_each(setting.states.min(16), setting.seed, |shadow| {
        let opened = setting.open::<L>(shadow).map_err(|error| format!("it cannot be opened: {error}"));
        let unsettled = opened.map(|store| store.recovery().unsettled);
        match unsettled {
            Ok(0) => {}
            Ok(count) => outcome = Err(format!("{count} records need not be right")),
            Err(problem) => outcome = Err(problem),
        }
    });
    outcome
}

/// Opens what a crash left and checks that it is right, and stays right afterwards.
fn check_state<L: Testable>(
    shadow: Shadow,
    setting: &Setting,
    expected: &Expected,
    created: bool,
) -> Result<(), String> {
    let inner = Arc::<Mutex<Ledger>>::default();
    let shadow = shadow.omit(setting.omitted);
    let shadow = if setting.depth > 0 {
        *lock(&inner) = Ledger { expected: expected.clone(), created, ..Ledger::default() };
        let how = Setting { depth: setting.depth - 1, states_killed: 0, ..setting.clone() };
        let own = inner.clone();
        shadow.observe(Box::new(move |states: &CrashStates| look::<L>(states, &how, &own)))
    } else {
        shadow
    };
    let image: Vec<u64> = (0..shadow.capacity_words()).map(|word| shadow.word(word)).collect();
    let Some((store, found)) = open_state::<L>(shadow, setting, expected, created)? else { return Ok(()) };
    let options = Options { read_only: true, ..setting.options() };
    let only_read =
        Store::open_on(Shadow::with(image, setting.bytes), Path::new("shadow"), &options, (4, 2), &|_, _| {});
    if only_read.map(|store| contents::<L>(&store)).ok().as_ref() != Some(&found) {
        return Err("a store that is only read holds something else".into());
    }
    if let Some(violation) = lock(&inner).violation.take() {
        return Err(format!("after a crash in recovery: {violation}"));
    }
    if !created && !found.is_empty() {
        return Ok(());
    }
    audit(&store)?;
    let Recovery { superseded, remains, unsettled, .. } = *store.recovery();
    if unsettled > 0 {
        check_settled::<L>(&store.core().medium.crash_states(), setting)
            .map_err(|problem| format!("after recovery: {problem}"))?;
    }
    if superseded + remains == 0 {
        let value = &L::any_value();
        // The store is usable: pages that are written to are not locked for ever.
        let mut client = store.client().map_err(|error| error.to_string())?;
        let put = client.put(L::key(b"whatever"), L::value(value)).map_err(|error| error.to_string());
        if put.is_ok() && client.get(L::key(b"whatever")).ok().flatten().as_ref() != Some(value) {
            return Err("what was put is not there".into());
        }
    }
    if superseded + remains > 0 {
        // What recovery has settled stays settled, and a deleted record does not come back.
        let how = Setting { states: setting.states.min(16), depth: 0, ..setting.clone() };
        let settled = Expected { acknowledged: found.clone(), under_way: vec![] };
        check_all(&store, &how, &settled).map_err(|problem| format!("a second recovery: {problem}"))?;
        // Not the first client: its fences would stand in for those of recovery, which has the same lane.
        let first = store.client().map_err(|error| error.to_string())?;
        let mut client = store.client().map_err(|error| error.to_string())?;
        for key in found.keys() {
            client.delete(L::key(key)).map_err(|error| error.to_string())?;
        }
        check_all(&store, &how, &Expected::default())
            .map_err(|problem| format!("after deletes: {problem}"))?;
        drop((client, first));
        store.reclaim().map_err(|error| error.to_string())?;
        let counts = store.core().space.counts();
        if counts.free + counts.partial != counts.blocks {
            return Err(format!("blocks are lost: {counts:?}"));
        }
    }
    Ok(())
}

/// A store, and what it holds.
type Opened<L> = (Store<L, Shadow>, Entries);

/// Opens what is left and checks its contents. While a store is being created, there may be none, or it may still be
/// the unchanged previous one.
fn open_state<L: Testable>(
    shadow: Shadow,
    setting: &Setting,
    expected: &Expected,
    created: bool,
) -> Result<Option<Opened<L>>, String> {
    let store = match setting.open::<L>(shadow) {
        Ok(store) => store,
        Err(PmemError::NotAStore { .. } | PmemError::Damaged(crate::Damage::Superblocks)) if !created => {
            return Ok(None);
        }
        Err(error) => return Err(format!("it cannot be opened: {error}")),
    };
    let found = contents(&store);
    if created || setting.before.as_ref().is_none_or(|before| before.1 != found) {
        expected.check(&found)?;
    }
    Ok(Some((store, found)))
}

/// Opens what a process leaves when it ends while the machine goes on: what is found there, and what is stored then,
/// must outlast a crash of the machine, at the end and at each fence before.
pub fn check_killed<L: Testable>(
    states: &CrashStates,
    setting: &Setting,
    expected: &Expected,
    created: bool,
) -> Result<(), String> {
    let ledger = Arc::<Mutex<Ledger>>::default();
    *lock(&ledger) = Ledger { expected: expected.clone(), created, ..Ledger::default() };
    let mut shadow = states.killed().cut_at(setting.cut_step).omit(setting.omitted);
    if setting.states_killed > 0 {
        let (own, how) = (ledger.clone(), Setting { states: setting.states_killed, ..setting.clone() });
        shadow = shadow.observe(Box::new(move |states: &CrashStates| {
            let mut ledger = lock(&own);
            if ledger.violation.is_none() {
                let outcome = check_states::<L>(states, &how, &ledger.expected, ledger.created);
                ledger.violation = outcome.err().map(|problem| format!("{problem}, in between"));
            }
        }));
    }
    let Some((store, found)) = open_state::<L>(shadow, setting, expected, created)? else {
        return Ok(());
    };
    let how = Setting { states: setting.states.min(12), depth: 0, before: None, ..setting.clone() };
    let mut runner = Runner::resume(store, ledger, &how);
    let check = |runner: &Runner<L>| {
        let mut ledger = lock(&runner.ledger);
        let in_between = ledger.violation.take().map_or(Ok(()), Err);
        in_between.and_then(|()| check_all(&runner.store, &how, &ledger.expected))
    };
    let outlasts = |problem| format!("after a killed process: {problem}");
    {
        let mut ledger = lock(&runner.ledger);
        ledger.expected = Expected { acknowledged: found, under_way: vec![] };
        ledger.created = true;
    }
    check(&runner).map_err(outlasts)?;
    // Not by the first client: its fences would stand in for those of recovery, which has the same lane.
    runner.client(usize::MAX);
    let put = [Op::Put(0, b"whatever".to_vec(), L::any_value())];
    let after = if setting.after_kill.is_empty() { &put[..] } else { &setting.after_kill };
    for op in after {
        match runner.try_run(op) {
            Ok(()) => check(&runner).map_err(outlasts)?,
            Err(PmemError::Full { .. }) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
    runner.clients.remove(&usize::MAX);
    check(&runner).map_err(outlasts)
}

fn check_all<L: Testable>(
    store: &Store<L, Shadow>,
    setting: &Setting,
    expected: &Expected,
) -> Result<(), String> {
    check_states::<L>(&store.core().medium.crash_states(), setting, expected, true)
}

/// Checks what is found after crashes.
fn check_states<L: Testable>(
    states: &CrashStates,
    setting: &Setting,
    expected: &Expected,
    created: bool,
) -> Result<(), String> {
    let mut outcome = Ok(());
    states.for_each(setting.states, setting.seed, |shadow| {
        if outcome.is_ok() {
            outcome = open_state::<L>(shadow, setting, expected, created).map(drop);
        }
    });
    outcome
}

/// The contents of a store, by iteration and by lookups.
pub fn contents<L: Testable>(store: &Store<L, Shadow>) -> Entries {
    let mut found = Entries::new();
    let reader = store.reader();
    let visit = |key: &[u8], value: &[u8]| {
        assert!(found.insert(key.to_vec(), value.to_vec()).is_none(), "a key was shown twice");
        ControlFlow::Continue(())
    };
    reader.for_each(visit).unwrap();
    assert_eq!(store.len(), found.len() as u64);
    for (key, value) in &found {
        assert_eq!(reader.get(L::key(key)).unwrap().as_ref(), Some(value));
    }
    found
}

/// Checks that every block is accounted for: free, waiting, or with live records; and that there are as many live
/// records as entries.
pub fn audit<L: Testable, M: Medium>(store: &Store<L, M>) -> Result<(), String> {
    let core = store.core();
    let (mut live, mut free) = (0, 0);
    for block in core.geometry.first_block()..core.space.end() {
        match core.space.block(block).load() {
            (State::Free, 0, 0) => free += 1,
            (State::Open | State::Waiting, records, _) => live += u64::from(records),
            (State::Closed, records, _) if records > 0 => live += u64::from(records),
            (State::Large, _, _) => {}
            other => return Err(format!("block {block} is {other:?}")),
        }
    }
    let counts = core.space.counts();
    if counts.free != free {
        return Err(format!("{free} blocks are free, but {counts:?}"));
    }
    if live > store.len() + core.stripes.unsettled_count() {
        return Err(format!("{live} records are live, but there are {}", store.len()));
    }
    Ok(())
}
