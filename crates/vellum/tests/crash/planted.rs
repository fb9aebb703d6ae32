//! Bugs that are planted in the engine, one at a time, and the check that finds each: a check that finds nothing proves
//! nothing. Each is looked for in a process of its own, because it is planted for good.

use crate::number;
use std::{
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};
use vellum_base::plant;

/// By which a process is told its bug.
const BUG: &str = "VELLUM_PLANT";
/// What it prints before the number of the seed that has found it.
const FOUND: &str = "found by seed ";

/// Before how many seeds each is to be found.
const SEEDS: u64 = 2000;

/// The bugs, the checks that find them, and a seed that has found each, with which the search begins.
///
/// Stale records of a recycled segment that are taken as new are not among them: to be seen, one must begin exactly where the log
/// ends, and records of databases have too many lengths. The test `planted_bugs_are_noticed` of the log finds that.
#[cfg(not(shuttle))]
const BUGS: &[(&str, &str, u64)] = &[
    // A sync is skipped.
    ("wal::SkippedSync", "histories", 1),
    // A commit is acknowledged before it is durable.
    ("wal::EarlyAcknowledgement", "histories", 11),
    ("wal::SwallowedWriteError", "histories", 317),
    // Recovery ends at a hole in what was durable.
    ("wal::PastHole", "histories", 212),
    // The log is cut too early: for recovery, and for undoing what is open.
    ("wal::RecycledTooEarly", "histories", 23),
    ("txn::CutTooEarly", "histories", 21),
    // What nobody has synced is read, and lost afterwards; what nobody has committed is read.
    ("wal::EndNotSynced", "histories", 8),
    ("txn::UncommittedRead", "histories", 0),
    // There is no log barrier before eviction.
    ("pool::PageBeforeLog", "histories", 179),
    // An error of a checkpoint's write is swallowed.
    ("pool::SwallowedWriteError", "histories", 127),
    ("pool::MapNotSynced", "histories", 465),
    // Freed space is reused before the free is durable.
    ("pool::NoQuarantine", "histories", 130),
    ("txn::RedoTwice", "histories", 1),
    ("txn::GroupWithoutEnd", "histories", 50),
    ("txn::LosersNotUndone", "histories", 2),
    ("txn::LoserForgotten", "histories", 2),
    ("txn::HalfRollback", "histories", 0),
    // Versions for which memory has no room are lost, or that their records were removed.
    ("txn::SpilledDroppedEarly", "histories", 2),
    ("txn::SpilledRemovalForgotten", "histories", 4),
    // A leaf that an old snapshot needs is changed and not kept; its transaction changes what another has changed.
    ("access::PageNotKept", "snapshots", 0),
    ("txn::CoveredChangeForgotten", "snapshots", 0),
    ("txn::BufferNotNoted", "snapshots", 0),
    // What an undo buffer gives up to the table of versions is not looked up there.
    ("txn::EnteredOverlooked", "snapshots", 18),
    ("txn::SpilledOverlooked", "snapshots", 0),
    // A transaction whose snapshot was covered keeps its changes to itself.
    ("txn::PrivateThoughCovered", "snapshots", 0),
    ("vellum::LaterTreeUsed", "snapshots", 4),
    // A version goes while a snapshot needs it.
    ("txn::DeadTooEarly", "histories", 2),
    // An undo buffer is overlooked that is searched where it is, or given up while a snapshot needs it.
    ("txn::BufferOverlooked", "histories", 0),
    ("txn::BufferForgottenEarly", "histories", 0),
    // A torn page is not mended.
    ("txn::NoImages", "histories", 47),
    // The LSN of a page begins from zero with its new life, and records of its earlier life are redone in it.
    ("access::NewLifeWithoutLsn", "histories", 5),
    ("txn::EarlierLifeRedone", "histories", 20),
    // A page is read that was not redone; a checkpoint forgets what is not redone yet.
    ("pool::ReadNotRedone", "histories", 0),
    ("txn::CheckpointBeforeRedo", "histories", 87),
    // A page from which a node has moved is used again before the move is durable.
    ("access::FreedBeforeItIsDurable", "compactions", 47),
    ("vellum::CommitAfterConflict", "histories", 0),
    // The undo of a drop leaves the table to the transaction that has dropped it.
    ("vellum::DropNotTakenBack", "histories", 20),
    // A table is cleared that another transaction has changed; a plain one is changed that a transaction has cleared.
    ("vellum::WritersOverlooked", "histories", 0),
    ("vellum::OwnerOverlooked", "histories", 4),
    // A change of several pages of a heap is recorded in part; a deleted object leaves its generation to the next one.
    ("access::ObjectsLeftOut", "heaps", 0),
    ("objects::GenerationStays", "heaps", 0),
    // A load is committed before what was loaded is durable; one in a transaction takes away what others have stored.
    ("pool::LoadNotDurable", "histories", 0),
    ("vellum::LoadedOverOthers", "histories", 16),
    // A segment is recycled before it was archived; restoring goes past its target.
    ("wal::RecycledUnarchived", "archives", 23),
    ("txn::BeyondTarget", "archives", 0),
    // Restoring forgets the contents of a load that was under way when the backup began, or writes them over what is there since.
    ("txn::EarlyContentsForgotten", "restores", 6),
    ("txn::EarlyContentsAnywhere", "restores", 0),
    // A feed tells of changes before their transaction is committed, or before the commit is durable, or of what was taken back; the
    // log gives up what it has yet to tell.
    ("txn::ToldUncommitted", "feeds", 0),
    ("txn::ToldNotDurable", "feeds", 10),
    ("txn::ToldTakenBack", "feeds", 0),
    ("wal::FollowedGivenUp", "feeds", 46),
    // A feed, or a restore, takes what a copy of the database has logged since.
    ("txn::OtherHistoryFollowed", "forks", 0),
    ("txn::OtherHistoryRestored", "forks", 41),
];

