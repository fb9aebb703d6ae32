//! What one thread does: the terminals of its home warehouses.

use super::clients::Clients;
use super::keys;
use super::outcome::Outcome;
use super::random::{Constants, Random};
use super::{delivery, new_order, now, payment, reports};
use crate::Result;
use crate::engines::store::{Access, Session, Transaction, is_conflict};
use crate::measure::statistics::Latencies;
use serde_json::json;
use std::time::Instant;
use vellum::Arrival;

/// The transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Clause 2.4.
    NewOrder,
    /// Clause 2.5.
    Payment,
    /// Clause 2.6.
    OrderStatus,
    /// Clause 2.7.
    Delivery,
    /// Clause 2.8.
    StockLevel,
}

/// All of them, and how often each is in a deck of a hundred cards: clause 5.2.3.
const MIX: [(Kind, usize); 5] = [
    (Kind::NewOrder, 45),
    (Kind::Payment, 43),
    (Kind::OrderStatus, 4),
    (Kind::Delivery, 4),
    (Kind::StockLevel, 4),
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::NewOrder => "new_order",
            Self::Payment => "payment",
            Self::OrderStatus => "order_status",
            Self::Delivery => "delivery",
            Self::StockLevel => "stock_level",
        }
    }
}

/// What was done, by kind.
pub struct Counts {
    latencies: Vec<Latencies>,
    rolled_back: u64,
    conflicts: u64,
    skipped: u64,
    /// Transactions that have changed something.
    commits: u64,
    /// How many clients waited, of a thread, when one more began to; and how often that was.
    waiting: (u64, u64),
}

impl Counts {
    /// Nothing yet.
    ///
    /// # Errors
    /// If histograms cannot be made, which their fixed bounds exclude.
    pub fn new() -> Result<Self> {
        let latencies = MIX.iter().map(|_| Latencies::new()).collect::<Result<_>>()?;
        Ok(Self { latencies, rolled_back: 0, conflicts: 0, skipped: 0, commits: 0, waiting: (0, 0) })
    }

    /// Transactions.
    pub fn operations(&self) -> u64 {
        self.latencies.iter().map(Latencies::samples).sum()
    }

    /// The latencies of all kinds together.
    ///
    /// # Errors
    /// If they cannot be added up, which their equal bounds exclude.
    pub fn all(&self) -> Result<Latencies> {
        let mut all = Latencies::new()?;
        self.latencies.iter().try_for_each(|latencies| all.add(latencies))?;
        Ok(all)
    }

    /// Adds what another thread or round did.
    ///
    /// # Errors
    /// As for [`all`](Self::all).
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.rolled_back += other.rolled_back;
        self.skipped += other.skipped;
        self.conflicts += other.conflicts;
        self.commits += other.commits;
        self.waiting = (self.waiting.0 + other.waiting.0, self.waiting.1 + other.waiting.1);
        self.latencies.iter_mut().zip(&other.latencies).try_for_each(|(to, from)| to.add(from))
    }

    /// Transactions that have changed something.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// How many clients of a thread wait, on average, when one more begins to; none if threads wait themselves.
    pub fn clients_waiting(&self) -> Option<f64> {
        (self.waiting.1 > 0).then(|| self.waiting.0 as f64 / self.waiting.1 as f64)
    }

    /// The share of one in the other, in percent.
    fn percent(part: u64, whole: u64) -> f64 {
        100.0 * part as f64 / whole.max(1) as f64
    }

    /// How often each was run, and how long it took.
    pub fn to_json(&self) -> serde_json::Value {
        let mut all = serde_json::Map::new();
        for ((kind, _), latencies) in MIX.iter().zip(&self.latencies) {
            let percentiles = latencies.percentiles();
            let mut one = json!({
                "count": latencies.samples(),
                "percent": Self::percent(latencies.samples(), self.operations()),
                "p50_ns": percentiles.p50_ns,
                "p99_ns": percentiles.p99_ns,
                "p999_ns": percentiles.p999_ns,
            });
            match kind {
                Kind::NewOrder => one["rolled_back"] = self.rolled_back.into(),
                Kind::Delivery => one["districts_skipped"] = self.skipped.into(),
                _ => {}
            }
            all.insert(kind.name().to_owned(), one);
        }
        all.into()
    }

    /// The same in words.
    pub fn remark(&self) -> String {
        let total = self.operations();
        let mut text = format!("{total} transactions:");
        for ((kind, _), latencies) in MIX.iter().zip(&self.latencies) {
            let percent = Self::percent(latencies.samples(), total);
            let median_us = latencies.percentiles().p50_ns as f64 / 1000.0;
            text += &format!(" {} {percent:.1} % (median {median_us:.1} us),", kind.name());
        }
        let new_orders = self.latencies.first().map_or(0, Latencies::samples);
        let rolled_back = Self::percent(self.rolled_back, new_orders);
        text + &format!(
            " of the new orders {rolled_back:.1} % rolled back, {} districts without a delivery, {} conflicts ({:.3} %)",
            self.skipped,
            self.conflicts,
            Self::percent(self.conflicts, total + self.conflicts)
        )
    }
}

/// Which part of the work a thread has.
#[derive(Debug)]
pub struct Plan {
    /// The thread, from zero.
    pub thread: usize,
    /// How many there are.
    pub threads: usize,
    /// How many clients each serves.
    pub clients: usize,
    /// Whether several threads deliver for one warehouse without transactions.
    pub is_shared: bool,
    /// How many warehouses there are.
    pub warehouses: u32,
    /// The constants of the run.
    pub constants: Constants,
    /// What it draws from.
    pub random: Random,
}

