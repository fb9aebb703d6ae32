//! Money moves between accounts, by several threads at once, and a report reads all of them at one moment.
//!
//! `cargo run -p vellum --example transactions`

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};
use vellum::{Database, Durability, Options, Result, Table, TableName, Transaction};

const COUNT: u64 = 1000;
const THREADS: u64 = 2;
const TRANSFERS: u64 = 5000;

/// What each account has.
const ACCOUNTS: TableName<u64, u64> = TableName::new("accounts");

/// Moves an amount from one account to another, if the first has it.
fn transfer(
    transaction: &Transaction,
    accounts: &Table<u64, u64>,
    from: u64,
    to: u64,
    amount: u64,
) -> Result<bool> {
    let has = transaction.get(accounts, from)?.unwrap_or(0);
    if has < amount || from == to {
        return Ok(false);
    }
    transaction.put(accounts, from, has - amount)?;
    transaction.update_with(accounts, to, |other| Some(other.unwrap_or(0) + amount))?;
    Ok(true)
}

fn sum(transaction: &Transaction, accounts: &Table<u64, u64>) -> Result<u64> {
    transaction.range(accounts, ..)?.map(|entry| Ok(entry?.1)).sum()
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // `Durability::Synced`, the default, makes each commit wait for the device.
    let options = Options::default().durability(Durability::Deferred);
    let database = Database::create(directory.path().join("bank.vellum"), &options)?;
    let accounts = database.create_table(ACCOUNTS)?;
    let opening = database.begin()?;
    for account in 0..COUNT {
        opening.put(&accounts, account, 100)?;
    }
    opening.commit()?;

    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (database, accounts, moved) = (&database, &accounts, &moved);
                scope.spawn(move || -> Result<()> {
                    for number in 0..TRANSFERS {
                        let (from, to) = (number * 7919 % COUNT, (number * 104_729 + thread) % COUNT);
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
