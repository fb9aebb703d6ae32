//! Schedules: all threads of a seed, those of the engine included, run one at a time, in an order that the seed fixes.

use crate::clients;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{Schedule, Scheduler, Task, TaskId},
};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// What a seed is to show.
type Check = fn(u64) -> Result<(), String>;

/// What takes more steps does not end.
const STEPS_MAX: usize = 20_000_000;
const STACK_BYTES: usize = 1 << 20;
/// A thread that waits for another one without saying so gets the lowest priority by then.
const TURN: u64 = 20_000;
/// Steps among which the change points lie.
const CHANGES_WITHIN: u64 = 1 << 20;

/// Chooses which thread goes on.
struct Seeded {
    random: StdRng,
    way: Way,
    has_begun: bool,
    step: u64,
    /// What was chosen so far.
    digest: Arc<AtomicU64>,
}

/// How the next thread is chosen.
enum Way {
    /// Any; the same goes on with one chance in so many of another.
    Random { stays: u32 },
    /// The one with the highest priority; at a few steps the one that runs gets the lowest. (*A Randomized Scheduler with
    /// Probabilistic Guarantees of Finding Bugs*, ASPLOS 2010.)
    Priorities { of: HashMap<TaskId, u64>, least: u64, changes: Vec<u64> },
}

impl Seeded {
    fn new(seed: u64, digest: Arc<AtomicU64>) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x5ced_0000_0000);
        let way = if random.random_ratio(2, 3) {
            Way::Random { stays: [2, 10, 50, 300][random.random_range(0..4)] }
        } else {
            // As many changes among few steps as among many.
            let mut change = || {
                let within = CHANGES_WITHIN >> random.random_range(0..8);
                random.random_range(1..=within)
            };
            let changes = (0..50).map(|_| change()).collect();
            Way::Priorities { of: HashMap::new(), least: 1 << 32, changes }
        };
        Self { random, way, has_begun: false, step: 0, digest }
    }
}

impl Seeded {
    fn choose(&mut self, tasks: &[&Task], running: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        let random = &mut self.random;
        match &mut self.way {
            Way::Random { stays } => {
                if running.is_some() && !is_yielding && !random.random_ratio(1, *stays) {
                    return running;
                }
                // Another one if there is one, when this one has nothing to do.
                let is_asked = |task: &TaskId| !is_yielding || Some(*task) != running;
                let others: Vec<_> = tasks.iter().map(|task| task.id()).filter(is_asked).collect();
                match others.len() {
                    0 => running,
                    count => others.get(random.random_range(0..count)).copied(),
                }
            }
            Way::Priorities { of, least, changes } => {
                for task in tasks {
                    of.entry(task.id()).or_insert_with(|| random.random_range(1 << 32..1 << 33));
                }
                if let Some(running) = running
                    && (is_yielding || changes.contains(&self.step) || self.step.is_multiple_of(TURN))
                {
                    *least -= 1;
                    of.insert(running, *least);
                }
                tasks.iter().map(|task| task.id()).max_by_key(|task| of[task])
            }
        }
    }
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.has_begun, true)).then(|| Schedule::new(self.random.random()))
    }

    fn next_task(&mut self, tasks: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        self.step += 1;
        let running = current.filter(|current| tasks.iter().any(|task| task.id() == *current));
        let chosen = self.choose(tasks, running, is_yielding);
        let number = chosen.map_or(0, usize::from) as u64;
        let digest = self.digest.load(Ordering::Relaxed);
        self.digest
            .store((digest ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31), Ordering::Relaxed);
        chosen
    }

    fn next_u64(&mut self) -> u64 {
        self.random.random()
    }
}

/// Runs a check under the schedule of its seed.
pub fn run(seed: u64, check: Check) -> Result<(), String> {
    run_digested(seed, check).0
}

/// Says also what was chosen at all steps, in short.
fn run_digested(seed: u64, check: Check) -> (Result<(), String>, u64) {
    let mut config = Config::default();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let (digest, outcome) = (Arc::default(), Arc::new(Mutex::new(None)));
    let (scheduler, set) = (Seeded::new(seed, Arc::clone(&digest)), outcome.clone());
    let work = move || {
        let done = check(seed);
        *set.lock().unwrap() = Some(done);
    };
    let ended = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(work)));
    let ended = ended.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or("it panicked", |text| text).to_owned(),
    });
    let outcome = outcome.lock().unwrap().take();
    let outcome = ended.and_then(|_| outcome.unwrap_or_else(|| Err("it did not end".to_owned())));
    (outcome, digest.load(Ordering::Relaxed))
}

#[test]
fn a_seed_fixes_all() {
    for seed in 0..6 {
        // Each on a thread of its own, where time begins at zero.
        let run = || thread::spawn(move || run_digested(seed, clients::run)).join().unwrap();
        assert_eq!(run(), run(), "seed {seed}");
    }
}
