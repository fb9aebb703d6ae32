//! A thread that holds several snapshots of different ages beside the clients, and reads them again and again. Without
//! memory for versions, old snapshots are covered at once, and later ones beside them.

use rand::{RngExt, rngs::StdRng};
use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst};
use vellum::{Database, Result, Table, Transaction};
use vellum_base::primitive::{AtomicBool, thread};

/// How many it holds.
const SNAPSHOTS: usize = 4;

/// Records, without all of their values: how long each is, and its beginning.
type Seen = BTreeMap<Vec<u8>, (usize, Vec<u8>)>;

fn short(value: &[u8]) -> (usize, Vec<u8>) {
    (value.len(), value.get(..40).unwrap_or(value).to_vec())
}

fn all(transaction: &Transaction, table: &Table) -> Result<Seen> {
    let mut cursor = transaction.cursor(table, ..)?;
    let mut seen = Seen::new();
    while let Some(entry) = cursor.next()? {
        let key = entry.key().to_vec();
        let value = entry.value()?.map(|value| value.to_vec()).unwrap_or_default();
        seen.insert(key, short(&value));
    }
    Ok(seen)
}

/// Holds snapshots until it is over, or something fails. None of them may change.
pub fn watch(database: &Database, table: &Table, is_over: &AtomicBool, mut random: StdRng) -> Result<()> {
    let mut held: Vec<(Transaction, Seen)> = Vec::new();
    while !is_over.load(SeqCst) {
        match random.random_range(0..8) {
            0 => {
                if held.len() == SNAPSHOTS {
                    drop(held.swap_remove(random.random_range(0..SNAPSHOTS)));
                }
                let transaction = database.begin()?;
                let seen = all(&transaction, table)?;
                held.push((transaction, seen));
            }
            1 => {
                for (transaction, seen) in &held {
                    let now = all(transaction, table)?;
                    let differs = |key: &&Vec<u8>| now.get(*key) != seen.get(*key);
                    let wrong = seen.keys().chain(now.keys()).find(differs);
                    assert!(wrong.is_none(), "a snapshot changes at {wrong:?}");
                }
            }
            _ => {
                for (transaction, seen) in &held {
                    let Some((key, value)) = seen.iter().nth(random.random_range(0..seen.len())) else {
                        continue;
                    };
                    let now = transaction.get(table, key)?.map(|value| short(&value));
                    assert_eq!(now.as_ref(), Some(value), "a snapshot changes at {key:?}");
                }
            }
        }
        thread::yield_now();
    }
    Ok(())
}
