//! Which of the clients that change tables at the same time is refused what: the first to claim something has it.
//!
//! A client sees the tables as they were when it began. So it is also refused what was changed since by one that was committed.

use std::collections::{BTreeMap, BTreeSet};

/// What a table keeps when it is renamed or cleared.
pub type Id = u64;

/// Something that a client changes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Claim {
    /// The table that has this name, if any has.
    Name(String),
    /// A table as a whole, which nobody else may change in any way meanwhile.
    Whole(Id),
    /// All that a table holds at once: it is created, loaded, cleared or dropped. Its client claims the whole as well.
    Contents(Id),
    /// Any records of a table.
    Records(Id),
    Record(Id, Vec<u8>),
}

impl Claim {
    /// The name that it is about.
    pub fn name(&self) -> Option<&String> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The key of the record of this table that it is about.
    pub fn key_in(&self, table: Id) -> Option<&Vec<u8>> {
        match self {
            Self::Record(id, key) if *id == table => Some(key),
            _ => None,
        }
    }
}

/// What one client has claimed.
#[derive(Clone, Default)]
pub struct Claims {
    /// How many changes had been committed when it began.
    begun: u64,
    /// All that it has claimed, in order, without what it took back.
    now: Vec<Claim>,
    /// What it keeps from others to its end, though it takes it back.
    kept: BTreeSet<Claim>,
    /// Others may have been in its way of whom nothing is known.
    is_doubtful: bool,
}

/// Whether a claim is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    Granted,
    Uncertain,
    Refused,
}

/// What was committed, in the order of the changes.
#[derive(Default)]
pub struct Book {
    changes: u64,
    /// The last change of each.
    last: BTreeMap<Claim, u64>,
    /// Of those that were perhaps changed: it was taken back, or left as it was in the end.
    last_perhaps: BTreeMap<Claim, u64>,
}

impl Claims {
    /// Notes what it has claimed.
    pub fn add(&mut self, claims: Vec<Claim>) {
        // What it claims of contents of its own is its own matter.
        let is_kept = |claim: &&Claim| match claim {
            Claim::Name(_) | Claim::Records(_) => true,
            Claim::Record(id, _) => !self.has(&Claim::Contents(*id)),
            Claim::Whole(_) | Claim::Contents(_) => false,
        };
        let kept: Vec<_> = claims.iter().filter(is_kept).cloned().collect();
        self.kept.extend(kept);
        self.now.extend(claims);
    }

    pub fn has(&self, claim: &Claim) -> bool {
        self.now.contains(claim)
    }

    /// How much it has claimed: a place to which it may go back.
    pub fn len(&self) -> usize {
        self.now.len()
    }

    /// Takes back what it has claimed since.
    pub fn go_back(&mut self, len: usize) {
        self.now.truncate(len);
    }

    /// Others may be in its way of whom nothing is known.
    pub fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.now.iter()
    }

    /// Whether it keeps something from others.
    fn keeps(&self, claim: &Claim) -> bool {
        match claim {
            Claim::Whole(id) => self.has(claim) || self.kept.contains(&Claim::Records(*id)),
            Claim::Records(id) => self.has(&Claim::Whole(*id)),
            Claim::Name(_) | Claim::Record(..) => self.kept.contains(claim),
            Claim::Contents(_) => false,
        }
    }
}

impl Book {
    /// What a client has that begins now.
    pub fn begin(&self) -> Claims {
        Claims { begun: self.changes, ..Claims::default() }
    }

    /// Whether a client is refused anything of this beside the others.
    pub fn judge<'c>(
        &self,
        claims: &[Claim],
        by: &Claims,
        others: impl Iterator<Item = &'c Claims> + Clone,
    ) -> Verdict {
        let is_later = |changes: &BTreeMap<Claim, u64>, claim: &Claim| {
            changes.get(claim).is_some_and(|change| *change > by.begun)
        };
        let was_changed = |changes, claim: &Claim| match claim {
            // Nobody else has changed contents of its own.
            Claim::Record(id, _) if by.has(&Claim::Contents(*id)) => false,
            Claim::Whole(id) | Claim::Records(id) => is_later(changes, &Claim::Contents(*id)),
            claim => is_later(changes, claim),
        };
        let is_refused =
            |claim: &Claim| others.clone().any(|other| other.keeps(claim)) || was_changed(&self.last, claim);
        if claims.iter().any(is_refused) {
            Verdict::Refused
        } else if by.is_doubtful || claims.iter().any(|claim| was_changed(&self.last_perhaps, claim)) {
            Verdict::Uncertain
        } else {
            Verdict::Granted
        }
    }

    /// A client was committed that has left some things as they were, though it has changed them.
    pub fn commit(&mut self, claims: Claims, unchanged: &BTreeSet<Claim>) {
        self.changes += 1;
        let (certain, perhaps): (Vec<_>, Vec<_>) =
            claims.now.into_iter().partition(|claim| !unchanged.contains(claim));
        self.last.extend(certain.into_iter().map(|claim| (claim, self.changes)));
        let perhaps = perhaps.into_iter().chain(claims.kept);
        self.last_perhaps.extend(perhaps.map(|claim| (claim, self.changes)));
    }
}
