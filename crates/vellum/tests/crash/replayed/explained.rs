//! Whether what transactions and other operations have seen has an explanation.

use super::world::{Done, KEYS, NAMES, Past, Single, Step, Value, Way, World, flag, modified, value};
use std::collections::{BTreeMap, BTreeSet};
use vellum::Event;

/// The state before each commit and after the last one, and which commit each of them is.
struct Replay {
    worlds: Vec<World>,
    places: BTreeMap<(usize, u64), usize>,
}

fn short(past: &Past) -> String {
    let steps: Vec<_> = past
        .steps
        .iter()
        .map(|done| format!("  {} {:?}: {:?}", NAMES[done.table], done.step, done.seen))
        .collect();
    format!(
        "client {}, serializable {}, commit {:?}\n{}",
        past.client,
        past.is_serializable,
        past.commit,
        steps.join("\n")
    )
}

pub fn check(
    all_past: Vec<Past>,
    singles: &[Single],
    feed: Vec<vellum::Commit>,
    first: World,
) -> std::result::Result<(), String> {
    let mut by_commit: BTreeMap<(usize, u64), usize> = BTreeMap::new();
    for (index, past) in all_past.iter().enumerate() {
        by_commit.extend(past.commit.map(|commit| ((past.client, commit), index)));
    }
    // The order, and what single operations have done.
    let mut order: Vec<(Option<(usize, u64)>, vellum::Commit)> = Vec::new();
    for commit in feed {
        let mark = commit.changes.iter().find_map(|change| match &change.event {
            Event::Inserted { key, .. } if &*change.table == "marks" => {
                Some((usize::from(key[0]), u64::from_be_bytes(key[1..].try_into().unwrap())))
            }
            _ => None,
        });
        order.push((mark, commit));
    }
    let mut places = BTreeMap::new();
    for (place, (mark, _)) in order.iter().enumerate() {
        places.extend(mark.map(|mark| (mark, place)));
    }
    for commit in by_commit.keys() {
        if !places.contains_key(commit) {
            return Err(format!("the feed does not tell commit {commit:?}"));
        }
    }
    // Which states a transaction may have seen: those before the commit of this place, from and to.
    let window = |done: &[u64], asked: &[u64]| {
        let done = done.iter().enumerate();
        let from =
            done.filter_map(|(client, number)| places.get(&(client, *number))).map(|place| place + 1).max();
        let asked = asked.iter().enumerate();
        let to = asked.filter_map(|(client, number)| places.get(&(client, *number + 1))).min();
        (from.unwrap_or(0), to.copied().unwrap_or(order.len()))
    };
    let mut replay = Replay { worlds: vec![first], places: places.clone() };
    for (place, (mark, commit)) in order.iter().enumerate() {
        let now = replay.worlds[place].clone();
        let Some(mark) = mark else {
            replay.worlds.push(alone(now, commit)?);
            continue;
        };
        let Some(index) = by_commit.get(mark) else { return Err(format!("commit {mark:?} was refused")) };
        let past = &all_past[*index];
        let next = if past.is_serializable {
            now.replay(&past.steps).map_err(|(step, should)| {
                format!("step {step} should have shown {should:?} at its commit\n{}", short(past))
            })?
        } else {
            let (from, to) = window(&past.done, &past.asked);
            let mut why = String::new();
            let found = (from..=to.min(place)).rev().find_map(|at| {
                let base = &replay.worlds[at];
                match base.replay(&past.steps) {
                    Ok(after) => {
                        let mut next = now.clone();
                        match next.apply(base, &after) {
                            Ok(()) => Some(next),
                            Err(what) => {
                                why = what;
                                None
                            }
                        }
                    }
                    Err((step, should)) => {
                        if why.is_empty() {
                            why = format!("step {step} should have shown {should:?}");
                        }
                        None
                    }
                }
            });
            found.ok_or_else(|| {
                format!(
                    "no state of {from}..={} explains it at {place}: {why}\n{}",
                    to.min(place),
                    short(past)
                )
            })?
        };
        replay.worlds.push(next);
    }
    check_singles(singles, &order, &replay.worlds, |single| window(&single.done, &single.asked))?;
    // Those that are not committed, and what serializable ones saw before.
    for past in &all_past {
        let (from, to) = window(&past.done, &past.asked);
        let to = past.commit.map_or(to, |commit| to.min(replay.places[&(past.client, commit)]));
        let is_seen = (from..=to).any(|at| replay.worlds[at].replay(&past.steps).is_ok());
        if !is_seen {
            let (step, should) = replay.worlds[to].replay(&past.steps).unwrap_err();
            return Err(format!(
                "no state of {from}..={to} shows it: step {step} should have shown {should:?} in the last one\n{}",
                short(past)
            ));
        }
    }
    Ok(())
}

