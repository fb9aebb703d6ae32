//! Records that a generation has taken while only open writers had changed them. Snapshots that an earlier generation covers
//! must know of them once their writers are committed.

use crate::{
    shard::Changed,
    writer::{State, Writer},
};
use std::sync::Arc;

/// The hashes of such records.
pub(super) enum OpenRecords {
    /// Each with the last of its writers, and how large a filter is for more.
    Each(Vec<(u64, Arc<Writer>)>, usize),
    /// So many that any of them may have been changed by each of the writers.
    Many(Changed),
}

impl OpenRecords {
    /// None yet. If they become many, they are noted in a filter that is as large as this one.
    pub fn new(like: &Changed) -> Self {
        Self::Each(Vec::new(), like.lines())
    }

    /// Notes a record.
    pub fn add(&mut self, hash: u64, writer: &Arc<Writer>) {
        /// They take 2 MiB of memory; a filter takes 2 to 16.
        const EACH_MAX: usize = if cfg!(test) { 4 } else { 128 << 10 };
        match self {
            Self::Each(each, lines) => {
                each.push((hash, writer.clone()));
                if each.len() > EACH_MAX {
                    let many = Changed::with_lines(*lines);
                    each.iter().for_each(|(hash, _)| many.note(*hash));
                    *self = Self::Many(many);
                }
            }
            Self::Many(many) => many.note(hash),
        }
    }

    /// Whether some may have been committed since. `writers` are all that were open.
    pub fn is_any_committed<'w>(&self, mut writers: impl Iterator<Item = &'w Arc<Writer>>) -> bool {
        match self {
            Self::Each(each, _) => each.iter().any(|(_, writer)| is_committed(writer)),
            Self::Many(_) => writers.any(is_committed),
        }
    }

    /// Notes those as changed that may have been committed since. Nobody else notes anything in that filter meanwhile, or
    /// asks.
    pub fn note_committed<'w>(&self, writers: impl Iterator<Item = &'w Arc<Writer>>, changed: &Changed) {
        match self {
            Self::Each(each, _) => each
                .iter()
                .filter(|(_, writer)| is_committed(writer))
                .for_each(|(hash, _)| changed.note(*hash)),
            Self::Many(many) if self.is_any_committed(writers) => changed.note_all(many),
            Self::Many(_) => {}
        }
    }
}

fn is_committed(writer: &Arc<Writer>) -> bool {
    matches!(writer.state(), State::Committed(_))
}
