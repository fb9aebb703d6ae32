//! What of a log may not be given up yet.

use std::collections::BTreeMap;
use vellum_base::Lsn;

/// What may not be given up yet.
#[derive(Default)]
pub(crate) struct Kept {
    /// What is being copied: from where on it is needed, by a name.
    pub from: BTreeMap<u64, u64>,
    /// Nothing before this place is needed otherwise.
    pub discarded: u64,
}

impl Kept {
    /// Something more is needed from a place on. Gives it a name.
    pub fn add(&mut self, from: u64) -> u64 {
        let name = self.from.last_key_value().map_or(0, |(last, _)| last + 1);
        self.from.insert(name, from);
        name
    }

    /// What has this name is needed from this place on.
    pub fn keep(&mut self, name: u64, from: Lsn) {
        self.from.insert(name, from.0);
    }

    pub fn keep_no_more(&mut self, name: u64) {
        self.from.remove(&name);
    }
}
