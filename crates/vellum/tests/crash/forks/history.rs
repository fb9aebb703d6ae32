//! What has happened to a database since it was created.

use vellum::{Database, Error, Lsn};

pub type Check<T = ()> = Result<T, String>;

pub fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A commit of so many records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    pub id: u64,
    pub records: u64,
    /// Its place in the log, and where it ends there; `None` if it was not logged.
    pub place: Option<(Lsn, Lsn)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    Commit(Commit),
    /// A feed has told this position: its index among all, and its place.
    Told {
        index: usize,
        lsn: Lsn,
    },
}

impl Fact {
    pub fn commit(id: u64, records: u64, place: Option<(Lsn, Lsn)>) -> Self {
        Self::Commit(Commit { id, records, place })
    }

    pub fn is_told(&self, position: usize) -> bool {
        matches!(self, Self::Told { index, .. } if *index == position)
    }
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct History(Vec<Fact>);

impl History {
    pub fn push(&mut self, fact: Fact) {
        self.0.push(fact);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn facts(&self) -> &[Fact] {
        &self.0
    }

    pub fn commits(&self) -> Vec<Commit> {
        let commit = |fact: &Fact| if let Fact::Commit(commit) = fact { Some(*commit) } else { None };
        self.0.iter().filter_map(commit).collect()
    }

    pub fn records(&self) -> u64 {
        self.commits().iter().map(|commit| commit.records).sum()
    }

    /// The commits that the records of the database came by.
    pub fn contents(&self) -> Vec<u64> {
        self.commits().iter().flat_map(|commit| (0..commit.records).map(|_| commit.id)).collect()
    }

    pub fn retain(&mut self, is_kept: impl FnMut(&Fact) -> bool) {
        self.0.retain(is_kept);
    }

    /// The longest part from its beginning on that has these contents.
    pub fn with_contents(&self, found: &[u64]) -> Option<Self> {
        let parts = (0..=self.0.len()).rev().map(|end| Self(self.0[..end].to_vec()));
        parts.into_iter().find(|part| part.contents() == found)
    }
}

/// The commits that the records came by, in the order of their keys.
pub fn contents(database: &Database) -> Check<Vec<u64>> {
    let table = match database.table("log") {
        Ok(table) => table,
        Err(Error::NoSuchTable { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(told(error)),
    };
    let entries = table.range(..).map_err(told)?;
    let id = |value: &[u8]| {
        value.first_chunk().map(|id| u64::from_le_bytes(*id)).ok_or("a short value".to_owned())
    };
    entries.map(|entry| entry.map_err(told).and_then(|(_, value)| id(&value))).collect()
}
