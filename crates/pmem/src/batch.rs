//! Batches of operations: with fewer fences, and with cache misses that overlap. Each operation by itself works as
//! `core.rs` describes.

use crate::{
    core::{Core, Sites, Writer},
    error::Result,
    format::{Format, Record},
    layout::Place,
    medium::{Medium, Site},
};
use std::collections::BTreeSet;

const BATCH: Sites = Sites { record: Site::BatchRecord, publish: Site::BatchPublish };

/// How many operations share their fences.
const GROUP: usize = 64;

impl<L: Format, M: Medium> Core<L, M> {
    /// Prefetches everything that operations on these hashes read, level by level, so that their cache misses overlap.
    #[inline]
    pub fn prefetch_all(&self, hashes: impl Iterator<Item = u64> + Clone) {
        hashes.clone().for_each(|hash| self.index.prefetch_for_change(hash));
        for place in hashes.filter_map(|hash| self.index.guess(hash)) {
            L::prefetch(&self.medium, self.geometry, Place(place));
        }
    }

    /// Stores several values, each as [`put`](Self::put) would, with fewer fences. Counts those that are stored: after an error, too, they
    /// must not be stored again, as others may have changed them since.
    pub fn put_batch<'b>(
        &self,
        writer: &mut Writer<L>,
        entries: impl Iterator<Item = (&'b [u8], &'b [u8])>,
        stored: &mut usize,
    ) -> Result<()> {
        self.check_writable()?;
        let mut entries = entries.map(|(key, value)| (self.hash(key), key, value)).peekable();
        let mut given = Vec::with_capacity(GROUP);
        let mut group = Vec::with_capacity(GROUP);
        while entries.peek().is_some() {
            group.clear();
            given.clear();
            given.extend(entries.by_ref().take(GROUP));
            self.prefetch_all(given.iter().map(|(hash, ..)| *hash));
            let mut failure = Ok(());
            for (hash, key, value) in given.iter().copied() {
                let appended = self
                    .check_lengths(key, value)
                    .and_then(|()| self.append_new(writer, Site::BatchRecord, hash, key, value));
                match appended {
                    Ok(record) => group.push((hash, key, record)),
                    Err(error) => {
                        failure = Err(error);
                        break;
                    }
                }
            }
            // The records written so far are completed even if the next could not be written: a log ends at a record
            // that is not valid.
            let written = group.iter().map(|(_, _, (place, record, _))| (*place, record));
            self.publish(writer, BATCH, written)?;
            for (hash, key, record) in &group {
                self.settle(writer, *hash, key, *record)?;
            }
            *stored += group.len();
            self.settle_owed(writer)?;
            failure?;
        }
        Ok(())
    }

    /// Removes several keys with fewer fences; returns how many were there.
    pub fn delete_batch<'b>(
        &self,
        writer: &mut Writer<L>,
        keys: impl Iterator<Item = &'b [u8]>,
    ) -> Result<u64> {
        self.check_writable()?;
        let mut keys = keys.map(|key| (self.hash(key), key)).peekable();
        let mut removed = 0;
        while keys.peek().is_some() {
            let group: Vec<(u64, &[u8])> = keys.by_ref().take(GROUP).collect();
            self.prefetch_all(group.iter().map(|(hash, _)| *hash));
            let held = self.stripes.lock_all(group.iter().map(|(hash, _)| *hash));
            let mut seen = BTreeSet::new();
            let found: Vec<(u64, Place, Record)> = group
                .iter()
                .filter_map(|(hash, key)| {
                    let (place, record) = self.find_locked(*hash, key)?;
                    seen.insert(place).then_some((*hash, place, record))
                })
                .collect();
            self.settle_stripes(writer, found.iter().map(|(hash, ..)| *hash))?;
            for (_, place, record) in &found {
                self.retract(writer, Site::BatchDelete, *place, record);
            }
            self.fence(writer, Site::BatchDelete)?;
            found.iter().for_each(|(hash, place, _)| self.index.remove(*hash, place.0));
            drop(held);
            for (_, place, record) in &found {
                self.freed(writer, *place, record)?;
            }
            removed += found.len() as u64;
        }
        Ok(removed)
    }
}
