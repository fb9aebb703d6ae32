//! What of a log may not be given up yet.

use std::collections::BTreeMap;
use vellum_base::Lsn;

/// What may not be given up yet.
#[derive(Default)]
pub(crate) struct Kept {
    /// What is being copied or followed, by a name.
    needs: BTreeMap<u64, Need>,
    /// Nothing before this place is needed otherwise.
    pub discarded: u64,
}

/// The log is needed from a place on, but no more of it than so many bytes before its end.
struct Need {
    from: u64,
    bytes_max: u64,
}

impl Kept {
    /// Something more is needed from a place on. Gives it a name.
    pub fn add(&mut self, from: u64, bytes_max: u64) -> u64 {
        let name = self.needs.last_key_value().map_or(0, |(last, _)| last + 1);
        self.needs.insert(name, Need { from, bytes_max });
        name
    }

    /// What has this name is needed from this place on.
    pub fn keep(&mut self, name: u64, from: Lsn) {
        if let Some(need) = self.needs.get_mut(&name) {
            need.from = from.0;
        }
    }

    pub fn keep_no_more(&mut self, name: u64) {
        self.needs.remove(&name);
    }

    /// From where on the log, which ends at `end`, is needed. A planted bug forgets those that follow.
    pub fn first_needed(&self, end: u64, forgets_followers: bool) -> u64 {
        let needs = self.needs.values().filter(|need| !forgets_followers || need.bytes_max == u64::MAX);
        let first = needs.map(|need| need.from.max(end.saturating_sub(need.bytes_max))).min();
        first.unwrap_or(u64::MAX)
    }
}