/// Those that concern several threads, or soon show where these meet.
#[cfg(shuttle)]
const BUGS: &[(&str, &str, u64)] = &[
    ("wal::EarlyAcknowledgement", "clients", 566),
    ("wal::SegmentBeforeSync", "clients", 4),
    ("txn::CutTooEarly", "clients", 6),
    ("txn::UncommittedRead", "clients", 0),
    ("vellum::CommitAfterConflict", "clients", 1),
    // Only schedules show these: a page is changed, evicted or written beside its copy; two transactions begin at the same time.
    ("pool::CleanThoughChanged", "clients", 4),
    ("pool::CopyForgotten", "clients", 88),
    ("txn::PublishedTooEarly", "clients", 86),
    ("txn::BufferOverlooked", "clients", 0),
    ("txn::BufferForgottenEarly", "clients", 0),
    // What was read of an object while its page changed counts; a change of a heap overlooks what others have changed since it began,
    // in pages that it writes or has read; a reference leads to an object that has taken the place of the one that was meant.
    ("objects::ReadNotValidated", "heaps", 13),
    ("objects::LostUpdate", "heaps", 1),
    ("objects::ReadsNotCompared", "heaps", 20),
    ("objects::ReadsComparedTooEarly", "heaps", 217),
    ("objects::GenerationStays", "heaps", 1),
];

/// Plants what this process is told to.
pub fn plant() -> Option<String> {
    let bug = std::env::var(BUG).ok()?;
    // Another test of this process may have planted it.
    let _ = plant::plant(bug.clone());
    Some(bug)
}

/// Tells the parent what has found it, in a line of its own.
pub fn tell(seed: u64, why: &str) {
    println!("\n{FOUND}{seed}: {}", why.lines().next().unwrap_or_default());
}

/// The first of so many seeds that finds a bug, and what it says.
fn find(bug: &str, check: &str, (first, seeds): (u64, u64)) -> Option<(u64, String)> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("{check}::{check}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(BUG, bug)
        .env("VELLUM_FIRST_SEED", first.to_string())
        .env("VELLUM_SEEDS", seeds.to_string())
        .env_remove("VELLUM_SEED")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    let found = output.lines().find_map(|line| line.strip_prefix(FOUND))?;
    let (seed, why) = found.split_once(": ")?;
    Some((seed.parse().ok()?, why.to_owned()))
}

/// Looks for a bug: what has found it, or that nothing has.
fn look_for((bug, check, known): (&str, &str, u64)) -> String {
    // How many it takes is asked for by a number of seeds. How threads meet is in a seed with shuttle only; else the known one has a
    // few tries.
    let tries = if cfg!(shuttle) { 1 } else { 3 };
    let found = match number("VELLUM_SEEDS") {
        Some(seeds) => find(bug, check, (0, seeds)),
        None => {
            (0..tries).find_map(|_| find(bug, check, (known, 3))).or_else(|| find(bug, check, (0, SEEDS)))
        }
    };
    let (seed, why) = found.unwrap_or_else(|| panic!("{bug} was not found"));
    format!("{bug}: seed {seed} of {check}: {why:.200}")
}

#[test]
fn each_is_found() {
    let only = std::env::var("VELLUM_BUG").ok();
    let chosen: Vec<_> =
        BUGS.iter().filter(|(bug, ..)| only.as_ref().is_none_or(|only| only == bug)).collect();
    // Side by side, because one may take long.
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(bug) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
            println!("{}", look_for(**bug));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}
