//! Money moves between accounts, by several threads at once, and a report reads all of them at one moment.
//!
//! `cargo run -p vellum --example transactions`

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use vellum::{Database, Durability, Options, Result, Table, Transaction};

const ACCOUNTS: u64 = 1000;
const THREADS: u64 = 2;
const TRANSFERS: u64 = 5000;

fn balance(transaction: &Transaction, accounts: &Table, account: u64) -> Result<u64> {
    let value = transaction.get(accounts, account.to_be_bytes())?.unwrap_or_default();
    Ok(value.try_into().map_or(0, u64::from_le_bytes))
}

/// Moves an amount from one account to another, if the first has it.
fn transfer(transaction: &Transaction, accounts: &Table, from: u64, to: u64, amount: u64) -> Result<bool> {
    let has = balance(transaction, accounts, from)?;
    if has < amount || from == to {
        return Ok(false);
    }
    let other = balance(transaction, accounts, to)?;
    transaction.put(accounts, from.to_be_bytes(), (has - amount).to_le_bytes())?;
    transaction.put(accounts, to.to_be_bytes(), (other + amount).to_le_bytes())?;
    Ok(true)
}

fn sum(transaction: &Transaction, accounts: &Table) -> Result<u64> {
    let (mut sum, mut cursor) = (0, transaction.range(accounts, ..)?);
    while let Some(entry) = cursor.next()? {
        sum += entry.inline_value().and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes);
    }
    Ok(sum)
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // `Durability::Synced`, the default, makes each commit wait for the device.
    let options = Options::default().durability(Durability::Deferred);
    let database = Database::create(directory.path().join("bank.vellum"), &options)?;
    let accounts = database.create_table("accounts")?;
    let opening = database.begin()?;
    for account in 0..ACCOUNTS {
        opening.put(&accounts, account.to_be_bytes(), 100u64.to_le_bytes())?;
    }
    opening.commit()?;

    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (database, accounts, moved) = (&database, &accounts, &moved);
                scope.spawn(move || -> Result<()> {
                    for number in 0..TRANSFERS {
                        let (from, to) = (number * 7919 % ACCOUNTS, (number * 104_729 + thread) % ACCOUNTS);
                        // Run again if another transaction was faster.
                        let done =
                            database.run(|transaction| transfer(transaction, accounts, from, to, 30))?;
                        moved.fetch_add(u64::from(done), Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        for _ in 0..3 {
            let report = database.begin()?;
            println!("in all accounts: {}", sum(&report, &accounts)?);
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
    })?;
    println!("{} transfers; in all accounts: {}", moved.into_inner(), sum(&database.begin()?, &accounts)?);
    drop(accounts);
    database.close()
}
