//! Tests by brute force whether a small history can be explained: in which order its transactions may have happened.
//!
//! No dependency graph is built, so this shares no fault with a checker that builds one, and it handles keys that come
//! and go.

use super::history::{Done, History, Step, Value};
use std::collections::{BTreeMap, BTreeSet};

type World = BTreeMap<u8, Value>;

/// Whether some serial order of the transactions explains everything they saw.
pub fn is_serializable(history: &History, in_real_time: bool) -> bool {
    let rest: Vec<&Done> = history.committed().collect();
    follows(&World::new(), rest, in_real_time)
}

fn follows(world: &World, rest: Vec<&Done>, in_real_time: bool) -> bool {
    rest.is_empty()
        || (0..rest.len()).any(|index| {
            let mut rest = rest.clone();
            let next = rest.remove(index);
            let may_be_next = !in_real_time || rest.iter().all(|other| other.ended > next.began);
            let after = may_be_next.then(|| run(world, next)).flatten();
            after.is_some_and(|(after, _)| follows(&after, rest, in_real_time))
        })
}

/// Whether some moments of beginning and committing explain what the transactions saw, by snapshots of which no two
/// change a record while both are open.
pub fn is_snapshot_isolation(history: &History) -> bool {
    let rest: Vec<&Done> = history.committed().collect();
    unfolds(&World::new(), rest, Vec::new())
}

/// A transaction that has taken its snapshot.
#[derive(Clone)]
struct Begun<'h> {
    done: &'h Done,
    /// The keys that it changes.
    changes: BTreeMap<u8, Option<Value>>,
}

fn unfolds(world: &World, rest: Vec<&Done>, begun: Vec<Begun<'_>>) -> bool {
    if rest.is_empty() && begun.is_empty() {
        return true;
    }
    // The first to commit conflicts with all other open transactions that change the same keys.
    let commits = (0..begun.len()).any(|index| {
        let mut begun = begun.clone();
        let next = begun.remove(index);
        let conflicts = |other: &Begun<'_>| other.changes.keys().any(|key| next.changes.contains_key(key));
        let is_in_order = rest.iter().all(|other| other.ended > next.done.began);
        is_in_order && !begun.iter().any(conflicts) && {
            let mut world = world.clone();
            for (key, value) in next.changes {
                set(&mut world, key, value);
            }
            unfolds(&world, rest.clone(), begun)
        }
    });
    commits
        || (0..rest.len()).any(|index| {
            let mut rest = rest.clone();
            let next = rest.remove(index);
            let open = begun.iter().map(|begun| begun.done);
            let is_in_order = rest.iter().copied().chain(open).all(|other| other.ended > next.began);
            let after = is_in_order.then(|| run(world, next)).flatten();
            after.is_some_and(|(after, changed)| {
                let changes = changed.into_iter().map(|key| (key, after.get(&key).cloned())).collect();
                let mut begun = begun.clone();
                begun.push(Begun { done: next, changes });
                unfolds(world, rest, begun)
            })
        })
}

/// The world after a transaction that runs alone, and which keys it changes, if it sees there what it saw.
fn run(world: &World, done: &Done) -> Option<(World, BTreeSet<u8>)> {
    let (mut world, mut changed) = (world.clone(), BTreeSet::new());
    for step in &done.steps {
        match step {
            Step::Read { key, seen } if world.get(key) != seen.as_ref() => return None,
            Step::Probe { key, is_there } if world.contains_key(key) != *is_there => return None,
            Step::Read { .. } | Step::Probe { .. } => {}
            Step::Write { key, value } => {
                changed.insert(*key);
                set(&mut world, *key, Some(value.clone()));
            }
            Step::Append { key, element } => {
                changed.insert(*key);
                world.entry(*key).or_default().push(*element);
            }
            // Removing an absent key changes nothing.
            Step::Remove { key } => {
                if world.remove(key).is_some() {
                    changed.insert(*key);
                }
            }
        }
    }
    Some((world, changed))
}

fn set(world: &mut World, key: u8, value: Option<Value>) {
    match value {
        Some(value) => world.insert(key, value),
        None => world.remove(&key),
    };
}
