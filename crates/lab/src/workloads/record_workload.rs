//! What workloads on records of several tables have in common.

use crate::config::Specification;
use crate::engines::store::Store;
use crate::workloads::{Pace, Pass};
use crate::{Failure, Result};

/// A workload on records of several tables.
pub trait RecordWorkload: Sized + Sync {
    /// Whether every operation is timed, whatever the pace says.
    const TIMES_ALL: bool;

    /// The workload that a specification asks for.
    ///
    /// # Errors
    /// If it asks for another one.
    fn new(specification: &Specification) -> Result<Self>;

    /// The names of the tables, in the order of their numbers.
    fn tables(&self) -> &'static [&'static str];

    /// About how many bytes of keys and values there will be at the end.
    fn payload_bytes(&self) -> u64;

    /// Fills the tables.
    ///
    /// # Errors
    /// What the engine says.
    fn load<S: Store>(&self, store: &S) -> Result<()>;

    /// Works until the time is over.
    ///
    /// # Errors
    /// What the engine says, or that it gave something that cannot be.
    fn pass<S: Store>(&self, store: &S, pace: &Pace) -> Result<Pass>;

    /// Checks all that is stored, while no thread changes it; gives what was found for each thing that was checked.
    ///
    /// # Errors
    /// What the engine says.
    fn check<S: Store>(&self, store: &S) -> Result<Findings>;

    /// What it counted, and remarks on it.
    ///
    /// # Errors
    /// If figures cannot be added up.
    fn summary(&self) -> Result<(serde_json::Value, Vec<String>)>;
}

/// What a check found.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was checked, in words.
    pub checked: String,
    /// What is wrong; nothing, if all is as it should be.
    pub problems: Vec<String>,
}

impl Findings {
    /// How many problems are told.
    const TOLD_MAX: usize = 5;

    /// One problem more.
    pub fn add(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// # Errors
    /// If something is wrong; the first problems are named.
    pub fn judge(&self, when: &str) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let told = &self.problems[..self.problems.len().min(Self::TOLD_MAX)];
        let text =
            format!("{when}, {} things are not as they should be: {}", self.problems.len(), told.join("; "));
        Err(Failure::Check(text).into())
    }
}
