//! Histories that are known to be good or bad, one for each anomaly.

use super::history::{Done, History, Step};
use adya::Workload;

pub struct Known {
    pub name: &'static str,
    /// What adya calls what is wrong with it.
    pub anomaly: &'static str,
    pub is_snapshot: bool,
    pub is_serial: bool,
    pub workload: Workload,
    pub history: History,
}

/// Transactions that were open at the same time.
fn together(transactions: Vec<(bool, Vec<Step>)>) -> History {
    let count = transactions.len() as u64;
    let transactions = transactions.into_iter().enumerate().map(|(client, (is_committed, steps))| {
        let began = client as u64 + 1;
        Done { client, began, ended: began + count, is_committed, steps }
    });
    History { transactions: transactions.collect() }
}

/// Transactions that happened one after the other, followed by others that were open together.
fn after(first: Vec<Vec<Step>>, then: History) -> History {
    let began = |number: usize| 2 * number as u64 + 1;
    let mut transactions: Vec<Done> = Vec::new();
    for (number, steps) in first.into_iter().enumerate() {
        let (began, ended) = (began(number), began(number) + 1);
        transactions.push(Done { client: number + 100, began, ended, is_committed: true, steps });
    }
    let offset = began(transactions.len());
    transactions.extend(then.transactions.into_iter().map(|done| Done {
        began: done.began + offset,
        ended: done.ended + offset,
        ..done
    }));
    History { transactions }
}

fn append(key: u8, element: u32) -> Step {
    Step::Append { key, element }
}

fn write(key: u8, value: u32) -> Step {
    Step::Write { key, value: vec![value] }
}

fn list(key: u8, seen: &[u32]) -> Step {
    Step::Read { key, seen: (!seen.is_empty()).then(|| seen.to_vec()) }
}

pub fn all() -> Vec<Known> {
    let both = |first: Vec<Step>, second: Vec<Step>| together(vec![(true, first), (true, second)]);
    let known = |name, anomaly, (is_snapshot, is_serial), history| Known {
        name,
        anomaly,
        is_snapshot,
        is_serial,
        workload: Workload::ListAppend,
        history,
    };
    let neither = (false, false);
    let look = |steps: Vec<Step>, mut history: History| {
        let began = history.transactions.iter().map(|done| done.ended).max().unwrap_or_default() + 1;
        history.transactions.push(Done { client: 50, began, ended: began + 1, is_committed: true, steps });
        history
    };
    vec![
        known("nothing is wrong", "", (true, true), {
            let second = vec![list(1, &[1]), append(1, 2), list(2, &[])];
            look(vec![list(1, &[1, 2])], both(vec![append(1, 1)], second))
        }),
        known("dirty write", "G0", neither, {
            let writes = both(vec![append(1, 1), append(2, 1)], vec![append(1, 2), append(2, 2)]);
            look(vec![list(1, &[1, 2]), list(2, &[2, 1])], writes)
        }),
        known("aborted read", "G1a", neither, {
            together(vec![(false, vec![append(1, 1)]), (true, vec![list(1, &[1]), append(2, 2)])])
        }),
        known("intermediate read", "G1b", neither, {
            let writes = both(vec![append(1, 1), append(1, 2)], vec![list(1, &[1]), append(2, 2)]);
            look(vec![list(1, &[1, 2]), list(2, &[2])], writes)
        }),
        known("circular information flow", "G1c", neither, {
            let first = vec![append(1, 1), list(2, &[1])];
            both(first, vec![append(2, 1), list(1, &[1])])
        }),
        known("read skew", "G-single-item", neither, {
            let reader = vec![list(1, &[]), list(2, &[1]), append(3, 1)];
            look(
                vec![list(1, &[1]), list(2, &[1]), list(3, &[1])],
                both(reader, vec![append(1, 1), append(2, 1)]),
            )
        }),
        known("lost update", "lost-update", neither, {
            let update = |element| vec![list(1, &[]), append(1, element)];
            look(vec![list(1, &[1, 2])], both(update(1), update(2)))
        }),
        known("unrepeatable read", "internal", neither, {
            look(vec![list(1, &[1])], both(vec![list(1, &[]), list(1, &[1])], vec![append(1, 1)]))
        }),
        known("stale read", "G-single-item-realtime", neither, {
            after(vec![vec![append(1, 1)]], together(vec![(true, vec![list(1, &[]), append(2, 1)])]))
        }),
        known("write skew", "G2-item", (true, false), {
            let first = vec![list(1, &[]), append(2, 1)];
            look(vec![list(1, &[1]), list(2, &[1])], both(first, vec![list(2, &[]), append(1, 1)]))
        }),
        known("phantom", "G2-item", (true, false), {
            // Each sees that a range is empty, and inserts into that of the other.
            let first = vec![list(1, &[]), list(2, &[]), append(3, 1)];
            let second = vec![list(3, &[]), list(4, &[]), append(2, 1)];
            look(vec![list(1, &[]), list(2, &[1]), list(3, &[1]), list(4, &[])], both(first, second))
        }),
        known("read-only anomaly", "G2-item", (true, false), {
            // The third sees what the second did, and not what the first did, which did not see the second.
            let first = vec![list(1, &[]), list(2, &[]), append(1, 1)];
            let second = vec![list(2, &[]), append(2, 2)];
            let third = vec![list(1, &[]), list(2, &[2])];
            let mut history = together(vec![(true, first), (true, second), (true, third)]);
            for (index, (began, ended)) in [(1, 10), (2, 3), (4, 5)].into_iter().enumerate() {
                (history.transactions[index].began, history.transactions[index].ended) = (began, ended);
            }
            look(vec![list(1, &[1]), list(2, &[2])], history)
        }),
        Known {
            workload: Workload::RwRegister,
            ..known("write skew of registers", "G2-item", (true, false), {
                let first = vec![list(1, &[]), write(2, 1)];
                both(first, vec![list(2, &[]), write(1, 2)])
            })
        },
        Known {
            workload: Workload::RwRegister,
            ..known("read skew of registers", "G-single-item", neither, {
                both(vec![list(1, &[]), list(2, &[1])], vec![write(1, 2), write(2, 1)])
            })
        },
    ]
}
