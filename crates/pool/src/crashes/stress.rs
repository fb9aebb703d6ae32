//! Threads that change pages and large values, in a pool that is much too small, while checkpoints are taken; with
//! crashes at any moment.

use super::*;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// The number of pages that all threads change.
const SHARED_PAGES: usize = 12;
/// The number of pages that each thread has to itself.
const OWN_PAGES: usize = 60;

/// A thread that changes pages and large values of its own, and shared pages.
struct Worker<'w> {
    world: &'w World,
    random: SmallRng,
    shared: &'w [PageId],
    pages: Vec<(PageId, Vec<u8>)>,
    values: Vec<(Extent, u64)>,
}

impl Worker<'_> {
    fn step(&mut self) -> Result<(), String> {
        let number = self.random.random::<u64>() >> 8;
        let index = self.random.random_range(0..OWN_PAGES);
        let outcome = match self.random.random_range(0..100) {
            0..25 => {
                let page = self.shared[index % SHARED_PAGES];
                self.world.set_word(page, number as usize % (PAYLOAD / 8), number)
            }
            25..60 => match self.pages.get_mut(index) {
                Some((page, payload)) => {
                    let place = number as usize % (PAYLOAD / 8);
                    set(payload, place, number);
                    self.world.set_word(*page, place, number)
                }
                None => self.world.new_page(number).map(|page| {
                    self.pages.push((page, filled(Extent::page(page), number)));
                }),
            },
            60..75 => match self.pages.get(index) {
                Some((page, _)) => {
                    let page = *page;
                    self.pages.swap_remove(index);
                    self.world.free_page(page)
                }
                None => Ok(()),
            },
            75..90 => {
                let old = self.values.get(index).copied();
                let (pages, streamed) = (self.random.random_range(1..5), self.random.random());
                self.world.replace(old.map(|(extent, _)| extent), pages, number, streamed).map(|extent| {
                    match self.values.get_mut(index) {
                        Some(value) => *value = (extent, number),
                        None => self.values.push((extent, number)),
                    }
                })
            }
            _ => return self.look(index),
        };
        outcome.map_err(|error| error.to_string())
    }

    /// Checks that a page and a value hold what was written.
    fn look(&self, index: usize) -> Result<(), String> {
        let page = self.pages.get(index).map(|(page, payload)| (Extent::page(*page), payload.clone()));
        let value = self.values.get(index).map(|(extent, number)| (*extent, filled(*extent, *number)));
        for (extent, payload) in page.into_iter().chain(value) {
            let guard = self.world.pool.shared(extent).map_err(|error| error.to_string())?;
            if guard.payload() != payload {
                return Err(format!("{extent} does not hold what was written"));
            }
        }
        Ok(())
    }
}

/// Runs for a while, and returns what is wrong, if anything.
fn run(seed: u64, bug: Option<Plant>) -> Result<(), String> {
    const CRASHES: usize = 3;
    let options = options().background_eviction(seed % 8 > 3);
    let world = World::new(seed, bug, Duration::from_micros(seed % 4 * 100), &options);
    let shared: Vec<PageId> =
        (0..SHARED_PAGES).map(|number| world.new_page(number as u64).unwrap()).collect();
    let stop = AtomicBool::new(false);
    let until_stopped = |step: &mut dyn FnMut() -> Result<(), String>| {
        let steps = AssertUnwindSafe(|| {
            while !stop.load(Ordering::Relaxed) {
                step()?;
            }
            Ok(())
        });
        let outcome = catch_unwind(steps).unwrap_or_else(|_| Err("a thread panicked".into()));
        stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    };
    let outcomes: Vec<Result<(), String>> = thread::scope(|scope| {
        let (world, shared, until_stopped) = (&world, &shared[..], &until_stopped);
        let mut threads: Vec<_> = (0..2)
            .map(|number| {
                scope.spawn(move || {
                    let random = SmallRng::seed_from_u64(seed * 100 + number);
                    let mut worker = Worker { world, random, shared, pages: Vec::new(), values: Vec::new() };
                    until_stopped(&mut || worker.step())
                })
            })
            .collect();
        threads.push(scope.spawn(move || {
            until_stopped(&mut || {
                thread::sleep(Duration::from_micros(500));
                world.checkpoint().map_err(|error| error.to_string())
            })
        }));
        let mut crashes = Vec::new();
        for _ in 0..CRASHES {
            thread::sleep(Duration::from_millis(12 + seed % 7));
            crashes.push(world.crash());
        }
        stop.store(true, Ordering::Relaxed);
        let ends = threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
        let check = |crashed: Crashed| {
            catch_unwind(AssertUnwindSafe(|| crashed.check())).unwrap_or(Err("a check panicked".into()))
        };
        ends.into_iter().chain(crashes.into_iter().map(check)).collect()
    });
    outcomes.into_iter().collect::<Result<(), String>>()?;
    world.pool.close().map_err(|error| error.to_string())
}

fn rounds() -> u64 {
    std::env::var("VELLUM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25)
}

#[test]
fn what_is_durable_survives_every_crash() {
    for seed in 0..rounds() {
        run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn planted_bugs_are_found_by_crashes() {
    const ROUNDS_MAX: u64 = 500;
    for bug in Plant::ALL.into_iter().filter(|bug| !steps::FOUND.contains(bug)) {
        let found = (0..ROUNDS_MAX).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        let (seed, error) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: round {seed}: {error}");
    }
}
