//! What part of a log may not be given up yet.

use crate::LogKeeper;
use std::collections::BTreeMap;
use vellum_base::Lsn;

/// What part of a log may not be given up yet.
#[derive(Default)]
pub(crate) struct Kept {
    /// What is being copied or followed, by its key.
    needs: BTreeMap<u64, Need>,
    /// Nothing before this place is needed otherwise.
    pub discarded: u64,
}

/// The log is needed from a place on, but no more than `bytes_max` before its end.
struct Need {
    from: u64,
    bytes_max: u64,
    keeper: LogKeeper,
}

impl Need {
    fn first(&self, end: u64) -> u64 {
        self.from.max(end.saturating_sub(self.bytes_max))
    }
}

impl Kept {
    /// Adds a need of `keeper` from a place on. Returns its key.
    pub fn add(&mut self, from: u64, bytes_max: u64, keeper: LogKeeper) -> u64 {
        let name = self.needs.last_key_value().map_or(0, |(last, _)| last + 1);
        self.needs.insert(name, Need { from, bytes_max, keeper });
        name
    }

    /// From now on the need with this key begins at this place.
    pub fn keep(&mut self, name: u64, from: Lsn) {
        if let Some(need) = self.needs.get_mut(&name) {
            need.from = from.0;
        }
    }

    pub fn keep_no_more(&mut self, name: u64) {
        self.needs.remove(&name);
    }

    /// The first place that is needed of the log, which ends at `end`. A planted bug forgets followers.
    pub fn first_needed(&self, end: u64, forgets_followers: bool) -> u64 {
        let needs = self.needs.values().filter(|need| !forgets_followers || need.bytes_max == u64::MAX);
        let first = needs.map(|need| need.first(end)).min();
        first.unwrap_or(u64::MAX)
    }

    /// The keeper that needs the most of the log before `lsn`; the log ends at `end`.
    pub fn keeper_before(&self, lsn: u64, end: u64) -> Option<LogKeeper> {
        let first = self.needs.values().min_by_key(|need| need.first(end));
        first.filter(|need| need.first(end) < lsn).map(|need| need.keeper.clone())
    }
}
