//! Tests of isolation by histories: what clients did and saw at the same time must have an explanation.
//!
//! Histories of lists, to which transactions append, and of registers are checked for Adya's anomalies by the crate
//! `adya`. A scan is recorded as reads of all keys it passed over, absent ones too, so phantoms show as well. Small
//! histories, in which keys also come and go, are explained by a search, and the two checkers must agree. The tests
//! show that each anomaly is found in a history known to have it, and that bugs planted in the database are found.

mod clients;
mod history;
mod known;
mod search;

use crate::{IsolationLevel, plant::Plant};
use adya::Workload;
use clients::{Actions, Place, Size};
use history::History;

/// Many transactions on some keys.
const LARGE: Size = Size { keys: 6, clients: 5, transactions: 150, steps_max: 4 };
/// As many transactions as a search can put in order.
const SMALL: Size = Size { keys: 4, clients: 3, transactions: 6, steps_max: 4 };

const SNAPSHOT: &str = "strong-snapshot-isolation";
const SERIALIZABLE: &str = "strict-serializable";

/// The seeds of a test: as many as `VELLUM_SEEDS` says, or the one in `VELLUM_SEED`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("VELLUM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("VELLUM_SEEDS").unwrap_or(count),
    }
}

fn workload(actions: Actions) -> Workload {
    if actions == Actions::Lists { Workload::ListAppend } else { Workload::RwRegister }
}

/// Fails if a history shows what a model of consistency excludes.
fn demand(history: &History, (actions, is_ordered): (Actions, bool), model: &str, seed: u64) {
    let found = history.explained(workload(actions), model, is_ordered);
    assert!(found.is_empty(), "seed {seed}, {actions:?}: not {model}:\n{}\n{history:#?}", found.join("\n"));
}

#[test]
fn anomalies_that_are_known_are_found() {
    for known in known::all() {
        for (model, is_violated) in [(SNAPSHOT, known.is_snapshot), (SERIALIZABLE, known.is_serial)]
            .map(|(model, holds)| (model, !holds))
        {
            let found = known.history.anomalies(known.workload, model, true);
            assert_eq!(!found.is_empty(), is_violated, "{}: {model}: {found:?}", known.name);
            if is_violated {
                assert!(found.iter().any(|kind| kind == known.anomaly), "{}: {found:?}", known.name);
            }
        }
        // A search ignores aborted transactions, but no transaction wrote the value that was read.
        assert_eq!(search::is_snapshot_isolation(&known.history), known.is_snapshot, "{}", known.name);
        assert_eq!(search::is_serializable(&known.history, true), known.is_serial, "{}", known.name);
    }
}

#[test]
fn snapshots_allow_write_skew_and_nothing_else() {
    let mut skewed = 0;
    for seed in seeds(30) {
        for actions in [Actions::Lists, Actions::Registers] {
            let history = Place::new(seed, IsolationLevel::Snapshot, (actions, LARGE)).in_turns(seed);
            demand(&history, (actions, true), SNAPSHOT, seed);
            skewed += u32::from(!history.anomalies(workload(actions), SERIALIZABLE, true).is_empty());
        }
    }
    assert!(skewed > 0, "the histories can show it");
}

#[test]
fn serializable_transactions_show_no_anomaly() {
    for seed in seeds(30) {
        for actions in [Actions::Lists, Actions::Registers] {
            let history = Place::new(seed, IsolationLevel::Serializable, (actions, LARGE)).in_turns(seed);
            demand(&history, (actions, true), SERIALIZABLE, seed);
            let committed = history.committed().count();
            assert!(committed * 4 > history.transactions.len(), "{committed} were committed");
        }
    }
}

#[test]
fn threads_show_no_more() {
    let size = Size { keys: 8, clients: 4, transactions: 200, steps_max: 4 };
    for seed in seeds(4) {
        for actions in [Actions::Lists, Actions::Registers] {
            for (level, model) in
                [(IsolationLevel::Snapshot, SNAPSHOT), (IsolationLevel::Serializable, SERIALIZABLE)]
            {
                let history = Place::new(seed, level, (actions, size)).at_once(seed);
                demand(&history, (actions, false), model, seed);
            }
        }
    }
}

#[test]
fn small_histories_with_keys_that_come_and_go_have_an_explanation() {
    let mut skewed = 0;
    for seed in seeds(300) {
        let history = Place::new(seed, IsolationLevel::Serializable, (Actions::All, SMALL)).in_turns(seed);
        assert!(search::is_serializable(&history, true), "seed {seed}: {history:#?}");
        let history = Place::new(seed, IsolationLevel::Snapshot, (Actions::All, SMALL)).in_turns(seed);
        assert!(search::is_snapshot_isolation(&history), "seed {seed}: {history:#?}");
        skewed += u32::from(!search::is_serializable(&history, false));
    }
    assert!(skewed > 0, "the histories can show it");
}

#[test]
fn the_two_checkers_agree() {
    let (mut good, mut bad) = (0, 0);
    for seed in seeds(300) {
        let history = Place::new(seed, IsolationLevel::Snapshot, (Actions::Lists, SMALL)).in_turns(seed);
        let is_serializable = search::is_serializable(&history, false);
        let found = history.anomalies(Workload::ListAppend, "serializable", true);
        // A history without any dependency is no evidence for adya.
        let found = found.iter().filter(|kind| *kind != "empty-transaction-graph").count();
        assert_eq!(is_serializable, found == 0, "seed {seed}: {history:#?}");
        *if is_serializable { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 0 && bad > 0, "{good} serializable, {bad} not");
}

#[test]
fn planted_bugs_are_found() {
    for bug in Plant::ALL {
        let found = (0..2000).find(|seed| {
            let place = |actions, size| {
                Place::new(*seed, IsolationLevel::Serializable, (actions, size)).plant(Some(bug))
            };
            // Only the search finds what adya cannot express.
            let is_found = bug != Plant::UnchangedForgotten && {
                let lists = place(Actions::Lists, LARGE).in_turns(*seed);
                !lists.anomalies(Workload::ListAppend, SERIALIZABLE, true).is_empty()
            };
            is_found || !search::is_serializable(&place(Actions::All, SMALL).in_turns(*seed), true)
        });
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?} is found by seed {found}");
    }
}
