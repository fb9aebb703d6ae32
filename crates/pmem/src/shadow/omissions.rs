//! Every flush and every fence is needed: if any single one is omitted, a test notices.

use super::{
    Step, Switch,
    model::{Op, Setting},
    scenarios::{Kind, all, run},
};
use crate::medium::Site;
use std::collections::BTreeSet;

/// All sites.
pub const SITES: &[Site] = &[
    Site::OldSuperblock,
    Site::Superblock,
    Site::BlocksEnd,
    Site::UnusedBlocks,
    Site::Unformat,
    Site::PageHeads,
    Site::BlockHead,
    Site::LargeHead,
    Site::LargeGone,
    Site::SpanHead,
    Site::InnerBlocks,
    Site::EmptySlot,
    Site::EmptyLog,
    Site::Occupancy,
    Site::Record,
    Site::Renumber,
    Site::Publish,
    Site::Retract,
    Site::Delete,
    Site::UpdateSums,
    Site::UpdateValue,
    Site::UpdateHead,
    Site::UpdateWord,
    Site::Unsettled,
    Site::BatchRecord,
    Site::BatchPublish,
    Site::BatchDelete,
    Site::CopyRecord,
    Site::CopyPublish,
    Site::CopyRetract,
    Site::RecoveryMeta,
    Site::RecoveryScan,
    Site::RecoveryHead,
    Site::RecoveryRetract,
    Site::RecoveryOccupancy,
];

/// All steps.
pub fn switches() -> Vec<Switch> {
    let both = |site: &Site| [(*site, Step::Flush), (*site, Step::Fence)];
    // See there.
    let has_no_fence = |site| {
        matches!(site, Site::BlockHead | Site::EmptySlot | Site::EmptyLog | Site::Renumber | Site::UpdateWord)
    };
    let exists = |(site, step): &Switch| *step == Step::Flush || !has_no_fence(*site);
    SITES.iter().flat_map(both).filter(exists).collect()
}

#[test]
fn every_history_survives_every_crash_and_goes_through_every_step() {
    let mut seen = BTreeSet::new();
    // Histories without checksums are left out here, because the others are run without them too.
    for (name, setting, kind, history) in all().into_iter().filter(|(_, setting, ..)| setting.checksums) {
        for checksums in [true, false] {
            let (problem, ledger, steps) = run(kind, &Setting { checksums, ..setting.clone() }, &history);
            println!("{name}, checksums {checksums}: {} states", ledger.states);
            assert_eq!(problem, None, "{name}, checksums {checksums}");
            seen.extend(steps);
        }
    }
    // Steps that only recoveries take are checked by `every_step_that_is_left_out_is_noticed`, which plants them.
    let sites: BTreeSet<_> = seen.iter().map(|(site, _)| *site).collect();
    let missing: Vec<_> = SITES.iter().filter(|site| !sites.contains(site)).collect();
    assert_eq!(
        missing,
        [
            &Site::RecoveryMeta,
            &Site::RecoveryScan,
            &Site::RecoveryHead,
            &Site::RecoveryRetract,
            &Site::RecoveryOccupancy
        ]
    );
}

#[test]
fn every_step_that_is_left_out_is_noticed() {
    let switches = switches();
    // A history that does not take a step cannot notice its omission.
    let histories: Vec<Passing> = all()
        .into_iter()
        .map(|(name, setting, kind, history)| {
            let (_, _, steps) = run(kind, &Setting { states: 1, ..setting.clone() }, &history);
            Passing { name, setting, kind, history, steps }
        })
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let missed: Vec<Switch> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (switches, histories) = (&switches, &histories);
                scope.spawn(move || {
                    let mine = switches.iter().skip(worker).step_by(threads);
                    mine.filter(|switch| !is_noticed(**switch, histories)).copied().collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    println!("{} steps left out, {} noticed", switches.len(), switches.len() - missed.len());
    assert_eq!(missed, []);
}

/// A history, and the steps that it takes.
struct Passing {
    name: &'static str,
    setting: Setting,
    kind: Kind,
    history: Vec<Op>,
    steps: BTreeSet<Switch>,
}

/// Whether some history notices the omission of a step.
fn is_noticed(switch: Switch, histories: &[Passing]) -> bool {
    // Steps of recoveries are not recorded among those of a history.
    let is_passed = histories.iter().any(|one| one.steps.contains(&switch));
    let passing = histories.iter().filter(|one| !is_passed || one.steps.contains(&switch));
    passing.into_iter().any(|Passing { name, setting, kind, history, .. }| {
        let setting = Setting { omitted: Some(switch), ..setting.clone() };
        let (problem, _, _) = run(*kind, &setting, history);
        if let Some(problem) = &problem {
            println!("{switch:?}: noticed by {name}: {problem}");
        }
        problem.is_some()
    })
}
