//! The objects of the heap that clients share, and what must hold of them: see `heaps`.

use std::sync::Arc;
use vellum::objects::{AnyRef, Array, Change, Heap, Persistent, Ref, Text};
use vellum::{Database, Error, Options, Result};
use vellum_vm::SimulatedDisk;

pub const CLIENTS: usize = 3;
pub const ACCOUNTS: usize = 24;
pub const EACH: i64 = 1000;
/// What the two sides have at first, each: so little that they are soon exhausted.
pub const SIDE: i64 = 60;

#[derive(Persistent, Clone, Debug)]
pub struct All {
    pub marks: [Ref<Mark>; CLIENTS],
    pub sides: [Ref<Account>; 2],
    pub accounts: Array<Ref<Account>>,
}

/// How far a client is.
#[derive(Persistent, Clone, PartialEq, Debug, Default)]
pub struct Mark {
    pub commit: u64,
    /// How far it has seen the others.
    pub seen: [u64; CLIENTS],
    /// What it has taken from the sides.
    pub purse: i64,
    pub items: Array<Ref<Item>>,
}

#[derive(Persistent, Clone, PartialEq, Debug)]
pub struct Account {
    pub balance: i64,
    pub changes: u64,
    /// Always as many as there are changes.
    pub twins: [u64; 5],
}

#[derive(Persistent, Clone, PartialEq, Debug)]
pub struct Item {
    pub owner: u64,
    pub id: u64,
    /// The change that has set it last.
    pub commit: u64,
    pub length: u64,
    pub text: Text,
    /// Always the number of that change.
    pub twins: [u64; 6],
}

impl Item {
    pub fn new(owner: usize, id: u64, commit: u64, length: usize) -> Self {
        let text = String::from(char::from(b'a' + (commit % 26) as u8)).repeat(length);
        Self { owner: owner as u64, id, commit, length: length as u64, text: text.into(), twins: [commit; 6] }
    }

    pub fn is_whole(&self) -> bool {
        *self == Self::new(self.owner as usize, self.id, self.commit, self.length as usize)
    }

    pub fn state(&self) -> (u64, u64, u64) {
        (self.id, self.commit, self.length)
    }
}

pub fn pay(change: &mut Change<'_, '_>, account: Ref<Account>, amount: i64) -> Result<()> {
    change.update(account, |account: &mut Account| {
        account.balance += amount;
        account.changes += 1;
        account.twins = [account.changes; 5];
    })
}

/// What several accounts have.
pub fn sum(change: &mut Change<'_, '_>, accounts: &[Ref<Account>]) -> Result<i64> {
    accounts.iter().map(|account| change.get(*account).map(|account| account.balance)).sum()
}

/// Whether all money is there: in the accounts; and in the sides, which are not overdrawn, and the purses.
pub fn audit(heap: &Heap, all: &All) -> Result<std::result::Result<(), String>> {
    let (accounts, sides, purses) = heap.change(|change| {
        let purses = all.marks.iter().map(|mark| change.get(*mark).map(|mark| mark.purse));
        let purses = purses.sum::<Result<i64>>()?;
        Ok((sum(change, &all.accounts)?, sum(change, &all.sides)?, purses))
    })?;
    let is_right = accounts == ACCOUNTS as i64 * EACH && sides >= 0 && sides + purses == 2 * SIDE;
    Ok(if is_right { Ok(()) } else { Err(format!("accounts {accounts}, sides {sides}, purses {purses}")) })
}

pub fn create(disk: &SimulatedDisk, options: &Options) -> Result<Database> {
    let database = Database::create_in(Arc::new(disk.clone()), "data", options)?;
    let heap = database.create_heap("heap")?;
    // Each in a page of its own, so that changes that have little to do with each other seldom meet.
    let mut fillers: Vec<Ref<Mark>> = Vec::new();
    let mut fill = || {
        let items = vec![AnyRef::from_bits(1 << 20).map(AnyRef::typed).unwrap(); 400].into();
        fillers.push(heap.allocate(&Mark { items, ..Mark::default() })?);
        Ok::<_, Error>(())
    };
    let mut marks = Vec::new();
    for _ in 0..CLIENTS {
        marks.push(heap.allocate(&Mark::default())?);
        fill()?;
    }
    let account = |balance| heap.allocate(&Account { balance, changes: 0, twins: [0; 5] });
    let left = account(SIDE)?;
    fill()?;
    let sides = [left, account(SIDE)?];
    fill()?;
    let accounts = (0..ACCOUNTS).map(|_| account(EACH)).collect::<Result<Vec<_>>>()?.into();
    let all = All { marks: std::array::from_fn(|client| marks[client]), sides, accounts };
    fillers.into_iter().try_for_each(|filler| heap.delete(filler))?;
    heap.set_root(Some(heap.allocate(&all)?))?;
    drop(heap);
    database.sync()?;
    Ok(database)
}