impl Plan {
    /// The home warehouses: threads are spread over warehouses, or warehouses over threads.
    fn homes(&self) -> Vec<u32> {
        let (thread, threads) = (self.thread as u32, self.threads as u32);
        if threads <= self.warehouses {
            (1..=self.warehouses).filter(|warehouse| (warehouse - 1) % threads == thread).collect()
        } else {
            vec![thread % self.warehouses + 1]
        }
    }
}

/// A warehouse other than `home`, or `home` if there is no other.
fn other_warehouse(random: &mut Random, home: u32, warehouses: u32) -> u32 {
    if warehouses == 1 {
        return home;
    }
    let other = random.within(1, warehouses - 1);
    if other < home { other } else { other + 1 }
}

/// One thread's work.
pub struct Terminal<S> {
    session: S,
    plan: Plan,
    homes: Vec<u32>,
    /// What is left of a deck of a hundred cards, each the place of a kind in the mix.
    deck: Vec<usize>,
    /// The number of the next payment.
    payment: u64,
    counts: Counts,
    clients: Clients,
    items: Vec<u32>,
}

impl<S: Session> Terminal<S> {
    /// The work of one thread that has made so many payments before.
    ///
    /// # Errors
    /// As for [`Counts::new`].
    pub fn new(plan: Plan, session: S, payments: u64) -> Result<Self> {
        let homes = plan.homes();
        Ok(Self {
            session,
            homes,
            clients: Clients::new(plan.clients),
            plan,
            deck: Vec::with_capacity(100),
            payment: payments,
            counts: Counts::new()?,
            items: Vec::with_capacity(400),
        })
    }

    /// Runs transactions until the time is over, timing each from its begin until it is acknowledged.
    ///
    /// # Errors
    /// What the engine says, or that a row is missing.
    pub fn work(&mut self, start: Instant, deadline: Instant) -> Result<()> {
        let mut begin = start;
        loop {
            let card = self.draw();
            let (kind, _) = MIX[card];
            // A transaction that conflicts is run again, with other input, and its time counts.
            let mut baton = None;
            let (outcome, arrival) = loop {
                let outcome = self.one(kind);
                drop(baton.take());
                match outcome {
                    Err(error) if is_conflict(&error) => {
                        self.counts.conflicts += 1;
                        baton = self.session.wait_after(&error);
                    }
                    outcome => break outcome?,
                }
            };
            match outcome {
                Outcome::Done => {}
                Outcome::RolledBack => self.counts.rolled_back += 1,
                Outcome::Skipped(districts) => self.counts.skipped += u64::from(districts),
            }
            let end = Instant::now();
            match arrival {
                Some(arrival) => {
                    let waiting = self.clients.wait(arrival, card, begin)?;
                    self.counts.waiting.0 += waiting as u64;
                    self.counts.waiting.1 += 1;
                }
                None => self.counts.latencies[card].record(end - begin),
            }
            let (counts, is_end) = (&mut self.counts, end >= deadline);
            self.clients.acknowledge(is_end, |card, latency| counts.latencies[card].record(latency))?;
            if is_end {
                return Ok(());
            }
            begin = if self.clients.are_many() { Instant::now() } else { end };
        }
    }

    /// What was done, and how many payments the thread has made so far.
    pub fn finish(self) -> (Counts, u64) {
        (self.counts, self.payment)
    }

    /// The next card of a shuffled deck: clause 5.2.4.2.
    fn draw(&mut self) -> usize {
        if self.deck.is_empty() {
            let cards =
                MIX.iter().enumerate().flat_map(|(place, (_, count))| std::iter::repeat_n(place, *count));
            self.deck.extend(cards);
            self.plan.random.shuffle(&mut self.deck);
        }
        self.deck.pop().unwrap_or(0)
    }

    /// Runs one transaction; gives what is to be waited for, if the thread does not wait itself.
    fn one(&mut self, kind: Kind) -> Result<(Outcome, Option<Arrival>)> {
        let random = &mut self.plan.random;
        let constants = &self.plan.constants;
        let home = self.homes[random.within(0, self.homes.len() as u32 - 1) as usize];
        let warehouses = self.plan.warehouses;
        let other = |random: &mut Random| other_warehouse(random, home, warehouses);
        let access = match kind {
            Kind::OrderStatus | Kind::StockLevel => Access::Read,
            _ => Access::Write,
        };
        let (mut transaction, outcome);
        match kind {
            Kind::NewOrder => {
                let input = new_order::Input::draw(random, constants, home, other, now());
                transaction = self.session.begin(access)?;
                outcome = new_order::run(&mut transaction, &input)?;
            }
            Kind::Payment => {
                let input = payment::Input::draw(random, constants, home, other, now());
                let key = keys::history(self.plan.thread as u32 + 1, self.payment);
                self.payment += 1;
                transaction = self.session.begin(access)?;
                outcome = payment::run(&mut transaction, &input, &key)?;
            }
            Kind::OrderStatus => {
                let input = reports::StatusInput::draw(random, constants, home);
                transaction = self.session.begin(access)?;
                outcome = reports::order_status(&mut transaction, &input)?;
            }
            Kind::Delivery => {
                let input = delivery::Input::draw(random, home, self.plan.is_shared, now());
                transaction = self.session.begin(access)?;
                outcome = delivery::run(&mut transaction, &input)?;
            }
            Kind::StockLevel => {
                let input = reports::LevelInput::draw(random, home);
                transaction = self.session.begin(access)?;
                outcome = reports::stock_level(&mut transaction, &input, &mut self.items)?;
            }
        }
        // A transaction that is dropped has changed nothing.
        if outcome == Outcome::RolledBack {
            return Ok((outcome, None));
        }
        let arrival = if self.clients.are_many() {
            transaction.commit_later()?
        } else {
            transaction.commit()?;
            None
        };
        self.counts.commits += u64::from(access == Access::Write);
        Ok((outcome, arrival))
    }
}