/// Whether what operations outside of transactions have shown was so at some moment while they were under way.
fn check_singles(
    singles: &[Single],
    order: &[(Option<(usize, u64)>, vellum::Commit)],
    worlds: &[World],
    window: impl Fn(&Single) -> (usize, usize),
) -> std::result::Result<(), String> {
    for single in singles {
        let Done { table: name, step, seen } = &single.all;
        let (from, to) = window(single);
        let ids: BTreeSet<u32> = (from..=to).filter_map(|at| worlds[at].names.get(name).copied()).collect();
        let tables = || {
            let ids = &ids;
            (from..=to).flat_map(move |at| ids.iter().map(move |id| (at, worlds[at].tables.get(id))))
        };
        // What a table that is gone has held is not known here.
        if ids.is_empty() || tables().any(|(_, table)| table.is_none()) {
            continue;
        }
        let has = |key: u8, value: Option<Value>| {
            tables().any(|(_, table)| table.and_then(|table| table.entries.get(&key).copied()) == value)
        };
        // By a commit of its own that has left this.
        let is_made = |key: u8, new: Option<Value>, before: &dyn Fn(Option<Value>) -> bool| {
            (from..to).any(|at| {
                let of = |world: &World, id: &u32| Some(world.tables.get(id)?.entries.get(&key).copied());
                order[at].0.is_none()
                    && ids.iter().any(|id| {
                        of(&worlds[at + 1], id) == Some(new) && of(&worlds[at], id).is_some_and(before)
                    })
            })
        };
        let is_true = *seen == flag(true);
        let is_right = match step {
            Step::Get(_) | Step::MultiGet(_) | Step::Lookups(_) | Step::End { .. } => {
                seen.iter().all(|(key, value)| has(*key, *value))
            }
            Step::Range { low, high, way, take } => {
                let is_backward = matches!(way, Way::Backward | Way::LimitedBackward);
                let is_sorted = match way {
                    Way::Both(_) => seen.iter().map(|one| one.0).collect::<BTreeSet<_>>().len() == seen.len(),
                    _ => seen.is_sorted_by(
                        |one, other| if is_backward { one.0 > other.0 } else { one.0 < other.0 },
                    ),
                };
                // What was there all the while is shown, up to where it has ended.
                let stays = |key: u8| {
                    tables().all(|(_, table)| table.is_some_and(|table| table.entries.contains_key(&key)))
                };
                let is_over = seen.len() < *take;
                let last = seen.last().map(|one| one.0);
                let is_passed = |key: u8| match way {
                    _ if is_over => true,
                    Way::Both(_) => false,
                    _ => last.is_some_and(|last| if is_backward { key >= last } else { key <= last }),
                };
                let is_whole = (0..KEYS)
                    .filter(|key| (low..=high).contains(&key) && is_passed(*key) && stays(*key))
                    .all(|key| seen.iter().any(|one| one.0 == key));
                is_sorted && is_whole && seen.iter().all(|(key, value)| has(*key, *value))
            }
            Step::Put(key, value) => is_made(*key, Some(*value), &|old| old.is_some() == is_true),
            Step::Insert(key, value) if is_true => is_made(*key, Some(*value), &|old| old.is_none()),
            Step::Insert(key, _) => {
                tables().any(|(_, table)| table.is_some_and(|table| table.entries.contains_key(key)))
            }
            Step::Update(key, value) if is_true => is_made(*key, Some(*value), &|old| old.is_some()),
            Step::Update(key, _) | Step::Modify(key) if !is_true => has(*key, None),
            Step::Remove(key) if is_true => is_made(*key, None, &|old| old.is_some()),
            Step::Remove(key) => has(*key, None),
            Step::Exchange(key, new) => match (seen[0].1, new) {
                (None, None) => has(*key, None),
                (old, new) => is_made(*key, *new, &|before| before == old),
            },
            Step::Compare(key, old, new) if is_true => {
                is_made(*key, Some(*new), &|before| before == Some(*old))
            }
            Step::Compare(key, old, _) => {
                tables().any(|(_, table)| table.is_some_and(|table| table.entries.get(key) != Some(old)))
            }
            Step::Modify(key) => (from..to).any(|at| {
                ids.iter().any(|id| {
                    let of = |world: &World| {
                        world.tables.get(id).and_then(|table| table.entries.get(key).copied())
                    };
                    of(&worlds[at]).is_some_and(|old| of(&worlds[at + 1]) == Some(modified(old)))
                })
            }),
            Step::Pop { .. } => match seen.first() {
                Some((key, popped)) => is_made(*key, None, &|before| before == *popped),
                None => tables().any(|(_, table)| table.is_some_and(|table| table.entries.is_empty())),
            },
            Step::MultiPut(pairs) => pairs.iter().zip(seen).all(|((key, value), (was_there, _))| {
                is_made(*key, Some(*value), &|old| old.is_some() == (*was_there == 1))
            }),
            _ => true,
        };
        if !is_right {
            let states: Vec<_> = tables().take(12).collect();
            return Err(format!(
                "in the states {from}..={to} of {}: {step:?} has shown {seen:?}; {states:?}",
                NAMES[*name]
            ));
        }
    }
    Ok(())
}

/// What an operation outside of transactions has done.
fn alone(mut world: World, commit: &vellum::Commit) -> std::result::Result<World, String> {
    for change in &commit.changes {
        let Some(name) = NAMES.iter().position(|name| **name == *change.table) else {
            return Err(format!("{change:?} of no client"));
        };
        match &change.event {
            Event::Inserted { key, value: new } | Event::Replaced { key, value: new } => {
                let stored = new.read().map_err(|error| error.to_string())?.value();
                let old = || world.entries(name).and_then(|entries| entries.get(&key[0]).copied());
                // Only in a large value that was there something was changed.
                let Some(stored) = stored.map(|bytes| value(&bytes)).or_else(|| old().map(modified)) else {
                    return Err(format!("{change:?} of no client"));
                };
                world.step(name, &Step::Put(key[0], stored));
            }
            Event::Patched { key, .. } => _ = world.step(name, &Step::Modify(key[0])),
            Event::Removed { key } => _ = world.step(name, &Step::Remove(key[0])),
            _ => return Err(format!("{change:?} of no client")),
        }
    }
    Ok(world)
}
