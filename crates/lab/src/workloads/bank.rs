//! A bank: transfers between accounts, a few of which everybody wants, and looks at all of them.
//!
//! A transfer takes from one account what is there, and gives it to another one. In an engine with transactions a look at all
//! accounts always finds the same sum; in any engine the sum is right when no thread is at work.

use crate::config::{Specification, Workload};
use crate::engines::store::{Access, Session, Store, Transaction, is_conflict};
use crate::keys::Generator;
use crate::measure::statistics::Latencies;
use crate::workloads::record_workload::{Findings, RecordWorkload};
use crate::workloads::{Pace, Pass, run_threads, until_deadline};
use crate::{Failure, Result};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is on each account in the beginning.
const BALANCE: u64 = 1000;
/// One transaction in so many looks at all accounts.
const LOOK_EVERY: u64 = 32;
/// The size of an account, in bytes, of which the balance is the first eight.
const ACCOUNT_BYTES: usize = 64;

/// The workload.
pub struct Bank {
    accounts: u32,
    seed: u64,
    transfers: AtomicU64,
    looks: AtomicU64,
    conflicts: AtomicU64,
}

fn balance(account: &[u8]) -> u64 {
    account.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Adds to the balance of an account; `false` if it is too small for what is taken.
fn add(account: &mut [u8], amount: i64) -> bool {
    let Some(bytes) = account.first_chunk_mut() else { return false };
    let Some(sum) = u64::from_le_bytes(*bytes).checked_add_signed(amount) else { return false };
    *bytes = sum.to_le_bytes();
    true
}

impl Bank {
    fn total(&self) -> u64 {
        u64::from(self.accounts) * BALANCE
    }

    fn sum(transaction: &mut impl Transaction) -> Result<u64> {
        let mut sum = 0;
        transaction.scan(0, &[], |_, account| {
            sum += balance(account);
            ControlFlow::Continue(())
        })?;
        Ok(sum)
    }

    fn transfer<S: Store>(&self, session: &mut S::Session<'_>, generator: &mut Generator) -> Result<()> {
        let from = generator.below(u64::from(self.accounts)) as u32;
        let other = generator.below(u64::from(self.accounts) - 1) as u32;
        let to = if other < from { other } else { other + 1 };
        let amount = generator.below(20) as i64 + 1;
        let mut transaction = session.begin(Access::Write)?;
        let taken = transaction.modify(0, &from.to_be_bytes(), |account| add(account, -amount))?;
        if taken == Some(true) {
            transaction.modify(0, &to.to_be_bytes(), |account| add(account, amount))?;
        }
        transaction.commit()
    }

    fn look<S: Store>(&self, session: &mut S::Session<'_>) -> Result<()> {
        let mut transaction = session.begin(Access::Read)?;
        let sum = Self::sum(&mut transaction)?;
        transaction.commit()?;
        if S::HAS_TRANSACTIONS && sum != self.total() {
            let text =
                format!("a transaction has seen {sum} on all accounts, where there are {}", self.total());
            return Err(Failure::Check(text).into());
        }
        Ok(())
    }
}

impl RecordWorkload for Bank {
    const TIMES_ALL: bool = true;

    fn new(specification: &Specification) -> Result<Self> {
        let Workload::Bank { accounts } = specification.workload else {
            return Err("the specification is not of a bank".into());
        };
        let [transfers, looks, conflicts] = [0; 3].map(AtomicU64::new);
        Ok(Self { accounts, seed: specification.seed, transfers, looks, conflicts })
    }

    fn tables(&self) -> &'static [&'static str] {
        &["accounts"]
    }

    fn payload_bytes(&self) -> u64 {
        u64::from(self.accounts) * (4 + ACCOUNT_BYTES as u64)
    }

    fn load<S: Store>(&self, store: &S) -> Result<()> {
        let mut account = [0; ACCOUNT_BYTES];
        add(&mut account, BALANCE as i64);
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Write)?;
        for number in 0..self.accounts {
            transaction.insert(0, &number.to_be_bytes(), &account)?;
        }
        transaction.commit()
    }

    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass> {
        let prepare =
            |thread: usize| Ok((store.session()?, Generator::new(self.seed, thread as u64, pace.round)));
        run_threads(pace.threads, prepare, |(mut session, mut generator), start| {
            let (mut transfers, mut looks, mut conflicts) = (0, 0, 0);
            let work = until_deadline(pace, start, Latencies::new()?, || {
                let is_look = generator.below(LOOK_EVERY) == 0;
                *if is_look { &mut looks } else { &mut transfers } += 1;
                let mut baton = None;
                loop {
                    let done = if is_look {
                        self.look::<S>(&mut session)
                    } else {
                        self.transfer::<S>(&mut session, &mut generator)
                    };
                    drop(baton.take());
                    match done {
                        Err(error) if is_conflict(&error) => {
                            conflicts += 1;
                            baton = session.wait_after(&error);
                        }
                        done => return done,
                    }
                }
            });
            for (total, count) in
                [(&self.transfers, transfers), (&self.looks, looks), (&self.conflicts, conflicts)]
            {
                // Relaxed: counts, read when the threads have ended.
                total.fetch_add(count, Ordering::Relaxed);
            }
            work
        })
    }

    fn check<S: Store>(&self, store: &S) -> Result<Findings> {
        let mut session = store.session()?;
        let mut transaction = session.begin(Access::Read)?;
        let sum = Self::sum(&mut transaction)?;
        transaction.commit()?;
        let mut findings = Findings { checked: "the sum of all accounts".to_owned(), problems: Vec::new() };
        if sum != self.total() {
            findings.add(format!("there is {sum} on all accounts, where there were {}", self.total()));
        }
        Ok(findings)
    }

    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)> {
        let [transfers, looks, conflicts] =
            [&self.transfers, &self.looks, &self.conflicts].map(|count| count.load(Ordering::Relaxed));
        let text = format!("{transfers} transfers, {looks} looks at all accounts, {conflicts} conflicts");
        Ok((json!({ "transfers": transfers, "looks": looks, "conflicts": conflicts }), vec![text]))
    }
}
